"""The server over a toy engine, without a socket (toy_server) or with one (toy_socket); over the demo model."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
from fakes import make_engine

from decodex import AsyncLLM
from decodex.errors import ModelError
from decodex.models.source import resolve_model
from decodex.server.app import create_app
from decodex.server.config import ServerConfig
from decodex.server.serve import serve
from decodex.server.service import Service

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
MODEL = "smollm2-135m"
START_SECONDS = 240


@dataclass
class Toy:
    """A client of a toy server, and what is behind it."""

    http: httpx.AsyncClient
    llm: AsyncLLM
    service: Service | None = None
    url: str = ""
    serving: asyncio.Task[int] | None = None

    async def post(self, path: str, body: Any, **options: Any) -> httpx.Response:
        headers = {"content-type": "application/json", **options.pop("headers", {})}
        return await self.http.post(path, content=json.dumps(body), headers=headers, **options)

    async def is_idle(self, seconds: float = 5.0) -> bool:
        """Whether the engine comes to rest with all KV free."""
        engine = self.llm.engine
        for _ in range(int(seconds / 0.01)):
            if not engine.has_work and engine.scheduler.pool.num_free == engine.config.num_blocks:
                return True
            await asyncio.sleep(0.01)
        return False


@contextlib.asynccontextmanager
async def toy_server(config: dict[str, Any] | None = None, **engine: Any) -> AsyncIterator[Toy]:
    async with AsyncLLM.from_engine(make_engine(**engine)) as llm:
        app = create_app(llm, ServerConfig(**(config or {})))
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(transport=transport, base_url="http://toy", timeout=60) as client:
            yield Toy(client, llm, app.state.service)


@contextlib.asynccontextmanager
async def toy_socket(config: dict[str, Any] | None = None, **engine: Any) -> AsyncIterator[Toy]:
    """As `decodex serve` does it."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    async with AsyncLLM.from_engine(make_engine(**engine)) as llm:
        serving = asyncio.create_task(serve(llm, ServerConfig(port=port, **(config or {}))))
        url = f"http://127.0.0.1:{port}"
        async with httpx.AsyncClient(base_url=url, timeout=60) as client:
            await until_ready(client, serving)
            yield Toy(client, llm, url=url, serving=serving)
        if not serving.done():
            serving.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await serving


async def until_ready(client: httpx.AsyncClient, serving: asyncio.Task[int]) -> None:
    for _ in range(500):
        assert not serving.done(), serving
        with contextlib.suppress(httpx.ConnectError):
            if (await client.get("/ready")).status_code == 200:
                return
        await asyncio.sleep(0.01)
    raise AssertionError("the server did not start")


@contextlib.contextmanager
def real_server(*options: str, **environment: str) -> Iterator[str]:
    """The address of `decodex serve` with the demo model in a process of its own, which must end well on SIGTERM."""
    try:
        resolve_model(MODEL)
    except ModelError as error:
        pytest.skip(f"the demo model can't be fetched here: {error}")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "decodex", "serve", *options, "--port", str(port)]
    process = subprocess.Popen(command, env={**os.environ, **environment})
    url = f"http://127.0.0.1:{port}"
    try:
        for _ in range(START_SECONDS):
            assert process.poll() is None, "the server has ended"
            try:
                if httpx.get(f"{url}/ready").status_code == 200:
                    break
            except httpx.TransportError:
                time.sleep(1)
        yield url
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()


def post_all(
    path: str, bodies: Sequence[Any], config: dict[str, Any] | None = None, **engine: Any
) -> list[httpx.Response]:
    """The responses to some bodies, one after the other, of one toy server."""

    async def main() -> list[httpx.Response]:
        async with toy_server(config, **engine) as toy:
            found = [await toy.post(path, body) for body in bodies]
            assert await toy.is_idle()
            return found

    return asyncio.run(main())


def post_one(path: str, body: Any, config: dict[str, Any] | None = None, **engine: Any) -> httpx.Response:
    [response] = post_all(path, [body], config, **engine)
    return response


def error_of(response: httpx.Response) -> dict[str, Any]:
    """The error of a response, whose shape is checked."""
    body = response.json()
    assert list(body) == ["error"], body
    assert list(body["error"]) == ["message", "type", "param", "code"], body
    assert body["error"]["message"], body
    assert "Traceback" not in body["error"]["message"], body
    return body["error"]


def events_of(response: httpx.Response | str) -> list[dict[str, Any]]:
    """The events of a stream, which must end with [DONE]."""
    text = response if isinstance(response, str) else response.text
    events = text.split("\n\n")
    assert events[-2:] == ["data: [DONE]", ""], text[-300:]
    assert all(event.startswith("data: ") for event in events[:-1]), text
    return [json.loads(event.removeprefix("data: ")) for event in events[:-2]]


def joined(events: Sequence[dict[str, Any]], index: int = 0) -> dict[str, Any]:
    """One choice of a completion's or a chat's stream as the whole response would have it."""
    text, reason, logprobs, token_ids = "", None, [], []
    for event in events:
        for choice in event["choices"]:
            if choice["index"] != index:
                continue
            assert reason is None, f"an event after the end: {event}"
            delta = choice.get("delta", choice)
            text += delta.get("content") or delta.get("text") or ""
            reason = choice["finish_reason"]
            logprobs += (choice["logprobs"] or {}).get("content", [])
            token_ids += choice.get("token_ids", [])
    return {"text": text, "finish_reason": reason, "logprobs": logprobs, "token_ids": token_ids}
