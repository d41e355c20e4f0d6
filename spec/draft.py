"""A draft: the tokens a proposer guesses for one sequence, as a chain or a tree. Absent drafts are absent."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

__all__ = ["ROOT", "Draft"]

ROOT = -1  # parent of the first drafts: the sequence's last committed token


@dataclass(frozen=True)
class Draft:
    """Draft tokens in topological order: node i continues node parents[i] (ROOT or an earlier node).

    Raises ValueError for lengths that differ or a parent that does not come earlier.
    """

    token_ids: tuple[int, ...]  # [K]
    parents: tuple[int, ...]  # [K]

    def __post_init__(self) -> None:
        if len(self.token_ids) != len(self.parents):
            raise ValueError(
                f"expected one parent a token, got {len(self.parents)} for {len(self.token_ids)} tokens"
            )
        for node, parent in enumerate(self.parents):
            if not ROOT <= parent < node:
                raise ValueError(f"parents[{node}]: expected {ROOT} or an earlier node, got {parent}")

    @staticmethod
    def chain(token_ids: list[int] | tuple[int, ...]) -> Draft:
        """A draft without branches."""
        return Draft(tuple(token_ids), tuple(range(-1, len(token_ids) - 1)))

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
        if len(kept) == len(self):
            return self
        if not kept:
            return None
        index = {old: new for new, old in enumerate(kept)}
        parents = tuple(index.get(self.parents[old], ROOT) for old in kept)
        return Draft(tuple(self.token_ids[old] for old in kept), parents)
