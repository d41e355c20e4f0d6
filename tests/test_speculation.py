"""Requests' own speculation, proposers that are not ours, and the metrics."""

from __future__ import annotations

import dataclasses

import pytest
from fakes import FakeModel, Guesser, RandomProposer, expected_tokens, make_engine
from properties.every_field import AnyText, run, text_engine
from toy_drafters import TappedModel, toy_drafter

from decodex import RequestError, SamplingParams
from decodex.spec.costs import CostModel
from decodex.spec.draft import Draft
from decodex.speculation import LOOK_AGAIN, MANY, MODEL_PATIENCE

PROMPT = [1, 2, 3, 1, 2]
PARAMS = SamplingParams(temperature=0, seed=1, max_tokens=12, ignore_eos=True)


def admitted(engine, **params):
    return engine.admission.admit(PROMPT, SamplingParams(seed=1, max_tokens=4, **params))


def methods_of(engine, **params):
    config = admitted(engine, **params).speculation
    return None if config is None else config.methods


class TestWhoIsAsked:
    def test_nobody_without_a_wish(self):
        assert methods_of(text_engine()) is None
        assert methods_of(text_engine(speculative_config={"method": "ngram"}), speculative=False) is None
        assert methods_of(text_engine(speculative_config=False), prediction="ab") is None

    def test_the_engines_config_is_laid_under(self):
        engine = text_engine(speculative_config={"method": "ngram", "prompt_lookup_max": 3, "prompt_lookup_min": 1})
        config = admitted(engine, speculative={"num_speculative_tokens": 2}).speculation
        assert (config.method, config.prompt_lookup_max, config.max_depth) == ("ngram", 3, 2)
        config = admitted(engine, speculative={"method": "suffix"}).speculation
        assert (config.method, config.prompt_lookup_max) == ("suffix", 4)

    @pytest.mark.parametrize("config", [None, {"method": "ngram"}, {"cascade": ["forced", "suffix"]}])
    def test_a_prediction_is_always_looked_at(self, config):
        engine = text_engine(speculative_config=config)
        asked = methods_of(engine, prediction="abc")
        assert "prediction" in asked
        assert set(asked) >= set((config or {}).get("cascade", [(config or {}).get("method", "forced")]))
        assert asked[0] == ("forced" if "forced" in asked else "prediction")

    @pytest.mark.parametrize(
        ("config", "wanted", "field"),
        [
            (False, True, "speculative"),
            (None, {"method": "eagle3"}, "speculative.method"),
            (None, {"metod": "suffix"}, "speculative.metod"),
            (None, {"model": "x"}, "speculative.model"),
            (None, {"method": "suffix", "verification": "block", "tree": [2]}, "speculative.tree"),
            (None, {"prompt_lookup_min": 5}, "speculative.prompt_lookup_min"),
            (None, {"method": "suffix", "quantization": "int8"}, "speculative.quantization"),
            (None, {"quantization": "fp8"}, "speculative.quantization"),
            (None, {"cascade": ["suffix", "suffix"]}, "speculative.cascade"),
            (None, {"tree": [16, 16]}, "speculative.tree"),
            (None, {"suffix_corpus_mib": 1}, "speculative.suffix_corpus_mib"),
            (None, 3, "speculative"),
            (None, "{", "speculative"),
        ],
    )
    def test_what_can_not_be_is_refused_by_field(self, config, wanted, field):
        with pytest.raises(RequestError, match=rf"^{field}(\[\d\])?: got"):
            admitted(text_engine(speculative_config=config), speculative=wanted)

    @pytest.mark.parametrize("wanted", [5, b"x", "\ud800", {"type": "other"}, [99], [1.5], {1: 2}])
    def test_a_prediction_is_text_or_ids(self, wanted):
        with pytest.raises(RequestError, match=r"^prediction(\[\d\])?: got"):
            admitted(text_engine(), prediction=wanted)

    def test_openais_prediction(self):
        request = admitted(text_engine(), prediction={"type": "content", "content": "abc"})
        assert request.prediction == tuple(AnyText().encode("abc"))

    def test_a_prediction_is_no_longer_than_an_output(self):
        assert len(admitted(text_engine(), prediction="ab" * 10**6).prediction) == 32


class Broken(Guesser):
    """What a proposer may get wrong."""

    def __init__(self, what):
        self.what = what

    def propose(self, views):
        return [self.one(view) for view in views][: 0 if self.what == "count" else None]

    def one(self, view):
        class Alike:
            token_ids, parents = (1,), (-1,)

            def __len__(self):
                return 1

        match self.what:
            case "raises":
                raise ArithmeticError("on purpose")
            case "type":
                return Alike()
            case "parents":
                return Draft((1, 2), (-1.0, 0.5))
            case "ids":
                return Draft.chain([1.5])
            case "vocabulary":
                return Draft.chain([10**6])
            case "negative":
                return Draft.chain([-1])
            case "appends":
                view.token_ids.append(7)
        return Draft.chain([1])

    def forget(self, key):
        if self.what == "forget":
            raise ArithmeticError("on purpose")


BROKEN = ["raises", "type", "parents", "ids", "vocabulary", "negative", "appends", "forget", "count"]


@pytest.mark.parametrize("what", BROKEN)
def test_a_broken_proposer_costs_no_answer(what, caplog):
    engine = make_engine(proposer=Broken(what))
    outputs = run(engine, [(PROMPT, PARAMS), (PROMPT[1:], PARAMS)])
    assert [o.outputs[0].token_ids for o in outputs] == [expected_tokens(p, PARAMS) for p in (PROMPT, PROMPT[1:])]
    errors = [record for record in caplog.records if record.levelname == "ERROR"]
    assert len(errors) == 1, "told once"
    assert "Broken" in errors[0].message


def test_an_engine_with_its_own_proposer_has_the_other_methods_too():
    engine = make_engine(proposer=RandomProposer(1))
    params = SamplingParams(temperature=0, seed=1, max_tokens=40, ignore_eos=True, allowed_token_ids=[1, 2])
    [own, named] = run(
        engine, [(PROMPT, params), (PROMPT, dataclasses.replace(params, speculative={"method": "ngram"}))]
    )
    assert set(own.metrics.speculation.by_proposer) == {"test"}
    assert set(named.metrics.speculation.by_proposer) == {"ngram"}
    assert own.outputs == named.outputs
    with pytest.raises(RequestError, match=r"^speculative_config: got"):
        make_engine(proposer=RandomProposer(1), speculative_config={"method": "suffix"})
    off = make_engine(proposer=RandomProposer(1), speculative_config=False)
    assert run(off, [(PROMPT, PARAMS)])[0].metrics.speculation is None


@pytest.mark.parametrize("chain", [True, False])
@pytest.mark.parametrize("stop", [None, ["b"], ["cab", "ab"]])
def test_the_metrics_add_up(chain, stop):
    """Steps, tokens and drafts, also where an output ends within a draft."""
    model = FakeModel()
    engine = make_engine(model=model, tokenizer=AnyText(), proposer=RandomProposer(5, chain=chain))
    outputs = run(engine, [(PROMPT, SamplingParams(seed=s, max_tokens=11, stop=stop, n=2)) for s in range(6)])
    for output in outputs:
        metrics = output.metrics.speculation
        assert metrics.num_tokens == sum(len(choice.token_ids) for choice in output.outputs)
        assert sum(metrics.accepted_at) == metrics.num_accepted == metrics.by_proposer.get("test", (0, 0))[1]
        assert metrics.by_proposer.get("test", (0, 0))[0] == metrics.num_drafted
        assert all(a <= d for a, d in zip(metrics.accepted_at, metrics.drafted_at, strict=True))
        assert metrics.num_tokens - metrics.num_accepted <= metrics.num_steps <= metrics.num_tokens
        if chain:
            assert sum(metrics.drafted_at) == metrics.num_drafted


class Counting(RandomProposer):
    """Knows nothing, and counts how often it is asked."""

    calls = 0

    def propose(self, views):
        self.calls += 1
        return [None] * len(views)


@pytest.mark.parametrize(
    ("more", "is_resting"),
    [({}, True), ({"prediction": "abc"}, False), ({"structured_outputs": {"regex": "[a-c ]{25}"}}, False)],
)
def test_what_has_nothing_to_draft_is_asked_now_and_then(more, is_resting):
    """But for what a grammar or a prediction may know at any token."""
    proposer = Counting(1)
    engine = text_engine(proposer=proposer)
    params = SamplingParams(seed=1, max_tokens=25, ignore_eos=True, speculative={"control": True}, **more)
    [output] = run(engine, [(PROMPT, params)])
    num_steps = len(output.outputs[0].token_ids)
    assert proposer.calls < num_steps - 5 if is_resting else proposer.calls >= num_steps - 2


CHEAP_FOR_FEW = CostModel.profiled({1: 0.010, 8: 0.011, 9: 0.1, 64: 1.0})


@pytest.mark.parametrize("cascade", [["eagle3"], ["suffix", "eagle3"]])
def test_where_many_decode_and_drafts_do_not_pay_a_head_is_left_alone(cascade):
    """Running sequences fall behind, with neither outputs nor the prefix cache the worse for it, and the next ones
    are drafted for again."""
    drafter = toy_drafter("eagle3", 12)  # it complains of entries that were not written
    written, begin = [], drafter.begin
    drafter.begin = lambda step: (written.append(len(step.chooser.sequences)), begin(step))[1]
    config = {"cascade": cascade, "model": "toy"}
    options = {
        "model": TappedModel(12),
        "num_blocks": 900,
        "max_num_seqs": 2 * MANY,
        "max_model_len": 160,
    }
    engine = make_engine(tokenizer=AnyText(), drafter=drafter, **options, speculative_config=config)
    engine.speculation.begin_control(CHEAP_FOR_FEW)
    params = SamplingParams(temperature=0, seed=1, max_tokens=60, ignore_eos=True)
    prompts = [[1 + i % 11, 1 + i // 11, 3, 4, 5] for i in range(MANY + 2)]
    plain = run(
        make_engine(tokenizer=AnyText(), **options, speculative_config=False), [(prompt, params) for prompt in prompts]
    )
    outputs = run(engine, [(prompt, params) for prompt in prompts])
    assert [o.outputs for o in outputs] == [o.outputs for o in plain]
    assert max(written) == len(prompts)
    assert len(written) < 4 * MODEL_PATIENCE, "it is not asked at every step"
    longer = [(prompts[0] + outputs[0].outputs[0].token_ids[:-1], params), (prompts[1], params)]
    again = run(engine, longer)
    assert again[0].metrics.num_cached_tokens < len(prompts[0]) + 4 * MODEL_PATIENCE, "of blocks with entries"
    assert all(o.metrics.speculation.by_proposer["eagle3"][1] > 0 for o in again)
    assert [o.outputs for o in again] == [
        o.outputs for o in run(make_engine(tokenizer=AnyText(), **options, speculative_config=False), longer)
    ]
    assert LOOK_AGAIN > 4 * MODEL_PATIENCE


def test_drafts_are_cut_where_prompts_fill_the_step(monkeypatch):
    """Eight rows are cheap and a ninth is not: what a prompt of four rows leaves is verified."""
    engine = make_engine(proposer=RandomProposer(1), max_num_seqs=4)
    engine.speculation.begin_control(CHEAP_FOR_FEW)
    params = SamplingParams(temperature=0, seed=1, max_tokens=40, ignore_eos=True, speculative={"control": True})
    first = engine.admission.admit(PROMPT, params)
    engine.add(first)
    sizes, forward = [], engine.runner.forward
    engine.runner.forward = lambda batch, *reads: (sizes.append(len(batch.forward.token_ids)), forward(batch, *reads))[
        1
    ]
    for _ in range(8):
        engine.step()
    assert max(sizes[1:]) > 4
    engine.add(engine.admission.admit([5, 4, 3, 2], dataclasses.replace(params, max_tokens=1)))
    engine.step()
    assert 4 < sizes[-1] <= 8
    while engine.has_work:
        engine.step()
    assert max(sizes) <= 8
    assert engine.output_of(first).outputs[0].token_ids == expected_tokens(PROMPT, params)
