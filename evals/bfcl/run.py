"""Tool calls over HTTP: with tool_choice "required", does every call parse and satisfy its function's schema?

    .venv/bin/python evals/bfcl/run.py            # writes evals/results/bfcl.json

Questions and functions of the Berkeley Function-Calling Leaderboard (../shared/data, see --data), asked of the server
through the openai client in this process; every other answer is streamed. Calls are judged by jsonschema-rs. Which
function is called, and with what, is the model's choice and only counted: the small demo model is no good at it.
"""

from __future__ import annotations

import argparse
import asyncio
import collections
import json
import pathlib
import time
from collections.abc import Iterator
from typing import Any

import httpx
import jsonschema_rs
import openai

from decodex import AsyncLLM
from decodex.cli.machine import machine_facts, version_facts
from decodex.server.app import create_app
from decodex.server.config import ServerConfig
from decodex.server.tools.syntax import FORMATS

ROOT = pathlib.Path(__file__).resolve().parents[2]
DATA = ROOT.parent / "shared" / "data" / "bfcl"
CATEGORIES = ("simple_python", "multiple", "parallel")
TYPES = {"dict": "object", "float": "number", "tuple": "array"}


def questions(folder: pathlib.Path, limit: int | None) -> Iterator[dict[str, Any]]:
    """Records of each category, at most `limit`, with `tools` as JSON schemas."""
    for category in CATEGORIES:
        lines = (folder / f"BFCL_v4_{category}.jsonl").read_text("utf-8").splitlines()
        for line in lines[:limit]:
            record = json.loads(line)
            tools = [{**function, "parameters": as_schema(function["parameters"])} for function in record["function"]]
            yield {"id": record["id"], "category": category, "messages": record["question"][0], "tools": tools}


def as_schema(value: Any) -> Any:
    """The data's own types as JSON schema's."""
    if isinstance(value, list):
        return [as_schema(inner) for inner in value]
    if not isinstance(value, dict):
        return value
    made = {key: as_schema(inner) for key, inner in value.items()}
    kind = value.get("type")
    if kind == "any":
        del made["type"]
    elif isinstance(kind, str):
        made["type"] = TYPES.get(kind, kind)
    return made


async def ask(client: openai.AsyncOpenAI, record: dict[str, Any], number: int, options: argparse.Namespace) -> Any:
    """The calls of an answer as (name, arguments), and its finish reason."""
    body: dict[str, Any] = {
        "model": (await client.models.list()).data[0].id,
        "messages": record["messages"],
        "tools": [{"type": "function", "function": tool} for tool in record["tools"]],
        "tool_choice": "required",
        "max_tokens": options.max_tokens,
        "temperature": options.temperature,
        "seed": number,
    }
    if number % 2 == 0:
        choice = (await client.chat.completions.create(**body)).choices[0]
        return [
            (call.function.name, call.function.arguments) for call in choice.message.tool_calls
        ], choice.finish_reason
    calls: list[list[str]] = []
    reason = None
    async for chunk in await client.chat.completions.create(**body, stream=True):
        for call in chunk.choices[0].delta.tool_calls or ():
            if call.index == len(calls):
                calls.append([call.function.name, ""])
            calls[call.index][1] += call.function.arguments or ""
        reason = chunk.choices[0].finish_reason
    return [(name, arguments) for name, arguments in calls], reason


def judge(record: dict[str, Any], calls: list[tuple[str, str]], reason: str) -> list[str]:
    """What is wrong with an answer."""
    faults = [] if calls and reason == "tool_calls" else [f"{len(calls)} calls, finish reason {reason}"]
    schemas = {tool["name"]: tool["parameters"] for tool in record["tools"]}
    for name, arguments in calls:
        if name not in schemas:
            faults.append(f"no function {name!r}")
            continue
        try:
            jsonschema_rs.Draft202012Validator(schemas[name], validate_formats=True).validate(json.loads(arguments))
        except ValueError as error:
            faults.append(f"{name}({arguments}): {error}")
    return faults


async def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Ask everything in every format."""
    results: dict[str, Any] = {}
    faults: list[str] = []
    async with AsyncLLM(options.model, max_num_seqs=options.concurrency) as llm:
        for name in options.formats:
            app = create_app(llm, ServerConfig(tool_call_format=name))
            transport = httpx.AsyncClient(transport=httpx.ASGITransport(app), timeout=3600)
            client = openai.AsyncOpenAI(api_key="none", base_url="http://server/v1", http_client=transport)
            found, seconds = await ask_all(client, options, faults)
            results[name] = {**found, "seconds": round(seconds, 1)}
            print(name, json.dumps(results[name]), flush=True)
    return {"formats": results, "faults": faults}


async def ask_all(
    client: openai.AsyncOpenAI, options: argparse.Namespace, faults: list[str]
) -> tuple[dict[str, Any], float]:
    """Counts by category; what is wrong goes into `faults`."""
    counts: dict[str, collections.Counter[str]] = {category: collections.Counter() for category in CATEGORIES}
    room = asyncio.Semaphore(options.concurrency)

    async def one(number: int, record: dict[str, Any]) -> None:
        async with room:
            count = counts[record["category"]]
            count["requests"] += 1
            try:
                calls, reason = await ask(client, record, number, options)
            except openai.APIStatusError as error:
                count["refused"] += 1
                faults.append(f"{record['id']}: {error.message}")
                return
            wrong = judge(record, calls, reason)
            faults.extend(f"{record['id']}: {fault}" for fault in wrong)
            count["calls"] += len(calls)
            count["faulty"] += bool(wrong)

    start = time.perf_counter()
    await asyncio.gather(*(one(i, record) for i, record in enumerate(questions(options.data, options.limit))))
    return {category: dict(count) for category, count in counts.items()}, time.perf_counter() - start


def main() -> int:
    """Run and write the results; 1 if anything was refused or faulty."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--data", type=pathlib.Path, default=DATA)
    parser.add_argument("--formats", nargs="+", default=["json"], choices=list(FORMATS))
    parser.add_argument("--limit", type=int, help="most questions of a category; default: all")
    parser.add_argument("--max-tokens", type=int, default=192)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--concurrency", type=int, default=16)
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "evals" / "results" / "bfcl.json")
    options = parser.parse_args()
    report = asyncio.run(measure(options))
    setup = {key: value for key, value in vars(options).items() if key not in ("data", "out")}
    facts = {"machine": machine_facts(), "versions": version_facts(), "setup": setup}
    options.out.write_text(json.dumps({**facts, **report}, indent=1) + "\n", "utf-8")
    for fault in report["faults"][:20]:
        print(fault)
    return 1 if report["faults"] else 0


if __name__ == "__main__":
    raise SystemExit(main())
