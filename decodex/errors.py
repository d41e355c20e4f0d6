"""The exceptions users see. A user's fault names the field; the server maps it to 400."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

__all__ = [
    "DecodexError",
    "EngineError",
    "ModelError",
    "NoTokenLeftError",
    "QueueFullError",
    "RequestError",
    "describe_error",
    "nearest_name",
]


class DecodexError(Exception):
    """Anything decodex raises on purpose."""


class RequestError(DecodexError, ValueError):
    """A request or option that can't be honoured: `field` got `got` where `expected` was expected."""

    def __init__(self, field: str, got: object, expected: str, hint: str = "") -> None:
        try:
            shown = repr(got)
        except Exception:  # of an object that isn't ours
            shown = type(got).__name__
        if len(shown) > 120:
            shown = shown[:117] + "..."
        super().__init__(f"{field}: got {shown}, expected {expected}" + (f"; {hint}" if hint else ""))
        self.field = field
        self.got = got
        self.expected = expected
        self.hint = hint


class QueueFullError(DecodexError):
    """The bounded waiting queue is full: try again later (the server's 429)."""


class ModelError(DecodexError, RuntimeError):
    """A model that can't be loaded; the message names the file, field or architecture."""


class EngineError(DecodexError, RuntimeError):
    """The engine itself failed; every request in flight ends with this."""


class NoTokenLeftError(EngineError):
    """A request's own masks (`fields` of its parameters) have left it no token; others are not concerned."""

    def __init__(self, message: str, fields: tuple[str, ...]) -> None:
        super().__init__(message)
        self.fields = fields


def describe_error(error: BaseException) -> str:
    """Its type and text, also where the text can't be had."""
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:
        return type(error).__name__


def nearest_name(name: str, known: Iterable[str]) -> str:
    """A hint `did you mean ...` for a misspelt name, or an empty string."""
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return f"did you mean {close[0]!r}?" if close else ""
