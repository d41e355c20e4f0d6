"""SamplingParams and EngineConfig: every spelling of off, ranges, misspelt names."""

from __future__ import annotations

import dataclasses
import math

import pytest

from decodex import EngineConfig, RequestError, SamplingParams


@pytest.mark.parametrize(
    "spelling",
    [{"top_k": None}, {"top_k": 0}, {"top_k": -1}, {"top_p": None}, {"top_p": 1.0}, {"top_p": 1}, {"min_p": None},
     {"min_p": 0}, {"min_p": 0.0}, {"stop": None}, {"stop": []}, {"stop_token_ids": []}, {"stop_token_ids": None}],
)  # fmt: skip
def test_off_is_absent(spelling):
    assert SamplingParams(**spelling) == SamplingParams()


@pytest.mark.parametrize(
    ("field", "value"),
    [("n", 0), ("n", 129), ("n", True), ("n", 1.5), ("temperature", -0.1), ("temperature", math.nan),
     ("temperature", math.inf), ("temperature", "hot"), ("top_k", -2), ("top_k", 1.0), ("top_p", 0.0), ("top_p", 1.1),
     ("top_p", math.nan), ("min_p", -0.1), ("min_p", 1.1), ("seed", 2**64), ("seed", -(2**63) - 1), ("seed", 0.5),
     ("max_tokens", 0), ("max_tokens", -1), ("max_tokens", 1.0), ("min_tokens", -1), ("min_tokens", 17),
     ("stop", 3), ("stop", [""]), ("stop", ["a", 1]), ("stop", ["a"] * 65), ("stop_token_ids", [-1]),
     ("stop_token_ids", "12"), ("stop_token_ids", [1.5]), ("ignore_eos", 1), ("include_stop_str_in_output", "no"),
     ("skip_special_tokens", None), ("logprobs", -2), ("logprobs", 21), ("logprobs", True)],
)  # fmt: skip
def test_bad_value_names_the_field(field, value):
    with pytest.raises(RequestError) as caught:
        SamplingParams(**{field: value})
    assert caught.value.field.split("[")[0] == field
    assert str(caught.value).startswith(field)


@pytest.mark.parametrize(
    ("name", "meant"), [("temprature", "temperature"), ("topp", "top_p"), ("max_token", "max_tokens")]
)
def test_misspelt_name_suggests_the_nearest(name, meant):
    with pytest.raises(RequestError, match=f"{name}.*did you mean '{meant}'"):
        SamplingParams(**{name: 1})


def test_params_are_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        SamplingParams().temperature = 2.0


def test_negative_seed_is_its_64_bits():
    assert SamplingParams(seed=-1).seed == 2**64 - 1


@pytest.mark.parametrize(
    ("field", "value"),
    [("model", ""), ("dtype", "bf16"), ("quantization", "int4"), ("max_model_len", 1), ("max_num_seqs", 0),
     ("kv_cache_gib", 0), ("kv_cache_gib", math.nan), ("block_size", 0), ("enable_prefix_caching", 1),
     ("speculative_config", {"method": "ngram"}), ("structured_outputs_config", {}), ("logits_processors", []),
     ("max_queued_requests", 0), ("seed", -1)],
)  # fmt: skip
def test_bad_engine_option_names_the_field(field, value):
    with pytest.raises(RequestError, match=f"^{field}: got"):
        EngineConfig(**{field: value})


def test_unknown_engine_option_suggests_the_nearest():
    with pytest.raises(RequestError, match="did you mean 'max_model_len'"):
        EngineConfig(max_model_length=10)
