"""A training that is interrupted, wherever that is, and goes on is the training that was not interrupted."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
from head_fakes import HEAD, TARGET_IDS, H
from torch import Tensor
from train_fakes import ExactStore, ToyHead, make_head, make_spans

from decodex.head_training import Method
from decodex.spec.train import loop
from decodex.spec.train.batches import Batch, make_batch
from decodex.spec.train.errors import TrainingError
from decodex.spec.train.loop import Trainee, check_folder, evaluate, train
from decodex.spec.train.loss import depth_losses, target_probs
from decodex.spec.train.recipe import Recipe

METHODS = get_args(Method)
RECIPE = Recipe(
    draft_vocab_size=len(TARGET_IDS),
    epochs=1.5,
    batch_tokens=20,
    depths=3,
    deepen_at=0.4,
    eval_every=30,
    learning_rate=3e-3,
    warm_up=0.2,
    weight_decay=0.01,
    seed=1,
)
SPANS = make_spans([(5 + 3 * i % 11, 1 + i % 3) for i in range(12)])
ROWS = sum(span.num_rows for span in SPANS)
STORES: Any = ExactStore(SPANS), ExactStore(make_spans(((9, 2), (7, 1)), seed=5))
IDENTITY = {"model": "m", "taps": (0, 3)}
pytestmark = pytest.mark.usefixtures("one_thread")


class Stop(Exception):
    """What interrupts."""


class Stopper:
    """A progress that raises at these of its calls, and keeps the entries."""

    def __init__(self, calls: Sequence[int] = ()) -> None:
        self.calls, self.entries = set(calls), list[dict[str, Any]]()

    def __call__(self, entry: dict[str, Any]) -> None:
        self.entries.append(entry)
        if len(self.entries) in self.calls:
            raise Stop


def run(folder: Path, head: ToyHead | None = None, recipe: Recipe = RECIPE, **options: Any) -> tuple[list, dict]:
    """History and weights of a training of a head that starts anew."""
    head = head or make_head("eagle3")
    history = train(head.trainee(), STORES, recipe, folder, identity=IDENTITY, **options)
    return history, head.weights


def untimed(history: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: value for name, value in entry.items() if name != "seconds"} for entry in history]


def check_same(found: tuple[list, dict], expected: tuple[list, dict]) -> None:
    assert untimed(found[0]) == untimed(expected[0])
    assert all(torch.equal(found[1][name], weight) for name, weight in expected[1].items())


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[list, dict]:
    torch.set_num_threads(1)
    return run(tmp_path_factory.mktemp("whole"))


@pytest.mark.parametrize("method", METHODS)
def test_a_training_follows_its_recipe(method: Method, tmp_path: Path) -> None:
    head, stopper = make_head(method), Stopper()
    before = {name: weight.clone() for name, weight in head.weights.items()}
    history, weights = run(tmp_path, head, progress=stopper)
    assert stopper.entries == history
    assert json.loads((tmp_path / "history.json").read_text()) == history
    assert {path.name for path in tmp_path.iterdir()} == {"checkpoint.pt", "history.json"}
    steps = [entry for entry in history if "loss" in entry]
    total = round(1.5 * ROWS)
    tokens = [0] + [entry["tokens"] for entry in steps]
    assert tokens[-2] < total <= tokens[-1]
    assert [entry["epoch"] for entry in steps] == sorted(entry["epoch"] for entry in steps)
    assert {entry["epoch"] for entry in steps} == {0, 1}
    expected, due = [], 0
    for seen, entry in zip(tokens, steps):
        share = seen / total
        assert entry["depths"] == len(entry["loss"]) == (1 if share < 0.4 else 3)
        rise, fall = max(share / 0.2, 0.01), 0.05 + 0.95 * (1 + math.cos(math.pi * (share - 0.2) / 0.8)) / 2
        assert entry["lr"] == pytest.approx(3e-3 * (rise if share < 0.2 else fall))
        if seen >= due:
            expected.append(seen)
            due += 30
    assert [entry["tokens"] for entry in history if "accuracy" in entry] == [*expected, tokens[-1]]
    assert len(expected) >= 4
    assert all(not weight.requires_grad and weight.grad is None for weight in weights.values())
    assert all(not torch.equal(weight, before[name]) for name, weight in weights.items())
    assert history[-1] == history[-1] | evaluate(head.trainee(), STORES[1], RECIPE)


@pytest.mark.parametrize("method", METHODS)
def test_a_head_learns(method: Method, tmp_path: Path) -> None:
    """By heart, from two sequences that it sees often; deeper depths too."""
    head = make_head(method)
    recipe = Recipe(len(TARGET_IDS), epochs=60, depths=2, first_depths=2, learning_rate=1e-2, eval_every=10**6)
    stores = (STORES[1], STORES[1])
    history = train(head.trainee(), stores, recipe, tmp_path)
    first, last = history[1]["loss"], history[-2]["loss"]
    assert last[0] < 0.7 * first[0]
    assert last[1] < 0.8 * first[1]
    assert history[-1]["overlap"][0] > history[0]["overlap"][0] + 0.1
    assert history[-1]["overlap"][1] > history[0]["overlap"][1] + 0.1


def test_the_same_seed_is_the_same_training(whole: tuple[list, dict], tmp_path: Path) -> None:
    check_same(run(tmp_path), whole)
    other, _ = run(tmp_path / "other", recipe=replace(RECIPE, seed=2))
    assert untimed(other) != untimed(whole[0])


def test_an_interrupted_training_goes_on_unchanged(whole: tuple[list, dict], tmp_path: Path) -> None:
    """After every entry of its history, once each; the last one too, after which nothing is left to do."""
    for call in range(1, 1 + len(whole[0])):
        folder, first = tmp_path / str(call), Stopper([call])
        with pytest.raises(Stop):
            run(folder, progress=first)
        assert json.loads((folder / "history.json").read_text()) == first.entries
        second = Stopper()
        found = run(folder, progress=second, resume=True)
        check_same(found, whole)
        assert first.entries + second.entries == found[0]


def test_a_training_may_be_interrupted_again_and_again(whole: tuple[list, dict], tmp_path: Path) -> None:
    num_starts = 0
    while True:
        try:
            found = run(tmp_path, progress=Stopper([2]), resume=num_starts > 0)
            break
        except Stop:
            num_starts += 1
    assert num_starts == len(whole[0]) // 2
    check_same(found, whole)


@pytest.mark.parametrize("call", [1, 2, 4])
@pytest.mark.parametrize("place", ["gradients", "evaluation"])
def test_a_key_pressed_while_something_is_computed_loses_nothing(
    place: str, call: int, whole: tuple[list, dict], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = {"gradients": "_gradients", "evaluation": "evaluate"}[place]
    plain, num_calls = getattr(loop, name), 0

    def interrupted(*arguments: Any) -> Any:
        nonlocal num_calls
        num_calls += 1
        result = plain(*arguments)
        if num_calls == call:
            raise KeyboardInterrupt
        return result

    first, head = Stopper(), make_head("eagle3")
    with monkeypatch.context() as patched:
        patched.setattr(loop, name, interrupted)
        with pytest.raises(KeyboardInterrupt):
            run(tmp_path, head, progress=first)
    assert all(not weight.requires_grad and weight.grad is None for weight in head.weights.values())
    second = Stopper()
    check_same(run(tmp_path, progress=second, resume=True), whole)
    assert untimed(first.entries + second.entries) == untimed(whole[0])


@pytest.mark.parametrize("call", [1, 4, 9])
def test_a_key_pressed_while_weights_change_leaves_the_last_checkpoint(
    call: int, whole: tuple[list, dict], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, num_calls = torch.optim.AdamW.step, 0

    def interrupted(self: torch.optim.AdamW) -> None:
        nonlocal num_calls
        num_calls += 1
        if num_calls == call:
            with torch.no_grad():
                self.param_groups[0]["params"][0].zero_()
            raise KeyboardInterrupt
        plain(self)

    with monkeypatch.context() as patched:
        patched.setattr(torch.optim.AdamW, "step", interrupted)
        with pytest.raises(KeyboardInterrupt):
            run(tmp_path)
    check_same(run(tmp_path, resume=True), whole)


def test_a_checkpoint_that_is_not_written_to_its_end_is_not_there(
    whole: tuple[list, dict], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, num_calls = torch.save, 0

    def torn(held: object, path: Path) -> None:
        nonlocal num_calls
        num_calls += 1
        if num_calls >= 3:
            path.write_bytes(b"half of it")
            raise OSError(28, "No space left on device")
        plain(held, path)

    with monkeypatch.context() as patched:
        patched.setattr(torch, "save", torn)
        with pytest.raises(OSError, match="No space left"):
            run(tmp_path)
    check_same(run(tmp_path, resume=True), whole)


@pytest.mark.parametrize(
    ("other", "complaint"),
    [
        ({"recipe": replace(RECIPE, learning_rate=0.5)}, r"\(learning_rate 0.003, not 0.5\)"),
        ({"recipe": replace(RECIPE, depths=4, seed=9)}, r"\(depths 3, not 4; seed 1, not 9\)"),
        ({"identity": {**IDENTITY, "model": "other"}}, r"\(model\)"),
        ({"data": 0}, r"\(data\)"),
        ({"data": 1}, r"\(held-out data\)"),
        ({"head": "mtp"}, r"\(head\)"),
        ({"vocabulary": True}, r"\(vocabulary\)"),
    ],
)
def test_another_training_is_refused(other: dict[str, Any], complaint: str, tmp_path: Path) -> None:
    with pytest.raises(Stop):
        run(tmp_path, progress=Stopper([3]))
    held = (tmp_path / "checkpoint.pt").read_bytes()
    trainee = make_head(other.get("head", "eagle3")).trainee()
    if "vocabulary" in other:
        trainee = Trainee(trainee.module, trainee.weights, trainee.target_output, TARGET_IDS + 1, trainee.output_name)
    stores: list[Any] = list(STORES)
    if "data" in other:
        stores[other["data"]] = ExactStore(stores[other["data"]].spans[1:])
    options = {"identity": other.get("identity", IDENTITY), "resume": True}
    with pytest.raises(TrainingError, match=f"checkpoint.pt: is of another training {complaint}: train in another"):
        train(trainee, (stores[0], stores[1]), other.get("recipe", RECIPE), tmp_path, **options)
    assert (tmp_path / "checkpoint.pt").read_bytes() == held


def test_a_training_is_not_lost_to_one_that_starts_anew(tmp_path: Path) -> None:
    check_folder(tmp_path, False)
    with pytest.raises(TrainingError, match=r"checkpoint.pt: no checkpoint to go on from"):
        run(tmp_path, resume=True)
    with pytest.raises(Stop):
        run(tmp_path, progress=Stopper([3]))
    held = (tmp_path / "checkpoint.pt").read_bytes()
    with pytest.raises(TrainingError, match=r"checkpoint.pt: is there already: go on from it \(resume\), or train in"):
        run(tmp_path)
    assert (tmp_path / "checkpoint.pt").read_bytes() == held
    check_folder(tmp_path, True)


@pytest.mark.parametrize("name", ["model.safetensors", "config.json"])
def test_a_head_is_not_lost_to_a_training(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text("a head")
    with pytest.raises(TrainingError, match=rf"{name}: is there already: train in another folder"):
        run(tmp_path)


@pytest.mark.parametrize("damage", [b"", b"no checkpoint", "cut", "other"])
def test_a_damaged_checkpoint_is_named(damage: bytes | str, tmp_path: Path) -> None:
    with pytest.raises(Stop):
        run(tmp_path, progress=Stopper([3]))
    path = tmp_path / "checkpoint.pt"
    if damage == "cut":
        path.write_bytes(path.read_bytes()[:-100])
    elif damage == "other":
        torch.save({"weights": {}}, path)
    else:
        assert isinstance(damage, bytes)
        path.write_bytes(damage)
    with pytest.raises(TrainingError, match=r"checkpoint.pt: can't be read \(\w+: "):
        run(tmp_path, resume=True)


def test_numbers_that_are_not_finite_are_named_and_change_no_weight(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for value in ("nan", "inf"):
        head, plain, num_calls = make_head("eagle3"), loop.depth_losses, 0

        def broken(*arguments: Any, value: str = value, plain: Any = plain) -> Tensor:
            nonlocal num_calls
            num_calls += 1
            loss: Tensor = plain(*arguments)
            return loss * float(value) if num_calls == 3 else loss

        stopper = Stopper()
        with monkeypatch.context() as patched:
            patched.setattr(loop, "depth_losses", broken)
            complaint = f"batch 2 of epoch 0: the loss became {value}; a lower learning_rate may help"
            with pytest.raises(TrainingError, match=complaint):
                run(tmp_path / value, head, progress=stopper)
        assert sum("loss" in entry for entry in stopper.entries) == 2
        assert all(bool(torch.isfinite(weight).all()) for weight in head.weights.values())


def test_a_gradient_that_is_not_finite_is_named_and_changes_no_weight(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its norm became nan, and with it every weight."""
    head, plain = make_head("eagle3"), loop.depth_losses
    before = {name: weight.clone() for name, weight in head.weights.items()}

    def steep(*arguments: Any) -> Tensor:
        zero = head.weights["norm.weight"][0] * 0
        return plain(*arguments) + zero.sqrt()

    monkeypatch.setattr(loop, "depth_losses", steep)
    with pytest.raises(TrainingError, match="batch 0 of epoch 0: the gradient's norm became nan"):
        run(tmp_path, head)
    assert all(torch.equal(weight, before[name]) for name, weight in head.weights.items())


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("decay", [0.0, 0.5, 1.0])
def test_gradients_are_of_the_decayed_sum_and_clipped(decay: float, method: Method) -> None:
    head, recipe = make_head(method), replace(RECIPE, depth_decay=decay, overlap_loss=0.3, clip=1e9)
    batch = make_batch(STORES[1], [0, 1], 3, H, torch.device("cpu"))
    weights = head.weights
    for weight in weights.values():
        weight.requires_grad_(True)
    probs, paired = target_probs(batch, HEAD[TARGET_IDS]), head.module.pair(weights, batch.states)
    normed = head.module.depths(weights, batch.token_ids, paired, batch.rows, 3)
    losses = depth_losses(normed, head.output, probs, batch.is_valid, 0.3)
    total = losses[0] + decay * losses[1] + decay**2 * losses[2]
    losses = losses.tolist()
    expected = torch.autograd.grad(total, list(weights.values()))
    assert loop._gradients(head.trainee(), batch, 3, recipe) == pytest.approx(losses, abs=1e-6)
    for weight, gradient in zip(weights.values(), expected, strict=True):
        torch.testing.assert_close(weight.grad, gradient)
        weight.grad = None
    loop._gradients(head.trainee(), batch, 3, replace(recipe, clip=1e-3))
    norm = sum(float(weight.grad.square().sum()) for weight in weights.values() if weight.grad is not None) ** 0.5
    assert norm == pytest.approx(1e-3, rel=1e-3)


@pytest.mark.parametrize("method", METHODS)
def test_gradients_in_bfloat16_are_about_those_in_fp32(method: Method) -> None:
    head, recipe = make_head(method), replace(RECIPE, overlap_loss=0.3, clip=1e9)
    batch = make_batch(STORES[1], [0, 1], 3, H, torch.device("cpu"))
    for weight in head.weights.values():
        weight.requires_grad_(True)
    expected = loop._gradients(head.trainee(), batch, 3, recipe)
    exact = {name: weight.grad for name, weight in head.weights.items()}
    for weight in head.weights.values():
        weight.grad = None
    assert loop._gradients(head.trainee(), batch, 3, recipe, torch.bfloat16) == pytest.approx(expected, rel=0.02)
    for name, weight in head.weights.items():
        assert weight.dtype == weight.grad.dtype == torch.float32
        assert not torch.equal(weight.grad, exact[name]), name
        assert (weight.grad - exact[name]).norm() < 0.05 * exact[name].norm(), name


def test_sizes_are_those_of_the_depths_that_are_trained(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No batch is made for depths that are not trained yet."""
    plain, seen = loop._gradients, []

    def watched(trainee: Trainee, batch: Batch, num_depths: int, *others: Any) -> list[float]:
        seen.append((num_depths, batch.is_valid.shape[1] - batch.rows.index.shape[1] + 1))
        return plain(trainee, batch, num_depths, *others)

    monkeypatch.setattr(loop, "_gradients", watched)
    run(tmp_path)
    assert {depths for depths, _ in seen} == {1, 3}
    assert all(depths == following for depths, following in seen)
