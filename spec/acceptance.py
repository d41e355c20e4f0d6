"""How likely draft tokens are accepted: what all requests saw of a proposer, and how one request differs from that."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field

from decodex.spec.draft import ROOT, Draft

__all__ = ["MAX_DEPTH", "AcceptanceHistory", "ProposerAcceptance", "children_of", "places_of"]

MAX_DEPTH = 16  # deeper nodes are counted with those at this depth
MAX_RANK = 4  # later siblings are counted with the last
REQUEST_DECAY = 0.9  # of a request's counts with each trial: about ten trials are remembered
SHARED_DECAY = 0.99
PRIOR_TRIALS = 2.0  # weight of what is assumed before anything was seen
FIRST_RATE = 0.5  # assumed of a first child
MIN_ODDS, MAX_ODDS = 1e-3, 1e3
CONFIDENCE_EDGES = (0.05, 0.1, 0.2, 0.35, 0.5, 0.65, 0.8, 0.9, 0.95, 0.98, 0.99, 0.995)


def odds(rate: float) -> float:
    """rate / (1 - rate), within bounds."""
    return min(max(rate / max(1 - rate, 1e-9), MIN_ODDS), MAX_ODDS)


def children_of(draft: Draft) -> dict[int, list[int]]:
    """The children of ROOT and of each node that has any, in order."""
    children: dict[int, list[int]] = {}
    for node, parent in enumerate(draft.parents):
        children.setdefault(parent, []).append(node)
    return children


def places_of(draft: Draft) -> Iterator[tuple[str, int, int]]:
    """For each node its proposer, its depth (from 0) below that proposer's first node and its rank as a sibling."""
    depths: list[int] = []
    num_children: dict[int, int] = {}
    for node, parent in enumerate(draft.parents):
        source = draft.sources[node] if draft.sources else ""
        continues = parent != ROOT and (not draft.sources or draft.sources[parent] == source)
        depths.append(min(depths[parent] + 1, MAX_DEPTH - 1) if continues else 0)
        rank = num_children.get(parent, 0)
        num_children[parent] = rank + 1
        yield source, depths[node], min(rank, MAX_RANK - 1)


class ProposerAcceptance:
    """All requests' acceptance of one proposer's nodes, given that the parent was: by place and by own confidence.

    Counts decay, so a change of traffic is followed. A depth that was never tried is taken to be like the one above.
    """

    def __init__(self) -> None:
        self.rates = [[FIRST_RATE ** (rank + 1)] * MAX_DEPTH for rank in range(MAX_RANK)]  # as of the last `refresh`
        self._by_place = [[[0.0, 0.0] for _ in range(MAX_DEPTH)] for _ in range(MAX_RANK)]  # accepted, tried
        self._by_confidence = [[0.0, 0.0] for _ in range(len(CONFIDENCE_EDGES) + 1)]
        self._is_stale = False

    def rate(self, depth: int, rank: int, confidence: float | None) -> float:
        """The share accepted of nodes like this one: its confidence, calibrated, if it has one, else its place's."""
        if confidence is None:
            return self.rates[rank][depth]
        accepted, tried = self._by_confidence[bisect_right(CONFIDENCE_EDGES, confidence)]
        return (accepted + PRIOR_TRIALS * confidence) / (tried + PRIOR_TRIALS)

    def add(self, depth: int, rank: int, confidence: float | None, is_accepted: bool) -> None:
        """Count one node whose parent was accepted; `rates` follow with the next `refresh`."""
        cells = [self._by_place[rank][depth]]
        if confidence is not None:
            cells.append(self._by_confidence[bisect_right(CONFIDENCE_EDGES, confidence)])
        for cell in cells:
            cell[0] = cell[0] * SHARED_DECAY + is_accepted
            cell[1] = cell[1] * SHARED_DECAY + 1
        self._is_stale = True

    def refresh(self) -> None:
        """Bring `rates` up to date with the counts."""
        if not self._is_stale:
            return
        self._is_stale = False
        for rank, (rates, cells) in enumerate(zip(self.rates, self._by_place)):
            above = FIRST_RATE ** (rank + 1)
            for depth, (accepted, tried) in enumerate(cells):
                above = rates[depth] = (accepted + PRIOR_TRIALS * above) / (tried + PRIOR_TRIALS)


@dataclass
class AcceptanceHistory:
    """One request and one proposer: by depth, the odds of acceptance relative to what all requests' counts say."""

    shared: ProposerAcceptance
    num_failures: int = 0  # drafts in a row of which control took nothing
    _accepted: list[float] = field(default_factory=lambda: [0.0] * MAX_DEPTH)
    _expected: list[float] = field(default_factory=lambda: [0.0] * MAX_DEPTH)
    _tried: list[float] = field(default_factory=lambda: [0.0] * MAX_DEPTH)
    _ratios: list[float] = field(default_factory=lambda: [1.0] * MAX_DEPTH)  # odds ratios

    def estimate(self, depth: int, rank: int = 0, confidence: float | None = None) -> float:
        """The probability that a node at this place is accepted if its parent is."""
        ratio = odds(self.shared.rate(depth, rank, confidence)) * self._ratios[depth]
        return ratio / (1 + ratio)

    def add(self, depth: int, rank: int, confidence: float | None, is_accepted: bool) -> None:
        """Count one node whose parent was accepted."""
        expected = self.shared.rate(depth, rank, confidence)
        accepted = self._accepted[depth] = self._accepted[depth] * REQUEST_DECAY + is_accepted
        expected = self._expected[depth] = self._expected[depth] * REQUEST_DECAY + expected
        tried = self._tried[depth] = self._tried[depth] * REQUEST_DECAY + 1
        half = PRIOR_TRIALS / 2
        self._ratios[depth] = ((accepted + half) / (tried - accepted + half)) / (
            (expected + half) / (tried - expected + half)
        )
        self.shared.add(depth, rank, confidence, is_accepted)
