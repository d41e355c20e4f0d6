"""The official openai client's responses API with the real model, and a sample of BFCL's functions."""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import json
import pathlib
from typing import Literal

import httpx
import openai
import pytest
from pydantic import BaseModel, Field

from decodex import AsyncLLM
from decodex.errors import ModelError
from decodex.models.source import resolve_model
from decodex.server.app import create_app
from decodex.server.config import ServerConfig

pytestmark = pytest.mark.real_model

MODEL = "smollm2-135m"
WEATHER = {
    "type": "function",
    "name": "get_weather",
    "description": "The weather in a city.",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 30}, "unit": {"type": "string", "enum": ["C", "F"]}},
        "required": ["city", "unit"],
        "additionalProperties": False,
    },
    "strict": True,
}


class City(BaseModel):
    name: str = Field(max_length=30)
    continent: Literal["Europe", "Asia", "Africa"]


@pytest.fixture(scope="module")
def run():
    """Runs a test's coroutine with a client."""
    try:
        resolve_model(MODEL)
    except ModelError as error:
        pytest.skip(f"the demo model can't be fetched here: {error}")
    with asyncio.Runner() as runner:
        llm = AsyncLLM(MODEL, kv_cache_gib=0.3, max_num_seqs=8)
        app = create_app(llm, ServerConfig(served_model_name=MODEL))
        http = httpx.AsyncClient(transport=httpx.ASGITransport(app), timeout=600)
        client = openai.AsyncOpenAI(api_key="none", base_url="http://server/v1", http_client=http, max_retries=0)
        yield lambda test: runner.run(test(client))
        llm.shutdown()


def test_text_streamed_and_replayed(run) -> None:
    async def test(client) -> None:
        ask = {"model": MODEL, "input": "What is a glacier?", "max_output_tokens": 24, "temperature": 0.8}
        whole = await client.responses.create(**ask)
        assert whole.status == "incomplete"
        assert whole.output_text
        events = [event async for event in await client.responses.create(**ask, stream=True, extra_body=seed_of(whole))]
        assert events[-1].response.output_text == whole.output_text
        assert (
            "".join(event.delta for event in events if event.type == "response.output_text.delta") == whole.output_text
        )
        assert events[-1].response.usage.output_tokens == 24

    run(test)


def seed_of(response) -> dict[str, int]:
    return {"seed": response.model_extra["seed"]}


def test_structured_output(run) -> None:
    async def test(client) -> None:
        ask = {"model": MODEL, "input": "Describe Paris.", "text_format": City, "max_output_tokens": 100}
        parsed = await client.responses.parse(**ask)
        assert isinstance(parsed.output_parsed, City)
        async with client.responses.stream(**ask) as stream:
            async for _ in stream:
                pass
            last = await stream.get_final_response()
        assert isinstance(last.output_parsed, City)

    run(test)


def test_a_function_is_called_and_its_result_read(run) -> None:
    async def test(client) -> None:
        question = {"role": "user", "content": "How warm is it in Paris?"}
        ask = {"model": MODEL, "tools": [WEATHER], "max_output_tokens": 80, "parallel_tool_calls": False}
        first = await client.responses.create(**ask, input=[question], tool_choice="required", temperature=0)
        [call] = first.output
        assert (call.type, call.name, first.status) == ("function_call", "get_weather", "completed")
        assert set(json.loads(call.arguments)) == {"city", "unit"}
        async with client.responses.stream(**ask, input=[question], tool_choice="required", temperature=0) as stream:
            deltas = [event.delta async for event in stream if event.type == "response.function_call_arguments.delta"]
            last = await stream.get_final_response()
        assert last.output[0].arguments == "".join(deltas) == call.arguments
        result = {"type": "function_call_output", "call_id": call.call_id, "output": "18 degrees"}
        second = await client.responses.create(**ask, input=[question, call.model_dump(), result], tool_choice="none")
        assert second.output[0].type == "message"

    run(test)


def test_mistakes_are_the_clients_errors(run) -> None:
    async def test(client) -> None:
        for fields, param in (
            ({"store": True}, "store"),
            ({"previous_response_id": "resp_1"}, "previous_response_id"),
            ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ):
            with pytest.raises(openai.BadRequestError) as caught:
                await client.responses.create(model=MODEL, input="hi", **fields)
            assert caught.value.param == param

    run(test)


def test_a_sample_of_bfcl(run, repository: pathlib.Path) -> None:
    """Every call parses and satisfies its function's schema; evals/bfcl asks all of it."""
    spec = importlib.util.spec_from_file_location("bfcl", repository / "evals" / "bfcl" / "run.py")
    assert spec is not None
    assert spec.loader is not None
    bfcl = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(bfcl)
    if not bfcl.DATA.exists():
        pytest.skip("the data is not here")

    async def test(client) -> None:
        options = argparse.Namespace(data=bfcl.DATA, limit=3, concurrency=8, max_tokens=192, temperature=0.7)
        faults: list[str] = []
        counts, _ = await bfcl.ask_all(client, options, faults)
        assert faults == []
        assert sum(count["calls"] for count in counts.values()) >= 9

    run(test)
