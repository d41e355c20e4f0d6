"""Rejection and block verification in plain torch: the oracle of `kernels/verify.py`, bit-equal to the other bodies.

A law that was subtracted from is kept as weights beside their factor (law = weights * scale); sums are counted in int64
steps relative to the largest weight, so their order is free and a small remainder keeps its digits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from decodex.kernels.reference.rng import log_positive

LEAST_WEIGHT = 2.0**-126  # the smallest normal number; less is nothing


class Scaled(NamedTuple):
    """The law weights * scale."""

    weights: Tensor  # [V] fp32
    scale: Tensor  # [] fp32


class Chain(NamedTuple):
    """One sequence: its draft and the laws after each of its nodes."""

    laws: Tensor  # [K+1, V] fp32 of the target: after the root, then after each node
    parents: list[int]  # [K]
    token_ids: list[int]  # [K]
    coins: Tensor  # [K] fp32
    draft_laws: Tensor | None  # [K, V] fp32, None: point masses

    def law_after(self, node: int) -> Scaled:
        return Scaled(self.laws[1 + node], torch.ones((), device=self.laws.device))

    def draft_law(self, node: int) -> Scaled | None:
        if self.draft_laws is None:
            return None
        return Scaled(self.draft_laws[node], torch.ones((), device=self.laws.device))


def log_law(laws: Tensor) -> Tensor:
    """Logarithms of [..., V] fp32, -inf for NaN and what is below the smallest normal number."""
    is_kept = laws >= LEAST_WEIGHT
    return torch.where(is_kept, log_positive(torch.where(is_kept, laws, 1.0).contiguous()), -torch.inf)


def subtract(law: Scaled, other: Scaled | None, token: int | None = None) -> Tensor:
    """What is positive of law - other, [V]; other = None: nothing is subtracted. Without `token`."""
    weights = law.weights * law.scale
    if other is not None:
        weights = weights - other.weights * other.scale
    weights = torch.where(weights >= LEAST_WEIGHT, weights, 0.0)
    if token is not None:
        weights[token] = 0.0
    return weights


def total_of(weights: Tensor) -> Tensor:
    """Sum [] fp64 of weights [V], relative to the power of two below the largest."""
    top = weights.max()
    unit = ((254 - (top.view(torch.int32) >> 23)) << 23).view(torch.float32)
    steps = (weights * unit * 2.0**40).long().sum()
    return torch.where(top > 0, steps.double() / (unit.double() * 2.0**40), 0.0)


def normalised(weights: Tensor) -> Scaled:
    """The law of weights [V]; all zero stays so."""
    total = total_of(weights)
    return Scaled(weights, torch.where(total > 0, 1.0 / total, 0.0).float())


def residual_of(law: Scaled, draft: Scaled | None, token: int) -> Tensor:
    """What is positive of law - draft, [V]; draft = None is a point mass at `token`."""
    return subtract(law, None, token) if draft is None else subtract(law, draft)


def reject(chain: Chain) -> tuple[list[int], Tensor]:
    """Accepted nodes and the weights [V] of the token after them: recursive rejection among siblings."""
    accepted: list[int] = []
    node = -1
    while True:
        left = target = chain.law_after(node)
        children = [child for child, parent in enumerate(chain.parents) if parent == node]
        draft = chain.draft_law(children[0]) if children else None
        for child in children:
            token = chain.token_ids[child]
            share = 1.0 if draft is None else draft.weights[token] * draft.scale
            likely = left.weights[token] * left.scale
            weights = residual_of(left, draft, token)
            is_certain = weights.max() == 0  # the same laws up to rounding
            if likely > 0 and (is_certain or chain.coins[child] * share < likely):
                node = child
                accepted.append(node)
                break
            left = normalised(weights) if weights.max() > 0 else target
            if draft is not None:
                draft = normalised(subtract(draft, None, token))
        else:
            return accepted, left.weights


def ratio_at(chain: Chain, node: int) -> Tensor:
    """r of node: min(1, r of the node before * p / q), [] fp32."""
    ratio = torch.ones((), device=chain.laws.device)
    for i in range(node + 1):
        token = chain.token_ids[i]
        ratio = ratio * chain.laws[i, token]
        if chain.draft_laws is not None:
            ratio = ratio / chain.draft_laws[i, token]
        ratio = torch.where(ratio > 0, ratio.clamp(max=1.0), 0.0)
    return ratio


def pass_probability(ratio: Tensor, weights: Tensor, target: Tensor) -> Tensor:
    """h [] fp64 of a node that is not the last, with the weights [V] of (r p - q)+; a target law [V] without any token
    is one of a token of its own, which no draft has."""
    has_tokens = (target >= LEAST_WEIGHT).any()
    left = torch.where(has_tokens, total_of(weights), ratio.double())
    whole = left + (1.0 - ratio.double())
    return torch.where(whole > 0, left / whole, 1.0)


def verify_block(chain: Chain) -> tuple[list[int], Tensor]:
    """Accepted nodes and the weights [V] of the token after them: block verification of a chain."""
    last = len(chain.token_ids) - 1
    for node in range(last, -2, -1):
        ratio = ratio_at(chain, node)
        target = chain.law_after(node)
        if node == last:
            weights, probability = target.weights, ratio.double()
        else:
            token, draft = chain.token_ids[node + 1], chain.draft_law(node + 1)
            weights = residual_of(target._replace(scale=ratio), draft, token)
            probability = pass_probability(ratio, weights, target.weights)
        if node == -1 or chain.coins[node].double() < probability:
            break
    return list(range(node + 1)), weights if weights.max() > 0 else target.weights


def verify_drafts(
    laws: Tensor,
    starts: Sequence[int],
    cu_nodes: Sequence[int],
    parents: Sequence[int],
    token_ids: Sequence[int],
    draft_laws: Sequence[Tensor | None],
    coins: Tensor,
    is_block: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """See kernels/verify.py."""
    is_accepted = torch.zeros(len(parents), dtype=torch.bool)
    num_accepted = torch.zeros(len(starts), dtype=torch.int64)
    left = laws.new_empty(len(starts), laws.shape[1])
    for b, start in enumerate(starts):
        first, end = cu_nodes[b], cu_nodes[b + 1]
        nodes = slice(first, end)
        chain = Chain(
            laws[start : start + 1 + end - first],
            list(parents[nodes]),
            list(token_ids[nodes]),
            coins[nodes],
            draft_laws[b],
        )
        accepted, weights = verify_block(chain) if is_block else reject(chain)
        is_accepted[[first + node for node in accepted]] = True
        num_accepted[b] = len(accepted)
        left[b] = log_law(weights)
    return is_accepted.to(laws.device), num_accepted.to(laws.device), left
