"""The official openai client against `decodex serve` with the real model, in a process of its own."""

from __future__ import annotations

import json
import math
from typing import Literal

import openai
import pytest
from http_client import MODEL, real_server
from pydantic import BaseModel, Field

pytestmark = pytest.mark.real_model

MESSAGES = [{"role": "user", "content": "What is the capital of France? Answer in one sentence."}]
KEY = "secret"


@pytest.fixture(scope="module")
def server():
    with real_server("--kv-cache-gib", "0.5", DECODEX_API_KEY=KEY) as url:
        yield url


@pytest.fixture(scope="module")
def client(server):
    return openai.OpenAI(base_url=f"{server}/v1", api_key=KEY, max_retries=0, timeout=300)


def test_models_and_keys(server, client):
    [model] = client.models.list().data
    assert model.id == MODEL
    assert client.models.retrieve(MODEL).id == MODEL
    with pytest.raises(openai.AuthenticationError):
        openai.OpenAI(base_url=f"{server}/v1", api_key="wrong", max_retries=0).models.list()


def test_chat_and_its_replay(client):
    first = client.chat.completions.create(model=MODEL, messages=MESSAGES, max_completion_tokens=24, temperature=0.9)
    seed = first.model_extra["seed"]
    again = client.chat.completions.create(
        model=MODEL, messages=MESSAGES, max_completion_tokens=24, temperature=0.9, seed=seed
    )
    assert first.choices[0].message.role == "assistant"
    assert first.choices[0].message.content
    assert again.choices[0].message.content == first.choices[0].message.content
    assert again.system_fingerprint == first.system_fingerprint
    assert first.model_extra["replayable"] is True
    assert first.usage.completion_tokens <= 24
    assert again.usage.prompt_tokens_details.cached_tokens > 0


def test_chat_streams_what_it_answers(client):
    ask = {"model": MODEL, "messages": MESSAGES, "max_tokens": 24, "seed": 3, "stop": ["France."]}
    whole = client.chat.completions.create(**ask)
    chunks = list(client.chat.completions.create(**ask, stream=True, stream_options={"include_usage": True}))
    text = "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)
    assert text == whole.choices[0].message.content
    assert chunks[-1].usage == whole.usage
    assert [c.finish_reason for chunk in chunks for c in chunk.choices if c.finish_reason] == [
        whole.choices[0].finish_reason
    ]


def test_the_streaming_helper(client):
    ask = {"model": MODEL, "messages": MESSAGES, "max_tokens": 16, "seed": 3}
    whole = client.chat.completions.create(**ask)
    with client.chat.completions.stream(**ask) as stream:
        content = "".join(event.delta for event in stream if event.type == "content.delta")
        final = stream.get_final_completion()
    assert content == final.choices[0].message.content == whole.choices[0].message.content


def test_completions(client):
    ask = {"model": MODEL, "prompt": "The sea is", "max_tokens": 8, "seed": 1}
    whole = client.completions.create(**ask)
    text = "".join(chunk.choices[0].text for chunk in client.completions.create(**ask, stream=True))
    assert text == whole.choices[0].text
    echoed = client.completions.create(**ask, echo=True, logprobs=2)
    assert echoed.choices[0].text == "The sea is" + text
    found = echoed.choices[0].logprobs
    assert len(found.tokens) == len(found.token_logprobs) == len(found.text_offset) == len(found.top_logprobs)
    assert found.token_logprobs[0] is None
    for token, offset in zip(found.tokens, found.text_offset, strict=True):
        assert token.startswith("bytes:") or echoed.choices[0].text.startswith(token, offset)
    many = client.completions.create(**{**ask, "prompt": ["The sea is", "The sun is"]}, n=2)
    assert [choice.index for choice in many.choices] == [0, 1, 2, 3]
    assert many.choices[0].text == whole.choices[0].text


class City(BaseModel):
    """What a test asks for."""

    name: Literal["Paris", "London", "Rome"]
    population: int = Field(ge=1, le=99_999_999)
    is_capital: bool


def test_parse_with_pydantic(client):
    messages = [{"role": "user", "content": "Describe Paris."}]
    ask = {"model": MODEL, "messages": messages, "response_format": City, "max_tokens": 100, "seed": 1}
    found = client.beta.chat.completions.parse(**ask)
    assert isinstance(found.choices[0].message.parsed, City)
    assert found.choices[0].finish_reason == "stop"
    assert City.model_validate_json(found.choices[0].message.content) == found.choices[0].message.parsed
    with client.chat.completions.stream(**ask) as stream:
        assert stream.get_final_completion().choices[0].message.parsed == found.choices[0].message.parsed


def test_json_object(client):
    messages = [{"role": "user", "content": "Write a JSON object about a city."}]
    found = client.chat.completions.create(
        model=MODEL,
        messages=messages,
        response_format={"type": "json_object"},
        max_tokens=60,
        temperature=0,
    )
    choice = found.choices[0]
    assert choice.message.content.startswith("{")
    if choice.finish_reason == "stop":
        assert isinstance(json.loads(choice.message.content), dict)


def test_logprobs(client):
    messages = [{"role": "user", "content": "Write the word naïve, and an emoji."}]
    ask = {
        "model": MODEL,
        "messages": messages,
        "max_tokens": 24,
        "temperature": 0,
        "logprobs": True,
        "top_logprobs": 3,
    }
    choice = client.chat.completions.create(**ask).choices[0]
    entries = choice.logprobs.content
    assert b"".join(bytes(entry.bytes or ()) for entry in entries).decode(errors="replace") == choice.message.content
    for entry in entries:
        assert len(entry.top_logprobs) == 3
        assert entry.top_logprobs[0].logprob == entry.logprob  # greedy
        assert sum(math.exp(top.logprob) for top in entry.top_logprobs) <= 1 + 1e-5
        if entry.bytes is not None and "\ufffd" not in entry.token:
            assert bytes(entry.bytes).decode() == entry.token
    streamed = [
        entry
        for chunk in client.chat.completions.create(**ask, stream=True)
        for one in chunk.choices
        if one.logprobs is not None
        for entry in one.logprobs.content
    ]
    assert streamed == entries


def test_several_choices(client):
    ask = {"model": MODEL, "messages": MESSAGES, "max_tokens": 12, "temperature": 1.2}
    many = client.chat.completions.create(**ask, n=3)
    assert len({choice.message.content for choice in many.choices}) == 3
    last = many.choices[2]
    alone = client.chat.completions.create(**ask, seed=last.model_extra["seed"])
    assert alone.choices[0].message.content == last.message.content


def test_a_named_function_is_called(client):
    parameters = {
        "type": "object",
        "properties": {"city": {"enum": ["Paris", "Rome"]}, "unit": {"enum": ["celsius", "fahrenheit"]}},
        "required": ["city", "unit"],
        "additionalProperties": False,
    }
    function = {"name": "get_weather", "description": "The weather.", "parameters": parameters, "strict": True}
    tools = [{"type": "function", "function": function}]
    choice = {"type": "function", "function": {"name": "get_weather"}}
    messages = [{"role": "user", "content": "How warm is it in Paris?"}]
    found = client.chat.completions.create(
        model=MODEL, messages=messages, tools=tools, tool_choice=choice, max_tokens=100, seed=1
    )
    [call] = found.choices[0].message.tool_calls
    assert call.function.name == "get_weather"
    arguments = json.loads(call.function.arguments)
    assert arguments["city"] in ("Paris", "Rome")
    answer = [*messages, found.choices[0].message, {"role": "tool", "tool_call_id": call.id, "content": "18 degrees"}]
    second = client.chat.completions.create(model=MODEL, messages=answer, tools=tools, max_tokens=8)
    assert second.choices[0].finish_reason in ("stop", "length", "tool_calls")


def test_extensions_go_into_the_extra_body(client):
    extra = {"structured_outputs": {"choice": ["yes", "no"]}, "top_k": 5, "return_token_ids": True, "speculative": True}
    found = client.chat.completions.create(model=MODEL, messages=MESSAGES, max_tokens=10, extra_body=extra)
    assert found.choices[0].message.content in ("yes", "no")
    assert found.choices[0].model_extra["token_ids"]


def test_mistakes_are_the_clients_errors(client):
    with pytest.raises(openai.BadRequestError, match="did you mean 'top_k'") as caught:
        client.chat.completions.create(model=MODEL, messages=MESSAGES, extra_body={"topk": 5})
    assert caught.value.param == "topk"
    assert caught.value.code == "unknown_parameter"
    with pytest.raises(openai.NotFoundError):
        client.chat.completions.create(model="other", messages=MESSAGES)
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "word " * 9_000}])
    assert caught.value.code == "context_length_exceeded"
    assert caught.value.param == "messages"
