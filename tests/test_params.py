"""SamplingParams and EngineConfig: every spelling of off, ranges, misspelt names."""

from __future__ import annotations

import dataclasses
import math

import pytest

from decodex import EngineConfig, RequestError, SamplingParams
from decodex.parameter_docs import parameters_markdown


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
     ("skip_special_tokens", None), ("logprobs", -2), ("logprobs", 1.0), ("logprobs", True)],
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
     ("speculative_config", 3), ("check_outputs", None), ("logits_processors", [1]),
     ("max_queued_requests", 0), ("seed", -1)],
)  # fmt: skip
def test_bad_engine_option_names_the_field(field, value):
    with pytest.raises(RequestError, match=rf"^{field}(\[0\])?: got"):
        EngineConfig(**{field: value})


def test_unknown_engine_option_suggests_the_nearest():
    with pytest.raises(RequestError, match="did you mean 'max_model_len'"):
        EngineConfig(max_model_length=10)


CHECKED = {f.name: f.metadata["check"] for f in dataclasses.fields(SamplingParams)}
DEFAULT = {f.name: f.default for f in dataclasses.fields(SamplingParams)}


@pytest.mark.parametrize(
    ("name", "off"),
    [(name, off) for name, check in CHECKED.items() if DEFAULT[name] in check.off for off in check.off],
)
def test_every_documented_spelling_of_off_is_absent(name, off):
    assert SamplingParams(**{name: off}) == SamplingParams()


@pytest.mark.parametrize(
    ("field", "value"),
    [("dynatemp_range", -1), ("dynatemp_exponent", 0), ("top_n_sigma", -2), ("typical_p", 0), ("typical_p", 1.5),
     ("epsilon_cutoff", 2), ("eta_cutoff", -0.1), ("xtc_probability", 1.1), ("xtc_threshold", None),
     ("repetition_penalty", 0), ("repetition_penalty", math.inf), ("frequency_penalty", 2.1),
     ("presence_penalty", -3), ("penalty_last_n", 0), ("penalty_last_n", 1.0), ("dry_multiplier", -1),
     ("dry_base", 0.9), ("dry_allowed_length", 0),
     ("dry_sequence_breakers", [""]), ("dry_sequence_breakers", [1]), ("logit_bias", [1]), ("logit_bias", {"a": 1}),
     ("logit_bias", {-1: 1}), ("logit_bias", {1: 101}), ("logit_bias", {1: math.nan}), ("logit_bias", {1: math.inf}),
     ("logit_bias", {1: True}), ("logit_bias", {1: 1, "1": 2}), ("allowed_token_ids", []), ("allowed_token_ids", [-1]),
     ("bad_words", [""]), ("bad_words", ["a\ufffd"]), ("bad_words", ["a"] * 257), ("bad_words", 3),
     ("no_repeat_ngram_size", -1), ("max_thinking_tokens", -2), ("logits_processors", print),
     ("logits_processors", [3]), ("repetition_stop", 1), ("repetition_stop_span", 0), ("repetition_stop_period", 0),
     ("prompt_logprobs", -2), ("logprob_token_ids", [0] * 129), ("logprobs_mode", "cooked")],
)  # fmt: skip
def test_bad_value_of_a_rarer_parameter_names_the_field(field, value):
    with pytest.raises(RequestError) as caught:
        SamplingParams(**{field: value})
    assert caught.value.field.split("[")[0].split(" ")[0] == field


def test_bias_has_one_spelling():
    assert SamplingParams(logit_bias={"7": 1, 3: 0, 5: -math.inf}).logit_bias == {5: -math.inf, 7: 1.0}


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [("mirostat", 2, "row alone"), ("mirostat_tau", 5.0, "row alone"), ("use_beam_search", True, "cumulative_logprob"),
     ("num_beams", 4, "cumulative_logprob"), ("best_of", 3, "cumulative_logprob")],
)  # fmt: skip
def test_refused_by_name_with_the_reason(name, value, reason):
    with pytest.raises(RequestError, match=f"^{name}: .*{reason}"):
        SamplingParams(**{name: value})


@pytest.mark.parametrize(("name", "off"), [("mirostat", 0), ("use_beam_search", False), ("best_of", 1)])
def test_refused_name_that_asks_for_nothing_is_absent(name, off):
    assert SamplingParams(**{name: off}) == SamplingParams()


def test_the_page_of_parameters_is_up_to_date(repository):
    """docs/parameters.md is written from the definitions: python -m decodex.parameter_docs docs/parameters.md."""
    page = (repository / "docs/parameters.md").read_text(encoding="utf-8")
    assert page == parameters_markdown()
    for field in dataclasses.fields(SamplingParams):
        assert f"| `{field.name}` |" in page
        assert field.metadata["check"] is not None
