"""How likely draft tokens are accepted: what all requests saw of a proposer, and how one request differs from that."""

from __future__ import annotations

from bisect import bisect_right
from functools import lru_cache
from typing import NamedTuple

from decodex.spec.draft import ROOT

__all__ = ["MAX_DEPTH", "AcceptanceHistory", "Place", "ProposerAcceptance", "Shape", "shape_of"]

MAX_DEPTH = 16  # deeper nodes are counted with those at this depth
MAX_RANK = 4  # later siblings are counted with the last
REQUEST_DECAY = 0.93  # of a request's counts with each trial: about fifteen trials are remembered
SHARED_DECAY = 0.99
PRIOR_TRIALS = 2.0  # weight of what is assumed before anything was seen
FIRST_RATE = 0.5  # assumed of a first child
MAX_INHERITED_WAIT = 8  # steps that a new request waits where others found nothing
MAX_CONFIDENCE = 0.998
CONFIDENCE_EDGES = (0.05, 0.1, 0.2, 0.35, 0.5, 0.65, 0.8, 0.9, 0.95, 0.98, 0.99, 0.995)


class Place(NamedTuple):
    """Where a node stands: its depth (from 0) below its proposer's first node, and its rank among its siblings."""

    source: str
    depth: int
    rank: int


class Shape(NamedTuple):
    """What of a draft does not depend on its tokens."""

    places: tuple[Place, ...]  # [K]
    children: dict[int, list[int]]  # of ROOT and of each node that has any, in order
    depth: int  # of the deepest node, from 1


@lru_cache(maxsize=1024)  # the same few come again and again
def shape_of(parents: tuple[int, ...], sources: tuple[str, ...]) -> Shape:
    """The shape of a draft, Draft.parents and Draft.sources; without sources all is from a proposer without a name."""
    places: list[Place] = []
    depths: list[int] = []
    children: dict[int, list[int]] = {}
    for node, parent in enumerate(parents):
        source = sources[node] if sources else ""
        siblings = children.setdefault(parent, [])
        continues = parent != ROOT and places[parent].source == source
        depth = min(places[parent].depth + 1, MAX_DEPTH - 1) if continues else 0
        places.append(Place(source, depth, min(len(siblings), MAX_RANK - 1)))
        depths.append(depths[parent] + 1 if parent != ROOT else 1)
        siblings.append(node)
    return Shape(tuple(places), children, max(depths, default=0))


class ProposerAcceptance:
    """All requests' acceptance of one proposer's nodes, given that the parent was: by place and by own confidence.

    Counts decay, so a change of traffic is followed. A depth that was never tried is taken to be like the one above.
    """

    def __init__(self) -> None:
        self.num_idle, self.wait = 0, 1  # AcceptanceHistory's, of the request that drafted last
        self._by_place = [[[0.0, 0.0] for _ in range(MAX_DEPTH)] for _ in range(MAX_RANK)]  # accepted, rejected
        self._by_confidence = [[0.0, 0.0] for _ in range(len(CONFIDENCE_EDGES) + 1)]
        self._odds = [[0.0] * MAX_DEPTH for _ in range(MAX_RANK)]  # by place, as of the last `refresh`
        self._stale = set(range(MAX_RANK))  # ranks
        self.refresh()

    def odds(self, depth: int, rank: int, confidence: float | None) -> float:
        """Accepted to rejected of nodes like this one: by its confidence, calibrated, if it has one, else by place."""
        if confidence is None:
            return self._odds[rank][depth]
        accepted, rejected = self._by_confidence[bisect_right(CONFIDENCE_EDGES, confidence)]
        confidence = min(confidence, MAX_CONFIDENCE)
        return (accepted + PRIOR_TRIALS * confidence) / (rejected + PRIOR_TRIALS * (1 - confidence))

    def add(self, depth: int, rank: int, confidence: float | None, is_accepted: bool) -> None:
        """Count one node whose parent was accepted; odds by place follow with the next `refresh`."""
        cells = [self._by_place[rank][depth]]
        if confidence is not None:
            cells.append(self._by_confidence[bisect_right(CONFIDENCE_EDGES, confidence)])
        for cell in cells:
            cell[0] = cell[0] * SHARED_DECAY + is_accepted
            cell[1] = cell[1] * SHARED_DECAY + (not is_accepted)
        self._stale.add(rank)

    def refresh(self) -> None:
        """Bring the odds by place up to date with the counts."""
        for rank in self._stale:
            rate, odds = FIRST_RATE ** (rank + 1), self._odds[rank]
            for depth, (accepted, rejected) in enumerate(self._by_place[rank]):
                rate = (accepted + PRIOR_TRIALS * rate) / (accepted + rejected + PRIOR_TRIALS)
                odds[depth] = rate / (1 - rate)
        self._stale.clear()


class AcceptanceHistory:
    """One request and one proposer: by depth, the odds of acceptance relative to what all requests' counts say."""

    def __init__(self, shared: ProposerAcceptance, max_wait: int) -> None:
        self.wait = min(shared.wait, MAX_INHERITED_WAIT)  # steps from one draft to the next
        self.is_probed = False  # the last draft was not expected to pay
        self._shared = shared
        self._max_wait = max_wait
        self._num_idle = shared.num_idle  # drafts in a row of which nothing was taken
        self._counts = [[0.0, 0.0, 0.0] for _ in range(MAX_DEPTH)]  # accepted, expected to be, tried
        self._ratios = [1.0] * MAX_DEPTH  # of odds

    def estimate(self, depth: int, rank: int = 0, confidence: float | None = None) -> float:
        """The probability that a node at this place is accepted if its parent is."""
        odds = self._shared.odds(depth, rank, confidence) * self._ratios[depth]
        return odds / (1 + odds)

    def add(self, depth: int, rank: int, confidence: float | None, is_accepted: bool) -> None:
        """Count one node whose parent was accepted."""
        odds = self._shared.odds(depth, rank, confidence)
        counts = self._counts[depth]
        accepted = counts[0] = counts[0] * REQUEST_DECAY + is_accepted
        expected = counts[1] = counts[1] * REQUEST_DECAY + odds / (1 + odds)
        tried = counts[2] = counts[2] * REQUEST_DECAY + 1
        mean = min(max(expected / tried, 1 - MAX_CONFIDENCE), MAX_CONFIDENCE)
        rate = (accepted + PRIOR_TRIALS * mean) / (tried + PRIOR_TRIALS)
        self._ratios[depth] = rate / (1 - rate) * (1 - mean) / mean
        self._shared.add(depth, rank, confidence, is_accepted)

    def note_taken(self) -> None:
        """The draft was worth verifying."""
        self.wait = self._shared.wait = 1
        self._num_idle = self._shared.num_idle = 0

    def note_idle(self, patience: int) -> None:
        """The draft was not: after `patience` in a row, wait twice as long each time, up to `max_wait` steps.

        What was counted before a wait is old, so it weighs half as much against what comes.
        """
        self._num_idle = self._shared.num_idle = self._num_idle + 1
        if self._num_idle >= patience:
            self.wait = self._shared.wait = min(2 * self.wait, self._max_wait)
            for counts in self._counts:
                counts[:] = [count / 2 for count in counts]
