"""From a conversation to the prompt that the model reads and the plan of what it writes: for chat and responses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from decodex.errors import RequestError
from decodex.server.config import ServerConfig
from decodex.server.reasoning import find_markers, plan_effort
from decodex.server.sampling import Sampling
from decodex.server.tools.messages import messages_for_template, tools_for_template
from decodex.server.tools.plan import OutputPlan, plan_output
from decodex.server.tools.request import ToolRequest
from decodex.server.tools.syntax import find_syntax
from decodex.structured_outputs import FIELD, StructuredOutputs
from decodex.tokenizer import Tokenizer

__all__ = ["Conversations", "Prepared"]

TAKEN = ("messages", "tools", "add_generation_prompt")


@dataclass(frozen=True)
class Prepared:
    """A prompt's token ids, and the plan of its outputs."""

    token_ids: list[int]
    plan: OutputPlan


class Conversations:
    """Prepares conversations with one model; any thread may."""

    def __init__(self, tokenizer: Tokenizer, config: ServerConfig) -> None:
        self._tokenizer = tokenizer
        self._config = config

    def prepare(
        self,
        messages: Sequence[Mapping[str, Any]],
        request: ToolRequest | None,
        sampling: Sampling,
        *,
        effort: str | None = None,
        effort_field: str = "reasoning_effort",
        template_values: Mapping[str, Any] | None = None,
        add_generation_prompt: bool = True,
    ) -> Prepared:
        """Render and plan. Puts the plan's constraint, and what the effort comes to, into `sampling`, whose parameters
        are to be made afterwards. RequestError names the field, that of a parameter by the parameter's name.

        May take a while: not for an event loop.
        """
        with_tools = request is not None and request.choice != "none"
        template, variables = self._tokenizer.chat_template(with_tools), self._tokenizer.template_variables(with_tools)
        syntax = find_syntax(self._config.tool_call_format, template)
        markers = find_markers(self._config.reasoning_format, template)
        wanted = plan_effort(effort, variables, markers, effort_field)
        values = {**wanted.template_values, **_checked(template_values)}
        chat = messages_for_template(messages, request, syntax, template, variables)
        shown = tools_for_template(request, variables)
        prompt = self._tokenizer.render_chat(chat, add_generation_prompt, shown, **values)
        constraint = StructuredOutputs()(FIELD, sampling.values.get(FIELD))
        plan = plan_output(request, syntax, markers, constraint, prompt, self._tokenizer)
        if plan.structured_outputs is not None:
            sampling.values[FIELD] = plan.structured_outputs
        if plan.shows_special_tokens:
            sampling.values["skip_special_tokens"] = False
        if wanted.max_thinking_tokens is not None and plan.reasoning is not None:
            sampling.set("max_thinking_tokens", wanted.max_thinking_tokens, effort_field)
        return Prepared(self._tokenizer.encode(prompt, add_special_tokens=False), plan)


def _checked(values: Mapping[str, Any] | None) -> Mapping[str, Any]:
    for name in values or ():
        if name in TAKEN:
            raise RequestError(f"chat_template_kwargs.{name}", name, "a name that has no field of its own")
    return values or {}
