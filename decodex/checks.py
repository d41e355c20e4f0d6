"""Checks of option values: each is called as check(field, value), returns the value in its one spelling (off is
always the same value) or raises RequestError. `expected` and `off` describe it in docs/parameters.md."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from decodex.definition import check_bool, check_int, check_number
from decodex.errors import RequestError

__all__ = ["Bias", "Flag", "Int", "Number", "OneOf", "Processors", "Texts", "TokenIds"]


def _is_single(value: Any) -> bool:
    """Not an array, whose comparisons are arrays."""
    return getattr(value, "ndim", 0) == 0


@dataclass(frozen=True)
class Number:
    """A finite number in [low, high] ((low, high] with `open_low`); None and `off_values` become None if `optional`."""

    low: float
    high: float = math.inf
    open_low: bool = False
    off_values: tuple[float, ...] = ()
    optional: bool = True

    def __call__(self, field: str, value: Any) -> float | None:
        if value is None and self.optional:
            return None
        if not isinstance(value, bool) and _is_single(value) and value in self.off_values:
            return None
        return check_number(field, value, self.low, self.high, open_low=self.open_low)

    @property
    def expected(self) -> str:
        left = "(" if self.open_low else "["
        return f"{left}{self.low:g}, {self.high:g}]" if self.high != math.inf else f"{left}{self.low:g}, 3.4e38]"

    @property
    def off(self) -> tuple[Any, ...]:
        return (None, *self.off_values) if self.optional else ()


@dataclass(frozen=True)
class Int:
    """An integer in [low, high]; None and `off_values` become None if `optional`."""

    low: int
    high: int | None = None
    off_values: tuple[int, ...] = ()
    optional: bool = True
    hint: str = ""

    def __call__(self, field: str, value: Any) -> int | None:
        if value is None and self.optional:
            return None
        if not isinstance(value, (bool, float)) and _is_single(value) and value in self.off_values:
            return None
        try:
            return check_int(field, value, self.low, self.high)
        except RequestError as error:
            raise RequestError(error.field, error.got, error.expected, self.hint) from None

    @property
    def expected(self) -> str:
        return f"{self.low} .. {self.high}" if self.high is not None else f">= {self.low}"

    @property
    def off(self) -> tuple[Any, ...]:
        return (None, *self.off_values) if self.optional else ()


class Flag:
    """true or false."""

    expected = "true or false"
    off = ()

    def __call__(self, field: str, value: Any) -> bool:
        return check_bool(field, value)


@dataclass(frozen=True)
class OneOf:
    """One of a few words; None means the first."""

    words: tuple[str, ...]

    def __call__(self, field: str, value: Any) -> str:
        if value is None:
            return self.words[0]
        if not isinstance(value, str) or value not in self.words:
            raise RequestError(field, value, f"one of {', '.join(self.words)}")
        return str(value)

    @property
    def expected(self) -> str:
        return " or ".join(self.words)

    @property
    def off(self) -> tuple[Any, ...]:
        return (None, self.words[0])


@dataclass(frozen=True)
class Texts:
    """A string or a list of at most `most` non-empty strings, as a tuple; None is the empty tuple."""

    most: int
    longest: int
    is_shown: bool = False  # refuse what no decoded text can hold exactly: half characters, U+FFFD

    def __call__(self, field: str, value: Any) -> tuple[str, ...]:
        if value is None:
            return ()
        texts = (value,) if isinstance(value, str) else value
        if not isinstance(texts, Sequence) or isinstance(texts, bytes) or len(texts) > self.most:
            raise RequestError(field, texts, f"a string or a list of at most {self.most} strings")
        for index, text in enumerate(texts):
            if not isinstance(text, str) or not 0 < len(text) <= self.longest:
                raise RequestError(f"{field}[{index}]", text, f"a string of 1 to {self.longest} characters")
            if self.is_shown and any(c == "\ufffd" or "\ud800" <= c <= "\udfff" for c in text):
                raise RequestError(f"{field}[{index}]", text, "text without U+FFFD and lone surrogates")
        return tuple(texts)

    @property
    def expected(self) -> str:
        return f"a string or up to {self.most} of 1 to {self.longest} characters"

    off = (None, ())


@dataclass(frozen=True)
class TokenIds:
    """Token ids as a tuple; None is `absent`. That they are in the vocabulary is checked at admission."""

    most: int | None = None
    may_be_empty: bool = True
    absent: tuple[int, ...] | None = ()

    def __call__(self, field: str, value: Any) -> tuple[int, ...] | None:
        if value is None:
            return self.absent
        if isinstance(value, (str, bytes)) or not isinstance(value, Sequence):
            raise RequestError(field, value, "a list of token ids")
        if not value and not self.may_be_empty:
            raise RequestError(field, value, "at least one token id (None is off)")
        if self.most is not None and len(value) > self.most:
            raise RequestError(field, f"{len(value)} token ids", f"at most {self.most}")
        if not value:
            return self.absent
        return tuple(check_int(f"{field}[{i}]", token, 0) for i, token in enumerate(value))

    @property
    def expected(self) -> str:
        return "token ids" if self.most is None else f"up to {self.most} token ids"

    @property
    def off(self) -> tuple[Any, ...]:
        return (None, ()) if self.may_be_empty else (None,)


class Bias:
    """A mapping of token ids (ints, or their digits as JSON has them) to numbers in [-100, 100] or -inf."""

    expected = "token id -> number in [-100, 100], or -inf"
    off: tuple[Any, ...] = (None, {}, {0: 0})

    def __call__(self, field: str, value: Any) -> dict[int, float]:
        if value is None:
            return {}
        if not isinstance(value, Mapping):
            raise RequestError(field, value, "a mapping of token ids to numbers")
        bias: dict[int, float] = {}
        for key, number in value.items():
            if isinstance(key, str) and key.isascii() and key.isdigit() and len(key) < 20:
                token = int(key)
            else:
                token = check_int(f"{field} key", key, 0)
            if token in bias:
                raise RequestError(f"{field}[{token}]", number, "each token id once")
            if isinstance(number, float) and number == -math.inf:
                bias[token] = number
            else:
                try:
                    bias[token] = check_number(f"{field}[{token}]", number, -100.0, 100.0)
                except RequestError as error:
                    raise RequestError(error.field, number, "a number in [-100, 100], or -inf") from None
        return {token: number for token, number in sorted(bias.items()) if number != 0.0}


class Processors:
    """Custom logits processors, as a tuple; None is the empty tuple."""

    expected = "objects with `apply`, or callables"
    off = (None, ())

    def __call__(self, field: str, value: Any) -> tuple[Any, ...]:
        if value is None:
            return ()
        if isinstance(value, (str, bytes)) or not isinstance(value, Sequence):
            raise RequestError(field, value, "a list of logits processors", "put a single one into a list")
        for index, processor in enumerate(value):
            if not callable(processor) and not callable(getattr(processor, "apply", None)):
                raise RequestError(f"{field}[{index}]", processor, "a callable, or an object with apply")
        return tuple(value)
