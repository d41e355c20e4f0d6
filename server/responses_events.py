"""The output items of a response as they grow, and the events that tell of it."""

from __future__ import annotations

import copy
import uuid
from collections.abc import Sequence
from typing import Any

from decodex.server.tools.delta import CallDelta, Delta

__all__ = ["OutputItems", "new_item_id"]

Event = dict[str, Any]


def new_item_id(prefix: str) -> str:
    """An id in the style of this API."""
    return f"{prefix}_{uuid.uuid4().hex}"


class OutputItems:
    """Turns deltas into items: what follows each other of one kind is one item. Each call is one."""

    def __init__(self) -> None:
        self.items: list[dict[str, Any]] = []  # finished ones, and the one that grows

    def add(self, delta: Delta, logprobs: Sequence[dict[str, Any]] = ()) -> list[Event]:
        """The events of a delta. `logprobs`: of its tokens, if it is content."""
        if delta.call is not None:
            return self._add_call(delta.call)
        if delta.reasoning:
            return self._add_text("reasoning", delta.reasoning, ())
        return self._add_text("message", delta.content, logprobs)

    def finish(self, is_cut: bool) -> list[Event]:
        """The last item's end; a response without any has an empty message. is_cut: there was no room for more."""
        events = [] if self.items else self._begin(self._new_message())
        return events + self._end("incomplete" if is_cut else "completed")

    @property
    def _current(self) -> dict[str, Any] | None:
        is_open = bool(self.items) and self.items[-1]["status"] == "in_progress"
        return self.items[-1] if is_open else None

    @property
    def _place(self) -> dict[str, Any]:
        return {"item_id": self.items[-1]["id"], "output_index": len(self.items) - 1}

    def _add_text(self, kind: str, text: str, logprobs: Sequence[dict[str, Any]]) -> list[Event]:
        events: list[Event] = []
        if self._current is None or self._current["type"] != kind:
            events += self._end("completed")
            events += self._begin(self._new_message() if kind == "message" else self._new_reasoning())
        part = self.items[-1]["content"][0]
        part["text"] += text
        event = {**self._place, "content_index": 0, "delta": text}
        if kind == "reasoning":
            events.append({"type": "response.reasoning_text.delta", **event})
        else:
            part["logprobs"] += logprobs
            events.append({"type": "response.output_text.delta", **event, "logprobs": list(logprobs)})
        return events

    def _add_call(self, call: CallDelta) -> list[Event]:
        events: list[Event] = []
        if call.id is not None:
            events += self._end("completed")
            item = {"id": new_item_id("fc"), "type": "function_call", "status": "in_progress", "arguments": ""}
            events += self._begin({**item, "call_id": call.id, "name": call.name})
        if call.arguments:
            self.items[-1]["arguments"] += call.arguments
            event = {"type": "response.function_call_arguments.delta", **self._place, "delta": call.arguments}
            events.append(event)
        return events

    def _new_message(self) -> dict[str, Any]:
        return {
            "id": new_item_id("msg"),
            "type": "message",
            "status": "in_progress",
            "role": "assistant",
            "content": [],
        }

    def _new_reasoning(self) -> dict[str, Any]:
        return {"id": new_item_id("rs"), "type": "reasoning", "status": "in_progress", "summary": [], "content": []}

    def _begin(self, item: dict[str, Any]) -> list[Event]:
        self.items.append(item)
        added = {"type": "response.output_item.added", "output_index": len(self.items) - 1, "item": copy.deepcopy(item)}
        if item["type"] == "function_call":
            return [added]
        if item["type"] == "message":
            part: dict[str, Any] = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
        else:
            part = {"type": "reasoning_text", "text": ""}
        item["content"] = [part]
        event = {"type": "response.content_part.added", **self._place, "content_index": 0, "part": copy.deepcopy(part)}
        return [added, event]

    def _end(self, status: str) -> list[Event]:
        """The end of the item that grows, if one does."""
        item = self._current
        if item is None:
            return []
        item["status"] = status
        done = {"type": "response.output_item.done", "output_index": len(self.items) - 1, "item": copy.deepcopy(item)}
        if item["type"] == "function_call":
            told = {"arguments": item["arguments"], "name": item["name"]}
            return [{"type": "response.function_call_arguments.done", **self._place, **told}, done]
        part = copy.deepcopy(item["content"][0])
        place = {**self._place, "content_index": 0}
        text: dict[str, Any] = {"type": "response.reasoning_text.done", **place, "text": part["text"]}
        if item["type"] == "message":
            text = {**text, "type": "response.output_text.done", "logprobs": part["logprobs"]}
        return [text, {"type": "response.content_part.done", **place, "part": part}, done]
