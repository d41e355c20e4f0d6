"""K7, fail-open, through HTTP: every field of every endpoint changes the result on a toy model or is a 400 that names
it, and no misspelt field is let through."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from fakes import ByteTokenizer, FakeModel
from http_client import CHAT, COMPLETIONS, error_of, toy_server
from properties.every_field import VALUES, AnyText

from decodex.server.chat_request import ChatFields
from decodex.server.completion_request import CompletionFields
from decodex.server.responses_request import ResponseFields
from decodex.server.sampling import TABLE

RESPONSES = "/v1/responses"
PROMPT = "abcab<think>cabca"
BODIES: dict[str, dict[str, Any]] = {
    COMPLETIONS: {"prompt": PROMPT, "max_tokens": 16},
    CHAT: {"messages": [{"role": "user", "content": PROMPT}], "max_tokens": 16},
    RESPONSES: {"input": PROMPT, "max_output_tokens": 16},
}
LENGTHS = {COMPLETIONS: "max_tokens", CHAT: "max_tokens", RESPONSES: "max_output_tokens"}
OWN = {CHAT: ChatFields, COMPLETIONS: CompletionFields, RESPONSES: ResponseFields}
# without these beside it, a field says nothing
BESIDE: dict[str, dict[str, Any]] = {
    "dynatemp_exponent": {"dynatemp_range": 3.0, "temperature": 3.0},
    "xtc_threshold": {"xtc_probability": 1.0},
    "penalty_last_n": {"repetition_penalty": 5.0},
    "dry_multiplier": {"dry_allowed_length": 1},
    "dry_base": {"dry_multiplier": 0.8, "dry_allowed_length": 1, "allowed_token_ids": [1, 2]},
    "dry_allowed_length": {"dry_multiplier": 5.0},
    "dry_sequence_breakers": {"dry_multiplier": 5.0, "dry_allowed_length": 1},
    "repetition_stop_span": {"repetition_stop": 2, "allowed_token_ids": [1, 2]},
    "repetition_stop_period": {
        "repetition_stop": 2,
        "repetition_stop_span": 1,
        "allowed_token_ids": [1, 2],
        "repetition_penalty": 100.0,  # of the last token: they alternate
        "penalty_last_n": 1,
    },
    "repetition_stop": {"repetition_stop_span": 1, "allowed_token_ids": [1, 2]},
    "include_stop_str_in_output": {"stop": ["a", "b", "c"]},
    "skip_special_tokens": {"ignore_eos": True},
    "min_tokens": {"logit_bias": {0: 6.0}},
}
VISIBLE = {
    **VALUES,
    "prediction": ["cccccccc", "abababab", "bbbbb"],  # seen in the usage
    "speculative": [{"method": "suffix", "verification": "rejection"}],  # no answer is replayable then
}
SEEDS = range(1, 9)
REFUSED_BY_VALUE = ("logits_processors", "logit_bias", "top_k", "prompt_logprobs")


def engine() -> dict[str, Any]:
    return {"tokenizer": AnyText(), "max_model_len": 48, "num_blocks": 128}


def bytes_engine() -> dict[str, Any]:
    return {"model": FakeModel(257, 4096), "tokenizer": ByteTokenizer(), "num_blocks": 1024}


def shown(response: Any) -> str:
    """What an answer says, without ids and times."""
    if response.status_code != 200:
        return f"{response.status_code} {error_of(response)['param']}"
    body = response.json()
    for name in ("id", "created", "created_at", "completed_at", "seed"):
        body.pop(name, None)
    for item in body.get("output", ()):
        item.pop("id", None)
    return json.dumps(body)


async def effect(toy: Any, path: str, body: dict[str, Any], changed: dict[str, Any]) -> str:
    """The first answer that differs, trying seeds; "" if none does."""
    for seed in SEEDS:
        await toy.post(path, {**body, "seed": seed})  # the prefix cache is warm
        plain = shown(await toy.post(path, {**body, "seed": seed}))
        other = shown(await toy.post(path, {**body, "seed": seed, **changed}))
        if other != plain:
            return other
    return ""


@pytest.mark.parametrize("path", BODIES)
def test_every_sampling_field_has_an_effect_or_is_refused(path):
    async def main() -> None:
        async with toy_server(**engine()) as toy:
            for name in VALUES:
                if name in ("max_tokens", "n", "seed", "logprobs"):
                    continue  # below
                base = {**BODIES[path], **BESIDE.get(name, {})}
                if name in ("logprobs_mode", "logprob_token_ids"):
                    base |= logprobs_of(path) | {"top_k": 2}
                values = [["x"]] if name == "logits_processors" else VISIBLE[name]
                found = [await effect(toy, path, base, {name: value}) for value in values]
                assert any(found), f"{name} has no effect: {values}"
                refused = [one for one in found if one.startswith("4")]
                assert all(name in one for one in refused), refused
                assert bool(refused) <= (name in REFUSED_BY_VALUE), (name, refused)

    asyncio.run(main())


def logprobs_of(path: str) -> dict[str, Any]:
    """Fields that let an endpoint show log-probabilities."""
    if path == COMPLETIONS:
        return {"logprobs": 1}
    if path == CHAT:
        return {"logprobs": True, "top_logprobs": 1}
    return {"include": ["message.output_text.logprobs"], "top_logprobs": 1}


FUNCTION = {"name": "f", "parameters": {"type": "object", "properties": {}, "additionalProperties": False}}
TOOL = {"type": "function", "function": FUNCTION}
CHANGES: dict[str, list[dict[str, Any]]] = {
    COMPLETIONS: [
        {"prompt": "ab"}, {"max_tokens": 3}, {"logprobs": 1}, {"echo": True}, {"n": 2}, {"return_token_ids": True},
        {"prompt": [[1], [2]]}, {"cache_salt": "a"}, {"prompt_cache_key": "b"}, {"best_of": 2}, {"suffix": "a"},
        {"model": "other"}, {"stream_options": {"include_usage": True}}, {"response_format": {"type": "json_object"}},
        {"store": True}, {"service_tier": "flex"}, {"user": 1}, {"metadata": 1}, {"safety_identifier": 1},
        {"priority": "x"}, {"seed": 99},
    ],
    CHAT: [
        {"messages": [{"role": "user", "content": "ab"}]}, {"max_tokens": 3}, {"n": 2},
        {"max_completion_tokens": 3, "max_tokens": None}, {"logprobs": True}, {"logprobs": True, "top_logprobs": 2},
        {"top_logprobs": 2}, {"return_token_ids": True},
        {"cache_salt": "a"}, {"prompt_cache_key": "b"}, {"model": "other"}, {"stream_options": {"include_usage": True}},
        {"tools": [TOOL], "tool_choice": "required"}, {"tool_choice": "required"}, {"reasoning_effort": "high"},
        {"chat_template_kwargs": {"messages": []}}, {"response_format": {"type": "json_object"}}, {"store": True},
        {"modalities": ["audio"]}, {"verbosity": "low"}, {"audio": {}}, {"functions": []}, {"function_call": "auto"},
        {"web_search_options": {}}, {"seed": 99},
    ],
    RESPONSES: [
        {"input": "ab"}, {"max_output_tokens": 3}, {"instructions": "cab"},
        {"include": ["reasoning.encrypted_content"]},
        {"cache_salt": "a"}, {"prompt_cache_key": "b"}, {"model": "other"}, {"stream_options": {}}, {"n": 2},
        {"text": {"format": {"type": "json_object"}}}, {"text": {"verbosity": "low"}},
        {"reasoning": {"effort": "high"}}, {"tools": [{"type": "function", **FUNCTION}], "tool_choice": "required"},
        {"tools": [{"type": "web_search"}]},
        {"background": True}, {"conversation": "c"}, {"context_management": []}, {"max_tool_calls": 1},
        {"moderation": {}}, {"prompt": {"id": "p"}}, {"prompt_cache_options": {}}, {"truncation": "auto"},
        {"response_format": {"type": "json_object"}}, {"previous_response_id": "r"}, {"store": True}, {"seed": 99},
        {"max_tokens": 3}, {"top_logprobs": 2},
    ],
}  # fmt: skip


@pytest.mark.parametrize("path", CHANGES)
def test_every_field_of_an_endpoint_has_an_effect_or_is_refused(path):
    async def main() -> None:
        async with toy_server(**engine()) as toy, toy_server(**bytes_engine()) as other:
            for change in CHANGES[path]:
                takes_bytes = bool({"tools", "response_format", "text"} & set(change))  # grammars need them
                length = {LENGTHS[path]: 90} if takes_bytes else {}  # and calls some room
                found = await effect(other if takes_bytes else toy, path, {**BODIES[path], **length}, change)
                assert found, f"{change} has no effect"
                if found.startswith("4"):
                    assert any(name in found for name in change), (change, found)

    asyncio.run(main())


def misspelt(name: str) -> set[str]:
    """One letter too few, two swapped, another case, a field that is there and one more."""
    swapped = {name[:i] + name[i + 1] + name[i] + name[i + 2 :] for i in range(len(name) - 1)}
    shorter = {name[:i] + name[i + 1 :] for i in range(len(name))}
    return {*swapped, *shorter, name.upper(), f"{name}s", f" {name}", f"{name}\x00", name.replace("_", "-")} - {name}


@pytest.mark.parametrize("path", OWN)
def test_no_misspelt_field_is_let_through(path):
    known = {*OWN[path].model_fields, *TABLE}
    wrong = sorted({odd for name in known for odd in misspelt(name)} - known)[::7]

    async def main() -> None:
        async with toy_server(**engine()) as toy:
            for name in wrong:
                response = await toy.post(path, {**BODIES[path], name: None if len(name) % 2 else 1})
                error = error_of(response)
                assert (response.status_code, error["param"], error["code"]) == (400, name, "unknown_parameter")

    asyncio.run(main())


SCHEMA = {"type": "object"}
NESTED = [
    (COMPLETIONS, {"structured_outputs": {"jsn": SCHEMA}}),
    (COMPLETIONS, {"structured_outputs": {"regex": "a", "whitespce": "any"}}),
    (COMPLETIONS, {"speculative": {"methd": "suffix"}}),
    (COMPLETIONS, {"stream": True, "stream_options": {"include_usge": True}}),
    (COMPLETIONS, {"guided_json": SCHEMA}),
    (COMPLETIONS, {"guided_regex": "a"}),
    (CHAT, {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schma": SCHEMA}}}),
    (CHAT, {"response_format": {"type": "json_schema", "schema": SCHEMA}}),
    (CHAT, {"response_format": {"type": "json_objct"}}),
    (CHAT, {"response_format": "json_object"}),
    (CHAT, {"messages": [{"role": "user", "content": "a", "nme": "b"}]}),
    (CHAT, {"tools": [{"type": "function", "function": {**FUNCTION, "strct": True}}]}),
    (CHAT, {"tools": [TOOL], "tool_choice": "require"}),
    # a constraint that no output could be held to was dropped, whatever it said
    (CHAT, {"max_tokens": 90, "tools": [TOOL], "tool_choice": "required", "structured_outputs": {"regex": "("}}),
    (CHAT, {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"nme": "f"}}}),
    (RESPONSES, {"text": {"format": {"type": "json_schema", "name": "a", "schma": SCHEMA}}}),
    (RESPONSES, {"text": {"formt": {"type": "json_object"}}}),
    (RESPONSES, {"tools": [{"type": "function", **FUNCTION, "strct": True}]}),
    (RESPONSES, {"reasoning": {"efort": "low"}}),
]


def test_no_misspelt_key_of_a_constraint_is_let_through():
    async def main() -> None:
        async with toy_server(**bytes_engine()) as toy:
            for path, change in NESTED:
                response = await toy.post(path, {**BODIES[path], **change})
                assert response.status_code == 400, (change, response.text)
                assert error_of(response)["param"].split(".")[0].split("[")[0] in change, response.text

    asyncio.run(main())
