"""Verification: which draft tokens are kept. Pure functions of the target's own tokens and the draft."""

from __future__ import annotations

from collections.abc import Sequence

from decodex.spec.draft import ROOT, Draft

__all__ = ["coupled_walk"]


def coupled_walk(row_tokens: Sequence[int], draft: Draft | None) -> tuple[list[int], list[int]]:
    """Walk from the root: emit the row's token, descend to the child that equals it, else stop.

    `row_tokens` is [K+1]: the target's token at the root row, then at the row of each draft node. Returns the
    emitted tokens (at least one) and the accepted nodes, one fewer. What is emitted equals decoding without a
    draft, whatever the draft was (Daliri et al. 2024, arXiv 2408.07978).
    """
    emitted = [row_tokens[0]]
    accepted: list[int] = []
    if draft is None:
        return emitted, accepted
    children: dict[tuple[int, int], int] = {}
    for node, (parent, token) in enumerate(zip(draft.parents, draft.token_ids, strict=True)):
        children.setdefault((parent, token), node)
    node = ROOT
    while (child := children.get((node, emitted[-1]))) is not None:
        node = child
        accepted.append(node)
        emitted.append(row_tokens[1 + node])
    return emitted, accepted
