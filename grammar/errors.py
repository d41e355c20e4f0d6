"""The two errors of the grammar room: a constraint that is refused, and a backend that fails on one running request."""

from __future__ import annotations

__all__ = ["ConstraintError", "MatcherError"]


class ConstraintError(ValueError):
    """A constraint that is refused, with the reason and the place.

    reason: one sentence; path: JSON path of the fault in the schema or tag ("$.properties.a"), or ""; keyword: the
    schema's keyword, or "".
    """

    def __init__(self, reason: str, *, path: str = "", keyword: str = "") -> None:
        super().__init__(reason)
        self.reason, self.path, self.keyword = reason, path, keyword

    def __str__(self) -> str:
        place = " ".join(part for part in (self.path, f"({self.keyword})" if self.keyword else "") if part)
        return f"{place}: {self.reason}" if place else self.reason

    def __reduce__(self) -> tuple[object, ...]:  # errors of a child process are pickled
        return _rebuild, (self.reason, self.path, self.keyword)


class MatcherError(RuntimeError):
    """A backend failed on a running request: that request's own error, never its neighbours'."""


def _rebuild(reason: str, path: str, keyword: str) -> ConstraintError:
    return ConstraintError(reason, path=path, keyword=keyword)
