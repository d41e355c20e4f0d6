"""Speculation: a text is edited with its old version as the prediction, then JSON with what its grammar forces.

python examples/speculation.py [model folder or Hugging Face id]
"""

from __future__ import annotations

import dataclasses
import sys

from decodex import LLM, RequestOutput, SamplingParams

CODE = """def area(width, height):
    return width * height


def volume(width, height, depth):
    return area(width, height) * depth
"""
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 20},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}
PEOPLE = {"type": "array", "items": PERSON, "minItems": 3, "maxItems": 3}


def compare(llm: LLM, question: str, params: SamplingParams) -> tuple[RequestOutput, RequestOutput]:
    """The answer with speculation and without."""
    conversation = [{"role": "user", "content": question}]
    [guessed] = llm.chat(conversation, params)
    [plain] = llm.chat(conversation, dataclasses.replace(params, speculative=False))
    metrics = guessed.metrics.speculation
    if metrics is not None:
        print(
            f"{len(guessed.outputs[0].token_ids)} tokens, {metrics.tokens_per_step:.1f} a step: {metrics.by_proposer}"
        )
    return guessed, plain


def main(model: str) -> list[tuple[RequestOutput, RequestOutput]]:
    llm = LLM(model)
    edit = SamplingParams(temperature=0, seed=1, max_tokens=80, prediction=CODE)
    people = SamplingParams(
        temperature=0.8, seed=3, max_tokens=120, speculative=True, structured_outputs={"json": PEOPLE}
    )
    return [
        compare(llm, f"Repeat this code exactly:\n\n{CODE}", edit),
        compare(llm, "Invent three people as JSON.", people),
    ]


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "smollm2-135m")
