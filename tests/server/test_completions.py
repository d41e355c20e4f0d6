"""/v1/completions on toy engines: what comes is what the engine gives, whole and in events."""

from __future__ import annotations

import asyncio
import time

import numpy as np
import pytest
from fakes import (
    ByteTokenizer,
    FakeModel,
    RandomProposer,
    TextTokenizer,
    expected_tokens,
    hash_logits,
)
from http_client import COMPLETIONS, events_of, joined, post_all, post_one, toy_server

from decodex import SamplingParams

LETTERS = "abcdefghijkl"


def text_of(token_ids):
    return "".join(LETTERS[token] for token in token_ids if token)


def test_texts_token_ids_and_lists_of_them():
    body = {"max_tokens": 5, "seed": 7, "return_token_ids": True}
    prompts = ["bcd", [1, 2, 3], ["bcd", "ef"], [[1, 2, 3], [4, 5]]]
    responses = post_all(COMPLETIONS, [{**body, "prompt": prompt} for prompt in prompts])
    params = SamplingParams(seed=7, max_tokens=5)
    first, second = expected_tokens([1, 2, 3], params), expected_tokens([4, 5], params)
    for response, expected in zip(responses, [[first], [first], [first, second], [first, second]], strict=True):
        found = response.json()
        assert [choice["token_ids"] for choice in found["choices"]] == expected
        assert [choice["text"] for choice in found["choices"]] == [text_of(tokens) for tokens in expected]
        assert [choice["index"] for choice in found["choices"]] == list(range(len(expected)))
        assert found["seed"] == 7
        assert found["replayable"] is True
        assert found["usage"]["completion_tokens"] == sum(map(len, expected))
        assert found["usage"]["prompt_tokens"] == (3 if len(expected) == 1 else 5)
        assert found["usage"]["total_tokens"] == sum(found["usage"][k] for k in ("prompt_tokens", "completion_tokens"))


def test_sixteen_tokens_where_nothing_is_said():
    found = post_one(COMPLETIONS, {"prompt": "bcd", "ignore_eos": True, "seed": 1}).json()
    assert found["usage"]["completion_tokens"] == 16
    assert found["choices"][0]["finish_reason"] == "length"


def test_every_choice_replays_alone_from_its_seed():
    async def main():
        async with toy_server() as toy:
            body = {"max_tokens": 8, "ignore_eos": True, "return_token_ids": True}
            many = (await toy.post(COMPLETIONS, {**body, "prompt": [[1, 2], [3]], "n": 3})).json()
            assert len(many["choices"]) == 6
            for choice in many["choices"]:
                prompt = [[1, 2], [3]][choice["index"] // 3]
                one = await toy.post(COMPLETIONS, {**body, "prompt": prompt, "seed": choice["seed"]})
                assert one.json()["choices"][0]["token_ids"] == choice["token_ids"]
            again = await toy.post(COMPLETIONS, {**body, "prompt": [[1, 2], [3]], "n": 3, "seed": many["seed"]})
            assert again.json()["choices"] == many["choices"]
            assert len({tuple(choice["token_ids"]) for choice in many["choices"]}) > 3

    asyncio.run(main())


def test_echo_and_its_logprobs():
    body = {"prompt": "bcd", "seed": 3, "max_tokens": 4, "ignore_eos": True}
    plain, echoed, only, streamed = post_all(
        COMPLETIONS,
        [
            {**body, "logprobs": 2},
            {**body, "logprobs": 2, "echo": True},
            {**body, "logprobs": 2, "echo": True, "max_tokens": 0},
            {**body, "logprobs": 2, "echo": True, "stream": True},
        ],
    )
    [alone], [choice], [prompt] = (r.json()["choices"] for r in (plain, echoed, only))
    assert choice["text"] == "bcd" + alone["text"]
    assert prompt["text"] == "bcd"
    assert only.json()["usage"]["completion_tokens"] == 0
    for name, values in choice["logprobs"].items():
        assert values[:3] == prompt["logprobs"][name]
        if name != "text_offset":
            assert values[3:] == alone["logprobs"][name]
    assert choice["logprobs"]["token_logprobs"][0] is None
    assert choice["logprobs"]["tokens"][:3] == ["b", "c", "d"]
    expected = hash_logits([1, 2], 12)
    value = choice["logprobs"]["token_logprobs"][2]
    assert value == pytest.approx(float(expected[3] - np.log(np.exp(expected.astype(np.float64)).sum())), abs=1e-4)
    events = events_of(streamed)
    assert "".join(event["choices"][0]["text"] for event in events) == choice["text"]
    for name, values in choice["logprobs"].items():
        assert [item for event in events for item in event["choices"][0]["logprobs"][name]] == values


def test_text_offsets_and_names_of_tokens_that_are_half_a_character():
    euro = list("€".encode())

    def logits_of(prefix):
        logits = hash_logits(prefix, 257) - 20
        logits[(*euro, ord("x"))[(len(prefix) - 1) % 4]] = 10
        return logits

    body = {"prompt": "a", "max_tokens": 8, "logprobs": 0, "temperature": 0}
    model = FakeModel(257, logits_of=logits_of)
    [choice] = post_one(COMPLETIONS, body, model=model, tokenizer=ByteTokenizer()).json()["choices"]
    assert choice["text"] == "€x€x"
    names = ["bytes:\\xe2", "bytes:\\x82", "bytes:\\xac", "x"]
    assert choice["logprobs"]["tokens"] == names * 2
    assert choice["logprobs"]["text_offset"] == [0, 0, 0, 1, 2, 2, 2, 3]
    assert [list(top) for top in choice["logprobs"]["top_logprobs"]] == [[name] for name in names * 2]


STREAMS = [
    {"seed": 1, "max_tokens": 12},
    {"seed": 2, "max_tokens": 20, "stop": ["ab", "cd", "i"], "ignore_eos": True},
    {"seed": 3, "max_tokens": 20, "stop": ["gh"], "include_stop_str_in_output": True, "n": 3, "ignore_eos": True},
    {"seed": 4, "max_tokens": 9, "min_tokens": 5, "skip_special_tokens": False},
    {"seed": 5, "max_tokens": 15, "stop_token_ids": [3], "top_k": 4},
]


@pytest.mark.parametrize("is_guessing", [False, True])
def test_the_joined_stream_is_the_whole_response(is_guessing):
    """However the tokens arrive, several at once under speculation: nothing is lost, leaked or said twice."""
    texts = ["<eos>", "a", "ab", "abc", "b", "cd", "gh", "i", "hi", "\n", "é", "efg"]
    bodies = []
    for fields in STREAMS:
        body = {"prompt": [1, 2], "return_token_ids": True, **fields}
        options = {"include_usage": True, "continuous_usage_stats": True}
        bodies += [body, {**body, "stream": True, "stream_options": options}]
    proposer = RandomProposer(0) if is_guessing else None
    responses = post_all(COMPLETIONS, bodies, tokenizer=TextTokenizer(texts), proposer=proposer)
    most = 0
    for whole, stream in zip(responses[::2], responses[1::2], strict=True):
        whole, events = whole.json(), events_of(stream)
        assert events[-1]["choices"] == []
        assert events[-1]["usage"] == whole["usage"]
        counts = [event["usage"]["completion_tokens"] for event in events]
        assert counts == sorted(counts)
        for choice in whole["choices"]:
            found = joined(events, choice["index"])
            for name in ("text", "finish_reason", "token_ids"):
                assert found[name] == choice[name], (name, choice)
        most = max(most, *(len(choice["token_ids"]) for event in events for choice in event["choices"]))
        assert {event["id"] for event in events} == {events[0]["id"]}
        assert {event["seed"] for event in events} == {whole["seed"]}
    assert (most > 1) == is_guessing


def test_one_event_for_each_commit():
    body = {"prompt": [1, 2], "max_tokens": 9, "seed": 1, "ignore_eos": True, "stream": True, "return_token_ids": True}

    def logits_of(prefix):
        time.sleep(0.005)
        return hash_logits(prefix, 12)

    events = events_of(post_one(COMPLETIONS, body, model=FakeModel(logits_of=logits_of)))
    assert len(events) == 9
    assert [event["choices"][0]["finish_reason"] for event in events] == [None] * 8 + ["length"]


def test_predicted_and_cached_tokens_in_the_usage():
    async def main():
        async with toy_server() as toy:
            body = {"prompt": list(range(1, 10)), "max_tokens": 10, "temperature": 0, "ignore_eos": True}
            plain = (await toy.post(COMPLETIONS, {**body, "return_token_ids": True})).json()
            tokens = plain["choices"][0]["token_ids"]
            wrong = [*tokens[:6], (tokens[6] + 1) % 12]
            guided = (await toy.post(COMPLETIONS, {**body, "return_token_ids": True, "prediction": wrong})).json()
            salted = (await toy.post(COMPLETIONS, {**body, "prompt_cache_key": "other"})).json()
            return plain, guided, salted

    plain, guided, salted = asyncio.run(main())
    assert guided["choices"][0]["token_ids"] == plain["choices"][0]["token_ids"]
    assert plain["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    assert guided["usage"]["prompt_tokens_details"]["cached_tokens"] == 8
    assert salted["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    details = guided["usage"]["completion_tokens_details"]
    assert details["accepted_prediction_tokens"] == 5  # the first token is chosen before anything is guessed
    assert details["rejected_prediction_tokens"] >= 1


def test_constrained_completions():
    bodies = [
        {"prompt": "a", "max_tokens": 40, "structured_outputs": {"choice": ["yes", "no"]}, "seed": seed}
        for seed in range(3)
    ]
    bodies.append(
        {"prompt": "a", "max_tokens": 40, "response_format": {"type": "json_object"}, "seed": 1, "stream": True}
    )
    model = FakeModel(257)
    *chosen, streamed = post_all(COMPLETIONS, bodies, model=model, tokenizer=ByteTokenizer(), num_blocks=64)
    assert {r.json()["choices"][0]["text"] for r in chosen} <= {"yes", "no"}
    assert joined(events_of(streamed))["text"].startswith("{")


def test_a_long_reply_is_the_same_made_in_turns(monkeypatch):
    body = {"prompt": "bcd", "max_tokens": 9, "logprobs": 3, "n": 3, "seed": 1, "echo": True, "return_token_ids": True}
    plain = post_one(COMPLETIONS, body).json()
    monkeypatch.setattr("decodex.server.service.LONG_REPLY", 1)
    response = post_one(COMPLETIONS, body)
    assert {**response.json(), "id": 0, "created": 0} == {**plain, "id": 0, "created": 0}
    assert response.headers["content-type"] == "application/json"
