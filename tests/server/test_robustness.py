"""Clients that leave, floods, slow readers, time limits, stopping and dying: nobody hangs, nothing is kept."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import signal
import threading
import time

import httpx
import pytest
from fakes import VOCAB, FakeModel, expected_tokens, hash_logits
from http_client import CHAT, COMPLETIONS, error_of, events_of, toy_server, toy_socket

from decodex import SamplingParams
from decodex.errors import RequestError
from decodex.server.auth import Keys
from decodex.server.config import ServerConfig, with_environment
from decodex.server.sse import EventStream

LONG = {"prompt": [1, 2], "max_tokens": 200, "ignore_eos": True, "seed": 1}


def slow_model(seconds=0.01, after=0):
    """`after` tokens it takes its time."""

    def logits_of(prefix):
        if len(prefix) > after:
            time.sleep(seconds)
        return hash_logits(prefix, VOCAB)

    return FakeModel(logits_of=logits_of)


async def running(toy, count=1):
    """Wait until so many sequences are in the batch."""
    for _ in range(500):
        if len(toy.llm.engine.scheduler.running) >= count:
            return
        await asyncio.sleep(0.01)
    raise AssertionError("nothing runs")


async def raw_request(toy, path, body):
    """A connection on which a request has been sent."""
    host, port = toy.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    content = json.dumps(body).encode()
    head = (
        f"POST {path} HTTP/1.1\r\nHost: toy\r\nContent-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
    )
    writer.write(head.encode() + content)
    await writer.drain()
    return reader, writer


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_ends_its_request_within_a_step(stream):
    async def main():
        async with toy_socket(model=slow_model(0.02)) as toy:
            for path, body in ((COMPLETIONS, LONG), (CHAT, {**LONG, "messages": [{"role": "user", "content": "b"}]})):
                body = {name: value for name, value in body.items() if path == COMPLETIONS or name != "prompt"}
                reader, writer = await raw_request(toy, path, {**body, "stream": stream, "n": 2})
                await running(toy, 2)
                if stream:
                    await reader.readuntil(b"data: ")
                before = toy.llm.engine.model.num_forwards
                writer.close()
                assert await toy.is_idle(1.0)
                assert toy.llm.engine.model.num_forwards - before <= 4
            metrics = (await toy.http.get("/metrics")).text
            assert 'decodex_request_success_total{finished_reason="length"} 0.0' in metrics

    asyncio.run(main())


def test_a_client_that_leaves_while_it_waits_or_its_grammar_is_compiled():
    async def main():
        async with toy_socket(model=slow_model(0.02), max_num_seqs=1) as toy:
            _, first = await raw_request(toy, COMPLETIONS, LONG)
            await running(toy)
            _, second = await raw_request(toy, COMPLETIONS, {**LONG, "stream": True})
            _, third = await raw_request(
                toy, COMPLETIONS, {"prompt": "b", "structured_outputs": {"regex": "[b-f]{1,400}"}}
            )
            for _ in range(100):
                if toy.llm.engine.scheduler.waiting:
                    break
                await asyncio.sleep(0.01)
            for writer in (second, third, first):
                writer.close()
            assert await toy.is_idle(2.0)

    asyncio.run(main())


def test_a_full_queue_is_a_429_and_ends_nothing_else():
    async def main():
        async with toy_server(model=slow_model(0.005), max_num_seqs=1, max_queued_requests=1) as toy:
            first = asyncio.create_task(toy.post(COMPLETIONS, {**LONG, "max_tokens": 50, "return_token_ids": True}))
            await running(toy)
            second = asyncio.create_task(toy.post(COMPLETIONS, {**LONG, "max_tokens": 5}))
            await asyncio.sleep(0.05)
            refused = [
                await toy.post(COMPLETIONS, {**LONG, "stream": stream, **more})
                for stream in (False, True)
                for more in ({}, {"prompt": [[1], [2]]})
            ]
            answers = await first, await second
            assert await toy.is_idle()
            return answers, refused

    answers, refused = asyncio.run(main())
    assert [answer.status_code for answer in answers] == [200, 200]
    params = SamplingParams(max_tokens=50, ignore_eos=True, seed=1)
    assert answers[0].json()["choices"][0]["token_ids"] == expected_tokens([1, 2], params)
    for response in refused:
        assert response.status_code == 429, response.text
        assert response.headers["retry-after"] == "1"
        assert error_of(response)["code"] == "queue_full"


def test_more_requests_than_the_server_has_room_for():
    async def main():
        async with toy_server(model=slow_model(0.005), max_num_seqs=1, max_queued_requests=1) as toy:
            replies = await asyncio.gather(*(toy.post(COMPLETIONS, {**LONG, "max_tokens": 20}) for _ in range(20)))
            assert await toy.is_idle()
            assert (await toy.post(COMPLETIONS, {**LONG, "max_tokens": 2})).status_code == 200
            return replies

    codes = [reply.status_code for reply in asyncio.run(main())]
    assert set(codes) == {200, 429}


def test_a_reader_that_does_not_read_costs_little_memory_and_holds_up_nobody():
    async def main():
        async with toy_socket(num_blocks=600) as toy:
            _, writer = await raw_request(toy, COMPLETIONS, {**LONG, "max_tokens": 450, "n": 4, "stream": True})
            await running(toy)
            quick = await toy.post(COMPLETIONS, {**LONG, "max_tokens": 20})
            assert quick.status_code == 200
            assert await toy.is_idle()
            writer.close()

    asyncio.run(main())


def test_a_reader_that_never_reads_is_let_go(monkeypatch):
    monkeypatch.setattr("decodex.server.sse.SEND_TIMEOUT", 0.2)
    closed = []

    async def events():
        while True:
            yield b"data: {}\n\n"

    async def send(message):
        if message["type"] == "http.response.body":
            await asyncio.Event().wait()

    async def main():
        stream = EventStream(events(), lambda: closed.append(True))
        scope = {"type": "http"}
        await asyncio.wait_for(stream(scope, asyncio.Event().wait, send), 5)

    asyncio.run(main())
    assert closed == [True]


def test_a_time_limit_frees_kv_whether_its_reader_reads_or_not():
    async def main():
        async with toy_socket({"request_timeout": 0.3}, model=slow_model(0.02)) as toy:
            _, writer = await raw_request(toy, COMPLETIONS, {**LONG, "stream": True})
            await running(toy)
            assert await toy.is_idle(1.5)
            writer.close()

    asyncio.run(main())


@pytest.mark.parametrize("stream", [False, True])
def test_a_request_that_takes_too_long(stream):
    async def main():
        async with toy_server({"request_timeout": 0.3}, model=slow_model(0.02)) as toy:
            response = await toy.post(COMPLETIONS, {**LONG, "stream": stream})
            assert await toy.is_idle(0.5)
            quick = await toy.post(COMPLETIONS, {**LONG, "max_tokens": 2})
            assert quick.status_code == 200
            return response

    response = asyncio.run(main())
    if stream:
        assert response.status_code == 200
        *pieces, last = events_of(response)
        assert len(pieces) > 1
        assert last["error"]["code"] == "request_timeout"
    else:
        assert response.status_code == 408
        assert response.headers["x-should-retry"] == "false"
        assert error_of(response)["code"] == "request_timeout"


def test_a_body_that_never_comes():
    async def main():
        async with toy_socket({"request_timeout": 0.3}) as toy:
            host, port = toy.url.removeprefix("http://").split(":")
            reader, writer = await asyncio.open_connection(host, int(port))
            head = b"POST /v1/completions HTTP/1.1\r\nHost: toy\r\nContent-Type: application/json\r\n"
            writer.write(head + b"Content-Length: 9\r\n\r\n{")
            line = await asyncio.wait_for(reader.readline(), 5)
            writer.close()
            return line

    assert b" 408 " in asyncio.run(main())


def test_long_bodies_are_read_a_few_at_a_time(monkeypatch):
    monkeypatch.setattr("decodex.server.limits.MAX_BODIES", 1)

    async def main():
        async with toy_socket({"max_body_bytes": 2048}) as toy:
            host, port = toy.url.removeprefix("http://").split(":")
            _, writer = await asyncio.open_connection(host, int(port))
            head = b"POST /v1/completions HTTP/1.1\r\nHost: toy\r\nContent-Type: application/json\r\n"
            writer.write(head + b"Content-Length: 2000\r\n\r\n" + b" " * 1900)
            await asyncio.sleep(0.1)
            body = {"prompt": "b" * 200, "max_tokens": 2}
            refused = await toy.post(COMPLETIONS, body)
            writer.close()
            await asyncio.sleep(0.1)
            return refused, await toy.post(COMPLETIONS, body)

    refused, answered = asyncio.run(main())
    assert refused.status_code == 429
    assert answered.status_code == 200
    assert answered.headers["x-request-id"] != refused.headers["x-request-id"]


def test_sigterm_lets_what_runs_finish_and_takes_no_more():
    async def main():
        async with toy_socket(model=slow_model(0.01)) as toy:
            body = {**LONG, "max_tokens": 60, "return_token_ids": True}
            first = asyncio.create_task(toy.post(COMPLETIONS, body))
            reader, writer = await raw_request(toy, COMPLETIONS, {**body, "stream": True})
            await running(toy, 2)
            os.kill(os.getpid(), signal.SIGTERM)
            await asyncio.sleep(0.3)
            with pytest.raises(httpx.TransportError):
                async with httpx.AsyncClient(base_url=toy.url) as late:
                    await late.post(COMPLETIONS, json=body)
            answer = await first
            rest = (await reader.read()).decode()
            writer.close()
            status = await asyncio.wait_for(toy.serving, 10)
            return answer, rest, status, toy.service

    answer, rest, status, _ = asyncio.run(main())
    tokens = expected_tokens([1, 2], SamplingParams(max_tokens=60, ignore_eos=True, seed=1))
    assert answer.json()["choices"][0]["token_ids"] == tokens
    assert "data: [DONE]" in rest
    assert "error" not in rest
    assert status == 0


@pytest.mark.parametrize("is_second_signal", [False, True])
def test_what_has_not_ended_when_the_time_is_up_gets_an_error(is_second_signal):
    async def main():
        timeout = 60.0 if is_second_signal else 0.3
        async with toy_socket({"drain_timeout": timeout}, model=slow_model(0.02)) as toy:
            first = asyncio.create_task(toy.post(COMPLETIONS, LONG))
            reader, writer = await raw_request(toy, COMPLETIONS, {**LONG, "stream": True})
            await running(toy, 2)
            start = time.monotonic()
            os.kill(os.getpid(), signal.SIGTERM)
            if is_second_signal:
                await asyncio.sleep(0.2)
                os.kill(os.getpid(), signal.SIGTERM)
            answer = await first
            rest = (await reader.read()).decode()
            writer.close()
            status = await asyncio.wait_for(toy.serving, 10)
            assert time.monotonic() - start < 3
            assert await toy.is_idle(0.5)
            return answer, rest, status

    answer, rest, status = asyncio.run(main())
    assert answer.status_code == 503
    assert error_of(answer)["code"] == "shutting_down"
    assert '"code":"shutting_down"' in rest
    assert "data: [DONE]" in rest
    assert status == 0


def test_an_engine_that_dies_answers_everybody_and_ends_the_server():
    def logits_of(prefix):
        time.sleep(0.01)
        if prefix[0] == 5 and len(prefix) > 10:
            raise RuntimeError("boom")
        return hash_logits(prefix, VOCAB)

    async def main():
        async with toy_socket(model=FakeModel(logits_of=logits_of)) as toy:
            assert (await toy.http.get("/health")).status_code == 200
            reader, writer = await raw_request(toy, COMPLETIONS, {**LONG, "stream": True})
            whole = asyncio.create_task(toy.post(COMPLETIONS, LONG))
            await running(toy, 2)
            hostile = await toy.post(COMPLETIONS, {**LONG, "prompt": [5]})
            replies = [hostile, await whole, await toy.post(COMPLETIONS, LONG)]
            health = await toy.http.get("/health"), await toy.http.get("/ready")
            rest = (await reader.read()).decode()
            writer.close()
            return replies, health, rest, await asyncio.wait_for(toy.serving, 10)

    replies, health, rest, status = asyncio.run(main())
    for reply in replies:
        assert reply.status_code == 500
        assert "boom" in error_of(reply)["message"]
    assert [reply.status_code for reply in health] == [503, 503]
    assert error_of(health[0])["code"] == "engine_dead"
    assert "boom" in rest
    assert "data: [DONE]" in rest
    assert status == 1


def test_a_port_that_is_taken_is_an_error():
    async def main():
        async with toy_socket() as toy:
            port = int(toy.url.rsplit(":", 1)[1])
            from decodex.server.serve import serve

            with pytest.raises((SystemExit, OSError)):
                await serve(toy.llm, ServerConfig(port=port))

    with contextlib.suppress(SystemExit):
        asyncio.run(main())


def test_keys(tmp_path):
    key_file = tmp_path / "keys"
    digest = hashlib.sha256(b"third").hexdigest()
    key_file.write_text(f"# of a friend\n{digest}  -\n\nsha256:{hashlib.sha256(b'fourth').hexdigest()} label\n")
    config = {"api_key": ["first", "second"], "api_key_file": str(key_file)}

    async def main():
        async with toy_server(config) as toy:

            async def status(key, path="/v1/models"):
                headers = {} if key is None else {"Authorization": key}
                if path == "/v1/models":
                    return await toy.http.get(path, headers=headers)
                return await toy.post(path, {"prompt": "b"}, headers=headers)

            for name in ("first", "second", "third", "fourth"):
                assert (await status(f"Bearer {name}")).status_code == 200
                assert (await status(f"bearer {name}", COMPLETIONS)).status_code == 200
            for wrong in (None, "", "Bearer", "Bearer fifth", "Basic first", f"Bearer {digest}", "first"):
                for path in ("/v1/models", COMPLETIONS, CHAT, "/tokenize"):
                    response = await status(wrong, path)
                    assert response.status_code == 401, wrong
                    assert response.headers["www-authenticate"] == "Bearer"
                    assert error_of(response)["code"] == "invalid_api_key"
            for path in ("/health", "/ready", "/version", "/metrics"):
                assert (await toy.http.get(path)).status_code == 200

    asyncio.run(main())


@pytest.mark.parametrize(("text", "message"), [("", "at least one key"), ("secret", "keys:1: .*64 hexadecimal")])
def test_key_files_that_hold_no_hashes(tmp_path, text, message):
    (tmp_path / "keys").write_text(text)
    with pytest.raises(RequestError, match=message):
        Keys.of(ServerConfig(api_key_file=str(tmp_path / "keys")))
    with pytest.raises(RequestError, match="a readable file"):
        Keys.of(ServerConfig(api_key_file=str(tmp_path / "absent")))


def test_the_key_of_the_environment():
    assert with_environment({}, {"DECODEX_API_KEY": "k"}) == {"api_key": ("k",)}
    assert with_environment({"api_key": ["a"]}, {"DECODEX_API_KEY": "k"}) == {"api_key": ["a"]}
    assert with_environment({}, {}) == {}


@pytest.mark.parametrize("origins", [None, "https://a.example", "*"])
def test_cross_origin_calls_are_for_the_listed_origins(origins):
    async def main():
        async with toy_server({"cors_origins": origins}) as toy:
            headers = {"Origin": "https://a.example", "Access-Control-Request-Method": "POST"}
            return await toy.http.options(COMPLETIONS, headers=headers), await toy.http.get(
                "/v1/models", headers=headers
            )

    preflight, plain = asyncio.run(main())
    expected = None if origins is None else origins
    assert preflight.headers.get("access-control-allow-origin") == expected
    assert plain.headers.get("access-control-allow-origin") == expected
    assert preflight.status_code == (405 if origins is None else 200)


def test_no_threads_and_tasks_are_left_behind():
    async def main():
        async with toy_server(model=slow_model(0.001)) as toy:
            await toy.post(COMPLETIONS, LONG)
            threads, tasks = threading.active_count(), len(asyncio.all_tasks())
            for round in range(20):
                body = {**LONG, "max_tokens": 5, "stream": round % 2 == 0, "n": round % 3 + 1}
                assert (await toy.post(COMPLETIONS, body)).status_code == 200
            assert threading.active_count() <= threads
            assert len(asyncio.all_tasks()) <= tasks
            assert toy.service is not None
            assert not toy.service.gate._enders

    asyncio.run(main())
