"""docs/capabilities.md is what happens: its pairs, run by an engine over a toy model, with and without speculation.

Under `coupled` an answer is the one without speculation; under the other verifiers it ends as it should and says that
it is not replayable (that its distribution is right: properties/test_verification.py).
"""

from __future__ import annotations

import dataclasses
import functools
import itertools

import pytest
from fakes import ByteTokenizer, hash_logits, make_engine
from properties.every_field import VALUES, Stateful, answer, refused, run, text_engine
from toy_drafters import TappedModel, toy_drafter

from decodex.capabilities import (
    CONSTRAINTS,
    EXAMPLES,
    FORMS,
    METHODS,
    VERIFIERS,
    capabilities_markdown,
    refusals,
)
from decodex.params import BESIDE_WHOLE_OUTPUT, SamplingParams
from decodex.speculative_config import WITH_WEIGHTS

PROMPT = [1, 2, 3, 1, 2, 9, 10, 1, 2]
PROMPT_BYTES = list(b"(ab)c")
TREES = {"static": [2, 2], "grown": {"num_children": 2, "num_expanded": 2, "max_nodes": 6}}
MOSTLY_FORCED = {"regex": "abcab( |c)abcab c"}


@functools.cache
def _known(prefix: tuple[int, ...], vocab_size: int):
    logits = hash_logits(prefix, vocab_size)
    if vocab_size > 12:  # what the constraints are made of
        logits[list(b'abcdx()"{}[]')] += 2
    return logits


def logits_of(vocab_size: int):
    """As the fakes' own; many requests share their prefixes."""
    return lambda prefix: _known(tuple(prefix), vocab_size).copy()


@functools.cache
def engine_of(method: str, vocab_size: int):
    """One that speculates by a method, or with "" not at all; a request says how it is verified."""
    model, options = TappedModel(vocab_size, logits_of=logits_of(vocab_size)), {}
    if method:
        config = METHODS[method]
        names = (config.get("method"), *config.get("cascade", ()))
        weights = next((name for name in names if name in WITH_WEIGHTS), None)
        options = {"speculative_config": config}
        if weights is not None:
            options = {"speculative_config": {**config, "model": "toy"}}
            options["drafter"] = toy_drafter(weights, vocab_size, logits_of(vocab_size))
    options |= {"model": model, "num_blocks": 1024, "max_num_seqs": 64, "max_num_batched_tokens": 4096}
    if vocab_size == 12:
        engine = text_engine(**options)
    else:
        engine = make_engine(tokenizer=ByteTokenizer(), max_model_len=64, **options)
    if method:  # compiled once for all engines
        engine.admission._grammars = engine_of("", vocab_size).grammars
    return engine


def shapes(method: str, verifier: str) -> list[dict]:
    """What a request may ask of an engine with this method, beside the verifier."""
    found = [{"verification": verifier}]
    for name, tree in TREES.items():
        wanted = {**METHODS[method], "verification": verifier, "tree": tree}
        if f"{method}, {name} tree" in FORMS and refused(lambda w=wanted: SamplingParams(speculative=w)) is None:
            found.append({"verification": verifier, "tree": tree})
    return found


@functools.cache
def single_values(is_forced: bool) -> list[tuple[str, dict]]:
    """Every value of every parameter, with a name; `is_forced`: beside a constraint with one way to go."""
    found = []
    for name, values in VALUES.items():
        if is_forced and name in (*BESIDE_WHOLE_OUTPUT, "structured_outputs"):
            continue
        for value in values:
            fields = {"seed": len(found), "max_tokens": 6, name: value}
            fields["max_tokens"] = 9 if value == 9 and name == "min_tokens" else fields["max_tokens"]
            if is_forced:
                fields["structured_outputs"] = MOSTLY_FORCED
            found.append((name, fields))
    return found


def is_stateful(params: SamplingParams) -> bool:
    return any(isinstance(processor, Stateful) for processor in params.logits_processors or ())


@functools.cache
def plain_values(is_forced: bool) -> list:
    """The outputs without speculation."""
    requests = [(PROMPT, SamplingParams(**{**fields, "speculative": False})) for _, fields in single_values(is_forced)]
    return run(engine_of("", 12), requests)


def check_stream(steps, number):
    """What is shown after each step goes on from what was shown before."""
    for before, after in itertools.pairwise(steps):
        for old, new in zip(before[number].outputs, after[number].outputs, strict=True):
            assert new.token_ids[: len(old.token_ids)] == old.token_ids
            assert new.text.startswith(old.text)
            assert new.logprobs is None or len(new.logprobs) == len(new.token_ids)


def check_ends(output, expected):
    """An answer of which only the distribution is known."""
    assert output.finished
    for choice in output.outputs:
        assert choice.finish_reason in ("stop", "length", "error")
        assert (choice.finish_reason == "error") <= (output.error is not None)
        assert choice.check != "failed"
        assert choice.logprobs is None or len(choice.logprobs) == len(choice.token_ids)
    if expected.error is None:
        assert output.error is None or "no token is left" in str(output.error)


def test_the_page_is_up_to_date(repository):
    """The engine's part is written from the code; tests/server/test_capabilities.py looks at the rest."""
    page = (repository / "docs/capabilities.md").read_text(encoding="utf-8")
    assert page.startswith(capabilities_markdown())
    names = [field.name for field in dataclasses.fields(SamplingParams)]
    assert sorted(EXAMPLES) == sorted(VALUES) == sorted(names)
    plain = SamplingParams()
    for name, value in EXAMPLES.items():
        assert f"| `{name}` |" in page
        assert getattr(SamplingParams(**{name: value}), name) != getattr(plain, name), name


@pytest.mark.parametrize("pair", refusals())
def test_a_refused_pair_names_a_field(pair, repository):
    error = refused(refusals()[pair])
    assert error is not None
    assert error.field in str(error)
    assert pair.split(" x ")[0] in (repository / "docs/capabilities.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("verifier", VERIFIERS)
@pytest.mark.parametrize("form", FORMS)
def test_each_form_and_verifier_works_or_is_refused(form, verifier, repository):
    """As table 1 says, by a real engine's admission."""
    method, _, shape = form.partition(", ")
    wanted = {**FORMS[form], "verification": verifier}
    error = refused(lambda: engine_of(method, 12).admission.admit(PROMPT, SamplingParams(speculative=wanted)))
    page = (repository / "docs/capabilities.md").read_text(encoding="utf-8")
    table = [line for line in page.split("## 2.")[0].splitlines() if f"| {shape or 'chain'} |" in line]
    first, *rest = method.split(" ")
    [row] = [line for line in table if " ".join((f"`{first}`", *rest)) in line.split(" | ")[0].strip("| ").split(", ")]
    cell = row.strip("| ").split(" | ")[2 + VERIFIERS.index(verifier)]
    assert cell == ("works" if error is None else f"refused: `{error.field}`")


def speculative_of(value, wanted):
    """A value of `speculative`, under the verifier of `wanted` where it speculates."""
    if isinstance(value, dict):
        tree = {"tree": None} if wanted["verification"] == "block" else {}
        return {**value, **tree, "verification": wanted["verification"]}
    return wanted if value is True else value


@pytest.mark.parametrize("verifier", VERIFIERS)
@pytest.mark.parametrize("method", METHODS)
def test_every_value_with_every_method_and_verifier(method, verifier):
    """The shape of the drafts goes round with the values."""
    is_forced = method == "forced"
    expected, wanted = plain_values(is_forced), shapes(method, verifier)
    requests = []
    for number, (name, fields) in enumerate(single_values(is_forced)):
        own = wanted[number % len(wanted)]
        more = {"speculative": speculative_of(fields["speculative"], own) if name == "speculative" else own}
        if name != "prediction" and method in ("prediction", "cascade"):
            tokens = expected[number].outputs[0].token_ids
            more["prediction"] = [*tokens[:3], 8, *tokens[4:]]
        requests.append((PROMPT, SamplingParams(**{**fields, **more})))
    outputs = run(engine_of(method, 12), requests)
    for (_, params), output, right in zip(requests, outputs, expected, strict=True):
        is_off = is_stateful(params) or params.speculative is False
        assert output.replayable == (verifier == "coupled" or params.speculative is False)
        if is_stateful(params):
            assert output.metrics.speculation_off == "logits_processors[0] does not declare pure = True"
        if verifier == "coupled" or is_off or params.temperature == 0:
            assert answer(output) == answer(right), params
        check_ends(output, right)
    assert sum(num_accepted(output) for output in outputs) > 20


def num_accepted(output) -> int:
    return 0 if output.metrics.speculation is None else output.metrics.speculation.num_accepted


@functools.cache
def constrained_requests() -> list[dict]:
    """Every kind of grammar, with n and logprobs."""
    return [
        {"structured_outputs": value, "n": n, "logprobs": logprobs, "seed": seed, "max_tokens": 12}
        for seed, (value, n, logprobs) in enumerate(itertools.product(CONSTRAINTS.values(), (1, 2), (None, 2)))
    ]


@functools.cache
def plain_constrained() -> list:
    return run(engine_of("", 257), [(PROMPT_BYTES, SamplingParams(**fields)) for fields in constrained_requests()])


@pytest.mark.parametrize("verifier", VERIFIERS)
@pytest.mark.parametrize("method", METHODS)
def test_every_grammar_with_every_method_and_verifier(method, verifier):
    """Streamed, one choice and two, with log-probabilities and without; the shape of the drafts goes round."""
    expected, wanted = plain_constrained(), shapes(method, verifier)
    requests = []
    for number, (fields, right) in enumerate(zip(constrained_requests(), expected, strict=True)):
        more = {"prediction": right.outputs[0].text} if method in ("prediction", "cascade") else {}
        own = wanted[(number + number // 12) % len(wanted)]
        requests.append((PROMPT_BYTES, SamplingParams(**fields, **more, speculative=own)))
    steps = []
    outputs = run(engine_of(method, 257), requests, steps)
    for number, (output, right) in enumerate(zip(outputs, expected, strict=True)):
        assert output.replayable == (verifier == "coupled")
        if verifier == "coupled":
            assert answer(output) == answer(right), requests[number]
        check_ends(output, right)
        check_stream(steps, number)
    assert sum(num_accepted(output) for output in outputs) > 5


def test_what_the_vocabulary_refuses():
    """The two pairs that the page mentions without a text."""
    thinking = SamplingParams(allowed_token_ids=[1, 2], max_thinking_tokens=3)
    budget = SamplingParams(max_tokens=2, structured_outputs={"choice": ["abcabcabc"], "finish_within_budget": True})
    for params, field in ((thinking, "allowed_token_ids"), (budget, "max_tokens")):
        error = refused(lambda p=params: engine_of("", 12).admission.admit(PROMPT, p))
        assert error is not None
        assert error.field == field


@pytest.mark.parametrize("method", WITH_WEIGHTS)
@pytest.mark.parametrize(
    "first",
    [
        *({"max_tokens": n} for n in (1, 2, 3, 4, 9)),
        {"logits_processors": [Stateful()]},
        {"speculative": {"method": "suffix"}},
    ],
)
def test_blocks_without_a_drafters_entries_are_not_shared(method, first):
    """A sequence that ended in the step of its prompt, or had speculation off, left blocks in the prefix cache that a
    drafter had not written: its next drafts came from uninitialised memory."""
    options = {"speculative_config": {"method": method, "model": "toy"}, "drafter": toy_drafter(method, 12)}
    engine = text_engine(model=TappedModel(12), **options)
    ignored = {"ignore_eos": True, "seed": 1}
    [output] = run(engine, [(PROMPT, SamplingParams(**ignored, **first))])
    prompts = [PROMPT, (PROMPT + output.outputs[0].token_ids)[:18]]
    outputs = run(engine, [(prompt, SamplingParams(**ignored, max_tokens=8)) for prompt in prompts])
    assert all(num_accepted(output) > 0 for output in outputs)
