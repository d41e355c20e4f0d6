"""Reasoning: the part of an output between thinking markers, how it is asked for, read and counted."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

from decodex.errors import RequestError
from decodex.server.tools.delta import Delta
from decodex.server.tools.parser import Literals

__all__ = [
    "EFFORTS",
    "REASONING_FORMATS",
    "Effort",
    "Markers",
    "Reasoning",
    "ReasoningParser",
    "find_markers",
    "num_reasoning_tokens",
    "plan_effort",
    "reasoning_of",
]

EFFORTS = ("none", "minimal", "low", "medium", "high")
_BUDGETS: dict[str, int | None] = {"minimal": 256, "low": 1024, "medium": 4096, "high": None}  # thinking tokens


@dataclass(frozen=True)
class Markers:
    """What stands around a model's reasoning."""

    start: str
    end: str


_THINK = Markers("<think>", "</think>")
_FORMATS = {"think": _THINK, "mistral": Markers("[THINK]", "[/THINK]")}
REASONING_FORMATS = ("auto", "none", *_FORMATS)


def find_markers(wanted: str, template: str | None) -> Markers | None:
    """The markers of this format; for "auto" those that a chat template writes, None where it writes none."""
    if wanted == "auto":
        return next((markers for markers in _FORMATS.values() if markers.end in (template or "")), None)
    return _FORMATS.get(wanted)


@dataclass(frozen=True)
class Reasoning:
    """What is to be expected of one output: it begins inside a block (is_open), or it may begin with one."""

    markers: Markers
    is_open: bool


def reasoning_of(markers: Markers | None, prompt: str) -> Reasoning | None:
    """What to expect after this prompt, by how it ends: with an open block, or with a closed one (no reasoning)."""
    if markers is None or prompt.rstrip().endswith(markers.end):
        return None
    return Reasoning(markers, prompt.rstrip().endswith(markers.start))


@dataclass(frozen=True)
class Effort:
    """How reasoning_effort is honoured: values for the chat template, and a limit (SamplingParams)."""

    template_values: dict[str, Any]
    max_thinking_tokens: int | None = None


def plan_effort(effort: str | None, variables: Collection[str], markers: Markers | None, field: str) -> Effort:
    """What an effort comes to with a model whose template reads these variables: the template's own switch where it has
    one, else a limit on the tokens. RequestError where the model has neither."""
    if effort is None:
        return Effort({})
    if effort not in EFFORTS:
        raise RequestError(field, effort, f"one of {', '.join(EFFORTS)}")
    if "reasoning_effort" in variables:
        return Effort({"reasoning_effort": effort})
    switches = [name for name in ("enable_thinking", "thinking") if name in variables]
    if markers is None and not switches:
        if effort == "none":
            return Effort({})
        raise RequestError(field, effort, "a model that reasons", "its chat template has no thinking markers")
    values: dict[str, Any] = dict.fromkeys(switches, effort != "none")
    if effort == "none" and switches:
        return Effort(values)
    budget = 0 if effort == "none" else _BUDGETS[effort]
    if budget is not None and markers != _THINK:
        raise RequestError(field, effort, "high", f"only reasoning between {_THINK.start} and {_THINK.end} is limited")
    return Effort(values, budget)


class ReasoningParser:
    """Splits one output's text into reasoning and the rest; pieces may be cut anywhere."""

    def __init__(self, reasoning: Reasoning) -> None:
        self._markers = reasoning.markers
        self._end = Literals((self._markers.end,))
        self._state = "inside" if reasoning.is_open else "start"
        self._held = ""
        self._is_begun = False  # whether the reasoning has shown a character that isn't whitespace

    @property
    def had_reasoning(self) -> bool:
        """Whether the output has (or had) a block of reasoning."""
        return self._state in ("inside", "after")

    def feed(self, text: str) -> tuple[list[Delta], str]:
        """What the next piece of text adds: reasoning, and text that comes after it (or instead of it)."""
        self._held += text
        deltas: list[Delta] = []
        if self._state == "start":
            found = self._held.lstrip()
            if self._markers.start.startswith(found) and found != self._markers.start:
                return deltas, ""
            if not found.startswith(self._markers.start):
                self._state = "never"
            else:
                self._held = found[len(self._markers.start) :]
                self._state = "inside"
        if self._state == "inside":
            at = self._held.find(self._markers.end)
            kept = self._end.num_held(self._held) if at < 0 else 0
            self._add(self._held[: at if at >= 0 else len(self._held) - kept], deltas)
            if at < 0:
                self._held = self._held[len(self._held) - kept :]
                return deltas, ""
            self._held = self._held[at + len(self._markers.end) :]
            self._state = "after"
        rest, self._held = self._held, ""
        return deltas, rest

    def finish(self) -> tuple[list[Delta], str]:
        """What was held back, once no text follows."""
        rest, self._held = self._held, ""
        if self._state == "inside":
            deltas: list[Delta] = []
            self._add(rest, deltas)
            return deltas, ""
        return [], rest

    def _add(self, text: str, deltas: list[Delta]) -> None:
        if not self._is_begun:
            text = text.lstrip()
        if text:
            self._is_begun = True
            deltas.append(Delta(reasoning=text))


def num_reasoning_tokens(token_ids: Sequence[int], text_of: Callable[[int], bytes], reasoning: Reasoning | None) -> int:
    """How many tokens of an output are reasoning: those before the block's end marker is complete, and after its start.

    `text_of` gives the bytes of one token, special tokens included.
    """
    if reasoning is None:
        return 0
    start, end = reasoning.markers.start.encode(), reasoning.markers.end.encode()
    is_inside, text, count = reasoning.is_open, b"", 0
    for token in token_ids:
        text += text_of(token)
        if not is_inside:
            begin = text.lstrip()
            if not (begin.startswith(start) or start.startswith(begin)):
                return 0
            is_inside = begin.startswith(start)
            text = begin[len(start) :] if is_inside else text
        elif end in text:
            return count
        else:
            count += 1
            text = text[-len(end) + 1 :] if len(text) >= len(end) else text
    return count
