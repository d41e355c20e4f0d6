"""What a response of the server says, streamed or not, in one form that can be compared with a replay."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from evals.server import asks, connection
else:  # this folder is on the path of a script; the root must not be
    import asks
    import connection

__all__ = ["Choice", "read_answer"]


@dataclass
class Choice:
    """One choice: everything of it that a replay with its seed must give again."""

    seed: int | None = None
    is_replayable: bool = True
    reason: str | None = None
    text: str = ""
    reasoning: str = ""
    calls: dict[int, list[str]] = field(default_factory=dict)  # name and arguments
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[Any] = field(default_factory=list)

    @property
    def replayed(self) -> tuple[Any, ...]:
        """What is compared."""
        return self.reason, self.text, self.reasoning, list(self.calls.values()), self.token_ids, self.logprobs


def read_answer(path: str, exchange: connection.Exchange, is_stream: bool) -> dict[int, Choice]:
    """The choices of a response by index. Raises AssertionError for one that is not whole."""
    if path == asks.RESPONSES:
        return {0: _of_response(exchange, is_stream)}
    found: dict[int, Choice] = {}
    parts: Sequence[Mapping[str, Any]] = exchange.events if is_stream else [json.loads(exchange.body)]
    for part in parts:
        assert "error" not in part, part
        for shown in part["choices"]:
            choice = found.setdefault(shown["index"], Choice())
            assert choice.reason is None, f"an event after the end: {shown}"
            choice.is_replayable = part["replayable"]
            choice.seed, choice.reason = shown["seed"], shown["finish_reason"]
            choice.token_ids += shown.get("token_ids") or []
            _add_logprobs(choice, shown["logprobs"])
            _add_message(choice, shown.get("delta") or shown.get("message") or {"content": shown.get("text")})
    assert found, "no choices"
    assert all(choice.reason for choice in found.values()), f"no end: {found}"
    return found


def _add_logprobs(choice: Choice, logprobs: Mapping[str, Any] | None) -> None:
    if logprobs is None:
        return
    if "content" in logprobs:
        choice.logprobs += logprobs["content"]
    else:
        choice.logprobs += zip(logprobs["tokens"], logprobs["token_logprobs"], logprobs["top_logprobs"], strict=True)


def _add_message(choice: Choice, message: Mapping[str, Any]) -> None:
    choice.text += message.get("content") or ""
    choice.reasoning += message.get("reasoning_content") or ""
    for place, call in enumerate(message.get("tool_calls") or ()):
        known = choice.calls.setdefault(call.get("index", place), ["", ""])
        known[0] += call["function"].get("name") or ""
        known[1] += call["function"].get("arguments") or ""


def _of_response(exchange: connection.Exchange, is_stream: bool) -> Choice:
    if is_stream:
        events = [event.partition("data: ")[2] for event in exchange.body.decode().split("\n\n") if event]
        last = json.loads(events[-1])
        assert last["type"] in ("response.completed", "response.incomplete"), last
        response = last["response"]
    else:
        response = json.loads(exchange.body)
    assert response["status"] in ("completed", "incomplete"), response
    choice = Choice(response["seed"], response["replayable"], response["status"])
    for item in response["output"]:
        if item["type"] == "function_call":
            choice.calls[len(choice.calls)] = [item["name"], item["arguments"]]
        elif item["type"] == "message":
            choice.text += "".join(part["text"] for part in item["content"])
        else:
            choice.reasoning += "".join(part["text"] for part in item["content"])
    return choice
