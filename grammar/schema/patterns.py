r"""Patterns of schemas in one exact spelling: whole-text regexes that Rust's and RE2's syntax read alike.

A pattern of a schema searches; here it becomes `^(?:...)$` over explicit character classes, so that `\s`, `.`, `$` and
the like mean what ECMA-262 says in every engine. A leading positive look-ahead becomes a second regex.
"""

from __future__ import annotations

import string
from collections.abc import Iterable
from functools import lru_cache

import re2

from decodex.grammar.schema.ambiguity import is_exponential
from decodex.grammar.schema.ecma import RegexError, parse
from decodex.grammar.schema.regex_tree import MAX_CODE, Alt, Cat, Chars, End, Look, Part, Rep, Start

__all__ = ["anything_but", "length_regex", "literal", "matches", "whole_regexes"]

MAX_UNROLLED = 20_000  # nodes of a regex with its counted repetitions unrolled
ANY = Chars(((0, MAX_CODE),))
REST = Rep(ANY, 0, None)
LITERAL = frozenset(string.ascii_letters + string.digits + "_ -:/,@%\"'=<>!;~`")


@lru_cache(maxsize=4096)
def whole_regexes(pattern: str) -> tuple[str, ...]:
    """Regexes that all match a whole text exactly when the schema's `pattern` is found in it; none: every text."""
    tree = parse(pattern)
    size = unrolled_size(tree)
    if size > MAX_UNROLLED:
        raise RegexError(f"its repetitions unroll to {size} parts, the limit is {MAX_UNROLLED}")
    if is_exponential(tree):
        raise RegexError("it is catastrophic: a text can be matched in exponentially many ways")
    looks, tree = leading_looks(tree)
    found = [closed_right(closed_left(tree))] + [closed_right(look) for look in looks]
    return tuple(f"^(?:{spelling(part)})$" for part in found if not is_anything(part))


def is_anything(tree: Part) -> bool:
    """Whether the tree is "anything" as often as you like."""
    return tree == REST or (isinstance(tree, Cat) and bool(tree.parts) and all(map(is_anything, tree.parts)))


def leading_looks(tree: Part) -> tuple[list[Part], Part]:
    """The bodies of the look-aheads right after a leading `^`, and the tree without them."""
    parts = list(tree.parts) if isinstance(tree, Cat) else [tree]
    looks: list[Part] = []
    if parts and isinstance(parts[0], Start):
        while len(parts) > 1 and isinstance(parts[1], Look) and not parts[1].negated:
            looks.append(parts.pop(1).body)  # type: ignore[union-attr]
    return looks, Cat(tuple(parts))


def closed_left(tree: Part) -> Part:
    """The tree with what may stand before a match made explicit and leading `^` dropped."""
    if isinstance(tree, Alt):
        return Alt(tuple(closed_left(option) for option in tree.options))
    parts = tree.parts if isinstance(tree, Cat) else (tree,)
    if parts and isinstance(parts[0], Start):
        rest = parts[1:]
        while rest and isinstance(rest[0], Start):
            rest = rest[1:]
        return Cat(rest)
    if parts and isinstance(parts[0], (Alt, Cat)) and has_anchor(parts[0], Start):
        return Cat((closed_left(parts[0]), *parts[1:]))
    return Cat((REST, *trimmed(parts)))


def closed_right(tree: Part) -> Part:
    """The tree with what may follow a match made explicit and trailing `$` dropped."""
    if isinstance(tree, Alt):
        return Alt(tuple(closed_right(option) for option in tree.options))
    parts = tree.parts if isinstance(tree, Cat) else (tree,)
    if parts and isinstance(parts[-1], End):
        rest = parts[:-1]
        while rest and isinstance(rest[-1], End):
            rest = rest[:-1]
        return Cat(rest)
    if parts and isinstance(parts[-1], (Alt, Cat)) and has_anchor(parts[-1], End):
        return Cat((*parts[:-1], closed_right(parts[-1])))
    return Cat((*reversed(trimmed(parts[::-1])), REST))


def trimmed(parts: tuple[Part, ...]) -> tuple[Part, ...]:
    """Parts beside "anything": of a repetition, only what must be there counts; the rest is anything too."""
    while parts and isinstance(parts[0], Rep):
        first = parts[0]
        if first.low:
            least = first.body if first.low == 1 else Rep(first.body, first.low, first.low)
            return (least, *parts[1:])
        parts = parts[1:]
    return parts


def has_anchor(tree: Part, kind: type[Start] | type[End]) -> bool:
    """Whether an anchor stands somewhere in the tree."""
    if isinstance(tree, kind):
        return True
    return any(has_anchor(child, kind) for child in children(tree))


def children(tree: Part) -> tuple[Part, ...]:
    """The direct parts of a tree."""
    if isinstance(tree, Cat):
        return tree.parts
    if isinstance(tree, Alt):
        return tree.options
    return (tree.body,) if isinstance(tree, (Rep, Look)) else ()


def unrolled_size(tree: Part) -> int:
    """Nodes with every counted repetition written out."""
    inner = sum(map(unrolled_size, children(tree))) + 1
    return inner * max(1, tree.high or tree.low) if isinstance(tree, Rep) else inner


def spelling(tree: Part) -> str:
    """The tree in the syntax that Rust's regex and RE2 share."""
    if isinstance(tree, Chars):
        return class_spelling(tree)
    if isinstance(tree, Cat):
        return "".join(f"(?:{spelling(p)})" if isinstance(p, Alt) else spelling(p) for p in tree.parts)
    if isinstance(tree, Alt):
        return "|".join(map(spelling, tree.options))
    if isinstance(tree, Rep):
        body = spelling(tree.body)
        count = {(0, None): "*", (1, None): "+", (0, 1): "?"}.get((tree.low, tree.high))
        high = "" if tree.high is None else tree.high
        count = count or (f"{{{tree.low}}}" if tree.low == tree.high else f"{{{tree.low},{high}}}")
        return (body if isinstance(tree.body, Chars) else f"(?:{body})") + count
    if isinstance(tree, Look):
        raise RegexError("look-ahead is supported only as (?=...) right after a leading ^")
    raise RegexError("an anchor is supported only at the edge of the pattern")


def class_spelling(chars: Chars) -> str:
    """One character class; a class without members matches nothing."""
    if not chars.negated and not chars.properties and chars.ranges == ((0, MAX_CODE),):
        return "(?s:.)"
    if not chars.ranges and not chars.properties:
        return "(?s:.)" if chars.negated else "[^\\x{0}-\\x{10FFFF}]"
    if len(chars.ranges) == 1 and chars.ranges[0][0] == chars.ranges[0][1] and not (chars.properties or chars.negated):
        return literal(chr(chars.ranges[0][0]))
    spans = [code_spelling(low) if low == high else f"{code_spelling(low)}-{code_spelling(high)}"
             for low, high in chars.ranges]  # fmt: skip
    spans += ["\\p{" + name + "}" for name in chars.properties]
    return f"[{'^' if chars.negated else ''}{''.join(spans)}]"


def code_spelling(code: int) -> str:
    char = chr(code)
    return char if char.isascii() and char.isalnum() else f"\\x{{{code:X}}}"


def literal(text: str) -> str:
    """A regex for exactly this text."""
    return "".join(c if c in LITERAL else code_spelling(ord(c)) for c in text)


def length_regex(low: int, high: int | None) -> str:
    """Every text of `low` to `high` code points."""
    return f"^(?s:.){{{low},{'' if high is None else high}}}$"


def anything_but(texts: Iterable[str]) -> str:
    """A regex for every text but these (a trie, complemented)."""
    root: dict[str, object] = {}
    for text in texts:
        node = root
        for char in text:
            node = node.setdefault(char, {})  # type: ignore[assignment]
        node["$end"] = {}
    return f"^(?:{_but(root)})$"


def _but(node: dict[str, object]) -> str:
    heads = [char for char in node if char != "$end"]
    other = f"[^{''.join(map(code_spelling, map(ord, sorted(heads))))}](?s:.)*" if heads else "(?s:.)+"
    options = [other] + [f"{literal(char)}(?:{_but(node[char])})" for char in heads]  # type: ignore[arg-type]
    return "|".join(options if "$end" in node else [*options, ""])


@lru_cache(maxsize=4096)
def _compiled(regex: str) -> object:
    options = re2.Options()
    options.log_errors = False
    options.max_mem = 64 << 20
    try:
        return re2.compile(regex, options)
    except re2.error as error:
        raise RegexError(f"it is too large to be checked: {error}") from error


def matches(regex: str, text: str) -> bool:
    """Whether one of our own regexes matches the whole text; linear time."""
    return _compiled(regex).fullmatch(text) is not None  # type: ignore[attr-defined]
