"""ECMA-262 regular expressions (Unicode mode, with the identity escapes that everyone writes), parsed to a small tree.

Only what denotes a regular language is a tree; look-behind, back references and the like are refused by name.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from decodex.grammar.schema.regex_tree import MAX_CODE, Alt, Cat, Chars, End, Look, Part, Rep, Start, inverted, merged

__all__ = ["RegexError", "parse"]

MAX_NESTING = 60
DIGITS = [(0x30, 0x39)]
WORD = [(0x30, 0x39), (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A)]
SPACE = [(9, 13), (32, 32), (160, 160), (0x1680, 0x1680), (0x2000, 0x200A), (0x2028, 0x2029), (0x202F, 0x202F),
         (0x205F, 0x205F), (0x3000, 0x3000), (0xFEFF, 0xFEFF)]  # fmt: skip
LINE_ENDS = [(10, 10), (13, 13), (0x2028, 0x2029)]
CONTROL = {"t": 9, "n": 10, "v": 11, "f": 12, "r": 13}


class RegexError(ValueError):
    """A pattern that is not valid, or that is not a regular language, with the reason."""


CLASSES = {"d": DIGITS, "w": WORD, "s": SPACE, "D": inverted(DIGITS), "W": inverted(WORD), "S": inverted(SPACE)}


@dataclass
class _Parser:
    text: str
    at: int = 0
    depth: int = 0
    pairs: list[tuple[int, int]] = field(default_factory=list)

    def peek(self, token: str) -> bool:
        return self.text.startswith(token, self.at)

    def take(self, token: str) -> bool:
        if self.peek(token):
            self.at += len(token)
            return True
        return False

    def options(self) -> Part:
        self.depth += 1
        if self.depth > MAX_NESTING:
            raise RegexError("its groups are nested too deeply")
        found = [self.sequence()]
        while self.take("|"):
            found.append(self.sequence())
        self.depth -= 1
        return found[0] if len(found) == 1 else Alt(tuple(found))

    def sequence(self) -> Part:
        parts: list[Part] = []
        while self.at < len(self.text) and not self.peek("|") and not self.peek(")"):
            part = self.atom()
            if not isinstance(part, (Start, End)):
                part = self.quantified(part)
            parts.append(part)
        return parts[0] if len(parts) == 1 else Cat(tuple(parts))

    def quantified(self, part: Part) -> Part:
        bounds = self.bounds()
        if bounds is None:
            return part
        if isinstance(part, Look):
            raise RegexError("a look-ahead is repeated")
        self.take("?")  # lazy: the same language
        if self.at < len(self.text) and self.text[self.at] in "*+?":
            raise RegexError("nothing to repeat")
        return Rep(part, *bounds)

    def bounds(self) -> tuple[int, int | None] | None:
        for token, bounds in (("*", (0, None)), ("+", (1, None)), ("?", (0, 1))):
            if self.take(token):
                return bounds
        if not self.peek("{"):
            return None
        end = self.text.find("}", self.at)
        low, comma, high = self.text[self.at + 1 : end].partition(",")
        if end < 0 or not (low.isascii() and low.isdigit()) or (high and not (high.isascii() and high.isdigit())):
            return None  # a literal brace
        self.at = end + 1
        if len(low) > 9 or len(high) > 9:
            raise RegexError("a repetition count is too large")
        top = int(high) if high else None if comma else int(low)
        if top is not None and top < int(low):
            raise RegexError("the numbers of a repetition are out of order")
        return int(low), top

    def atom(self) -> Part:
        char = self.text[self.at]
        self.at += 1
        if char == "^":
            return Start()
        if char == "$":
            return End()
        if char == "(":
            return self.group()
        if char == "[":
            return self.bracket()
        if char == ".":
            return Chars(tuple(LINE_ENDS), negated=True)
        if char == "\\":
            return self.escape()
        if char in "*+?":
            raise RegexError("nothing to repeat")
        return Chars(((ord(char), ord(char)),))

    def group(self) -> Part:
        look = None
        if self.take("?=") or self.take("?!"):
            look = self.text[self.at - 1] == "!"
        elif self.peek("?<=") or self.peek("?<!"):
            raise RegexError("look-behind is not supported")
        elif self.take("?<"):
            end = self.text.find(">", self.at)
            if end < 0 or not self.text[self.at : end].isidentifier():
                raise RegexError("a group's name is invalid")
            self.at = end + 1
        elif self.peek("?") and not self.take("?:"):
            raise RegexError("this kind of group is not in ECMA-262")
        body = self.options()
        if not self.take(")"):
            raise RegexError("a group is not closed")
        if look is not None:
            return Look(body, look)
        return body if not isinstance(body, (Start, End)) else Cat((body,))

    def escape(self) -> Part:
        char = self.next_escaped()
        if char in "bB":
            raise RegexError("word boundaries are not supported")
        if char in "pP":
            return Chars((), (self.property_name(),), negated=char == "P")
        if char in CLASSES:
            return Chars(merged(CLASSES[char]))
        if char in "123456789k":
            raise RegexError("back references are not supported")
        code = self.code_of(char)
        return Chars(((code, code),))

    def next_escaped(self) -> str:
        if self.at >= len(self.text):
            raise RegexError("it ends in a backslash")
        self.at += 1
        return self.text[self.at - 1]

    def property_name(self) -> str:
        end = self.text.find("}", self.at)
        name = self.text[self.at + 1 : end]
        if not self.peek("{") or end < 0 or not all(c.isalnum() or c in "_=" for c in name) or not name:
            raise RegexError("a Unicode property is malformed")
        self.at = end + 1
        return name

    def code_of(self, char: str) -> int:
        if char in CONTROL:
            return CONTROL[char]
        if char == "0":
            return 0
        if char == "c" and self.text[self.at : self.at + 1].isascii() and self.text[self.at : self.at + 1].isalpha():
            self.at += 1
            return ord(self.text[self.at - 1]) % 32
        if char == "x":
            return self.hexadecimal(2)
        if char == "u":
            return self.unicode()
        if char.isascii() and char.isalpha():
            raise RegexError(f"\\{char} is not an escape of ECMA-262")
        return ord(char)

    def unicode(self) -> int:
        if self.take("{"):
            end = self.text.find("}", self.at)
            digits = self.text[self.at : end]
            self.at = end + 1
            if end < 0 or not digits or any(c not in "0123456789abcdefABCDEF" for c in digits) or len(digits) > 6:
                raise RegexError("a Unicode escape is malformed")
            code = int(digits, 16)
        else:
            code = self.hexadecimal(4)
            if 0xD800 <= code < 0xDC00 and self.take("\\u"):
                code = 0x10000 + ((code - 0xD800) << 10) + (self.hexadecimal(4) - 0xDC00)
        if code > MAX_CODE or 0xD800 <= code < 0xE000:
            raise RegexError("a Unicode escape is out of range")
        return code

    def hexadecimal(self, count: int) -> int:
        digits = self.text[self.at : self.at + count]
        if len(digits) < count or any(c not in "0123456789abcdefABCDEF" for c in digits):
            raise RegexError("a hexadecimal escape is malformed")
        self.at += count
        return int(digits, 16)

    def bracket(self) -> Part:
        negated = self.take("^")
        ranges: list[tuple[int, int]] = []
        properties: list[str] = []
        while not self.take("]"):
            low = self.member(ranges, properties)
            if self.peek("-") and not self.peek("-]") and low is not None:
                self.at += 1
                high = self.member(ranges, properties)
                if high is None or high < low:
                    raise RegexError("a range of a character class is out of order")
                ranges.append((low, high))
            elif low is not None:
                ranges.append((low, low))
        return Chars(merged(ranges), tuple(properties), negated)

    def member(self, ranges: list[tuple[int, int]], properties: list[str]) -> int | None:
        """One member of a class: its code point, or None after a whole class was added."""
        if self.at >= len(self.text):
            raise RegexError("a character class is not closed")
        char = self.text[self.at]
        self.at += 1
        if char != "\\":
            return ord(char)
        char = self.next_escaped()
        if char in CLASSES:
            ranges.extend(CLASSES[char])
        elif char == "p":
            properties.append(self.property_name())
        elif char == "P":
            raise RegexError("a negated Unicode property inside a class is not supported")
        elif char == "b":
            return 8
        else:
            return ord("-") if char == "-" else self.code_of(char)
        return None


def parse(pattern: str) -> Part:
    """The tree of a pattern; RegexError where it is invalid or no regular language."""
    parser = _Parser(pattern)
    tree = parser.options()
    if parser.at < len(pattern):
        raise RegexError("a parenthesis is not opened")
    return tree
