"""From a request's tools, constraint and reasoning to the engine's one constraint, and the parser of what comes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from decodex.server.reasoning import Markers, Reasoning, ReasoningParser, reasoning_of
from decodex.server.tools.constraint import output_tag
from decodex.server.tools.delta import CallDelta, Delta
from decodex.server.tools.parser import ToolParser
from decodex.server.tools.request import ToolRequest
from decodex.server.tools.syntax import CallSyntax
from decodex.structured_outputs import StructuredOutputsParams

__all__ = ["CallDelta", "Delta", "OutputParser", "OutputPlan", "plan_output"]


class SpecialTokens(Protocol):
    """What is asked of a tokenizer."""

    special_ids: frozenset[int]

    def id_to_token(self, token_id: int) -> str | None:
        """A token's spelling."""


@dataclass(frozen=True)
class OutputPlan:
    """How one request's outputs are constrained and read. Shared by its choices."""

    structured_outputs: StructuredOutputsParams | None
    shows_special_tokens: bool  # markers are special tokens: SamplingParams.skip_special_tokens has to be off
    syntax: CallSyntax
    names: tuple[str, ...]  # of the functions that may be called
    reasoning: Reasoning | None

    def parser(self) -> OutputParser:
        """A parser for one choice."""
        return OutputParser(self)


def plan_output(
    request: ToolRequest | None,
    syntax: CallSyntax,
    markers: Markers | None,
    constraint: StructuredOutputsParams | None,
    prompt: str,
    tokenizer: SpecialTokens,
) -> OutputPlan:
    """The plan of a request. `constraint`: its own; `prompt`: the rendered text, whose end tells of open reasoning.

    May take a while (schemas are looked at): call it outside of an event loop. RequestError names the field.
    """
    reasoning = reasoning_of(markers, prompt)
    calls = request is not None and request.choice != "none"
    used = syntax.markers if calls else ()
    if reasoning is not None:
        used = (*used, reasoning.markers.start, reasoning.markers.end)
    special = {tokenizer.id_to_token(token) for token in tokenizer.special_ids}
    names = tuple(tool.name for tool in request.callable) if request is not None and calls else ()
    shows = any(text and text in marker for text in special for marker in used)
    is_free = constraint is None or constraint.kind == "structural_tag"
    if not calls and (reasoning is None or is_free):
        return OutputPlan(constraint, shows, syntax, names, reasoning)
    tag = output_tag(request, syntax, reasoning, constraint)
    must_end = request is not None and request.choice == "required" and reasoning is None  # reasoning has no known end
    structured = StructuredOutputsParams(
        structural_tag=tag,
        whitespace="spaced" if constraint is None else constraint.whitespace,
        finish_within_budget=must_end or (constraint is not None and constraint.finish_within_budget),
    )
    return OutputPlan(structured, shows, syntax, names, reasoning)


class OutputParser:
    """Splits the text of one choice into content, reasoning and tool calls; passes it through where there are neither
    tools nor reasoning."""

    def __init__(self, plan: OutputPlan) -> None:
        self._plan = plan
        self._reasoning = None if plan.reasoning is None else ReasoningParser(plan.reasoning)
        self._tools = self._make_tools(False)
        self._is_after_reasoning = False

    @property
    def num_calls(self) -> int:
        """Calls that have begun."""
        return self._tools.num_calls

    def finish_reason(self, reason: str | None) -> str | None:
        """What a choice's end is called: a "stop" after calls is "tool_calls", unless a stop string has cut one."""
        is_called = self.num_calls and not self._tools.is_in_call
        return "tool_calls" if reason == "stop" and is_called else reason

    def feed(self, text: str) -> list[Delta]:
        """What the next piece of text adds."""
        if self._reasoning is None:
            return self._tools.feed(text)
        deltas, rest = self._reasoning.feed(text)
        return deltas + self._feed_rest(rest)

    def finish(self) -> list[Delta]:
        """What was held back, once no text follows."""
        deltas: list[Delta] = []
        if self._reasoning is not None:
            deltas, rest = self._reasoning.finish()
            deltas += self._feed_rest(rest)
        return deltas + self._tools.finish()

    def _feed_rest(self, text: str) -> list[Delta]:
        if not text:
            return []
        assert self._reasoning is not None
        if self._reasoning.had_reasoning and not self._is_after_reasoning:
            self._is_after_reasoning = True
            self._tools = self._make_tools(True)
        return self._tools.feed(text)

    def _make_tools(self, skips_whitespace: bool) -> _Text | ToolParser:
        plan = self._plan
        if not plan.names and not skips_whitespace:
            return _Text()
        return ToolParser(plan.syntax, plan.names, skips_whitespace=skips_whitespace)


class _Text:
    """Text that has no calls."""

    num_calls = 0
    is_in_call = False

    def feed(self, text: str) -> list[Delta]:
        return [Delta(content=text)] if text else []

    def finish(self) -> list[Delta]:
        return []
