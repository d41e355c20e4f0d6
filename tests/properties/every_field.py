"""Random SamplingParams over every field, engines to run them in, and answers in a form that can be compared."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from fakes import Guesser, TextTokenizer, make_engine
from hypothesis import strategies as st

from decodex.errors import RequestError
from decodex.params import BESIDE_WHOLE_OUTPUT, SamplingParams
from decodex.spec.draft import Draft

TEXTS = ["</s>", "a", "b", "ab", "ba", "c", "bc", "cab", " ", "\n", "<think>", "</think>"]
INF = float("inf")


class Pure:
    """Logits shrink with the number of tokens `a` before the row."""

    pure = True

    def apply(self, logits, rows):
        for row, view in zip(logits, rows, strict=True):
            row /= 1 + view.context.count(1)


class Stateful:
    """The k-th row that it sees prefers token k."""

    def __init__(self):
        self.calls = 0

    def __call__(self, token_ids, logits):
        self.calls += 1
        logits[self.calls % len(logits)] += 2.0
        return logits


class FailsAt:
    """Raises at rows with that many tokens before them."""

    pure = True

    def __init__(self, length):
        self.length = length

    def __call__(self, token_ids, logits):
        if len(token_ids) == self.length:
            raise ArithmeticError("on purpose")
        return logits


# Values beside the default; every field is here (test_every_field_is_drawn).
VALUES: dict[str, list[Any]] = {
    "n": [2, 3],
    "seed": [0, 1, 2**53, 2**64 - 1, -5, 123456789],
    "temperature": [0.0, 1e-12, 1e-5, 0.3, 0.8, 2.5, 1e6],
    "dynatemp_range": [0.5, 3.0],
    "dynatemp_exponent": [0.3, 2.0],
    "top_n_sigma": [0.5, 1.7],
    "min_p": [0.03, 0.4, 1.0],
    "top_k": [1, 3, 11, 12, 13, 2**40],
    "typical_p": [0.2, 0.9],
    "epsilon_cutoff": [0.05, 0.3, 1.0],
    "eta_cutoff": [0.05, 1.0],
    "top_p": [1e-9, 0.3, 0.9, 1 - 1e-7],
    "xtc_probability": [0.5, 1.0],
    "xtc_threshold": [0.0, 0.05, 0.4, 1.0],
    "repetition_penalty": [0.5, 1.3, 100.0],
    "frequency_penalty": [-2.0, 0.7],
    "presence_penalty": [-1.0, 2.0],
    "penalty_last_n": [1, 3, 100],
    "dry_multiplier": [0.8, 100.0],
    "dry_base": [1.0, 1.2, 100.0],
    "dry_allowed_length": [1, 4],
    "dry_sequence_breakers": [[], ["a"], ["c", " "]],
    "logit_bias": [{3: 4.0, 0: -100.0}, {5: -INF, 7: 3.0}, {0: -INF}, {0: 6.0}],
    "allowed_token_ids": [list(range(12)), [1, 2, 3, 11], [0, 5, 11], [11]],
    "bad_words": [["ab"], ["bcb", "a"], "c"],
    "no_repeat_ngram_size": [1, 2, 3],
    "min_tokens": [1, 3, 9],
    "max_thinking_tokens": [0, 2],
    "logits_processors": [[Pure()], [Stateful()], [FailsAt(9)], [Pure(), FailsAt(14)]],
    "structured_outputs": [
        {"regex": "(ab|c){2,6}"},
        {"regex": "[ab]{3}c*", "backend": "outlines"},
        {"choice": ["abcab", "ab", "b", "cabba ab"], "finish_within_budget": True},
        {"grammar": 'root ::= "a" root "b" | "c"', "backend": "xgrammar"},
        {"grammar": 'root ::= ("ba" | "c" | " ")+', "backend": "llguidance"},
    ],
    "speculative": [
        False,
        True,
        {"method": "ngram", "prompt_lookup_min": 1, "prompt_lookup_max": 3},
        {"method": "suffix", "num_speculative_tokens": 3},
        {"method": "suffix", "tree": {"num_children": 2, "max_nodes": 6}},
        {"cascade": ["prediction", "ngram"], "control": False},
    ],
    "prediction": ["abcab", [1, 2, 3, 1, 2, 9], "c" * 30],
    "max_tokens": [1, 2, 9, None],
    "stop": [["ab"], ["c", "bcab"], "aba", ["\n ", "b"]],
    "stop_token_ids": [[3], [0, 7]],
    "include_stop_str_in_output": [True],
    "ignore_eos": [True],
    "repetition_stop": [2, 3],
    "repetition_stop_span": [1, 4],
    "repetition_stop_period": [1, 4],
    "logprobs": [0, 2, 12, -1],
    "prompt_logprobs": [0, 3, -1],
    "logprob_token_ids": [[3, 11], [0]],
    "logprobs_mode": ["processed"],
    "skip_special_tokens": [False],
}


@st.composite
def sampling_params(draw, *, max_fields: int = 9, leave_out: Sequence[str] = (), **fixed: Any) -> SamplingParams:
    """Parameters that an engine over TEXTS accepts, with a seed; up to `max_fields` fields are not at their default."""
    names = draw(st.lists(st.sampled_from([n for n in VALUES if n not in leave_out]), unique=True, max_size=max_fields))
    values: dict[str, Any] = {"seed": draw(st.integers(0, 2**64 - 1)), "logprobs": draw(st.sampled_from([None, 1]))}
    values |= {name: draw(st.sampled_from(VALUES[name])) for name in names} | fixed
    if "structured_outputs" in values:
        values = {name: value for name, value in values.items() if name not in BESIDE_WHOLE_OUTPUT}
    most = values.get("max_tokens", 16)
    if most is not None:
        values["min_tokens"] = min(values.get("min_tokens", 0), most)
    return SamplingParams(**values)


@st.composite
def prompts(draw) -> list[int]:
    """Token ids that share beginnings, so that the prefix cache finds something; <think> may be open."""
    stem = [1, 2, 3, 1, 2, 9, 10, 3][: draw(st.integers(0, 8))]
    return stem + draw(st.lists(st.integers(0, 11), min_size=1, max_size=4))


class AnyText(TextTokenizer):
    """TEXTS; characters that they lack are read as spaces."""

    def __init__(self):
        super().__init__(TEXTS)

    def encode(self, text, add_special_tokens=True):
        at, ids = 0, []
        while at < len(text):
            fitting = [i for i, known in enumerate(TEXTS) if text.startswith(known, at)]
            ids.append(max(fitting, key=lambda i: len(TEXTS[i]), default=8))
            at += len(TEXTS[ids[-1]]) if fitting else 1
        return ids


def text_engine(**options: Any):
    """An engine over TEXTS whose longest sequence is 32 tokens."""
    return make_engine(tokenizer=AnyText(), max_model_len=32, **options)


def run(engine, requests, steps=None) -> list:
    """Admit and run all requests at once; their outputs. `steps` collects what is shown after every step."""
    admitted = [engine.admission.admit(prompt, params) for prompt, params in requests]
    for request in admitted:
        engine.add(request)
    while engine.has_work:
        engine.step()
        if steps is not None:
            steps.append([engine.output_of(request) for request in admitted])
    assert engine.scheduler.pool.num_free == engine.config.num_blocks, "blocks are lost"
    return [engine.output_of(request) for request in admitted]


def answer(output) -> list[str]:
    """Everything that a request's answer says, as text (so that NaN equals NaN), but for times and the request's id."""
    choices = [repr(dataclasses.asdict(choice)) for choice in output.outputs]
    return [*choices, repr(output.prompt_logprobs), repr(output.error is None)]


METHODS = [
    {"method": "ngram", "prompt_lookup_min": 1, "prompt_lookup_max": 2},
    {"method": "suffix"},
    {"method": "suffix", "tree": {"num_children": 3, "num_expanded": 2, "max_nodes": 9}, "suffix_corpus_mib": 1},
    {"method": "suffix", "tree": [2, 2], "control": False},
    {"cascade": ["forced", "prediction", "suffix", "ngram"]},
]  # of an engine


class KnownProposer(Guesser):
    """Drafts from sequences that are known beforehand, made as awkward as `style` says:

    right: the true continuation, as long as the draft may be and longer; wrong_end: its last token is another; twins:
    every node has a sibling with the same token and one with another; forks: all known sequences that agree so far.
    """

    STYLES = ("right", "wrong_end", "twins", "forks")

    def __init__(self, sequences: Sequence[Sequence[int]], style: str, vocab_size: int = len(TEXTS), depth: int = 20):
        self._sequences = [list(tokens) for tokens in sequences]
        self._style, self._vocab_size, self._depth = style, vocab_size, depth

    def propose(self, views):
        return [self._draft(list(view.token_ids)) for view in views]

    def _draft(self, known):
        tails = [s[len(known) :] for s in self._sequences if s[: len(known)] == known]
        tails = [[*tail, 0, 1, 0][: self._depth] for tail in tails if tail]
        if not tails:
            return Draft.chain([0] * 3)
        if self._style == "forks":
            return self._forked(tails)
        tail = tails[0]
        if self._style == "wrong_end":
            return Draft.chain([*tail[:-1], (tail[-1] + 1) % self._vocab_size])
        if self._style == "twins":
            tokens, parents, at = [], [], -1
            for token in tail:
                first = len(tokens)
                tokens += [(token + 1) % self._vocab_size, token, token]
                parents += [at] * 3
                at = first + 1
            return Draft(tuple(tokens), tuple(parents))
        return Draft.chain(tail)

    @staticmethod
    def _forked(tails):
        tokens, parents = [], []
        for tail in tails:
            at = -1
            for token in tail:
                tokens.append(token)
                parents.append(at)
                at = len(tokens) - 1
        return Draft(tuple(tokens), tuple(parents))


def refused(build) -> RequestError | None:
    """The RequestError that `build()` raises, None if it raises nothing; anything else is passed on."""
    try:
        build()
    except RequestError as error:
        return error
    return None
