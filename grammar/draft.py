"""Drafts under a grammar: a mask for each row of a chain or tree, which nodes are legal, and what is forced."""

from __future__ import annotations

from collections.abc import Sequence

from decodex.grammar.matcher import MaskRow, Matcher
from decodex.grammar.vocabulary import GrammarVocabulary

__all__ = ["fill_draft", "forced_draft", "legal_nodes"]

_ROOT = -1
_CONTEXT = 6  # tokens before a forced text with which it is tokenized


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


def legal_nodes(matcher: Matcher, token_ids: Sequence[int], parents: Sequence[int]) -> list[bool]:
    """Per node whether it and all above it are legal. The matcher is left where it was, whatever happens."""
    is_legal: list[bool] = []
    path: list[int] = []  # the nodes that the matcher stands behind
    try:
        for node, (token, parent) in enumerate(zip(token_ids, parents, strict=True)):
            if parent != _ROOT and not is_legal[parent]:
                is_legal.append(False)
                continue
            if (path[-1] if path else _ROOT) != parent:
                above = _above(parents, parent)
                kept = next((i for i, (a, b) in enumerate(zip(path, above)) if a != b), min(len(path), len(above)))
                matcher.rollback(len(path) - kept)
                del path[kept:]
                for other in above[kept:]:
                    matcher.accept(token_ids[other])
                    path.append(other)
            is_legal.append(matcher.accept(token))
            if is_legal[-1]:
                path.append(node)
    finally:
        matcher.rollback(len(path))
    return is_legal


def _above(parents: Sequence[int], node: int) -> list[int]:
    """The root path of a node, itself included."""
    path = []
    while node != _ROOT:
        path.append(node)
        node = parents[node]
    return path[::-1]


def forced_draft(
    matcher: Matcher, vocabulary: GrammarVocabulary, before: Sequence[int], draft: Sequence[int] = ()
) -> list[int]:
    """Tokens of what the grammar forces after the tokens `before` (where the matcher stands) and `draft`.

    The forced text is tokenized with some of the text before it, as the model would have written it; its last token is
    held back unless the grammar ends there, since what follows may be part of it. What can't be tokenized so is what
    the backend itself proposes.
    """
    position = matcher
    if draft:
        position = matcher.fork()
        if not all(position.accept(token) for token in draft):
            return []
    text = position.forced_text()
    if not text:
        return []
    tokens = _spelt(vocabulary, [*before[-_CONTEXT:], *draft][-_CONTEXT:], text)
    if tokens is None:
        return position.forced_tokens()
    end = position.fork()
    if all(end.accept(token) for token in tokens) and end.is_terminated:
        return tokens
    return tokens[:-1]


def _spelt(vocabulary: GrammarVocabulary, before: list[int], text: bytes) -> list[int] | None:
    """The tokens of a text behind others, where a tokenizer that sees both spells these others as they are."""
    special = next((i for i, token in enumerate(reversed(before)) if token in vocabulary.special_ids), len(before))
    for size in sorted({special, min(special, 1), 0}, reverse=True):
        known = before[len(before) - size :]
        try:
            tokens = vocabulary.encode((b"".join(vocabulary.tokens[i] for i in known) + text).decode())
        except ValueError:  # half a character, or the spelling of a special token
            continue
        if tokens[:size] == known and b"".join(vocabulary.tokens[i] for i in tokens[size:]) == text:
            return tokens[size:]
    return None
