"""What a constraint is once it is parsed and checked: the forms that backends compile."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from decodex.grammar.pattern import Pattern

__all__ = ["Json", "LarkText", "WholeText"]


@dataclass(frozen=True)
class Json:
    """A canonical JSON schema, and the whitespace that is written around it. is_beyond: see `PreparedSchema`."""

    schema: Any
    whitespace: str
    is_beyond: bool = False


@dataclass(frozen=True)
class WholeText:
    """A pattern that the whole text matches."""

    pattern: Pattern


@dataclass(frozen=True)
class LarkText:
    """A grammar in llguidance's own dialect."""

    text: str
