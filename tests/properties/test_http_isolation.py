"""K8, blast radius, through HTTP: malformed bodies get a 4xx in OpenAI's shape, and a canary that runs beside them,
before and after them answers the same tokens."""

from __future__ import annotations

import asyncio
import copy
import json
import random
from typing import Any

import pytest
from fakes import ByteTokenizer, FakeModel
from http_client import CHAT, COMPLETIONS, Toy, error_of, post_one, toy_server
from properties.every_field import VALUES

from decodex.errors import RequestError
from decodex.server.sampling import TABLE

CANARY = {"prompt": [2, 3, 4], "max_tokens": 24, "seed": 7, "ignore_eos": True, "return_token_ids": True}
PATHS = (COMPLETIONS, CHAT, "/v1/responses", "/tokenize", "/detokenize")
BODIES: dict[str, list[dict[str, Any]]] = {
    COMPLETIONS: [
        {"prompt": "abc", "max_tokens": 4, "stop": ["a"], "seed": 1},
        {"prompt": [[1, 2], [3]], "max_tokens": 4, "n": 2, "echo": True, "logprobs": 2},
        {"prompt": "abc", "max_tokens": 4, "stream": True, "stream_options": {"include_usage": True}},
    ],
    CHAT: [
        {"messages": [{"role": "user", "content": "abc"}], "max_tokens": 4, "logprobs": True, "top_logprobs": 2},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "abc"}]}], "max_tokens": 4, "stream": True},
        {
            "messages": [{"role": "user", "content": "abc"}],
            "max_tokens": 4,
            "response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "integer"}}},
        },
        {
            "messages": [{"role": "user", "content": "abc"}],
            "max_tokens": 4,
            "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}],
            "tool_choice": "required",
        },
    ],
    "/v1/responses": [
        {"input": "abc", "max_output_tokens": 4, "text": {"format": {"type": "text"}}},
        {"input": [{"role": "user", "content": [{"type": "input_text", "text": "abc"}]}], "max_output_tokens": 4},
    ],
    "/tokenize": [{"prompt": "abc"}, {"messages": [{"role": "user", "content": "abc"}]}],
    "/detokenize": [{"tokens": [1, 2, 3]}],
}
ODD: list[Any] = [
    None, True, False, 0, -1, 1, 2.5, 1e308, -1e308, 5e-324, 2**31, 2**63, 2**64, -(2**63), 10**40, float("nan"),
    float("inf"), -float("inf"), "", "x", "\ud800", "\x00", "é" * 40, "a" * 5000, [], [[]], [0], [-1], [2**40], [None],
    ["x"], [1] * 300, {}, {"": 1}, {"x": 1}, {"0": 1e9}, {"type": "x"}, {"$ref": "#"}, [{}], "[" * 50, "NaN", "1",
]  # fmt: skip


class CheckedBytes(ByteTokenizer):
    """Refuses messages that are no text, as the real one does."""

    def render_chat(self, messages: Any, *options: Any, **values: Any) -> str:
        for message in messages:
            try:
                message["content"].encode()
            except UnicodeEncodeError:
                raise RequestError("messages", message, "text without lone surrogates") from None
        return super().render_chat(messages, *options, **values)


def engine() -> dict[str, Any]:
    """Over bytes: with fewer characters, schemas have dead ends."""
    return {"model": FakeModel(257), "tokenizer": CheckedBytes(), "num_blocks": 256, "max_num_seqs": 8}


class Malformer:
    """Makes bodies that are wrong somewhere."""

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(seed)

    def make(self) -> tuple[str, bytes]:
        """A path, and a body for it."""
        path = self._rng.choice(PATHS)
        body = json.loads(json.dumps(self._rng.choice(BODIES[path])))
        for _ in range(self._rng.randint(1, 3)):
            self._change(body)
        if self._rng.random() < 0.4:
            name = self._rng.choice(list(TABLE))
            value = self._rng.choice(ODD)
            if name in VALUES and name != "logits_processors" and self._rng.random() < 0.5:
                value = self._rng.choice(VALUES[name])
            body[name] = value
        content = json.dumps(body, ensure_ascii=self._rng.random() < 0.7).encode("utf-8", "surrogatepass")
        return path, self._broken(content) if self._rng.random() < 0.35 else content

    def _change(self, value: Any) -> None:
        """Put something odd somewhere into a value, or take something out."""
        rng = self._rng
        while isinstance(value, dict | list) and value:
            key = rng.choice(list(value)) if isinstance(value, dict) else rng.randrange(len(value))
            if isinstance(value[key], dict | list) and value[key] and rng.random() < 0.6:
                value = value[key]
                continue
            kind = rng.randrange(4)
            if kind == 0:
                del value[key]
            elif kind == 1 and isinstance(value, dict):
                value[self._odd_name(key)] = value.pop(key)
            elif kind == 2:
                value[key] = [value[key]] * rng.choice([1, 2, 200])
            else:
                value[key] = copy.deepcopy(rng.choice(ODD))
            return

    def _odd_name(self, name: str) -> str:
        at = self._rng.randrange(len(name) or 1)
        return self._rng.choice([name[:at] + name[at + 1 :], name.upper(), name + "\x00", "", "__class__", "é" * 300])

    def _broken(self, content: bytes) -> bytes:
        rng, at = self._rng, self._rng.randrange(len(content))
        return rng.choice(
            [
                content[:at],
                content[:at] + bytes([rng.randrange(256)]) + content[at + 1 :],
                content[:at] + content[at:] * 2,
                content + b"}",
                b"\xff\xfe" + content,
                b"[" * 5000 + content,
                b'{"a":' * 3000 + b"1" + b"}" * 3000,
                content.replace(b":", b"::", 1),
                content.replace(b"4", b"4" * 5000),
                content.replace(b'"', b"'"),
                b"",
                b"null",
                b"[]",
                b'"text"',
                b"1e999999",
                content.decode("utf-8", "replace").encode("utf-16"),
                content + b" " * 70_000,  # longer than the server reads
            ]
        )


def canary_tokens() -> list[int]:
    """What the canary answers on a server of its own."""
    tokens: list[int] = post_one(COMPLETIONS, CANARY, **engine()).json()["choices"][0]["token_ids"]
    assert len(tokens) == CANARY["max_tokens"]
    return tokens


async def check_canary(toy: Toy, tokens: list[int]) -> None:
    response = await toy.post(COMPLETIONS, CANARY)
    assert response.status_code == 200, response.text
    assert response.json()["choices"][0]["token_ids"] == tokens, "the canary noticed"


async def hostile(toy: Toy, path: str, content: bytes, counts: dict[int, int]) -> None:
    response = await toy.http.post(path, content=content, headers={"content-type": "application/json"})
    counts[response.status_code] = counts.get(response.status_code, 0) + 1
    assert response.status_code < 500, (path, content[:500], response.text)
    if response.status_code != 200:
        assert error_of(response)["type"] in ("invalid_request_error", "rate_limit_error"), response.text
    else:
        assert "internal_error" not in response.text, (path, content[:500], response.text[-500:])


def fuzz(num_bodies: int, seed: int, at_once: int = 10) -> None:
    malformer, counts, tokens = Malformer(seed), dict[int, int](), canary_tokens()

    async def main() -> None:
        async with toy_server({"max_body_bytes": 65_536}, **engine()) as toy:
            await check_canary(toy, tokens)
            for _ in range(num_bodies // at_once):
                bodies = [malformer.make() for _ in range(at_once)]
                await asyncio.gather(check_canary(toy, tokens), *(hostile(toy, *body, counts) for body in bodies))
            assert toy.llm.failure is None
            assert await toy.is_idle()
            await check_canary(toy, tokens)

    asyncio.run(main())
    assert sum(count for status, count in counts.items() if status != 200) > num_bodies / 2, counts


def test_malformed_bodies_beside_a_canary():
    fuzz(150, seed=1)


@pytest.mark.slow
def test_malformed_bodies_beside_a_canary_in_a_sweep():
    fuzz(2000, seed=2)
