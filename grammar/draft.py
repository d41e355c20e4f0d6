"""Masks for the rows of a draft: one per node of a chain or tree, each a function of its root path alone."""

from __future__ import annotations

from collections.abc import Sequence

from decodex.grammar.matcher import MaskRow, Matcher

__all__ = ["fill_draft"]

_ROOT = -1


def fill_draft(matcher: Matcher, token_ids: Sequence[int], parents: Sequence[int], rows: MaskRow) -> list[bool]:
    """Fill rows [1 + K, num_words]: row 0 for the root, row 1 + i for what may follow node i.

    parents[i] is the node above node i (-1: the root), always below i. Returns per node whether it and all above it
    are legal; rows of illegal nodes are zero. The matcher is left where it was, whatever happens.
    """
    num_nodes = len(token_ids)
    assert len(parents) == num_nodes, (num_nodes, len(parents))
    assert len(rows) > num_nodes, (num_nodes, len(rows))
    rows[1 : 1 + num_nodes] = 0
    matcher.fill(rows[0])
    is_legal = [False] * num_nodes
    below: dict[int, list[int]] = {}
    for node, parent in enumerate(parents):
        assert _ROOT <= parent < node, f"node {node} stands below node {parent}"
        below.setdefault(parent, []).append(node)
    depth = 0
    stack = [(node, 0) for node in reversed(below.get(_ROOT, []))]
    try:
        while stack:
            node, level = stack.pop()  # depth first: the matcher stands at the parent after going back to its level
            matcher.rollback(depth - level)
            depth = level
            if not matcher.accept(token_ids[node]):
                continue
            depth += 1
            is_legal[node] = True
            matcher.fill(rows[1 + node])
            stack.extend((child, depth) for child in reversed(below.get(node, [])))
    finally:
        matcher.rollback(depth)
    return is_legal
