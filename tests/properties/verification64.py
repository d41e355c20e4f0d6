"""Drafts and verdicts in float64, enumerated: each draft with its probability, each verdict with coins that give it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

Law = NDArray[np.float64]
Prefix = tuple[int, ...]
LARGEST_COIN = 1 - 2.0**-24
UNITS = 64  # laws are multiples of 1/64: differences of them are exact in fp32


@dataclass(frozen=True)
class Model:
    """A law for each prefix, from a seed: flat, sparse or all on one token."""

    seed: int
    vocab_size: int

    def __call__(self, prefix: Prefix) -> Law:
        generator = np.random.default_rng([self.seed, *(1 + token for token in prefix)])
        kind = generator.integers(5)
        weights = generator.dirichlet(np.full(self.vocab_size, 1.0 if kind < 3 else 0.3))
        if kind == 2:
            weights[generator.integers(self.vocab_size)] = 0.0
        if kind == 4:
            weights = np.eye(self.vocab_size)[generator.integers(self.vocab_size)]
        return generator.multinomial(UNITS, weights / weights.sum()) / UNITS


@dataclass(frozen=True)
class DrawnDraft:
    """One draft that a proposer may draw."""

    probability: float
    parents: list[int]
    token_ids: list[int]
    prefixes: list[Prefix]  # [K] up to each node, itself included
    laws: list[Law] | None  # [K] what each node was drawn from, or None: point masses


@dataclass(frozen=True)
class Verdict:
    """One verdict: its probability over the coins, coins that give it, what is accepted and the law after that."""

    probability: float
    coins: dict[int, float]
    accepted: list[int]
    left: Law


@dataclass
class Drafting:
    """Enumerates the drafts of a shape: siblings without replacement, nodes that find no token left out."""

    shape: list[int]  # parents
    draft_law: Callable[[Prefix], Law]
    is_point: bool
    found: list[DrawnDraft] = field(default_factory=list)

    def all(self) -> list[DrawnDraft]:
        self._extend(0, {}, 1.0)
        return self.found

    def _extend(self, slot: int, drawn: dict[int, Prefix], probability: float) -> None:
        """`drawn`: the prefix of each slot of the shape that has a token."""
        if slot == len(self.shape):
            return self._finish(drawn, probability)
        parent = self.shape[slot]
        if parent >= 0 and parent not in drawn:
            return self._extend(slot + 1, drawn, probability)
        before = drawn.get(parent, ())
        taken = [drawn[other][-1] for other in range(slot) if other in drawn and self.shape[other] == parent]
        law = self.draft_law(before).copy()
        if self.is_point:
            tokens = [int(token) for token in np.argsort(-law, kind="stable") if token not in taken]
            return self._extend(slot + 1, drawn | {slot: (*before, tokens[0])} if tokens else drawn, probability)
        law[taken] = 0.0
        if law.sum() == 0:
            return self._extend(slot + 1, drawn, probability)
        for token in np.flatnonzero(law):
            chance = probability * law[token] / law.sum()
            self._extend(slot + 1, drawn | {slot: (*before, int(token))}, chance)

    def _finish(self, drawn: dict[int, Prefix], probability: float) -> None:
        index = {slot: node for node, slot in enumerate(drawn)}
        prefixes = list(drawn.values())
        self.found.append(
            DrawnDraft(
                probability,
                [index.get(self.shape[slot], -1) for slot in drawn],
                [prefix[-1] for prefix in prefixes],
                prefixes,
                None if self.is_point else [self.draft_law(prefix[:-1]) for prefix in prefixes],
            )
        )


def below(threshold: float, is_exact: bool = True) -> float:
    """A coin that passes: the largest there is where every coin does and nothing was rounded."""
    return LARGEST_COIN if threshold >= 1 and is_exact else threshold * (1 - 1e-5)


def above(threshold: float) -> float:
    """A coin that fails: 0 where none passes."""
    return 0.0 if threshold <= 0 else threshold + (1 - threshold) * 1e-3


def rejection(draft: DrawnDraft, target: Callable[[Prefix], Law]) -> Iterator[Verdict]:
    """Recursive rejection (algorithms: Leviathan et al. 2023; siblings without replacement)."""

    def walk(node: int, chance: float, coins: dict[int, float], accepted: list[int]) -> Iterator[Verdict]:
        left = target(draft.prefixes[node] if node >= 0 else ())
        children = [child for child, parent in enumerate(draft.parents) if parent == node]
        law = draft.laws[children[0]] if draft.laws is not None and children else None
        for child in children:
            token = draft.token_ids[child]
            threshold = min(1.0, left[token] / (1.0 if law is None else law[token]))
            if threshold > 0:
                coin = below(threshold, is_exact=child == children[0])
                yield from walk(child, chance * threshold, coins | {child: coin}, [*accepted, child])
            if threshold >= 1:
                return
            chance, coins = chance * (1 - threshold), coins | {child: above(threshold)}
            point = np.eye(len(left))[token]
            left = np.maximum(left - (law if law is not None else point), 0.0)
            left = left / left.sum()
            if law is not None:
                law = law * (1 - point)
                law = law / max(law.sum(), 1e-300)
        yield Verdict(chance, coins, accepted, left)

    return walk(-1, 1.0, {}, [])


def block(draft: DrawnDraft, target: Callable[[Prefix], Law]) -> Iterator[Verdict]:
    """Block verification of a chain (Sun et al. 2024)."""
    size = len(draft.token_ids)
    p = [target(prefix) for prefix in [(), *draft.prefixes]]
    q = draft.laws or [np.eye(len(p[0]))[token] for token in draft.token_ids]
    ratios = [1.0]
    for i, token in enumerate(draft.token_ids):
        ratios.append(min(1.0, ratios[-1] * p[i][token] / q[i][token]))
    chance, coins = 1.0, dict[int, float]()
    for tau in range(size, -1, -1):
        left = p[tau]
        threshold = ratios[tau] if tau else 1.0
        if tau < size:
            rest = np.maximum(ratios[tau] * p[tau] - q[tau], 0.0)
            left = rest / rest.sum() if rest.sum() > 0 else left
            whole = rest.sum() + 1 - ratios[tau]
            threshold = 1.0 if whole <= 0 or tau == 0 else rest.sum() / whole
        if threshold > 0:
            passing = {tau - 1: below(threshold)} if tau else {}
            yield Verdict(chance * threshold, coins | passing, list(range(tau)), left)
        if threshold >= 1:
            return
        chance, coins = chance * (1 - threshold), coins | {tau - 1: above(threshold)}
