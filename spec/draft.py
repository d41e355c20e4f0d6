"""A draft: the tokens a proposer guesses for one sequence, as a chain or a tree. Absent drafts are absent."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

from torch import Tensor

__all__ = ["ROOT", "Draft"]

ROOT = -1  # parent of the first drafts: the sequence's last committed token


@dataclass(frozen=True)
class Draft:
    """Draft tokens in topological order: node i continues node parents[i] (ROOT or an earlier node).

    Raises ValueError for lengths that differ or a parent that does not come earlier.
    """

    token_ids: tuple[int, ...]  # [K]
    parents: tuple[int, ...]  # [K]
    confidences: tuple[float, ...] = ()  # [K] estimates that a node is accepted if its parent is; () where unknown
    sources: tuple[str, ...] = ()  # [K] the proposer of each node; () where unknown
    # [K, V] fp32 what each node was drawn from, before its siblings were left out; None: points
    laws: Tensor | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        if len(self.token_ids) != len(self.parents):
            raise ValueError(f"expected one parent a token, got {len(self.parents)} for {len(self.token_ids)} tokens")
        for node, parent in enumerate(self.parents):
            if not ROOT <= parent < node:
                raise ValueError(f"parents[{node}]: expected {ROOT} or an earlier node, got {parent}")
        for name in ("confidences", "sources"):
            values = getattr(self, name)
            if values and len(values) != len(self):
                raise ValueError(f"{name}: expected one a token, got {len(values)} for {len(self)} tokens")

    @staticmethod
    def chain(token_ids: Sequence[int], source: str = "", confidences: Sequence[float] = ()) -> Draft:
        """A draft without branches."""
        parents = tuple(range(-1, len(token_ids) - 1))
        sources = (source,) * len(token_ids) if source else ()
        return Draft(tuple(token_ids), parents, tuple(confidences), sources)

    def __len__(self) -> int:
        return len(self.token_ids)

    @cached_property
    def is_chain(self) -> bool:
        """Whether every node continues the one before it."""
        return all(parent == node - 1 for node, parent in enumerate(self.parents))

    @cached_property
    def paths(self) -> tuple[tuple[int, ...], ...]:
        """For each node, the nodes on its root path, itself included; its depth is the path's length."""
        paths: list[tuple[int, ...]] = []
        for node, parent in enumerate(self.parents):
            paths.append((*(paths[parent] if parent != ROOT else ()), node))
        return tuple(paths)

    def truncated(self, max_depth: int, max_nodes: int) -> Draft | None:
        """The first `max_nodes` nodes that are at most `max_depth` deep, or None if none are."""
        kept = [node for node, path in enumerate(self.paths) if len(path) <= max_depth][: max(max_nodes, 0)]
        return self.kept(kept)

    def kept(self, nodes: Sequence[int]) -> Draft | None:
        """The draft of these nodes alone (ascending, each with its parent), or None without any."""
        if len(nodes) == len(self):
            return self
        if not nodes:
            return None
        index = {old: new for new, old in enumerate(nodes)}
        return Draft(
            token_ids=tuple(self.token_ids[old] for old in nodes),
            parents=tuple(index[self.parents[old]] if self.parents[old] != ROOT else ROOT for old in nodes),
            confidences=tuple(self.confidences[old] for old in nodes) if self.confidences else (),
            sources=tuple(self.sources[old] for old in nodes) if self.sources else (),
            laws=None if self.laws is None else self.laws[list(nodes)],
        )

    def extended(self, other: Draft) -> Draft:
        """This chain with `other` below its last node; both without laws."""
        size = len(self)
        if not self.is_chain or self.laws is not None or other.laws is not None:
            raise ValueError("expected a chain and a draft, both of point masses")
        both_known = bool(self.confidences) and bool(other.confidences)
        return Draft(
            token_ids=self.token_ids + other.token_ids,
            parents=self.parents + tuple(size + parent if parent != ROOT else size - 1 for parent in other.parents),
            confidences=self.confidences + other.confidences if both_known else (),
            sources=self.sources + other.sources if self.sources and other.sources else (),
        )
