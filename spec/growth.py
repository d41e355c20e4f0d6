"""Drafts that grow level by level: which nodes are continued, and what the draft is in the end. Host work only."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from decodex.spec.draft import ROOT, Draft
from decodex.spec.proposer import ProposerView
from decodex.spec.target import Choices

__all__ = ["Growth"]


class Growth:
    """The draft of one view: a chain, a tree of a fixed shape, or a tree grown by path probability (EAGLE-2, Li et al.
    2024, arXiv 2406.16858: each depth continues its most probable paths, the most probable nodes of all are kept)."""

    __slots__ = (
        "_is_grown",
        "_laws",
        "_max_nodes",
        "_num_expanded",
        "_parents",
        "_paths",
        "_reach",
        "_scores",
        "_tokens",
        "_widths",
        "frontier",
        "num_entries",
        "view",
    )

    def __init__(self, view: int, source: ProposerView) -> None:
        """`view`: the index of `source` among the views."""
        shape = source.options.tree
        depth = min(source.max_depth, source.options.num_speculative_tokens)
        self.view = view
        self.frontier: list[int] = [ROOT]  # nodes that are continued next
        self.num_entries = 0  # KV entries that continued nodes have taken
        self._is_grown = shape is not None and not shape.widths
        self._num_expanded = source.max_nodes  # at each depth
        self._max_nodes = source.max_nodes if shape is None else min(source.max_nodes, shape.max_nodes)
        if shape is None:
            self._widths: tuple[int, ...] = (1,) * min(depth, self._max_nodes)
        elif shape.widths:
            self._widths = shape.widths[:depth]
        else:
            self._widths, self._num_expanded = (shape.num_children,) * depth, shape.num_expanded
        self._tokens: list[int] = []
        self._parents: list[int] = []
        self._scores: list[float] = []
        self._reach: list[float] = []  # of a node: the product of the scores on its root path
        self._paths: list[tuple[int, ...]] = []  # of a node: the tokens on its root path
        self._laws: list[Tensor] = []  # of a node: what it was drawn from

    @property
    def is_chain(self) -> bool:
        """Whether no node has more than one child."""
        return not self._is_grown and max(self._widths, default=0) <= 1

    def width(self, depth: int) -> int:
        """Children of each node that is `depth` deep (the root: 0)."""
        return self._widths[depth] if depth < len(self._widths) else 0

    def path(self, node: int) -> tuple[int, ...]:
        """The tokens from the root to a node."""
        return self._paths[node] if node != ROOT else ()

    def token(self, node: int) -> int:
        """A node's token."""
        return self._tokens[node]

    def parent(self, node: int) -> int:
        """A node's parent."""
        return self._parents[node]

    def add(self, depth: int, choices: Choices, first_row: int) -> None:
        """Hang the choices of rows first_row, first_row + 1, ... below the frontier, and choose the next frontier."""
        if not self.frontier:
            return
        width, limit = self._widths[depth], self._max_nodes
        num_before = len(self._tokens)
        if choices.laws is not None and self._is_grown:
            raise ValueError("tree: a grown tree depends on the drawn tokens; drafts with laws need fixed widths")
        for row, node in enumerate(self.frontier, start=first_row):
            path, reach = (self._paths[node], self._reach[node]) if node != ROOT else ((), 1.0)
            for token, score in zip(choices.token_ids[row][:width], choices.scores[row]):
                if len(self._tokens) == limit and not self._is_grown:
                    break
                self._tokens.append(token)
                self._parents.append(node)
                self._scores.append(score)
                self._reach.append(reach * score)
                self._paths.append((*path, token))
                if choices.laws is not None:
                    self._laws.append(choices.laws[row])
        self.frontier = self._continued(num_before) if self.width(depth + 1) else []
        self.num_entries += len(self.frontier)

    def _continued(self, first: int) -> list[int]:
        """Of the nodes from `first` on, those that are continued."""
        total = len(self._tokens)
        if not self._is_grown:
            return list(range(first, total)) if total < self._max_nodes else []
        best = self._best(range(first, total), min(self._num_expanded, self._max_nodes - self.num_entries))
        if total < self._max_nodes:
            return best
        floor = sorted(self._reach, reverse=True)[self._max_nodes - 1]  # what is below is not kept, nor its children
        return [node for node in best if self._reach[node] > floor]

    def _best(self, nodes: Sequence[int], count: int) -> list[int]:
        """The `count` most probable, ascending; of equals the earlier ones, so a parent before its children."""
        return sorted(sorted(nodes, key=lambda node: -self._reach[node])[: max(count, 0)])

    def draft(self, source: str) -> Draft | None:
        """What has grown, at most as many nodes as are allowed."""
        size = len(self._tokens)
        if not size:
            return None
        draft = Draft(
            token_ids=tuple(self._tokens),
            parents=tuple(self._parents),
            confidences=tuple(self._scores),
            sources=(source,) * size,
            laws=torch.stack(self._laws) if self._laws else None,
        )
        return draft.kept(self._best(range(size), self._max_nodes)) if size > self._max_nodes else draft
