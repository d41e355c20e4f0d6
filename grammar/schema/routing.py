"""Which backend takes a schema: what it needs, feature by feature, against what each backend is known to honour."""

from __future__ import annotations

from decodex.grammar.errors import ConstraintError
from decodex.grammar.schema.honoured import HONOURED, ORDER

__all__ = ["check_backend", "route_features"]


def missing(features: frozenset[str], backend: str) -> list[str]:
    """Features that the backend is not known to honour, in order."""
    return sorted(features - HONOURED[backend])


def route_features(features: frozenset[str]) -> str:
    """The first backend that honours every feature; ConstraintError where there is none."""
    for backend in ORDER:
        if not missing(features, backend):
            return backend
    first = missing(features, ORDER[0])[0]
    raise ConstraintError(f"no backend honours {first} here", path="$", keyword=first)


def check_backend(features: frozenset[str], backend: str) -> None:
    """ConstraintError where the backend is not known to honour a feature."""
    if backend not in HONOURED:
        raise ConstraintError(f"the backend {backend!r} is not known")
    if lacking := missing(features, backend):
        raise ConstraintError(f"the backend {backend} does not honour {lacking[0]}", path="$", keyword=lacking[0])
