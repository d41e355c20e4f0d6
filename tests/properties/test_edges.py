"""K9, sentinels and float edges: against the float64 law, in all spellings of "off", at every limit, on broken rows."""

from __future__ import annotations

import importlib.util
import itertools
import pathlib
import sys

import numpy as np
import pytest
from fakes import FakeModel, Guesser, TextTokenizer, hash_logits, make_engine
from hypothesis import example, given, settings
from hypothesis import strategies as st
from properties.every_field import TEXTS, KnownProposer, answer, refused, run, text_engine

from decodex.definition import options_of
from decodex.params import SamplingParams
from decodex.spec.draft import Draft

V = len(TEXTS)
INF = float("inf")
MARGIN = 1e-5  # relative: what single precision may see differently
MARGINS = (0.0, MARGIN, -MARGIN)
PARAMETER = {"xtc": "xtc_probability"}
NEVER = -80.0  # log-probability below which a token has no mass, kept or not


def _load_pipeline64():
    path = pathlib.Path(__file__).resolve().parents[2] / "evals" / "distribution" / "pipeline64.py"
    spec = importlib.util.spec_from_file_location("pipeline64", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules["pipeline64"] = module
    spec.loader.exec_module(module)
    return module


pipeline64 = _load_pipeline64()

# a grid has ties; half of it is exactly representable sums
LOGIT = st.one_of(st.integers(-64, 64).map(lambda i: i / 8), st.sampled_from([-INF, -INF, 0.0, 8.0, -1e30, 1e4]))
ROW = st.lists(LOGIT, min_size=V, max_size=V).filter(lambda row: max(row) > -INF)


@st.composite
def truncations(draw):
    """Steps 6 and 7 at and near their ends."""
    common = {
        "temperature": st.sampled_from([0.0, 1e-40, 1e-12, 1e-5, 0.7, 1.0, 1e6]),
        "top_p": st.sampled_from([None, 1e-9, 0.37, 1 - 1e-7, 1.0]),
        "top_k": st.sampled_from([None, -1, 0, 1, 5, V, V + 1, 2**40]),
        "min_p": st.sampled_from([None, 0.0, 0.07, 1.0]),
    }
    rare = {
        "dynatemp_range": st.sampled_from([0.0, 1e-9, 0.55, 1e4]),
        "dynatemp_exponent": st.sampled_from([1e-3, 0.5, 1.0, 100.0]),
        "top_n_sigma": st.sampled_from([0.0, -1.0, 1e-9, 0.77, 1e9]),
        "typical_p": st.sampled_from([1e-9, 0.41, 1 - 1e-7, 1.0]),
        "epsilon_cutoff": st.sampled_from([0.0, 1e-9, 0.043, 1.0]),
        "eta_cutoff": st.sampled_from([0.0, 1e-9, 0.31, 1.0]),
        "xtc_probability": st.sampled_from([0.0, 0.5, 1.0]),
        "xtc_threshold": st.sampled_from([0.0, 1e-9, 0.083, 1.0]),
    }
    names = draw(st.lists(st.sampled_from(list(rare)), unique=True, max_size=3))
    return {name: draw(value) for name, value in {**common, **{n: rare[n] for n in names}}.items()}


def agrees(entries: dict[int, float], params: dict, logits: list[float], token: int) -> str:
    """'' where processed log-probabilities [V] are those of the law on one side of XTC's coin, else what is wrong."""
    wrong = agrees_within(MARGINS, entries, params, logits, token)
    if wrong:  # each filter may have rounded in its own direction
        active = [name for name in pipeline64.FILTERS if params.get(PARAMETER.get(name, name))]
        kinds = itertools.product((0.0, MARGIN, -MARGIN), repeat=len(active))
        each = [dict.fromkeys(pipeline64.FILTERS, 0.0) | dict(zip(active, kind, strict=True)) for kind in kinds]
        if any(not agrees_within([margins], entries, params, logits, token) for margins in each):
            return ""
    return wrong


def agrees_within(margins, entries: dict[int, float], params: dict, logits: list[float], token: int) -> str:
    """`agrees`, where a token may be kept or dropped whose fate differs between the margins."""
    row = pipeline64.Row([1], eos=frozenset({0}), exempt=frozenset({0, 9}))
    sides = [pipeline64.branches(np.array(logits), params, row, margin) for margin in margins]
    wrong = ""
    for side in zip(*sides, strict=True):
        if side[0][0] == 0.0:
            continue
        kept = [logprobs > -INF for _, logprobs in side]
        may, must = np.any(kept, axis=0), np.all(kept, axis=0)
        wrong = ""
        if not may[token] or max(logprobs[token] for _, logprobs in side) < NEVER:
            wrong = f"{token} is drawn and not kept"
        for t in range(V):
            if max(logprobs[t] for _, logprobs in side) < NEVER and may[t]:
                continue
            if entries[t] > -INF and not may[t]:
                wrong = f"{t} is kept"
            elif entries[t] == -INF and must[t]:
                wrong = f"{t} is dropped"
            elif (may == must).all() and must[t]:
                right = side[0][1][t]
                if abs(entries[t] - right) > 1e-4 + 1e-5 * abs(right):
                    wrong = f"{t} has log-probability {entries[t]}, not {right}"
        if not wrong:
            return ""
    return wrong


def check_against_law(cases):
    engine = make_engine(
        model=FakeModel(V, logits_of=lambda prefix: np.array(cases[prefix[0]][0], dtype=np.float32)),
        tokenizer=TextTokenizer(TEXTS),
        num_blocks=64,
    )
    fixed = {"max_tokens": 1, "seed": 5, "logprobs": -1, "logprobs_mode": "processed", "ignore_eos": True}
    outputs = run(engine, [([i], SamplingParams(**params, **fixed)) for i, (_, params) in enumerate(cases)])
    for (logits, params), output in zip(cases, outputs, strict=True):
        assert output.error is None
        choice = output.outputs[0]
        entries = {token: entry.logprob for token, entry in choice.logprobs[0].items()}
        wrong = agrees(entries, {**params, "ignore_eos": True}, logits, choice.token_ids[0])
        assert not wrong, f"{wrong}: {params} on {logits}"


CASES = st.lists(st.tuples(ROW, truncations()), min_size=1, max_size=12)
TIES = [2.0] * 4 + [-INF] * 4 + [1.0] * 4


@settings(max_examples=60)
@given(cases=CASES)
@example(
    cases=[(TIES, {"temperature": t, "top_k": k, "min_p": m}) for t in (1e-40, 1e-12, 1.0) for k, m in ((2, 0), (0, 1))]
)
@example(
    cases=[([-INF] * 11 + [3.0], {"temperature": 1.0, "dynatemp_range": 1.0, "typical_p": 0.5, "top_n_sigma": 1e-9})]
)
@example(  # tokens whose x is -inf are none that XTC could keep
    cases=[([0.0] * 11 + [0.125], {"temperature": 1e-40, "xtc_threshold": 0.0, "xtc_probability": 0.5})]
)
@example(  # min_p sees one side of its rounding, eta_cutoff the other
    cases=[
        (
            [0.0] * 8 + [0.375, 0.0, 0.375, 0.375],
            {"temperature": 1e6, "min_p": 1.0, "eta_cutoff": 1.0, "xtc_probability": 0.5},
        )
    ]
)
def test_kept_tokens_and_logprobs_are_the_law(cases):
    check_against_law(cases)


def test_the_law_refuses_what_is_not_its_own():
    logits, params = [0.0] * 6 + [1.0] * 4 + [2.0, -1.0], {"temperature": 0.7, "top_p": 0.37, "min_p": 0.07}
    row = pipeline64.Row([1])
    [(_, logprobs)] = pipeline64.branches(np.array(logits), params, row)
    entries = dict(enumerate(logprobs))
    assert agrees(entries, params, logits, 10) == ""
    assert agrees(entries, params, logits, 11) == "11 is drawn and not kept"
    assert agrees({**entries, 0: -1.0}, params, logits, 10) == "0 is kept"
    assert agrees({**entries, 10: -INF}, params, logits, 10) == "10 is dropped"
    assert "has log-probability" in agrees({**entries, 10: entries[10] - 0.01}, params, logits, 10)


@pytest.mark.slow
@settings(max_examples=3000)
@given(cases=CASES)
def test_kept_tokens_and_logprobs_are_the_law_in_a_sweep(cases):
    check_against_law(cases)


# --- off ---

NEUTRAL = {
    "dynatemp_exponent": [3.0],
    "top_k": [V, V + 1, 2**40, 2**31],
    "min_p": [1e-300],
    "top_p": [1 - 1e-12],
    "typical_p": [1 - 1e-12],
    "epsilon_cutoff": [1e-300],
    "eta_cutoff": [1e-300],
    "top_n_sigma": [1e9],
    "dynatemp_range": [1e-300],
    "xtc_probability": [1e-300],
    "xtc_threshold": [0.0, 1.0],
    "penalty_last_n": [1, 5],
    "dry_base": [1.0, 100.0],
    "dry_allowed_length": [1],
    "dry_sequence_breakers": [[], ["a"]],
    "dry_multiplier": [1e-300],
    "logit_bias": [{3: 0, 5: 0.0}],
    "allowed_token_ids": [list(range(V)), [*range(V), 3]],
    "no_repeat_ngram_size": [1000],
    "max_thinking_tokens": [10**9],
    "min_tokens": [0],
    "include_stop_str_in_output": [True],
    "repetition_stop": [1000],
    "repetition_stop_span": [1],
    "repetition_stop_period": [1],
    "repetition_penalty": [1],
    "bad_words": [["zzz"]],
    "stop": [["zzz"]],
}
OFF = [
    (field.name, value) for field in options_of(SamplingParams) for value in getattr(field.metadata["check"], "off", ())
]


def test_every_optional_field_can_be_off():
    assert {name for name, _ in OFF} >= {f.name for f in options_of(SamplingParams) if f.default is None}


@pytest.mark.parametrize(("name", "value"), OFF, ids=str)
def test_off_in_every_spelling_is_absent(name, value):
    if name in ("dry_sequence_breakers", "max_tokens", "seed"):  # None asks for something there
        return
    assert SamplingParams(seed=1, **{name: value}) == SamplingParams(seed=1)
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        for kind in (np.float32, np.float64) if isinstance(value, float) else (np.int32, np.int64):
            assert SamplingParams(seed=1, **{name: kind(value)}) == SamplingParams(seed=1)


@pytest.mark.parametrize("name", NEUTRAL)
def test_values_without_effect_are_as_if_absent(name):
    base = {"seed": 7, "max_tokens": 12, "ignore_eos": True, "logprobs": -1, "logprobs_mode": "processed"}
    for temperature in (0.0, 1.0):
        params = [SamplingParams(**base, temperature=temperature, **{name: value}) for value in NEUTRAL[name]]
        plain = SamplingParams(**base, temperature=temperature)
        outputs = run(text_engine(), [([1, 10, 3, 1], p) for p in [plain, *params]])
        for output in outputs[1:]:
            assert answer(output) == answer(outputs[0])


# --- numbers at the ends of their ranges ---

EXTREMES = [5e-324, 1e-45, 1.1e-38, 1e-30, 0.9999999999, 1.0, 1e30, 3.4e38, 3.5e38, 1.7e308]
FLOATS = [
    f.name
    for f in options_of(SamplingParams)
    if isinstance(f.default, float)
    or f.name
    in (
        "dynatemp_range",
        "top_n_sigma",
        "min_p",
        "typical_p",
        "epsilon_cutoff",
        "eta_cutoff",
        "top_p",
        "xtc_probability",
        "repetition_penalty",
        "frequency_penalty",
        "presence_penalty",
        "dry_multiplier",
    )
]


@pytest.mark.parametrize("name", FLOATS)
@pytest.mark.parametrize("drafts", [False, True])
def test_numbers_at_the_ends_of_their_ranges(name, drafts):
    """Refused, or answered with tokens that masks allow; the request beside it never notices."""
    companions = {
        "dynatemp_exponent": {"dynatemp_range": 0.5},
        "xtc_threshold": {"xtc_probability": 1.0},
        "dry_base": {"dry_multiplier": 1.0},
    }.get(name, {})
    canary = ([3, 4], SamplingParams(seed=3, max_tokens=8, logprobs=3))
    [right] = run(text_engine(), [canary])
    for value in EXTREMES:
        values = {"seed": 1, "max_tokens": 8, "allowed_token_ids": [2, 3, 5], "logprobs": 2, **companions, name: value}
        if refused(lambda values=values: SamplingParams(**values)):
            continue
        proposer = KnownProposer([[3, 4, *right.outputs[0].token_ids]], "twins") if drafts else None
        engine = text_engine(proposer=proposer)
        odd, beside = run(engine, [([1, 2], SamplingParams(**values)), canary])
        assert answer(beside) == answer(right), f"{name} = {value}"
        assert set(odd.outputs[0].token_ids) <= {2, 3, 5}, f"{name} = {value}"
        assert odd.outputs[0].finish_reason == "length", f"{name} = {value}"


# --- rows that are broken ---

BAD_ROWS = {
    "nan": [float("nan")] * V,
    "one nan": [0.0] * 5 + [float("nan")] + [1.0] * 6,
    "inf": [0.0] * 5 + [INF] + [1.0] * 6,
    "-inf": [-INF] * V,
    "nan and inf": [float("nan"), INF, -INF] * 4,
}


@pytest.mark.parametrize("temperature", [0.0, 1e-12, 1.0])
@pytest.mark.parametrize("style", [None, "right", "twins"])
@pytest.mark.parametrize(
    "params", [{}, {"logprobs": 2}, {"typical_p": 0.5, "top_k": 3, "logprobs": -1, "logprobs_mode": "processed"}]
)
def test_a_broken_row_is_its_own_requests_error(temperature, style, params):
    """The k-th bad row comes with the k-th token of its sequence; the tokens before it stay, everyone else goes on."""
    kinds = list(BAD_ROWS)
    where = {key: 3 + key for key in range(len(kinds))}

    def logits_of(prefix):
        if len(prefix) >= where.get(prefix[0], 99):
            return np.array(BAD_ROWS[kinds[prefix[0]]], dtype=np.float32)
        return hash_logits(prefix, V)

    every = SamplingParams(temperature=temperature, seed=4, max_tokens=12, ignore_eos=True, **params)
    prompts = [[key, 2, 3] for key in range(7)]
    clean = run(text_engine(), [(prompt, every) for prompt in prompts])
    known = [output.prompt_token_ids + output.outputs[0].token_ids for output in clean]
    proposer = None if style is None else KnownProposer(known, style)
    model = FakeModel(V, logits_of=logits_of)
    outputs = run(text_engine(model=model, proposer=proposer), [(prompt, every) for prompt in prompts])
    for key, (output, right) in enumerate(zip(outputs, clean, strict=True)):
        if key not in where:
            assert answer(output) == answer(right)
            continue
        choice, count = output.outputs[0], where[key] - 3
        assert choice.finish_reason == "error"
        assert f"position {3 + count}" in str(output.error)
        assert choice.token_ids == right.outputs[0].token_ids[:count]
        assert choice.logprobs is None or choice.logprobs == right.outputs[0].logprobs[:count]


def test_broken_rows_off_the_emitted_path_do_not_matter():
    params = SamplingParams(temperature=1.0, seed=4, max_tokens=12, ignore_eos=True, logprobs=2, top_p=0.9, n=2)
    [clean] = run(text_engine(), [([1, 2], params)])
    known = [[1, 2, *choice.token_ids] for choice in clean.outputs]

    def logits_of(prefix):
        on_path = any(tokens[: len(prefix)] == list(prefix) for tokens in known)
        return hash_logits(prefix, V) if on_path else np.full(V, np.nan, dtype=np.float32)

    for style in KnownProposer.STYLES:
        engine = text_engine(model=FakeModel(V, logits_of=logits_of), proposer=KnownProposer(known, style))
        [output] = run(engine, [([1, 2], params)])
        assert answer(output) == answer(clean)


# --- lengths ---


class Measured(FakeModel):
    """Says EOS whenever it may, and notes the last position that it was asked for."""

    last = 0

    def __init__(self):
        super().__init__(V, logits_of=lambda prefix: np.array([9.0, *hash_logits(prefix, V)[1:]], dtype=np.float32))

    def forward(self, batch, kv, taps=(), wants_hidden=False):
        self.last = max(self.last, int(batch.positions.max()))
        return super().forward(batch, kv, taps, wants_hidden)


class Flood(Guesser):
    """Drafts of a fixed length, whatever is left of the sequence."""

    def __init__(self, count):
        self.count = count

    def propose(self, views):
        return [Draft.chain([1, 2, 3] * self.count) if self.count else None for _ in views]


@settings(max_examples=60)
@given(
    num_prompt=st.sampled_from([1, 2, 30, 31]),
    max_tokens=st.sampled_from([1, 2, 7, 30, 31, None]),
    min_tokens=st.sampled_from([0, 1, 2, 1000]),
    count=st.sampled_from([0, 1, 30]),
    ignore_eos=st.booleans(),
)
def test_lengths(num_prompt, max_tokens, min_tokens, count, ignore_eos):
    room = 32 - num_prompt
    most = room if max_tokens is None else max_tokens
    least = min(min_tokens, most)
    model = Measured()
    engine = text_engine(model=model, proposer=Flood(count))
    params = SamplingParams(temperature=0.0, seed=1, max_tokens=max_tokens, min_tokens=least, ignore_eos=ignore_eos)
    error = refused(lambda: engine.admission.admit([1] * num_prompt, params))
    if most > room:
        assert error.field == "max_tokens"
        return
    assert error is None
    [output] = run(engine, [([1] * num_prompt, params)])
    choice = output.outputs[0]
    if ignore_eos:
        assert (len(choice.token_ids), choice.finish_reason) == (most, "length")
    else:
        assert len(choice.token_ids) == min(least + 1, most)
        assert 0 not in choice.token_ids[:least]
        assert choice.finish_reason == ("stop" if choice.token_ids[-1] == 0 else "length")
    assert model.last < 32


@pytest.mark.parametrize("num_prompt", [32, 33])
def test_a_prompt_without_room_is_refused(num_prompt):
    assert (
        refused(lambda: text_engine().admission.admit([1] * num_prompt, SamplingParams(max_tokens=1))).field == "prompt"
    )
