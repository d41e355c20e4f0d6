"""The tokens that a request has used, in OpenAI's shape."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from decodex.outputs import RequestOutput

__all__ = ["usage_of"]


def usage_of(
    outputs: Iterable[RequestOutput], reasoning_tokens: int = 0, *, without_output: bool = False
) -> dict[str, Any]:
    """The sum over a request's prompts. Predicted tokens are those of `prediction` that were tried; `without_output`:
    the tokens were generated to be thrown away."""
    prompt = completion = cached = accepted = drafted = 0
    for output in outputs:
        prompt += len(output.prompt_token_ids)
        completion += 0 if without_output else sum(len(choice.token_ids) for choice in output.outputs)
        cached += output.metrics.num_cached_tokens
        speculation = output.metrics.speculation
        tried, kept = (0, 0) if speculation is None else speculation.by_proposer.get("prediction", (0, 0))
        drafted += tried
        accepted += kept
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": cached},
        "completion_tokens_details": {
            "reasoning_tokens": reasoning_tokens,
            "accepted_prediction_tokens": accepted,
            "rejected_prediction_tokens": drafted - accepted,
        },
    }
