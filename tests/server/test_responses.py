"""/v1/responses over a toy model that writes what it is told: items, events and usage, streaming and not."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import numpy as np
import pytest
from fakes import ByteTokenizer, FakeModel
from http_client import error_of, post_all, post_one
from openai.types.responses import Response

from decodex.server.responses_schema import RESPONSE_REPLIES
from decodex.server.tools.syntax import FORMATS

PATH = "/v1/responses"
REPLY, EVENT = (jsonschema.Draft202012Validator(RESPONSE_REPLIES[name]) for name in ("ResponseReply", "ResponseEvent"))
ASK = "\x01"  # ends the prompt
TOOL = {
    "type": "function",
    "name": "add",
    "parameters": {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]},
}
CALLS = [("add", '{"x": 1}'), ("add", '{"x": -20}')]


def writer(script: str) -> FakeModel:
    """A model that answers with `script`."""
    data = script.encode()

    def logits_of(prefix: list[int]) -> np.ndarray:
        done = len(prefix) - 1 - max(place for place, token in enumerate(prefix) if token == ord(ASK))
        logits = np.zeros(257, dtype=np.float32)
        logits[data[done] if done < len(data) else 256] = 50.0
        return logits

    return FakeModel(257, max_position=4096, logits_of=logits_of)


def body(**fields: Any) -> dict[str, Any]:
    return {"input": ASK, "temperature": 0, "max_output_tokens": 300, **fields}


def ask(script: str, config: dict[str, Any] | None = None, **fields: Any) -> dict[str, Any]:
    """The response, which is the same when streaming, but for ids and times."""
    bodies = [body(**fields), body(stream=True, **fields)]
    engine = {"model": writer(script), "tokenizer": ByteTokenizer(), "num_blocks": 2048}
    whole, stream = post_all(PATH, bodies, config, **engine)
    assert whole.status_code == stream.status_code == 200, whole.text
    Response.model_validate(whole.json())
    REPLY.validate(whole.json())
    events = events_of(stream.text)
    for event in events:
        EVENT.validate(event)
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert [event["type"] for event in events[:2]] == ["response.created", "response.in_progress"]
    assert events[0]["response"]["status"] == "in_progress"
    last = events[-1]["response"]
    assert events[-1]["type"] == f"response.{last['status']}"
    assert plain(whole.json()) == plain(last)
    return whole.json()


def events_of(text: str) -> list[dict[str, Any]]:
    found = []
    for chunk in text.split("\n\n")[:-1]:
        first, second = chunk.split("\n")
        found.append(json.loads(second.removeprefix("data: ")))
        assert first == f"event: {found[-1]['type']}"
    return found


def plain(response: dict[str, Any]) -> dict[str, Any]:
    """Without what differs from one response to the next."""
    different = ("id", "call_id", "created_at", "completed_at", "seed")
    items = [{key: value for key, value in item.items() if key not in different} for item in response["output"]]
    usage = {**response["usage"], "input_tokens_details": None}
    rest = {key: value for key, value in response.items() if key not in different}
    return {**rest, "output": items, "usage": usage}


def shown(response: dict[str, Any]) -> list[tuple[str, str]]:
    """Kind and text of each item."""
    return [
        (item["type"], item["arguments"] if item["type"] == "function_call" else item["content"][0]["text"])
        for item in response["output"]
    ]


def test_text() -> None:
    response = ask("Héllo 😀.", instructions="Be brief.", metadata={"a": "b"}, user="me", store=False, seed=3)
    assert shown(response) == [("message", "Héllo 😀.")]
    assert response["status"] == "completed"
    assert response["seed"] == 3
    assert response["replayable"] is True
    assert response["metadata"] == {"a": "b"}
    assert response["store"] is False
    count = len("Héllo 😀.".encode()) + 1
    assert response["usage"]["output_tokens"] == count
    assert response["usage"]["total_tokens"] == response["usage"]["input_tokens"] + count


def test_a_text_that_is_cut() -> None:
    response = ask("hello", max_output_tokens=3)
    assert shown(response) == [("message", "hel")]
    assert (response["status"], response["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    assert response["output"][0]["status"] == "incomplete"


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("choice", ["auto", "required"])
def test_calls(name: str, choice: str) -> None:
    script = FORMATS[name].write(CALLS)
    fields = {"tools": [TOOL], "tool_choice": choice, "parallel_tool_calls": True}
    response = ask(script, {"tool_call_format": name}, **fields)
    assert shown(response) == [("function_call", arguments) for _, arguments in CALLS]
    assert all(item["name"] == "add" and item["call_id"] for item in response["output"])
    assert response["status"] == "completed"
    assert response["tools"] == [{**TOOL, "description": None, "strict": True}]


def test_reasoning_text_and_a_call() -> None:
    script = f"<think>\nso so</think>\n\nLet me see.\n{FORMATS['hermes'].write(CALLS[:1])}"
    config = {"tool_call_format": "hermes", "reasoning_format": "think"}
    response = ask(script, config, tools=[TOOL])
    assert shown(response) == [
        ("reasoning", "so so"),
        ("message", "Let me see.\n"),
        ("function_call", CALLS[0][1]),
    ]
    assert response["usage"]["output_tokens_details"]["reasoning_tokens"] == len("\nso so</think>") - 1


def test_reasoning_before_json() -> None:
    format = {"type": "json_schema", "name": "n", "schema": {"type": "object", "properties": {"a": {"const": 1}}}}
    response = ask('<think>x</think>\n\n{"a": 1}', {"reasoning_format": "think"}, text={"format": format})
    assert shown(response) == [("reasoning", "x"), ("message", '{"a": 1}')]


def test_json() -> None:
    format = {"type": "json_schema", "name": "n", "schema": {"type": "object", "properties": {"a": {"const": 1}}}}
    response = ask('{"a": 1}', text={"format": format})
    assert shown(response) == [("message", '{"a": 1}')]
    assert response["text"] == {"format": format}


def test_log_probabilities_of_every_token() -> None:
    response = ask("h€llo", include=["message.output_text.logprobs"], top_logprobs=2)
    [part] = response["output"][0]["content"]
    assert bytes(byte for entry in part["logprobs"] for byte in entry["bytes"]) == "h€llo".encode()
    assert len(part["logprobs"]) == response["usage"]["output_tokens"]
    assert all(len(entry["top_logprobs"]) == 2 for entry in part["logprobs"])


def test_log_probabilities_are_refused_where_tokens_are_no_text() -> None:
    wanted = body(include=["message.output_text.logprobs"], tools=[TOOL])
    response = post_one(PATH, wanted, model=writer("x"), tokenizer=ByteTokenizer(), num_blocks=2048)
    assert response.status_code == 400
    assert error_of(response)["param"] == "include"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"store": True}, "store"),
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"inptu": "x"}, "inptu"),
        ({"input": None}, "input"),
        ({"input": "word " * 10_000}, "input"),
        ({"input": [{"role": "user", "content": "x" * 3900}] * 2}, "input"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"prompt_logprobs": 0}, "prompt_logprobs"),
        ({"logprob_token_ids": [1]}, "logprob_token_ids"),
        ({"logprobs": 1}, "logprobs"),
        ({"return_token_ids": True}, "return_token_ids"),
        ({"max_output_tokens": 10**6}, "max_output_tokens"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"reasoning": {"effort": "low"}}, "reasoning.effort"),
        ({"text": {"format": {"type": "json_schema", "name": "x", "schema": {"type": "x"}}}}, "text.format.schema"),
        ({"tools": [{**TOOL, "parameters": {"properties": {"a": {"type": "dict"}}}}]}, "tools[0].parameters"),
        ({"tools": [TOOL], "tool_choice": "required", "max_output_tokens": 3}, "max_output_tokens"),
        ({"structured_outputs": {"choice": ["a"]}, "text": {"format": {"type": "json_object"}}}, "text.format"),
        ({"model": "other"}, "model"),
        ({"chat_template_kwargs": {"tools": []}}, "chat_template_kwargs.tools"),
    ],
)
def test_refusals_name_the_field(fields, param: str) -> None:
    engine = {"model": writer("x"), "tokenizer": ByteTokenizer(), "num_blocks": 2048}
    response = post_one(PATH, body(**fields), **engine)
    assert response.status_code == (404 if param == "model" else 400), response.text
    assert error_of(response)["param"] == param


def test_a_failure_in_a_stream_is_told() -> None:
    def failing(prefix: list[int]) -> np.ndarray:
        logits = np.zeros(257, dtype=np.float32)
        logits[ord("a")] = 50.0
        return logits * (np.nan if len(prefix) > 5 else 1)

    model = FakeModel(257, logits_of=failing)
    response = post_one(PATH, body(stream=True), model=model, tokenizer=ByteTokenizer(), num_blocks=2048)
    events = events_of(response.text)
    assert events[-1]["type"] == "response.failed"
    assert events[-1]["response"]["status"] == "failed"
    assert events[-1]["response"]["error"]["code"] == "server_error"
    assert [event["type"] for event in events].count("response.output_text.delta") > 0
