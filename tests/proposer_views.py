"""Views for tests of proposers: one sequence, no engine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from decodex.spec.proposer import ProposerOptions, ProposerView


def view_of(
    token_ids: Sequence[int],
    key: int = 0,
    depth: int = 8,
    nodes: int | None = None,
    num_prompt_tokens: int = 0,
    prediction: Sequence[int] = (),
    forced: Callable[[Sequence[int]], list[int]] | None = None,
    **options: Any,
) -> ProposerView:
    """A view that wants `depth` tokens; options as in ProposerOptions."""
    return ProposerView(
        key=key,
        slot=key,
        token_ids=token_ids,
        num_prompt_tokens=num_prompt_tokens,
        max_depth=depth,
        max_nodes=depth if nodes is None else nodes,
        options=ProposerOptions(**options),
        prediction=tuple(prediction),
        forced=forced,
    )
