"""Structured output: a Pydantic object, a choice and a regex in one batch, and a schema that is refused.

python examples/structured_output.py [model folder or Hugging Face id]
"""

from __future__ import annotations

import sys
from typing import Literal

from pydantic import BaseModel, Field

from decodex import LLM, RequestError, SamplingParams


class Review(BaseModel):
    """What is read out of a text."""

    product: str = Field(max_length=40)
    sentiment: Literal["good", "bad", "mixed"]
    stars: int = Field(ge=1, le=5)


TEXT = "I bought this kettle in May. It boils fast, but the lid broke after a week. Three stars."


def ask(question: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": f"{question}\n\n{TEXT}"}]


def main(model: str) -> list[str]:
    """Print the answers; returns their texts."""
    llm = LLM(model, max_num_seqs=4)
    [output] = llm.chat(ask("What does this review say?"), SamplingParams(seed=1, max_tokens=80), schema=Review)
    review = output.outputs[0].parsed
    print(type(review).__name__, review)

    constraints = [
        {"choice": ["kitchen", "garden", "office"]},
        {"regex": r"(January|March|May|July) \d{4}"},
        {"json": {"type": "array", "items": {"type": "string", "maxLength": 20}, "maxItems": 3}},
    ]
    questions = ["Where is it used?", "When was it bought?", "List its faults."]
    params = [SamplingParams(seed=2, max_tokens=60, structured_outputs=constraint) for constraint in constraints]
    outputs = llm.chat([ask(question) for question in questions], params)
    texts = [choice.text for output in outputs for choice in output.outputs]
    print("\n".join(texts))

    try:
        llm.chat(ask("?"), schema={"type": "object", "properties": {"a": {"$ref": "https://example.com/a.json"}}})
    except RequestError as error:
        print(error)
    return [output.outputs[0].text, *texts]


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "smollm2-135m")
