"""What the target computed is kept once: an interrupted capture goes on, and states of something else are refused."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from train_fakes import make_spans, target_on

from decodex.spec.train import states
from decodex.spec.train.errors import TrainingError
from decodex.spec.train.states import Captured, Span, StateStore, capture

SPANS = make_spans([(5 + i % 4, 1 + i % 2) for i in range(11)])
IDENTITY = {"model": "m", "layers": [0, 3, 6]}


@pytest.fixture(autouse=True)
def small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(states, "RECORDS_PER_SHARD", 3)


class Target:
    """Counts the sequences that it ran on, and stops at the call after the next `calls`."""

    def __init__(self, calls: int = 99) -> None:
        self.calls, self.asked = calls, 0

    def __call__(self, spans: Sequence[Span]) -> list[Captured]:
        if not self.calls:
            raise KeyboardInterrupt
        self.calls -= 1
        self.asked += len(spans)
        return target_on(spans)


def check(store: StateStore) -> None:
    """Every span's own states, as float16 has them."""
    for index, true in enumerate(target_on(SPANS)):
        found = store.read(index)
        assert found.states.dtype == torch.float32
        assert torch.equal(found.states, true.states.half().float())
        assert torch.equal(found.log_totals, true.log_totals)
        assert torch.equal(found.top_ids, true.top_ids)


def test_states_are_rounded_and_nothing_else(tmp_path: Path) -> None:
    done: list[int] = []
    check(capture(SPANS, Target(), tmp_path, IDENTITY, done.append))
    assert sum(done) == sum(len(span.token_ids) for span in SPANS)
    assert len(list(tmp_path.iterdir())) == 4 + 1
    check(StateStore(tmp_path, SPANS))
    assert len(list(StateStore(tmp_path, SPANS))) == 11


def test_what_float16_can_not_hold_is_its_largest_number(tmp_path: Path) -> None:
    def large(spans: Sequence[Span]) -> list[Captured]:
        return [Captured(each.states * 1e6, each.log_totals, each.top_ids) for each in target_on(spans)]

    found = capture(SPANS[:1], large, tmp_path, IDENTITY).read(0).states
    assert float(found.max()) == 65504.0
    assert float(found.min()) == -65504.0


@pytest.mark.parametrize("num_calls", range(4))
def test_an_interrupted_capture_goes_on(num_calls: int, tmp_path: Path) -> None:
    first, second = Target(num_calls), Target()
    with pytest.raises(KeyboardInterrupt):
        capture(SPANS, first, tmp_path, IDENTITY)
    check(capture(SPANS, second, tmp_path, IDENTITY))
    assert first.asked + second.asked == 11
    third = Target()
    check(capture(SPANS, third, tmp_path, IDENTITY))
    assert third.asked == 0


def test_an_interruption_while_a_shard_is_written_leaves_no_shard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def torn(tensors: object, path: Path) -> None:
        path.write_bytes(b"half of it")
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(states, "save_file", torn)
        with pytest.raises(KeyboardInterrupt):
            capture(SPANS, Target(), tmp_path, IDENTITY)
    assert not list(tmp_path.glob("shard-*.safetensors"))
    check(capture(SPANS, Target(), tmp_path, IDENTITY))


@pytest.mark.parametrize("other", ["model", "layers", "tokens", "answer", "fewer"])
def test_states_of_something_else_are_refused(other: str, tmp_path: Path) -> None:
    capture(SPANS, Target(), tmp_path, IDENTITY)
    identity, spans = dict(IDENTITY), list(SPANS)
    if other in identity:
        identity[other] = "other"
    elif other == "tokens":
        spans[4] = Span((*spans[4].token_ids[:-1], spans[4].token_ids[-1] ^ 1), spans[4].answer_start, 0.0)
    elif other == "answer":
        spans[4] = Span(spans[4].token_ids, spans[4].answer_start + 1, 0.0)
    else:
        del spans[-1]
    with pytest.raises(TrainingError, match=r"states.json: holds states of another model, precision, other layers or"):
        capture(spans, Target(), tmp_path, identity)
    check(capture(SPANS, Target(0), tmp_path, IDENTITY))


@pytest.mark.parametrize("count", [1, 4, 6, 10])
@pytest.mark.parametrize("is_interrupted", [False, True])
def test_data_that_is_added_at_the_end_is_captured_beside_the_rest(
    count: int, is_interrupted: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    capture(SPANS[:count], Target(), tmp_path, IDENTITY)

    def stopped(self: Path, text: str, encoding: str) -> None:
        raise KeyboardInterrupt

    if is_interrupted:
        with monkeypatch.context() as patched:
            patched.setattr(Path, "write_text", stopped)
            with pytest.raises(KeyboardInterrupt):
                capture(SPANS, Target(), tmp_path, IDENTITY)
    rest = Target()
    check(capture(SPANS, rest, tmp_path, IDENTITY))
    assert rest.asked == 11 - count // 3 * 3  # whole shards stay


@pytest.mark.parametrize("damage", ["cut", "empty", "missing", "another's"])
def test_a_damaged_shard_is_named(damage: str, tmp_path: Path) -> None:
    capture(SPANS, Target(), tmp_path, IDENTITY)
    path = tmp_path / "shard-00001.safetensors"
    data = path.read_bytes()
    if damage == "missing":
        path.unlink()
        with pytest.raises(TrainingError, match=r"shard-00001.safetensors: can't be read .*; delete it"):
            StateStore(tmp_path, SPANS)
    else:
        other = (tmp_path / "shard-00003.safetensors").read_bytes()
        path.write_bytes({"cut": data[:-7], "empty": b"", "another's": other}[damage])
        reason = r"its tensors have rows .*, not \d+" if damage == "another's" else r"can't be read \(.*\)"
        with pytest.raises(TrainingError, match=rf"shard-00001.safetensors: {reason}; delete it to capture it again"):
            capture(SPANS, Target(), tmp_path, IDENTITY)
        path.unlink()
    again = Target()
    check(capture(SPANS, again, tmp_path, IDENTITY))
    assert again.asked == 3


def test_a_torn_mark_is_never_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A capture that stopped while it wrote states.json had then to be thrown away."""

    def torn(self: Path, text: str, encoding: str) -> None:
        self.write_bytes(text[:5].encode())
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Path, "write_text", torn)
        with pytest.raises(KeyboardInterrupt):
            capture(SPANS, Target(), tmp_path, IDENTITY)
    check(capture(SPANS, Target(), tmp_path, IDENTITY))
    assert json.loads((tmp_path / "states.json").read_text())["spans"] == 11


def test_what_is_not_finite_is_named(tmp_path: Path) -> None:
    def broken(spans: Sequence[Span]) -> list[Captured]:
        found = target_on(spans)
        if SPANS[4] in spans:
            found[1].states[2, 5] = float("nan")
        return found

    with pytest.raises(TrainingError, match="sequence 4: the target's hidden states are not finite"):
        capture(SPANS, broken, tmp_path, IDENTITY)


@pytest.mark.parametrize("damage", ["", "{", "[]", "{}", '{"spans": null}'])
def test_a_damaged_mark_is_refused_like_that_of_something_else(damage: str, tmp_path: Path) -> None:
    capture(SPANS, Target(), tmp_path, IDENTITY)
    (tmp_path / "states.json").write_text(damage)
    with pytest.raises(TrainingError, match=r"states.json: holds states of another"):
        capture(SPANS, Target(), tmp_path, IDENTITY)
