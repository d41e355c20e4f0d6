"""K3 and K4 through HTTP: whatever runs are accepted, a stream's events joined are the whole answer, which ends where
one token at a time ends it; text only grows, by whole characters."""

from __future__ import annotations

import asyncio
import codecs
import itertools
from typing import Any

import pytest
from fakes import ByteTokenizer, FakeModel
from http_client import COMPLETIONS, events_of, toy_server
from hypothesis import given, settings
from hypothesis import strategies as st
from properties.scripted import RUNS, SplitProposer, cut_params, oracle, row_of, stream_of

from decodex import SamplingParams

BYTES = ByteTokenizer()
KEY = [1, 2]  # the prompt of a script


def body_of(params: SamplingParams) -> dict[str, Any]:
    """A completion's body with these parameters."""
    names = ("temperature", "seed", "max_tokens", "min_tokens", "ignore_eos", "skip_special_tokens")
    values = {name: getattr(params, name) for name in (*names, "include_stop_str_in_output", "logprobs")}
    return {**values, "stop": list(params.stop), "stop_token_ids": list(params.stop_token_ids), "prompt": KEY}


async def check_stream(script: list[int], params: SamplingParams, runs: list[int]) -> None:
    """Whole and streamed, drafts of these lengths accepted: what the oracle says, and events that only add to it."""
    stream = stream_of(script, params, 257)
    count, text, reason, stop = oracle(stream, params, BYTES)
    model = FakeModel(257, logits_of=lambda prefix: row_of([*script, 65][min(len(prefix) - 2, len(script))], 257))
    proposer = SplitProposer({(1, 2): stream}, {(1, 2): runs}, False, 257)
    body = {**body_of(params), "return_token_ids": True}
    async with toy_server(model=model, tokenizer=ByteTokenizer(), proposer=proposer, num_blocks=256) as toy:
        whole = (await toy.post(COMPLETIONS, body)).json()
        asked = {"stream": True, "stream_options": {"include_usage": True}}
        events = events_of(await toy.post(COMPLETIONS, {**body, **asked}))
        assert await toy.is_idle()
    [choice] = whole["choices"]
    found = (choice["token_ids"], choice["text"], choice["finish_reason"], choice["stop_reason"])
    assert found == (stream[:count], text, reason, stop)
    assert whole["usage"]["completion_tokens"] == count
    *pieces, last = events
    assert last["usage"] == {**whole["usage"], "prompt_tokens_details": last["usage"]["prompt_tokens_details"]}
    parts = [piece["choices"][0] for piece in pieces]
    assert "".join(part["text"] for part in parts) == text
    assert [token for part in parts for token in part["token_ids"]] == stream[:count]
    assert [part["finish_reason"] for part in parts] == [None] * (len(parts) - 1) + [reason]
    assert all(part["text"] or part["token_ids"] or part["finish_reason"] for part in parts)
    if params.logprobs is not None:
        for name in ("tokens", "token_logprobs", "text_offset", "top_logprobs"):
            streamed = [entry for part in parts if part["logprobs"] for entry in part["logprobs"][name]]
            assert streamed == choice["logprobs"][name], name
    check_growth([part["text"] for part in parts], [part["token_ids"] for part in parts], params)


def check_growth(texts: list[str], token_ids: list[list[int]], params: SamplingParams) -> None:
    """After each event but the last the text shown is a beginning of what its tokens say, and little is held back."""
    longest = max(map(len, params.stop), default=1)
    shown = itertools.accumulate(texts)
    known = itertools.accumulate(token_ids)
    for text, tokens in list(zip(shown, known, strict=True))[:-1]:
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        certain = decoder.decode(bytes(token for token in tokens if token < 256))
        assert BYTES.decode(tokens).startswith(text)
        assert len(certain) - len(text) < longest, f"{certain[len(text) :]!r} is held back"


CUTS = {
    "text": st.text("aé€😀x\x00", max_size=12).map(str.encode),
    "noise": st.lists(st.integers(0, 256), max_size=6),
    "params": cut_params(st.sampled_from(["é", "😀", "aé", "€€", "x", "é😀a"]), st.integers(2, 40)),
    "runs": RUNS,
}


def check_cuts(text: bytes, noise: list[int], params: SamplingParams, runs: list[int]) -> None:
    script = ([*text, *noise, *text, *noise] + [65] * 40)[:40]
    asyncio.run(check_stream(script, params, runs))


@settings(max_examples=25)
@given(**CUTS)
def test_streams_are_cut_where_one_token_at_a_time_ends(text, noise, params, runs):
    check_cuts(text, noise, params, runs)


@pytest.mark.slow
@settings(max_examples=1500)
@given(**CUTS)
def test_streams_are_cut_where_one_token_at_a_time_ends_in_a_sweep(text, noise, params, runs):
    check_cuts(text, noise, params, runs)
