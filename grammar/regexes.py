"""Regular expressions in RE2's syntax, parsed to a pattern that must match the whole output.

RE2's meaning is the declared one: `\\d`, `\\w` and `\\s` are ASCII, `.` is anything but a newline, `$` is the end.
What RE2 does not take (look-around, backreferences) and what is no property of a character (word boundaries) is
refused.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import re2

from decodex.grammar.anchors import END, START, without_anchors
from decodex.grammar.char_classes import CLASSES, POSIX, fold, unicode_class
from decodex.grammar.errors import ConstraintError
from decodex.grammar.limits import MAX_NESTING, check_text
from decodex.grammar.pattern import (
    EMPTY,
    Chars,
    Choice,
    Pattern,
    Ranges,
    Repeat,
    Text,
    complement,
    concat,
    normalise,
    size_of,
)

__all__ = ["parse_regex"]

_CONTROLS = {"t": 9, "n": 10, "v": 11, "f": 12, "r": 13, "a": 7}
_ANY = ((0, 0x10FFFF),)


@dataclass(frozen=True)
class _Flags:
    ignore_case: bool = False
    multi_line: bool = False
    dot_all: bool = False


def parse_regex(text: str) -> Pattern:
    """The pattern of a regular expression; ConstraintError says what is wrong and at which character."""
    check_text(text)
    pattern = _Parser(text).parse()
    pattern = without_anchors(pattern)
    size_of(pattern)
    options = re2.Options()
    options.log_errors = False
    try:
        re2.compile(text, options)
    except re2.error as error:
        reason = error.args[0] if error.args else "unknown"
        reason = reason.decode("utf-8", "replace") if isinstance(reason, bytes) else str(reason)
        raise ConstraintError(f"the regular expression is not valid: {reason}") from None
    return pattern


class _Parser:
    """Recursive descent, one character at a time."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._depth = 0
        self._flags = _Flags()

    def parse(self) -> Pattern:
        pattern = self._alternatives()
        if self._at < len(self._text):
            raise self._error("unbalanced )")
        return pattern

    def _error(self, reason: str) -> ConstraintError:
        return ConstraintError(f"regular expression, character {self._at + 1}: {reason}")

    def _peek(self, size: int = 1) -> str:
        return self._text[self._at : self._at + size]

    def _take(self, text: str) -> bool:
        if not self._text.startswith(text, self._at):
            return False
        self._at += len(text)
        return True

    def _next(self) -> str:
        if self._at >= len(self._text):
            raise self._error("it ends too early")
        self._at += 1
        return self._text[self._at - 1]

    def _alternatives(self) -> Pattern:
        outer = self._flags  # (?i) holds to the end of its group, over alternatives too
        parts = [self._sequence()]
        while self._take("|"):
            parts.append(self._sequence())
        self._flags = outer
        return parts[0] if len(parts) == 1 else Choice(tuple(parts))

    def _sequence(self) -> Pattern:
        parts: list[Pattern] = []
        while self._at < len(self._text) and self._peek() not in "|)":
            if self._take("\\Q"):
                quoted, _, _ = self._text[self._at :].partition("\\E")
                self._at = min(len(self._text), self._at + len(quoted) + 2)
                parts += [self._literal(ord(c)) for c in quoted]
                if parts and quoted:
                    parts.append(self._quantified(parts.pop()))
                continue
            parts.append(self._quantified(self._atom()))
        return concat(parts)

    def _quantified(self, atom: Pattern) -> Pattern:
        times = self._times()
        if times is None:
            return atom
        if self._take("?"):
            pass  # lazy: the same texts
        if self._peek() in ("*", "+", "?") or self._is_counted():
            raise self._error("a repetition of a repetition needs brackets")
        if atom in (START, END):
            raise self._error("an anchor can't be repeated")
        low, high = times
        return EMPTY if high == 0 else Repeat(atom, low, high)

    def _times(self) -> tuple[int, int | None] | None:
        for sign, times in (("*", (0, None)), ("+", (1, None)), ("?", (0, 1))):
            if self._take(sign):
                return times
        if not self._is_counted():
            return None
        end = self._text.index("}", self._at)
        low_text, comma, high_text = self._text[self._at + 1 : end].partition(",")
        low = int(low_text)
        high = low if not comma else int(high_text) if high_text else None
        if low > 1000 or (high or 0) > 1000:
            raise self._error("at most 1,000 repetitions are allowed")
        if high is not None and high < low:
            raise self._error(f"bad repetition {{{low},{high}}}")
        self._at = end + 1
        return low, high

    def _is_counted(self) -> bool:
        """Whether {n}, {n,} or {n,m} follows; any other brace is a character."""
        if self._peek() != "{":
            return False
        end = self._text.find("}", self._at, self._at + 24)
        low, comma, high = self._text[self._at + 1 : end].partition(",") if end > 0 else ("", "", "")
        return _is_number(low) and (not comma or not high or _is_number(high))

    def _atom(self) -> Pattern:
        character = self._next()
        if character == "(":
            return self._group()
        if character == "[":
            return self._class()
        if character == ".":
            return Chars(normalise(_ANY) if self._flags.dot_all else complement([(10, 10)]))
        if character in "^$":
            return self._anchor(character)
        if character in "*+?":
            self._at -= 1
            raise self._error("nothing to repeat")
        return self._escape() if character == "\\" else self._literal(ord(character))

    def _anchor(self, sign: str) -> Pattern:
        if self._flags.multi_line:
            raise self._error(f"{sign} under (?m) is not supported")
        return START if sign == "^" else END

    def _literal(self, code: int) -> Pattern:
        if self._flags.ignore_case:
            if code > 127:
                raise self._error("(?i) is supported for ASCII letters only")
            ranges = fold(((code, code),))
            if len(ranges) > 1:
                return Chars(ranges)
        return Text(chr(code))

    def _group(self) -> Pattern:
        self._depth += 1
        if self._depth > MAX_NESTING:
            raise self._error(f"brackets are nested more than {MAX_NESTING} deep")
        outer = self._flags
        if self._take("?") and self._group_head():
            self._depth -= 1
            return EMPTY  # (?i): flags alone, for the rest of the group around
        pattern = self._alternatives()
        self._flags = outer
        if not self._take(")"):
            raise self._error("missing )")
        self._depth -= 1
        return pattern

    def _group_head(self) -> bool:
        """What follows (?; True for flags without a body."""
        for sign in ("=", "!", "<=", "<!"):
            if self._peek(len(sign)) == sign:
                raise self._error("look-around is not supported")
        if self._take("P<") or self._take("<"):
            name, found, _ = self._text[self._at :].partition(">")
            if not found or not name.isidentifier():
                raise self._error("bad name of a group")
            self._at += len(name) + 1
            return False
        value = True
        names = {"i": "ignore_case", "m": "multi_line", "s": "dot_all"}
        while (sign := self._next()) not in ":)":
            if sign == "-":
                value = False
            elif sign in names:
                self._flags = replace(self._flags, **{names[sign]: value})
            elif sign != "U":  # greedy or not: the same texts
                raise self._error(f"(?{sign} is not supported")
        return sign == ")"

    def _escape(self) -> Pattern:
        sign = self._peek()
        if sign == "A" and not self._flags.multi_line:
            return self._skip(START)
        if sign == "z" and not self._flags.multi_line:
            return self._skip(END)
        if sign in ("b", "B"):
            raise self._error("word boundaries are not supported")
        found = self._class_escape()
        if found is not None:
            return Chars(self._folded(found))
        return self._literal(self._code())

    def _skip(self, pattern: Pattern) -> Pattern:
        self._at += 1
        return pattern

    def _class_escape(self) -> Ranges | None:
        """After a backslash: the class it names, or None (and nothing is read)."""
        sign = self._peek()
        if sign in CLASSES:
            self._at += 1
            return CLASSES[sign]
        if sign not in ("p", "P"):
            return None
        self._at += 1
        name = self._next()
        if name == "{":
            name, found, _ = self._text[self._at :].partition("}")
            if not found:
                raise self._error("missing }")
            self._at += len(name) + 1
        is_negated = (sign == "P") != name.startswith("^")
        ranges = unicode_class(name.lstrip("^"), is_negated)
        if ranges is None:
            raise self._error(f"the class \\{sign}{{{name}}} is not supported (general categories are)")
        return ranges

    def _code(self) -> int:
        """After a backslash: the character that is meant."""
        sign = self._next()
        if sign in _CONTROLS:
            return _CONTROLS[sign]
        if sign == "x":
            digits, width = self._peek(2), 2
            if self._peek() == "{":
                digits = self._text[self._at + 1 :].partition("}")[0]
                width = len(digits) + 2
            if not digits or not set(digits) <= set("0123456789abcdefABCDEF") or len(digits) not in range(1, 9):
                raise self._error("bad hexadecimal character")
            self._at += width
            code = int(digits, 16)
            if code > 0x10FFFF or 0xD800 <= code <= 0xDFFF:
                raise self._error(f"U+{code:X} is no character")
            return code
        if sign == "0":
            digits = self._peek(2)
            while digits and not set(digits) <= set("01234567"):
                digits = digits[:-1]
            self._at += len(digits)
            return int(digits or "0", 8)
        if sign.isdigit():
            raise self._error("backreferences are not supported")
        if sign.isascii() and not sign.isalnum():
            return ord(sign)
        raise self._error(f"unknown escape \\{sign}")

    def _class(self) -> Pattern:
        is_negated = self._take("^")
        ranges: list[tuple[int, int]] = []
        is_first = True
        while is_first or self._peek() != "]":
            is_first = False
            ranges += self._class_item()
        self._at += 1
        found = self._folded(normalise(ranges))
        if is_negated:
            found = complement(found)
        if not found:
            raise self._error("an empty class")
        return Chars(found)

    def _class_item(self) -> Ranges:
        if self._take("[:"):
            name, found, _ = self._text[self._at :].partition(":]")
            if not found or name.lstrip("^") not in POSIX:
                raise self._error("unknown class of the form [:name:]")
            self._at += len(name) + 2
            return complement(POSIX[name[1:]]) if name.startswith("^") else POSIX[name]
        first = self._class_end()
        if not isinstance(first, int):
            return first
        if self._peek() != "-" or self._peek(2) in ("-]", "-"):
            return ((first, first),)
        self._at += 1
        last = self._class_end()
        if not isinstance(last, int) or last < first:
            raise self._error("bad range in a class")
        return ((first, last),)

    def _class_end(self) -> int | Ranges:
        character = self._next()
        if character != "\\":
            return ord(character)
        if (found := self._class_escape()) is not None:
            return found
        return self._code()

    def _folded(self, ranges: Ranges) -> Ranges:
        if not self._flags.ignore_case:
            return ranges
        if ranges and ranges[-1][1] > 127 and not any(last == 0x10FFFF for _, last in ranges):
            raise self._error("(?i) is supported for ASCII letters only")
        return fold(ranges)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit()
