"""K8, blast radius: whatever a request asks for, the one beside it gets the same bits; the odd one gets a RequestError,
an error of its own or an answer, the engine lives, and the next request is served as ever."""

from __future__ import annotations

import asyncio
from fractions import Fraction

import numpy as np
import pytest
import torch
from fakes import FakeModel, RandomProposer, hash_logits
from hypothesis import given, settings
from hypothesis import strategies as st
from properties.every_field import TEXTS, VALUES, answer, prompts, refused, run, sampling_params, text_engine

from decodex.async_llm import AsyncLLM
from decodex.definition import options_of
from decodex.errors import DecodexError, EngineError, RequestError
from decodex.params import SamplingParams

V = len(TEXTS)
BROKEN = 8  # a prompt that begins with this token gets NaN logits at times
NAMES = [field.name for field in options_of(SamplingParams)]
CANARY = (
    [3, 4, 5],
    SamplingParams(
        seed=9,
        n=2,
        temperature=1.1,
        top_p=0.95,
        repetition_penalty=1.2,
        max_tokens=14,
        logprobs=3,
        prompt_logprobs=1,
        ignore_eos=True,
        xtc_probability=0.4,
        bad_words=["abc"],
        dry_multiplier=0.5,
    ),
)

ODD_NUMBERS = st.sampled_from(
    [
        float("nan"),
        float("inf"),
        -float("inf"),
        -1,
        -1.0,
        0,
        0.0,
        -0.0,
        1,
        2,
        0.5,
        5e-324,
        1e-45,
        3.5e38,
        1.7e308,
        2**31 - 1,
        2**31,
        2**63 - 1,
        2**63,
        2**64 - 1,
        2**64,
        -(2**63) - 1,
        10**400,
        True,
        False,
        1j,
        Fraction(1, 3),
        np.float32(0.5),
        np.int64(3),
        np.array([1, 2]),
        np.array(1),
        torch.tensor([0.5, 1.0]),
        torch.tensor(1),
    ]
)
ODD_TEXTS = st.sampled_from(
    ["", "a", "\ufffd", "\ud800", "a" * 2000, "\x00", "off", "None", "1", "١", "<think>", b"a", bytearray(b"a")]
)
ODD_THINGS = st.recursive(
    st.one_of(
        ODD_NUMBERS, ODD_TEXTS, st.none(), st.sampled_from([object(), range(3), {1, 2}, len, NotImplemented, ...])
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.tuples(inner),
        st.dictionaries(st.sampled_from([0, 1, "3", "x", -1, 2**70, 1.5, None]), inner, max_size=2),
    ),
    max_leaves=4,
)
ODD_PROMPTS = st.one_of(
    prompts(),
    st.builds(lambda tail: [BROKEN, *tail], prompts()),
    ODD_THINGS,
    st.sampled_from(
        [[], [V], [-1], [1] * 31, [1] * 32, [1] * 5000, [1, "a"], [1.0], {"prompt": "ab"}, {"prompt": [1]}, "abc", "zz"]
    ),
)


class Bad:
    """A processor that goes wrong in one way."""

    pure = True

    def __init__(self, how):
        self.how = how

    def __repr__(self):
        return f"Bad({self.how})"

    def apply(self, logits, rows):
        how = self.how
        if how == "raises":
            raise KeyError("on purpose")
        if how == "nan":
            logits[:] = torch.nan
        elif how == "inf":
            logits[:, 2] = torch.inf
        elif how == "all banned":
            logits[:] = -torch.inf
        elif how == "resizes":
            logits.resize_(1, 1)
        elif how == "transposes":
            logits.t_()
        elif how == "in place and raises":
            logits.zero_()
            raise ValueError("on purpose")
        elif how == "writes ids":
            rows[0].token_ids[0] = 5
        elif how == "later":
            if len(rows[0].context) > 6:
                raise RuntimeError("on purpose")
        else:
            return {
                "wrong shape": logits[:, :3],
                "integers": logits.long(),
                "list": logits.tolist(),
                "none": None,
                "number": 3,
                "double": logits.double(),
                "one row": logits[:1],
                "grows": torch.cat([logits, logits]),
                "grad": logits.clone().requires_grad_(),
            }[how]
        return None


HOWS = [
    "raises",
    "nan",
    "inf",
    "all banned",
    "resizes",
    "transposes",
    "in place and raises",
    "writes ids",
    "later",
    "wrong shape",
    "integers",
    "list",
    "none",
    "number",
    "double",
    "one row",
    "grows",
    "grad",
]


def stateful(how):
    """The same as a function that is not declared pure, a row at a time."""

    def function(token_ids, logits):
        token_ids.append(3)  # ours to change
        result = Bad(how).apply(logits[None], [])
        return logits if result is None else result[0] if how in ("double", "grad") else result

    return function


@st.composite
def odd_values(draw):
    """Keyword arguments of SamplingParams: good ones with some replaced by nonsense."""
    values = {
        name: draw(st.sampled_from(VALUES[name]))
        for name in draw(st.lists(st.sampled_from(NAMES), unique=True, max_size=4))
    }
    for _ in range(draw(st.integers(0, 2))):
        values[draw(st.sampled_from([*NAMES, "best_of", "num_beams", "temprature", "mirostat"]))] = draw(ODD_THINGS)
    if draw(st.booleans()):
        values["logits_processors"] = [Bad(draw(st.sampled_from(HOWS)))]
    return values


def logits_of(prefix):
    if prefix[0] == BROKEN and len(prefix) % 5 == 4:
        return np.full(V, np.nan, dtype=np.float32)
    return hash_logits(prefix, V)


def engine_of(drafts=None, **options):
    proposer = None if drafts is None else RandomProposer(2, chain=drafts == "chain")
    return text_engine(model=FakeModel(V, logits_of=logits_of), proposer=proposer, **options)


@pytest.fixture(scope="module")
def canary():
    return answer(run(engine_of(), [CANARY])[0])


def submit(engine, prompt, values):
    """The request, or None where it is refused by name."""
    try:
        request = engine.admission.admit(prompt, SamplingParams(**values))
        engine.add(request)
    except RequestError:
        return None
    return request


EXAMPLE = {
    "odd": st.lists(st.tuples(ODD_PROMPTS, odd_values(), st.integers(0, 12)), min_size=1, max_size=4),
    "good": st.tuples(prompts(), sampling_params()),
    "canary_at": st.integers(0, 8),
    "drafts": st.sampled_from([None, "chain", "tree"]),
    "num_blocks": st.integers(24, 64),
}


def check(right, odd, good, canary_at, drafts, num_blocks):
    engine = engine_of(drafts, num_blocks=num_blocks, max_num_seqs=5, max_num_batched_tokens=24)
    [before] = run(engine, [CANARY])  # good then bad
    assert answer(before) == right
    requests, step, todo, canary = [], 0, list(odd), None
    while todo or canary is None or engine.has_work:
        if step == canary_at:
            canary = engine.admission.admit(*CANARY)
            engine.add(canary)
        for item in [item for item in todo if item[2] <= step]:
            todo.remove(item)
            requests.append(submit(engine, item[0], item[1]))
        if engine.has_work:
            engine.step()
        step += 1
        assert step < 600, "no end"
    assert answer(engine.output_of(canary)) == right, "the canary noticed"
    for request in filter(None, requests):
        output = engine.output_of(request)
        reasons = {choice.finish_reason for choice in output.outputs}
        assert reasons <= {"stop", "length", "error"}
        assert ("error" in reasons) == (output.error is not None)
        assert output.error is None or isinstance(output.error, EngineError)
        for choice in output.outputs:
            assert all(0 <= token < V for token in choice.token_ids)
    assert engine.scheduler.pool.num_free == num_blocks
    [after], [alone] = run(engine, [good]), run(engine_of(), [good])  # bad then good
    assert answer(after) == answer(alone)


@settings(max_examples=60)
@given(**EXAMPLE)
def test_hostile_requests_beside_a_canary(canary, **example):
    check(canary, **example)


@pytest.mark.slow
@settings(max_examples=2000)
@given(**EXAMPLE)
def test_hostile_requests_beside_a_canary_in_a_sweep(canary, **example):
    check(canary, **example)


@settings(max_examples=200)
@given(values=st.dictionaries(st.sampled_from(NAMES), ODD_THINGS, min_size=1, max_size=2))
def test_nonsense_is_refused_by_name(values):
    """Either accepted, or a RequestError that names one of the fields; equal to itself either way."""
    error = refused(lambda: SamplingParams(**values))
    if error is not None:
        assert any(error.field.startswith(name) for name in [*values, "min_tokens"]), (error.field, values)


@pytest.mark.parametrize("name", NAMES)
def test_each_field_with_every_odd_thing(name):
    """The table behind the fuzzing, so that no pair of field and value depends on being drawn."""
    things = [
        float("nan"),
        float("inf"),
        -float("inf"),
        10**400,
        2**63,
        -(2**70),
        1e300,
        True,
        "x",
        "",
        b"x",
        "\ud800",
        [],
        {},
        [[]],
        {0: "x"},
        {"x": 1},
        {0: 10**400},
        [2**70],
        ["\ud800"],
        [None],
        object(),
        1j,
        np.array([1, 2]),
        torch.tensor([1, 2]),
        np.array([]),
        {1, 2},
        lambda: 1,
        range(2),
        Fraction(1, 3),
    ]
    engine = engine_of()
    for thing in things:
        values = {"max_tokens": 2, "seed": 1, name: thing}
        submit(engine, [1, 2], values)
    while engine.has_work:
        engine.step()


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("kind", ["pure", "stateful"])
@pytest.mark.parametrize("drafts", [None, "tree"])
def test_processors_that_go_wrong(how, kind, drafts, canary):
    processor = Bad(how) if kind == "pure" else stateful(how)
    engine = engine_of(drafts)
    odd = (
        [1, 2, 3],
        SamplingParams(
            seed=1, n=2 if kind == "pure" else 1, max_tokens=6, ignore_eos=True, logits_processors=[processor]
        ),
    )
    broken, beside = run(engine, [odd, CANARY])
    assert answer(beside) == canary
    if how in ("none", "double", "grad"):
        assert broken.error is None
        assert broken.outputs[0].finish_reason == "length"
    elif kind == "pure" and how not in ("one row",):
        assert broken.outputs[0].finish_reason == "error"
        assert "logits_processors" in str(broken.error)
    assert answer(run(engine, [CANARY])[0]) == canary


def test_a_broken_step_does_not_outlive_its_requests(canary):
    """A model that raises ends what is in flight, each with the reason; the next request is served."""
    model = FakeModel(V, logits_of=logits_of)
    engine = text_engine(model=model)
    request = engine.admission.admit([1, 2], SamplingParams(max_tokens=4))
    engine.add(request)
    model._logits_of = lambda prefix: 1 / 0
    with pytest.raises(ZeroDivisionError):
        engine.step()
    engine.fail_all(EngineError("the step failed"))
    model._logits_of = logits_of
    assert str(engine.output_of(request).error) == "the step failed"
    assert answer(run(engine, [CANARY])[0]) == canary


@settings(max_examples=20)
@given(odd=st.lists(st.tuples(ODD_PROMPTS, odd_values()), min_size=1, max_size=4))
def test_the_serving_thread_lives(canary, odd):
    """The same through AsyncLLM: every coroutine ends with an answer or a DecodexError, the thread never dies."""

    async def one(llm, prompt, values):
        try:
            async for _ in llm.stream(prompt, SamplingParams(**values)):
                pass
        except DecodexError as error:
            return error
        return None

    async def everything():
        async with AsyncLLM.from_engine(engine_of(num_blocks=48, max_num_seqs=4)) as llm:
            beside = llm.generate([CANARY[0]], [CANARY[1]])
            results = await asyncio.gather(beside, *(one(llm, prompt, values) for prompt, values in odd))
            assert llm.failure is None
            again = await llm.generate([CANARY[0]], [CANARY[1]])
            return results[0][0], again[0]

    beside, again = asyncio.run(everything())
    assert answer(beside) == canary
    assert answer(again) == canary
