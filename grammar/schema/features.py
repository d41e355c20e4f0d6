"""What a canonical schema asks of a backend, as a set of names: the keys of the routing table."""

from __future__ import annotations

from typing import Any

__all__ = ["features_of"]


def features_of(schema: Any) -> frozenset[str]:
    """The features of a canonical schema."""
    return frozenset()
