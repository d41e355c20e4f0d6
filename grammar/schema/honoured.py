"""The routing table: features that each backend honours, measured by evals/jsonschema."""

from __future__ import annotations

ORDER = ("llguidance", "xgrammar", "outlines")

HONOURED: dict[str, frozenset[str]] = {"llguidance": frozenset(), "xgrammar": frozenset(), "outlines": frozenset()}
