"""A model that wants a script, drafts that split it into accepted runs, and where an answer to it must end."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from fakes import FakeModel, Guesser, make_engine
from hypothesis import strategies as st
from properties.every_field import answer, run

from decodex.params import SamplingParams
from decodex.spec.draft import Draft

EOS = {12: 0, 257: 256}


def row_of(token: int, vocab_size: int) -> np.ndarray:
    """Logits that prefer `token`, then the lowest id."""
    logits = -0.1 * np.arange(vocab_size, dtype=np.float32)
    logits[token] = 8.0
    return logits


def stream_of(script, params, vocab_size):
    """What the model says if nothing ends it: the script, but for tokens that min_tokens bans."""
    enders = set(params.stop_token_ids) | (set() if params.ignore_eos else {EOS[vocab_size]})
    lowest = next(t for t in range(vocab_size) if t not in enders)
    return [lowest if i < params.min_tokens and token in enders else token for i, token in enumerate(script)]


def oracle(stream, params, tokenizer):
    """(number of tokens, text, finish reason, stop reason), decoding every prefix anew.

    Text is certain once it can't be the beginning of a character; a stop string ends an answer with the token that
    makes its last character certain, the earliest one first, then the longest.
    """
    decode = lambda count: tokenizer.decode(stream[:count], params.skip_special_tokens)  # noqa: E731
    for count, token in enumerate(stream, 1):
        may_stop = count > params.min_tokens
        is_stop = token in params.stop_token_ids
        if may_stop and (is_stop or (token in tokenizer.eos_token_ids and not params.ignore_eos)):
            shown = count if params.include_stop_str_in_output else count - 1
            return count, decode(shown), "stop", token if is_stop else None
        text, before = decode(count), len(decode(count - 1).rstrip("\ufffd"))
        if count < params.max_tokens:
            text = text.rstrip("\ufffd")
        hits = [(text.find(s, max(0, before - len(s) + 1)), -len(s), s) for s in params.stop]
        hits = sorted(hit for hit in hits if hit[0] >= 0)
        if may_stop and hits:
            at, _, stop = hits[0]
            return count, text[: at + len(stop) * params.include_stop_str_in_output], "stop", stop
        if count == params.max_tokens:
            return count, text, "length", None
    raise AssertionError("the stream is too short")


class SplitProposer(Guesser):
    """Drafts that make the k-th accepted run of a sequence `splits[key][k]` tokens long; key = its first two tokens."""

    def __init__(self, streams, splits, decoys, vocab_size):
        self._streams, self._decoys, self._vocab_size = streams, decoys, vocab_size
        self._runs = {key: dict(zip(itertools.accumulate([1, *runs]), runs)) for key, runs in splits.items()}

    def propose(self, views):
        return [self._draft(list(view.token_ids)) for view in views]

    def _draft(self, token_ids):
        key, at = tuple(token_ids[:2]), len(token_ids) - 2
        right = self._streams[key][at : at + self._runs[key].get(at, 1) - 1]
        if not right:
            return None
        if not self._decoys:
            return Draft.chain(right)
        tokens, parents, parent = [], [], -1
        for token in right:
            tokens += [(token + 3) % self._vocab_size, token]
            parents += [parent, parent]
            parent = len(tokens) - 1
        return Draft(tuple(tokens), tuple(parents))


def check_splits(script, params, splits, tokenizer, decoys=False, streamed=None):
    """Every split as a request of one batch, against the oracle and against each other."""
    vocab_size = tokenizer.vocab_size
    stream = stream_of(script, params, vocab_size)
    keys = [(1 + i // 11, 1 + i % 11) for i in range(len(splits))]
    model = FakeModel(
        vocab_size, logits_of=lambda prefix: row_of([*script, 1][min(len(prefix) - 2, len(script))], vocab_size)
    )
    proposer = SplitProposer(dict.fromkeys(keys, stream), dict(zip(keys, splits)), decoys, vocab_size)
    engine = make_engine(
        model=model, tokenizer=tokenizer, proposer=proposer, num_blocks=64 * 8, max_num_batched_tokens=4096
    )
    outputs = run(engine, [(list(key), params) for key in keys], streamed)
    count, text, reason, stop_reason = oracle(stream, params, tokenizer)
    for split, output in zip(splits, outputs, strict=True):
        choice = output.outputs[0]
        found = (choice.token_ids, choice.text, choice.finish_reason, choice.stop_reason)
        assert found == (stream[:count], text, reason, stop_reason), split
        assert answer(output) == answer(outputs[0]), split
        assert output.finished
        if choice.logprobs is not None:
            assert len(choice.logprobs) == count
            for place, entries in enumerate(choice.logprobs):
                row = row_of(script[place], vocab_size).astype(np.float64)
                right = row[stream[place]] - math.log(np.exp(row).sum())
                assert entries[stream[place]].logprob == pytest.approx(right, abs=1e-5)
            total = sum(entries[token].logprob for token, entries in zip(choice.token_ids, choice.logprobs))
            assert choice.cumulative_logprob == pytest.approx(total)
    return outputs


def compositions(total: int) -> list[list[int]]:
    """Every way to write a number as a sum of positive ones, in order."""
    if total == 0:
        return [[]]
    return [[first, *rest] for first in range(1, total + 1) for rest in compositions(total - first)]


@st.composite
def cut_params(draw, stops, max_tokens, **more):
    return SamplingParams(
        temperature=0.0,
        seed=1,
        max_tokens=draw(max_tokens),
        stop=draw(st.lists(stops, max_size=3)),
        stop_token_ids=draw(st.sampled_from([None, [3], [5, 0]])),
        min_tokens=draw(st.sampled_from([0, 0, 1, 2])),
        include_stop_str_in_output=draw(st.booleans()),
        ignore_eos=draw(st.booleans()),
        skip_special_tokens=draw(st.booleans()),
        logprobs=draw(st.sampled_from([None, 0, 2])),
        **more,
    )


RUNS = st.lists(st.integers(1, 12), min_size=1, max_size=12)  # a split of any stream; single tokens behind it
