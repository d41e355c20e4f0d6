"""Classes of characters by name, as RE2 defines them, and case folding for ASCII letters."""

from __future__ import annotations

import functools
import sys
import unicodedata

from decodex.grammar.pattern import Ranges, complement, normalise

__all__ = ["CLASSES", "POSIX", "fold", "unicode_class"]


def _of(text: str) -> Ranges:
    """ "09az" -> the ranges 0-9 and a-z."""
    return normalise([(ord(text[i]), ord(text[i + 1])) for i in range(0, len(text), 2)])


_DIGIT, _WORD, _SPACE = _of("09"), _of("09AZaz__"), _of("\t\n\f\r  ")
CLASSES: dict[str, Ranges] = {
    "d": _DIGIT,
    "w": _WORD,
    "s": _SPACE,
    "D": complement(_DIGIT),
    "W": complement(_WORD),
    "S": complement(_SPACE),
}
POSIX: dict[str, Ranges] = {
    "alnum": _of("09AZaz"),
    "alpha": _of("AZaz"),
    "ascii": _of("\x00\x7f"),
    "blank": _of("\t\t  "),
    "cntrl": _of("\x00\x1f\x7f\x7f"),
    "digit": _DIGIT,
    "graph": _of("!~"),
    "lower": _of("az"),
    "print": _of(" ~"),
    "punct": _of("!/:@[`{~"),
    "space": _of("\t\r  "),
    "upper": _of("AZ"),
    "word": _WORD,
    "xdigit": _of("09AFaf"),
}
_BEYOND_ASCII = {"k": 0x212A, "s": 0x17F}  # the Kelvin sign and the long s fold to ASCII letters


def fold(ranges: Ranges) -> Ranges:
    """The ranges with both cases of every ASCII letter in them."""
    found = list(ranges)
    for first, last in ranges:
        for code in range(first, min(last, 127) + 1):
            character = chr(code)
            if character.isalpha():
                found += [(ord(c), ord(c)) for c in (character.lower(), character.upper())]
                beyond = _BEYOND_ASCII.get(character.lower())
                found += [(beyond, beyond)] if beyond else []
    return normalise(found)


def unicode_class(name: str, is_negated: bool) -> Ranges | None:
    """A general category ("L", "Lu"); None where the name is unknown.

    Characters that Python's tables do not know yet are in no class and in no class's complement, so that a library
    with newer tables agrees.
    """
    table = _categories()
    ranges = [pair for category, pairs in table.items() if category.startswith(name) for pair in pairs]
    if not name or not ranges or name.startswith("Cn"):
        return None
    if is_negated:
        return complement([*ranges, *table["Cn"]])
    return normalise([pair for c, pairs in table.items() if c.startswith(name) and c != "Cn" for pair in pairs])


@functools.cache
def _categories() -> dict[str, list[tuple[int, int]]]:
    """General category -> its ranges."""
    found: dict[str, list[tuple[int, int]]] = {}
    start, current = 0, unicodedata.category("\0")
    for code in range(1, sys.maxunicode + 2):
        category = unicodedata.category(chr(code)) if code <= sys.maxunicode else ""
        if category != current:
            found.setdefault(current, []).append((start, code - 1))
            start, current = code, category
    return found
