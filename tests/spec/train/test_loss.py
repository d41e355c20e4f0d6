"""Loss and scores against loops over rows and tokens in Python's floats."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from head_fakes import HEAD, TARGET_IDS, H, V
from torch import Tensor
from train_fakes import SHAPES, ExactStore, make_spans

from decodex.spec.train.batches import make_batch
from decodex.spec.train.head_module import Rows
from decodex.spec.train.loop import Trainee, evaluate
from decodex.spec.train.loss import depth_losses, target_probs
from decodex.spec.train.recipe import Recipe

DEPTHS = 3
CPU = torch.device("cpu")
IDS = TARGET_IDS.tolist()
MOST_IDS = [token for token in range(V) if token not in (4, 11)]
MOST = torch.tensor(MOST_IDS)
pytestmark = pytest.mark.usefixtures("one_thread")


def softmax(values: list[float]) -> list[float]:
    highest = max(values)
    powers = [math.exp(value - highest) for value in values]
    return [power / sum(powers) for power in powers]


def target_law(hidden: Tensor) -> list[float]:
    """The target's distribution [V] after a hidden state [H]."""
    return softmax((HEAD.double() @ hidden.double()).tolist())


def test_the_targets_probabilities_are_not_renormalized() -> None:
    store = ExactStore(make_spans())
    batch = make_batch(store, [0, 1, 2], DEPTHS, H, CPU)
    probs = target_probs(batch, HEAD[TARGET_IDS])
    for number, span in enumerate(store.spans[:3]):
        for row in range(span.num_rows):
            law = target_law(store.read(number).states[span.answer_start + row, -H:])
            assert probs[number, row].tolist() == pytest.approx([law[token] for token in IDS], rel=1e-4)


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_the_loss_is_a_mean_over_valid_rows(share: float) -> None:
    generator = torch.Generator().manual_seed(3)
    logits = 3 * torch.randn(2, 4, 5, generator=generator)
    probs = 0.8 * torch.randn(2, 4, 5, generator=generator).softmax(-1)
    is_valid = torch.tensor([[True, True, False, False], [True, False, True, True]])
    losses = []
    for n, a in is_valid.nonzero().tolist():
        q, p = softmax(logits[n, a].tolist()), probs[n, a].tolist()
        entropy = -sum(x * math.log(y) for x, y in zip(p, q))
        overlap = sum(min(x, y) for x, y in zip(p, q))
        losses.append((1 - share) * entropy - share * overlap)
    found = depth_losses([logits], torch.eye(5), probs, is_valid, share)
    assert found.tolist() == pytest.approx([sum(losses) / 5], rel=1e-5)
    assert depth_losses([logits], torch.eye(5), probs, torch.zeros_like(is_valid), share).tolist() == [0.0]


def test_each_depth_is_compared_with_its_own_rows() -> None:
    """Together they are what each is alone: depth k with the target k rows further on."""
    generator = torch.Generator().manual_seed(5)
    normed = [torch.randn(2, 4, 6, generator=generator) for _ in range(3)]
    output = torch.randn(7, 6, generator=generator)
    probs = torch.randn(2, 6, 7, generator=generator).softmax(-1)
    is_valid = torch.tensor([[True, True, True, False, False, False], [True, True, True, True, True, False]])
    alone = [
        float(depth_losses([each], output, probs[:, k : k + 4], is_valid[:, k : k + 4], 0.5)[0])
        for k, each in enumerate(normed)
    ]
    assert len(set(alone)) == 3
    assert depth_losses(normed, output, probs, is_valid, 0.5).tolist() == pytest.approx(alone, rel=1e-5)


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_the_loss_has_the_gradients_of_its_formula(share: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Against differences of the formula in float64, over several blocks of rows."""
    monkeypatch.setattr("decodex.spec.train.loss._BLOCK_ROWS", 3)
    generator = torch.Generator().manual_seed(4)
    normed = torch.randn(2, 4, 6, generator=generator, dtype=torch.float64, requires_grad=True)
    output = torch.randn(7, 6, generator=generator, dtype=torch.float64, requires_grad=True)
    probs = 0.8 * torch.randn(2, 3, 7, generator=generator, dtype=torch.float64).softmax(-1)
    is_valid = torch.tensor([[True, False, True], [True, True, True]])

    def loss(normed: Tensor, output: Tensor) -> Tensor:  # of two depths
        return depth_losses([normed[:, :2], normed[:, 2:]], output, probs, is_valid, share)

    assert torch.autograd.gradcheck(loss, (normed, output))
    frozen = loss(normed, output.detach()).sum()
    assert torch.equal(*(torch.autograd.grad(each, normed)[0] for each in (frozen, loss(normed, output).sum())))


class Seer:
    """In a module's place: its output is the target's own hidden state, disturbed by a function of that state."""

    def pair(self, weights: dict[str, Tensor], states: Tensor) -> Tensor:
        return states[..., -H:]

    def depths(self, weights: object, token_ids: Tensor, paired: Tensor, rows: Rows, num_depths: int) -> list[Tensor]:
        found = []
        for depth in range(num_depths):
            at = (rows.index + 1 + depth).clamp(max=paired.shape[1] - 1)
            found.append(seen(paired.gather(1, at[..., None].expand(-1, -1, H)), depth))
        return found


def seen(hidden: Tensor, depth: int) -> Tensor:
    return hidden + 0.7 * (1000 * hidden + depth).sin()


@pytest.mark.parametrize("temperatures", [(0.0, 0.0, 0.7, 0.0), (0.7, 0.7, 0.7, 0.7)])
@pytest.mark.parametrize("batch_tokens", [1, 24, 1000])
def test_an_evaluation_counts_every_row_once(batch_tokens: int, temperatures: tuple[float, ...]) -> None:
    spans = [make_spans([shape], seed, t)[0] for seed, (shape, t) in enumerate(zip(SHAPES * 2, temperatures * 2))]
    store: Any = ExactStore(spans)
    seer: Any = Seer()
    trainee = Trainee(seer, {}, HEAD[MOST], MOST, None)
    found = evaluate(trainee, store, Recipe(depths=DEPTHS, batch_tokens=batch_tokens))
    counts = {name: [0.0] * DEPTHS for name in ("rows", "right", "overlap", "started", "reached")}
    for number, span in enumerate(spans):
        states = store.read(number).states[:, -H:]
        for row in range(span.num_rows):
            is_alive = not any(t == 0 for t in temperatures) or span.temperature == 0
            for depth in range(min(DEPTHS, span.num_rows - row)):
                hidden = states[span.answer_start + row + depth]
                p = target_law(hidden)
                q = softmax((HEAD[MOST].double() @ seen(hidden, depth).double()).tolist())
                is_right = max(range(V), key=p.__getitem__) == MOST_IDS[max(range(len(q)), key=q.__getitem__)]
                counts["rows"][depth] += 1
                counts["right"][depth] += is_right
                counts["overlap"][depth] += sum(min(p[token], y) for token, y in zip(MOST_IDS, q))
                counts["started"][depth] += is_alive
                is_alive = is_alive and is_right
                counts["reached"][depth] += is_alive
    assert 0 < counts["right"][0] < counts["rows"][0]
    assert counts["reached"][1] > 0
    share = [right / rows for right, rows in zip(counts["right"], counts["rows"])]
    overlap = [total / rows for total, rows in zip(counts["overlap"], counts["rows"])]
    assert found["accuracy"] == pytest.approx(share, abs=1e-4)
    assert found["overlap"] == pytest.approx(overlap, abs=1e-4)
    tokens, reach = 1.0, 1.0
    for started, reached in zip(counts["started"], counts["reached"]):
        reach *= reached / max(started, 1)
        tokens += reach
    assert found["tokens_per_step"] == pytest.approx(tokens, abs=1e-3)
