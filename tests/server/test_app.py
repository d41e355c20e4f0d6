"""Metrics, the OpenAPI document, models, health and tokens."""

from __future__ import annotations

import asyncio
import json
import re

import pytest
from fakes import ByteTokenizer, FakeModel
from http_client import CHAT, COMPLETIONS, events_of, post_one, toy_server
from jsonschema import Draft202012Validator

from decodex.server.chat_request import ChatFields
from decodex.server.completion_request import CompletionFields
from decodex.server.sampling import TABLE

BODY = {"prompt": list(range(1, 10)), "max_tokens": 10, "ignore_eos": True, "temperature": 0}


def samples_of(text):
    """Name with labels -> value."""
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines)}


def test_metrics_count_what_requests_have_used():
    async def main():
        async with toy_server() as toy:
            first = (await toy.post(COMPLETIONS, {**BODY, "return_token_ids": True})).json()
            guess = first["choices"][0]["token_ids"]
            await toy.post(COMPLETIONS, {**BODY, "n": 2, "stream": True, "speculative": {"method": "suffix"}})
            await toy.post(COMPLETIONS, {**BODY, "prediction": guess})
            await toy.post(CHAT, {"messages": [{"role": "user", "content": "b"}], "structured_outputs": {"regex": "("}})
            await toy.post(COMPLETIONS, {"prompt": ""})
            return samples_of((await toy.http.get("/metrics")).text), first

    found, _ = asyncio.run(main())
    assert found["decodex_num_requests_running"] == 0
    assert found["decodex_num_requests_waiting"] == 0
    assert found["decodex_kv_cache_usage_ratio"] == 0
    assert found["decodex_prompt_tokens_total"] == 27
    assert found["decodex_generation_tokens_total"] == 40
    assert found["decodex_prefix_cache_hits_total"] == 16
    assert found['decodex_request_success_total{finished_reason="length"}'] == 4
    assert found["decodex_time_to_first_token_seconds_count"] == 3
    assert found["decodex_inter_token_latency_seconds_count"] >= 3
    assert found["decodex_e2e_request_latency_seconds_count"] >= 3
    assert found['decodex_http_responses_total{path="/v1/completions",status="200"}'] == 3
    assert found['decodex_http_responses_total{path="/v1/completions",status="400"}'] == 1
    assert found['decodex_constraints_refused_total{kind="regex"}'] == 1
    drafted = found['decodex_spec_decode_draft_tokens_total{proposer="prediction"}']
    accepted = found['decodex_spec_decode_accepted_tokens_total{proposer="prediction"}']
    assert drafted >= accepted > 0
    positions = [name for name in found if "accepted_tokens_per_pos_total" in name]
    assert sum(found[name] for name in positions) >= accepted


def test_mask_time_is_measured():
    async def main():
        async with toy_server(model=FakeModel(257), tokenizer=ByteTokenizer()) as toy:
            await toy.post(COMPLETIONS, {"prompt": "a", "structured_outputs": {"choice": ["yes", "no"]}})
            return samples_of((await toy.http.get("/metrics")).text)

    found = asyncio.run(main())
    assert found["decodex_grammar_mask_seconds_total"] > 0
    assert found["decodex_grammar_mask_rows_total"] >= 2


def test_the_queue_is_seen_while_requests_wait():
    async def main():
        async with toy_server(max_num_seqs=1, num_blocks=200) as toy:
            tasks = [asyncio.create_task(toy.post(COMPLETIONS, {**BODY, "max_tokens": 120})) for _ in range(3)]
            seen = []
            while not all(task.done() for task in tasks):
                seen.append(samples_of((await toy.http.get("/metrics")).text))
                await asyncio.sleep(0.005)
            return seen

    seen = asyncio.run(main())
    assert max(one["decodex_num_requests_waiting"] for one in seen) >= 1
    assert max(one["decodex_num_requests_running"] for one in seen) == 1
    assert max(one["decodex_kv_cache_usage_ratio"] for one in seen) > 0


def test_the_document_describes_every_field_and_every_example_fits_it():
    async def main():
        async with toy_server({"api_key": "k"}) as toy:
            return (await toy.http.get("/openapi.json")).json()

    document = asyncio.run(main())
    assert document["openapi"].startswith("3.1")
    schemas = document["components"]["schemas"]
    assert set(schemas["ChatRequest"]["properties"]) == set(ChatFields.model_fields) | set(TABLE)
    assert set(schemas["CompletionRequest"]["properties"]) == set(CompletionFields.model_fields) | set(TABLE)
    for schema in schemas.values():
        Draft202012Validator.check_schema(schema)
    references = set(re.findall(r'"#/components/schemas/([^"]+)"', json.dumps(document)))
    assert references <= set(schemas)
    whole = {**document, **schemas["ChatRequest"]}
    validator = Draft202012Validator(whole)
    assert validator.is_valid({"messages": [{"role": "user", "content": "b"}], "temperature": 0.5, "stop": ["x"]})
    assert not validator.is_valid({"messages": [], "temperature": "warm"})
    assert not validator.is_valid({"messages": [{"role": "user", "content": "b"}], "temprature": 1})
    for path, item in document["paths"].items():
        for operation in item.values():
            assert "422" not in operation["responses"], path
    assert document["security"] == [{"key": []}]


def test_replies_are_as_the_document_says():
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}]
    chat = {"messages": [{"role": "user", "content": "b"}], "max_tokens": 20, "seed": 1}
    everything = {"n": 2, "return_token_ids": True, "prompt_logprobs": 1, "stop": "x"}
    cases = [
        (CHAT, chat, "ChatCompletion"),
        (CHAT, {**chat, **everything, "logprobs": True, "top_logprobs": 2}, "ChatCompletion"),
        (CHAT, {**chat, "tools": tools, "tool_choice": "required", "max_tokens": 100}, "ChatCompletion"),
        (COMPLETIONS, {**BODY, "logprobs": 1}, "Completion"),
        (COMPLETIONS, {**BODY, **everything, "echo": True, "logprobs": 1}, "Completion"),
        ("/tokenize", {"prompt": "b", "return_token_strs": True}, "TokenizeReply"),
        ("/detokenize", {"tokens": [1]}, "DetokenizeReply"),
    ]

    async def main():
        async with toy_server(model=FakeModel(257, 2048), tokenizer=ByteTokenizer(), num_blocks=512) as toy:
            document = (await toy.http.get("/openapi.json")).json()
            found = [("ModelList", (await toy.http.get("/v1/models")).json())]
            for path, name in (("/v1/models/fake", "Model"), ("/version", "Version"), ("/ready", "Status")):
                found.append((name, (await toy.http.get(path)).json()))
            for path, body, name in cases:
                response = await toy.post(path, body)
                assert response.status_code == 200, response.text
                found.append((name, response.json()))
                if "seed" in body or path == COMPLETIONS:
                    stream = {**body, "stream": True, "stream_options": {"include_usage": True}}
                    chunk = name.replace("Completion", "Chunk") if path == CHAT else "CompletionChunk"
                    found += [(chunk, event) for event in events_of(await toy.post(path, stream))]
            return document, found

    document, found = asyncio.run(main())
    assert len(found) > 20
    for name, reply in found:
        schema = {"$ref": f"#/components/schemas/{name}", "components": document["components"]}
        errors = [error.message for error in Draft202012Validator(schema).iter_errors(reply)]
        assert not errors, (name, errors, reply)


def test_models_version_and_health():
    async def main():
        async with toy_server({"served_model_name": "org/toy"}) as toy:
            listed = (await toy.http.get("/v1/models")).json()
            card = (await toy.http.get("/v1/models/org/toy")).json()
            answer = (await toy.post(COMPLETIONS, {**BODY, "model": "org/toy"})).json()
            version = (await toy.http.get("/version")).json()
            states = [(await toy.http.get(path)).json() for path in ("/health", "/ready")]
            return listed, card, answer, version, states

    listed, card, answer, version, states = asyncio.run(main())
    assert listed == {"object": "list", "data": [card]}
    assert card["id"] == answer["model"] == "org/toy"
    assert card["max_model_len"] == 512
    assert version["system_fingerprint"] == answer["system_fingerprint"]
    assert states == [{"status": "ok"}, {"status": "ready"}]


@pytest.mark.parametrize("text", ["bcd", "b" * 5000])
def test_tokens_there_and_back(text):
    found = post_one("/tokenize", {"prompt": text, "return_token_strs": True}).json()
    assert found["tokens"] == [ord(letter) - ord("a") for letter in text]
    assert found["token_strs"] == list(text)
    assert post_one("/detokenize", {"tokens": found["tokens"]}).json() == {"prompt": text}


def test_a_chat_template_of_ones_own():
    from decodex.errors import RequestError
    from decodex.tokenizer import Tokenizer

    tokenizer = Tokenizer.__new__(Tokenizer)
    tokenizer.special_tokens = {}
    tokenizer._templates = {}
    assert tokenizer.chat_template() is None
    tokenizer.use_chat_template("{% for m in messages %}<{{ m.content }}>{% endfor %}")
    assert tokenizer.render_chat([{"role": "user", "content": "a"}]) == "<a>"
    with pytest.raises(RequestError, match=r"chat_template.*a Jinja template; line 1"):
        tokenizer.use_chat_template("{% for %}")
