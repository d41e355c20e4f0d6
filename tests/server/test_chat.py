"""/v1/chat/completions on toy engines: what comes is what the engine gives, whole and in events."""

from __future__ import annotations

import asyncio
import json

import pytest
from fakes import ByteTokenizer, FakeModel, RandomProposer, expected_tokens, hash_logits
from http_client import CHAT, events_of, joined, post_all, post_one, toy_server
from jsonschema import validate

from decodex import SamplingParams

MESSAGES = [{"role": "user", "content": "bcd"}]
WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {
            "type": "object",
            "properties": {"days": {"type": "integer", "minimum": 0, "maximum": 9}, "wind": {"type": "boolean"}},
            "required": ["days"],
            "additionalProperties": False,
        },
        "strict": True,
    },
}


class Words(ByteTokenizer):
    """A byte tokenizer whose chat template is one line for each message."""

    def render_chat(self, messages, *_, **__):
        return "".join(f"{m['role'][0]}: {m['content']}\n" for m in messages)


def bytes_engine(**options):
    return {"model": FakeModel(257, 2048), "tokenizer": Words(), "num_blocks": 512, **options}


def test_the_answer_and_what_is_said_of_it():
    found = post_one(
        CHAT, {"messages": MESSAGES, "seed": 5, "max_completion_tokens": 6, "return_token_ids": True}
    ).json()
    tokens = expected_tokens([1, 2, 3], SamplingParams(seed=5, max_tokens=6))
    assert found["object"] == "chat.completion"
    [choice] = found["choices"]
    assert choice["token_ids"] == tokens
    assert choice["message"] == {"role": "assistant", "content": choice["message"]["content"], "refusal": None}
    assert choice["message"]["content"] == "".join(chr(ord("a") + token) for token in tokens if token)
    assert found["seed"] == choice["seed"] == 5
    assert found["system_fingerprint"].startswith("dx_")
    assert found["replayable"] is True
    assert found["prompt_token_ids"] == [1, 2, 3]
    assert found["usage"]["prompt_tokens"] == 3


def test_an_answer_is_as_long_as_the_context_where_nothing_is_said():
    body = {"messages": MESSAGES, "ignore_eos": True}
    whole, limited = post_one(CHAT, body), post_one(CHAT, body, {"max_tokens_limit": 20})
    assert whole.json()["usage"]["total_tokens"] == 256
    assert limited.json()["usage"]["completion_tokens"] == 20
    near = {"messages": [{"role": "user", "content": "b" * 250}], "ignore_eos": True}
    assert post_one(CHAT, near, {"max_tokens_limit": 20}, num_blocks=128).json()["usage"]["completion_tokens"] == 20


def test_roles_and_parts_as_the_template_gets_them():
    messages = [
        {"role": "developer", "content": "be brief"},
        {"role": "user", "content": [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}], "name": "me"},
        {"role": "assistant", "content": "yes", "refusal": None, "audio": None, "annotations": [], "tool_calls": None},
        {"role": "user", "content": ""},
    ]
    body = {"messages": messages, "max_tokens": 1, "return_token_ids": True}

    async def main():
        async with toy_server(**bytes_engine()) as toy:
            chat = (await toy.post(CHAT, body)).json()
            tokens = (await toy.post("/tokenize", {"messages": messages})).json()
            text = (await toy.post("/detokenize", {"tokens": tokens["tokens"]})).json()
            return chat, tokens, text

    chat, tokens, text = asyncio.run(main())
    assert text["prompt"] == "s: be brief\nu: one\ntwo\na: yes\nu: \n"
    assert tokens["tokens"] == chat["prompt_token_ids"]
    assert tokens["count"] == len(tokens["tokens"]) == chat["usage"]["prompt_tokens"]


@pytest.mark.parametrize("is_guessing", [False, True])
@pytest.mark.parametrize("stream", [False, True])
def test_logprobs_have_the_bytes_of_the_text(stream, is_guessing):
    """Half characters too: the bytes joined are the text's."""
    text = "né €🎈!"

    def logits_of(prefix):
        logits = hash_logits(prefix, 257) - 20
        at = len(prefix) - len("u: bcd\n")
        logits[text.encode()[at] if at < len(text.encode()) else 256] = 20
        return logits

    body = {"messages": MESSAGES, "max_tokens": 50, "logprobs": True, "top_logprobs": 3, "seed": 1, "stream": stream}
    proposer = RandomProposer(3, 257, logits_of=logits_of, chain=True) if is_guessing else None
    options = bytes_engine(model=FakeModel(257, logits_of=logits_of), proposer=proposer)
    response = post_one(CHAT, {**body, "logprob_token_ids": [65]}, **options)
    if stream:
        found = joined(events_of(response))
        answer, logprobs = found["text"], found["logprobs"]
    else:
        [choice] = response.json()["choices"]
        answer, logprobs = choice["message"]["content"], choice["logprobs"]["content"]
    assert answer == text
    assert b"".join(bytes(entry["bytes"] or ()) for entry in logprobs).decode() == text
    assert logprobs[-1]["bytes"] is None  # the end of sequence is no part of the text
    assert len(logprobs) == len(text.encode()) + 1
    for entry in logprobs:
        top = entry["top_logprobs"]
        assert len(top) == 4
        assert top[0]["bytes"] == entry["bytes"]
        assert [65] in [item["bytes"] for item in top]
        values = [item["logprob"] for item in top[:3]]
        assert values == sorted(values, reverse=True)
        assert entry["logprob"] == top[0]["logprob"]


def test_json_has_no_infinity():
    body = {"messages": MESSAGES, "max_tokens": 3, "logprobs": True, "top_logprobs": 5, "top_k": 1}
    response = post_one(CHAT, {**body, "logprobs_mode": "processed", "prompt_logprobs": 1})
    tops = [top for entry in response.json()["choices"][0]["logprobs"]["content"] for top in entry["top_logprobs"]]
    assert {top["logprob"] for top in tops} == {0.0, -9999.0}
    prompt = response.json()["prompt_logprobs"]
    assert prompt[0] is None
    assert all(isinstance(entry["logprob"], float) for entries in prompt[1:] for entry in entries.values())


def test_choices_of_a_stream_are_those_of_the_whole_response():
    body = {"messages": MESSAGES, "n": 4, "seed": 9, "max_tokens": 12, "return_token_ids": True}
    whole, stream = post_all(CHAT, [body, {**body, "stream": True}])
    events = events_of(stream)
    for choice in whole.json()["choices"]:
        found = joined(events, choice["index"])
        assert found["text"] == choice["message"]["content"]
        assert found["token_ids"] == choice["token_ids"]
        assert found["finish_reason"] == choice["finish_reason"]
        [first, *_] = [e["choices"][0] for e in events if e["choices"][0]["index"] == choice["index"]]
        assert first["delta"]["role"] == "assistant"
        assert first["seed"] == choice["seed"]
    assert all("usage" not in event for event in events)


SCHEMA = {
    "type": "object",
    "properties": {"size": {"enum": ["s", "m"]}, "count": {"type": "integer", "minimum": 0, "maximum": 99}},
    "required": ["size", "count"],
    "additionalProperties": False,
}


@pytest.mark.parametrize("stream", [False, True])
def test_a_schema_is_honoured_whatever_strict_says(stream):
    formats = [{"name": "a", "schema": SCHEMA}, {"name": "a", "schema": SCHEMA, "strict": True, "description": "d"}]
    bodies = [
        {"messages": MESSAGES, "response_format": {"type": "json_schema", "json_schema": one}, "seed": seed, "n": 2}
        for one in formats
        for seed in (1, 2)
    ]
    for response in post_all(CHAT, [{**body, "stream": stream} for body in bodies], **bytes_engine()):
        assert response.status_code == 200, response.text
        for index in range(2):
            if stream:
                found = joined(events_of(response), index)
                text, reason = found["text"], found["finish_reason"]
            else:
                choice = response.json()["choices"][index]
                text, reason = choice["message"]["content"], choice["finish_reason"]
            assert reason == "stop"
            validate(json.loads(text), SCHEMA)


def test_a_tool_that_has_to_be_called():
    body = {"messages": MESSAGES, "tools": [WEATHER], "tool_choice": "required", "max_tokens": 400}
    bodies = [{**body, "seed": seed, "stream": stream} for seed in range(3) for stream in (False, True)]
    responses = post_all(CHAT, bodies, **bytes_engine())
    for whole, stream in zip(responses[::2], responses[1::2], strict=True):
        assert whole.status_code == 200, whole.text
        [choice] = whole.json()["choices"]
        assert choice["finish_reason"] == "tool_calls"
        assert choice["message"]["content"] is None
        calls: dict[int, dict[str, str]] = {}
        for event in events_of(stream):
            for piece in event["choices"][0]["delta"].get("tool_calls", []):
                call = calls.setdefault(piece["index"], {"arguments": ""})
                call["name"] = piece["function"].get("name", call.get("name"))
                call["arguments"] += piece["function"]["arguments"]
        assert len(calls) == len(choice["message"]["tool_calls"]) >= 1
        for call, streamed in zip(choice["message"]["tool_calls"], calls.values(), strict=True):
            assert set(call) == {"id", "type", "function"}
            assert call["function"] == streamed
            assert call["function"]["name"] == "weather"
            validate(json.loads(call["function"]["arguments"]), WEATHER["function"]["parameters"])


def test_messages_with_calls_and_results():
    call = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"days": 1}'}}
    messages = [
        *MESSAGES,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "rain"},
    ]
    body = {"messages": messages, "tools": [WEATHER], "tool_choice": "none", "max_tokens": 3}
    [response] = post_all(CHAT, [body], **bytes_engine())
    assert response.status_code == 200, response.text
