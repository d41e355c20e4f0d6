"""Verification: which draft tokens are kept. Pure functions of the draft and the target's own tokens or laws."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from decodex.kernels.rng import PURPOSE_ACCEPTANCE, PURPOSE_RESIDUAL, seed_bits, uniform
from decodex.kernels.sampling import gumbel_argmax
from decodex.kernels.verify import FlatDrafts, draw_proposals, verify_drafts
from decodex.spec.draft import ROOT, Draft

__all__ = ["coupled_walk", "draw_proposals", "verify_step"]


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


def verify_step(
    method: str,
    laws: Tensor,
    row_starts: Sequence[int],
    drafts: Sequence[Draft | None],
    seeds: Sequence[int],
    positions: Sequence[int],
) -> list[tuple[list[int], list[int]]]:
    """Emitted tokens and accepted nodes of B sequences under `method` "rejection", or "block" for chains.

    laws: [R, V] fp32, the target's probabilities after the whole row pipeline (NaN counts as 0); row_starts: [B] row
    after each root, followed by the rows after its draft's nodes; seeds: [B]; positions: [B] of the token after the
    root. One more token is emitted than nodes are accepted: -1 where its law is all zero. The law of what is emitted is
    the target's if each draft's laws are those it was drawn from with draws of this window (`draw_proposals`), and if
    nothing that was drawn decided which of its nodes are here. Sources: kernels/verify.py.
    """
    if method not in ("rejection", "block"):
        raise ValueError(f'method: expected "rejection" or "block", got {method!r}')
    cu_nodes, parents, token_ids = [0], list[int](), list[int]()
    depths, nodes_of = list[int](), list[int]()  # [N]
    for draft in drafts:
        if draft is not None:
            parents += draft.parents
            token_ids += draft.token_ids
            depths += (len(path) - 1 for path in draft.paths)
            nodes_of += range(len(draft))
        cu_nodes.append(len(parents))
    laws_of = [None if draft is None else draft.laws for draft in drafts]
    flat = FlatDrafts(row_starts, cu_nodes, parents, token_ids, laws_of)
    owners = [owner for owner, draft in enumerate(drafts) for _ in range(0 if draft is None else len(draft))]

    def tensor(values: list[int]) -> Tensor:
        return torch.tensor(values, dtype=torch.int64).to(laws.device)

    seed_of, window_of = tensor([seed_bits(seed) for seed in seeds]), tensor(list(positions))
    owner_of = tensor(owners)
    coins = uniform(
        seed_of[owner_of],
        window_of[owner_of] + tensor(depths),
        PURPOSE_ACCEPTANCE,
        window_of[owner_of],
        tensor(nodes_of),
    )
    verdicts = verify_drafts(laws, flat, coins, is_block=method == "block")
    last = gumbel_argmax(
        verdicts.log_left, seed_of, window_of + verdicts.num_accepted, PURPOSE_RESIDUAL, window_of
    ).tolist()
    accepted = verdicts.is_accepted.tolist()
    outcomes: list[tuple[list[int], list[int]]] = []
    for first, end, token in zip(cu_nodes, cu_nodes[1:], last):
        nodes = [node for node, is_accepted in enumerate(accepted[first:end]) if is_accepted]
        outcomes.append(([*(token_ids[first + node] for node in nodes), token], nodes))
    return outcomes
