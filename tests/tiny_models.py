"""Models small enough to be trained on in seconds, as folders that Transformers wrote."""

from __future__ import annotations

import json
from pathlib import Path

import tokenizers
import torch
import transformers

V = 64
KINDS = {
    "llama": (transformers.LlamaConfig, transformers.LlamaForCausalLM),
    "qwen3": (transformers.Qwen3Config, transformers.Qwen3ForCausalLM),
}


def save_tiny(folder: Path, kind: str, num_layers: int = 8, depth: float = 1.0, **more: object) -> Path:
    """A random model with words w0 (the end) to w63, whose next token is rarely in doubt; it hangs less on what came
    before the last tokens, the smaller `depth`, which scales what layers add."""
    config, model = KINDS[kind]
    torch.manual_seed(0)
    made = model(
        config(
            vocab_size=V,
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=num_layers,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=8,
            max_position_embeddings=256,
            bos_token_id=None,
            eos_token_id=0,
            pad_token_id=None,
            initializer_range=0.3,
            **more,
        )
    )
    with torch.no_grad():
        for layer in made.model.layers:
            layer.self_attn.o_proj.weight *= depth
            layer.mlp.down_proj.weight *= depth
    made.save_pretrained(folder)
    words = [f"w{token}" for token in range(V)]
    backend = tokenizers.Tokenizer(
        tokenizers.models.WordLevel({word: token for token, word in enumerate(words)}, unk_token="w1")
    )
    backend.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    backend.add_special_tokens([words[0]])
    backend.save(str(folder / "tokenizer.json"))
    template = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": words[0], "chat_template": template}))
    return folder
