"""What a parser makes of new text: a piece of the answer, of the reasoning, or of a tool call."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["CallDelta", "Delta"]


@dataclass(frozen=True)
class CallDelta:
    """A piece of call `index` (from 0). `id` and `name` come once, in the first; then `arguments` only."""

    index: int
    id: str | None = None
    name: str | None = None
    arguments: str = ""


@dataclass(frozen=True)
class Delta:
    """Exactly one of the three says something."""

    content: str = ""
    reasoning: str = ""
    call: CallDelta | None = None
