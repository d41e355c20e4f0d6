"""decodex's row pipeline inside a plain transformers loop: penalties, DRY, a banned word, min-p, a seed.

    python examples/transformers_loop.py [model folder or Hugging Face id]

Without an argument the demo model is fetched once. No engine: the model, its cache and the loop are transformers'.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
import transformers

from decodex import SamplingParams, functional
from decodex.models.source import resolve_model
from decodex.tokenizer import Tokenizer


def main(name: str, max_tokens: int = 32) -> str:
    """Continue two conversations with different parameters in one batch of rows; returns the texts."""
    folder = Path(resolve_model(name).path)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    tokenizer = Tokenizer(folder)
    question = [{"role": "user", "content": "Name three fruits."}]
    prompt = tokenizer.apply_chat_template(question)
    params = [
        SamplingParams(temperature=0.8, min_p=0.05, seed=1, repetition_penalty=1.1, bad_words=["pple"]),
        SamplingParams(temperature=1.0, top_p=0.9, seed=2, frequency_penalty=0.3, dry_multiplier=0.8),
    ]
    rows = [list(prompt) for _ in params]
    cache = transformers.DynamicCache()
    step = torch.tensor(rows)  # [L, T]
    with torch.inference_mode():
        for _ in range(max_tokens):
            logits = model(step, past_key_values=cache).logits[:, -1]  # [L, V]
            tokens = functional.sample(
                logits, params, token_ids=rows, num_prompt_tokens=len(prompt), tokenizer=tokenizer
            )
            for row, token in zip(rows, tokens.tolist(), strict=True):
                row.append(token)
            if all(tokenizer.eos_token_ids & set(row[len(prompt) :]) for row in rows):
                break
            step = tokens[:, None]
    texts = []
    for row in rows:
        output = row[len(prompt) :]
        ends = [at for at, token in enumerate(output) if token in tokenizer.eos_token_ids]
        texts.append(tokenizer.decode(output[: ends[0]] if ends else output))
    return "\n---\n".join(texts)


if __name__ == "__main__":
    print(main(sys.argv[1] if len(sys.argv) > 1 else "smollm2-135m"))
