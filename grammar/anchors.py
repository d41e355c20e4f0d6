"""Anchors of regular expressions that match the whole output: at its ends they say what holds anyway."""

from __future__ import annotations

from dataclasses import replace

from decodex.grammar.errors import ConstraintError
from decodex.grammar.pattern import EMPTY, Choice, Concat, Pattern, Repeat, Rule, concat

__all__ = ["END", "START", "without_anchors"]

START, END = Rule("^"), Rule("$")  # stand for anchors until they are taken out


def without_anchors(pattern: Pattern) -> Pattern:
    """The pattern without `^` and `$` at its ends; elsewhere they are refused."""
    return _stripped(pattern, True, True)


def _stripped(pattern: Pattern, at_start: bool, at_end: bool) -> Pattern:
    if pattern in (START, END):
        if at_start if pattern == START else at_end:
            return EMPTY
        raise ConstraintError("an anchor inside the regular expression can't match there")
    if isinstance(pattern, Choice):
        return Choice(tuple(_stripped(part, at_start, at_end) for part in pattern.parts))
    if isinstance(pattern, Repeat):
        is_once = pattern.high == 1
        return replace(pattern, part=_stripped(pattern.part, at_start and is_once, at_end and is_once))
    if not isinstance(pattern, Concat):
        return pattern
    parts = [part for part in pattern.parts if part != EMPTY]
    kept = []
    for index, part in enumerate(parts):
        starts = at_start and all(p == START for p in parts[:index])
        ends = at_end and all(p == END for p in parts[index + 1 :])
        kept.append(_stripped(part, starts, ends))
    return concat(kept)
