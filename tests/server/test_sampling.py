"""The table of fields: every parameter is in it, every value reaches the parameter, and nothing is dropped."""

from __future__ import annotations

import dataclasses

import pytest
from jsonschema import Draft202012Validator

from decodex.definition import options_of
from decodex.errors import RequestError
from decodex.params import SamplingParams
from decodex.server.chat_request import ChatFields
from decodex.server.completion_request import CompletionFields
from decodex.server.config import ServerConfig
from decodex.server.errors import ApiError
from decodex.server.sampling import TABLE, read_sampling, split_body

CONFIG = ServerConfig()
# a value that is not the default, as JSON has it, for every field that sets a parameter
VALUES = {
    "n": 3,
    "seed": 11,
    "temperature": 0.5,
    "dynatemp_range": 0.2,
    "dynatemp_exponent": 2.0,
    "top_n_sigma": 1.5,
    "min_p": 0.1,
    "top_k": 5,
    "typical_p": 0.9,
    "epsilon_cutoff": 0.01,
    "eta_cutoff": 0.01,
    "top_p": 0.9,
    "xtc_probability": 0.5,
    "xtc_threshold": 0.2,
    "repetition_penalty": 1.2,
    "frequency_penalty": 0.5,
    "presence_penalty": 0.5,
    "penalty_last_n": 8,
    "dry_multiplier": 0.8,
    "dry_base": 2.0,
    "dry_allowed_length": 3,
    "dry_sequence_breakers": ["."],
    "logit_bias": {"1": 2.0},
    "allowed_token_ids": [1, 2],
    "bad_words": ["x"],
    "no_repeat_ngram_size": 3,
    "min_tokens": 2,
    "max_thinking_tokens": 5,
    "structured_outputs": {"regex": "a+"},
    "response_format": {"type": "json_object"},
    "speculative": True,
    "prediction": {"type": "content", "content": "abc"},
    "stop": ["x"],
    "stop_token_ids": [3],
    "include_stop_str_in_output": True,
    "ignore_eos": True,
    "repetition_stop": 4,
    "repetition_stop_span": 16,
    "repetition_stop_period": 8,
    "prompt_logprobs": 2,
    "logprob_token_ids": [1],
    "logprobs_mode": "processed",
    "skip_special_tokens": False,
}
OF_THE_REQUEST = {"prompt_cache_key": "a", "cache_salt": "a", "priority": 1}
# values that are let through and do nothing
IDLE = {
    "user": "me",
    "safety_identifier": "me",
    "metadata": {"a": "b"},
    "store": False,
    "service_tier": "auto",
    "modalities": ["text"],
    "verbosity": "medium",
}


def test_every_parameter_has_a_field_and_every_field_a_value_here():
    own = {"max_tokens", "logprobs"}
    assert own <= set(ChatFields.model_fields)
    assert own <= set(CompletionFields.model_fields)
    parameters = {option.name for option in options_of(SamplingParams)} - own - {"logits_processors"}
    assert parameters <= set(TABLE)
    passed_on = {name for name, field in TABLE.items() if not field.is_ignored}
    assert passed_on == set(VALUES) | set(OF_THE_REQUEST)
    refused = {name for name, field in TABLE.items() if field.help.startswith("Refused: ")}
    assert set(TABLE) == passed_on | set(IDLE) | refused
    assert not set(TABLE) & (set(ChatFields.model_fields) | set(CompletionFields.model_fields) - {"suffix"})


@pytest.mark.parametrize("name", VALUES)
def test_a_value_reaches_its_parameter(name):
    params = read_sampling({name: VALUES[name]}).params(CONFIG)
    plain = SamplingParams()
    changed = {f.name for f in dataclasses.fields(params) if getattr(params, f.name) != getattr(plain, f.name)}
    expected = {"response_format": {"structured_outputs"}, "logprob_token_ids": {"logprob_token_ids", "logprobs"}}
    assert changed == expected.get(name, {name})


@pytest.mark.parametrize("name", TABLE)
def test_schema_of_a_field_has_its_value(name):
    field = TABLE[name]
    value = {**VALUES, **OF_THE_REQUEST, **IDLE}.get(name)
    Draft202012Validator.check_schema(field.schema)
    errors = list(Draft202012Validator(field.schema).iter_errors(value))
    assert not errors, errors


@pytest.mark.parametrize("name", IDLE)
def test_fields_that_do_nothing_on_purpose(name):
    assert read_sampling({name: IDLE[name]}).params(CONFIG) == SamplingParams()


@pytest.mark.parametrize("name", [name for name, field in TABLE.items() if field.help.startswith("Refused: ")])
def test_refused_fields(name):
    assert read_sampling({name: None}).params(CONFIG) == SamplingParams()
    for value in TABLE[name].schema.get("enum", [None]):
        assert read_sampling({name: value}).params(CONFIG) == SamplingParams()
    with pytest.raises(RequestError, match=name):
        read_sampling({name: "something"})


@pytest.mark.parametrize("kind", [ChatFields, CompletionFields])
def test_an_unknown_field_is_refused_with_the_nearest_name(kind):
    own, others = split_body({"messages": 1, "top_p": 2}, {"messages": None}, "a chat")
    assert (own, others) == ({"messages": 1}, {"top_p": 2})
    with pytest.raises(ApiError, match=r"max_token: got 5.*did you mean 'max_tokens'\?") as caught:
        split_body({"max_token": 5}, kind.model_fields, "a chat")
    assert caught.value.body["error"]["code"] == "unknown_parameter"


def test_errors_name_the_field_that_the_client_wrote():
    schema = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": 5}}}
    sampling = read_sampling({"response_format": schema})
    error = sampling.renamed(RequestError("structured_outputs.json", {}, "a schema"))
    assert error.field == "response_format.json_schema.schema"
    sampling.names["prompt"] = "messages"
    assert sampling.renamed(RequestError("prompt[3]", 1, "x")).field == "messages[3]"
    assert sampling.renamed(RequestError("prompts", 1, "x")).field == "prompts"


@pytest.mark.parametrize(
    ("options", "fields", "message"),
    [
        ({"max_n": 2}, {"n": 3}, "n: got 3, expected at most 2"),
        ({"max_logprobs": 3}, {"prompt_logprobs": 4}, "prompt_logprobs: got 4, expected at most 3"),
        ({"max_logprobs": 3}, {"prompt_logprobs": -1}, "prompt_logprobs: got -1, expected at most 3"),
        ({"max_tokens_limit": 10}, {}, "max_tokens: got 16, expected at most 10"),
    ],
)
def test_limits_of_the_server(options, fields, message):
    with pytest.raises(RequestError, match=message):
        read_sampling(fields).params(ServerConfig(**options))
    if "prompt_logprobs" in fields:
        read_sampling(fields).params(ServerConfig(max_logprobs=-1))


def test_predictions():
    parts = [{"type": "text", "text": "ab"}, {"type": "text", "text": "c"}]
    for value in ("abc", {"type": "content", "content": "abc"}, {"type": "content", "content": parts}):
        assert read_sampling({"prediction": value}).params(CONFIG).prediction == "abc"
