"""Output items and their events: each event as OpenAI's client knows it, and together the items they tell of."""

from __future__ import annotations

from typing import Any

import pydantic
from hypothesis import given
from hypothesis import strategies as st
from openai.types.responses import ResponseStreamEvent

from decodex.server.responses_events import OutputItems
from decodex.server.tools.delta import CallDelta, Delta

KNOWN = pydantic.TypeAdapter(ResponseStreamEvent)


def read(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The items that a client puts together from events alone."""
    items: list[dict[str, Any]] = []
    is_open = False
    for number, event in enumerate(events):
        KNOWN.validate_python({**event, "sequence_number": number}, strict=False)
        kind, place = event["type"].removeprefix("response."), event["output_index"]
        if kind == "output_item.added":
            assert not is_open
            assert place == len(items)
            items.append(event["item"])
            is_open = True
            continue
        assert is_open
        assert place == len(items) - 1
        item = items[-1]
        assert event.get("item_id", item["id"]) == item["id"]
        if kind == "content_part.added":
            assert event["content_index"] == 0
            item["content"] = [event["part"]]
        elif kind in ("output_text.delta", "reasoning_text.delta"):
            item["content"][0]["text"] += event["delta"]
            if "logprobs" in event:
                item["content"][0]["logprobs"] += event["logprobs"]
        elif kind == "function_call_arguments.delta":
            item["arguments"] += event["delta"]
        elif kind in ("output_text.done", "reasoning_text.done"):
            assert event["text"] == item["content"][0]["text"]
        elif kind == "function_call_arguments.done":
            assert event["arguments"] == item["arguments"]
        elif kind == "content_part.done":
            assert event["part"] == item["content"][0]
        else:
            assert kind == "output_item.done", kind
            item["status"] = event["item"]["status"]
            assert event["item"] == item
            is_open = False
    assert not is_open
    return items


texts = st.text(min_size=1, max_size=3)
parts = st.one_of(
    st.tuples(st.just("content"), texts), st.tuples(st.just("reasoning"), texts), st.tuples(st.just("call"), texts)
)


@given(st.lists(parts, max_size=8), st.booleans())
def test_events_tell_of_the_items(wanted, is_cut: bool) -> None:
    output, events, num_calls = OutputItems(), list[dict[str, Any]](), 0
    for kind, text in wanted:
        if kind == "call":
            events += output.add(Delta(call=CallDelta(num_calls, f"call_{num_calls}", "f")))
            events += output.add(Delta(call=CallDelta(num_calls, arguments=text)))
            num_calls += 1
        elif kind == "reasoning":
            events += output.add(Delta(reasoning=text))
        else:
            events += output.add(
                Delta(content=text), [{"token": text, "logprob": -1.0, "bytes": [], "top_logprobs": []}]
            )
    events += output.finish(is_cut)
    assert read(events) == output.items
    assert [item["status"] for item in output.items[:-1]] == ["completed"] * (len(output.items) - 1)
    assert output.items[-1]["status"] == ("incomplete" if is_cut else "completed")
    for kind, type in (("content", "message"), ("reasoning", "reasoning")):
        text = "".join(item["content"][0]["text"] for item in output.items if item["type"] == type)
        assert text == "".join(text for one, text in wanted if one == kind)
    assert [item["arguments"] for item in output.items if item["type"] == "function_call"] == [
        text for kind, text in wanted if kind == "call"
    ]


def test_an_empty_response_has_an_empty_message() -> None:
    output = OutputItems()
    assert read(output.finish(False)) == output.items
    [item] = output.items
    assert item["type"] == "message"
    assert item["content"] == [{"type": "output_text", "text": "", "annotations": [], "logprobs": []}]
