"""Every row is trained once an epoch, in batches that keep to their size; what a batch holds, row by row."""

from __future__ import annotations

import itertools
import random

import pytest
import torch
from head_fakes import H
from train_fakes import ExactStore, make_spans

from decodex.spec.train.batches import make_batch, shuffled
from decodex.spec.train.records import Record
from decodex.spec.train.states import Span


def lengths_of(count: int, longest: int) -> list[Span]:
    source = random.Random(count)
    return [Span((0,) * source.randint(4, longest), 1, 0.0) for _ in range(count)]


@pytest.mark.parametrize("batch_tokens", [1, 40, 768])
@pytest.mark.parametrize("count", [0, 1, 2, 700])
def test_an_epoch_has_every_span_once(count: int, batch_tokens: int) -> None:
    spans = lengths_of(count, 90)
    batches = shuffled(spans, batch_tokens, 3, 0)
    assert sorted(index for batch in batches for index in batch) == list(range(count))
    assert all(batches)
    for batch in batches:
        assert len(batch) == 1 or len(batch) * max(len(spans[i].token_ids) for i in batch) <= batch_tokens


def test_little_is_padding_and_the_order_is_no_order_of_lengths() -> None:
    spans = lengths_of(700, 90)
    batches = shuffled(spans, 768, 3, 0)
    padded = sum(len(batch) * max(len(spans[i].token_ids) for i in batch) for batch in batches)
    assert padded < 1.05 * sum(len(span.token_ids) for span in spans)
    longest = [max(len(spans[i].token_ids) for i in batch) for batch in batches]
    num_rises = sum(a < b for a, b in itertools.pairwise(longest))
    assert 0.3 < num_rises / len(longest) < 0.7


def test_the_order_hangs_on_seed_and_epoch_alone() -> None:
    spans = lengths_of(60, 90)
    orders = {(seed, epoch): shuffled(spans, 200, seed, epoch) for seed in range(3) for epoch in range(3)}
    assert all(shuffled(spans, 200, *key) == order for key, order in orders.items())
    assert len({str(order) for order in orders.values()}) == 9


def test_a_batch_row_by_row() -> None:
    store = ExactStore(make_spans())
    chosen, depths = [3, 0, 2], 3
    batch = make_batch(store, chosen, depths, H, torch.device("cpu"))
    assert batch.token_ids.shape == (3, 65 + depths)
    assert batch.states.shape == (3, 64, 4 * H)
    assert batch.next_states.shape == (3, 64 + depths - 1, H)
    assert batch.num_rows == sum(store.spans[i].num_rows for i in chosen)
    for number, index in enumerate(chosen):
        span, captured = store.spans[index], store.read(index)
        length = len(span.token_ids)
        assert batch.token_ids[number].tolist() == [*span.token_ids, *[0] * (65 + depths - length)]
        assert torch.equal(batch.states[number, : length - 1], captured.states[:-1])
        assert not batch.states[number, length - 1 :].any()
        valid = batch.is_valid[number].nonzero().flatten().tolist()
        # the head foresees the answer's tokens from the second on: the first one is the target's own step
        assert [span.answer_start + 1 + row for row in valid] == list(range(span.answer_start + 1, length))
        for row in valid:
            entry = int(batch.rows.index[number, row])
            assert entry == span.answer_start - 1 + row
            assert batch.rows.reads[number, row].tolist() == [at <= entry for at in range(64)]
            assert torch.equal(batch.next_states[number, row], captured.states[entry + 1, -H:])
            assert batch.log_totals[number, row] == captured.log_totals[entry + 1]
            assert batch.top_ids[number, row] == captured.top_ids[entry + 1]


@pytest.mark.parametrize(
    ("prompt", "answer", "limit", "expected"),
    [
        ("abcd", "xyz", 9, ("abcd", "xyz")),
        ("abcd", "xyz", 7, ("abcd", "xyz")),
        ("abcd", "xyz", 6, ("bcd", "xyz")),
        ("abcd", "xyz", 4, ("d", "xyz")),
        ("abcd", "vwxyz", 5, ("d", "vwxy")),
        ("abcd", "vwxyz", 4, ("d", "vwx")),
        ("a", "uvwxyz", 5, ("a", "uvwx")),
        ("abcd", "xyz", 3, None),  # two tokens of the answer: nothing to foresee at depth 2
        ("abcd", "xy", 9, None),
        ("", "xyz", 9, None),
    ],
)
def test_a_prompt_loses_its_beginning_and_an_answer_its_end(
    prompt: str, answer: str, limit: int, expected: tuple[str, str] | None
) -> None:
    span = Span.of(Record("r", tuple(map(ord, prompt)), tuple(map(ord, answer)), 0.7), limit)
    if expected is None:
        assert span is None
    else:
        kept, foreseen = expected
        assert span == Span(tuple(map(ord, kept + foreseen)), len(kept), 0.7)
        assert span.num_rows == len(foreseen) - 1
