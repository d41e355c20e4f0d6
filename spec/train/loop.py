"""The training loop: losses, rates, evaluations, and checkpoints from which an interrupted run goes on unchanged."""

from __future__ import annotations

import json
import math
import time
import zlib
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from decodex.spec.train.batches import Batch, make_batch, shuffled
from decodex.spec.train.errors import TrainingError
from decodex.spec.train.head_module import HeadModule
from decodex.spec.train.loss import DepthScores, depth_losses, depth_scores, target_probs
from decodex.spec.train.recipe import Recipe
from decodex.spec.train.states import StateStore, checksum

__all__ = ["Trainee", "check_folder", "evaluate", "train"]

CHECKPOINT, HISTORY = "checkpoint.pt", "history.json"
HEAD_FILES = ("model.safetensors", "config.json")  # of a head that a folder holds
_BETAS = (0.9, 0.95)


@dataclass(frozen=True)
class Trainee:
    """A head in training, and the part of the target's output layer that it is compared with."""

    module: HeadModule
    weights: dict[str, Tensor]  # fp32, by the checkpoint's names
    target_output: Tensor  # [V_d, H] fp32
    vocabulary: Tensor  # [V_d] int64 target ids
    output_name: str | None  # of its own output layer among the weights; None: it drafts with the target's

    @property
    def output(self) -> Tensor:
        """The output layer that it drafts with, [V_d, H]."""
        return self.target_output if self.output_name is None else self.weights[self.output_name]


def check_folder(folder: Path, resume: bool) -> None:
    """TrainingError where there is nothing to go on from, or without `resume` a training or head that would be lost."""
    path = folder / CHECKPOINT
    if resume and not path.is_file():
        raise TrainingError(f"{path}: no checkpoint to go on from (a capture goes on without resume)")
    if path.exists() and not resume:
        raise TrainingError(f"{path}: is there already: go on from it (resume), or train in another folder")
    for name in HEAD_FILES:
        if (folder / name).exists() and not resume:
            raise TrainingError(f"{folder / name}: is there already: train in another folder")


def train(
    trainee: Trainee,
    stores: tuple[StateStore, StateStore],
    recipe: Recipe,
    folder: Path,
    *,
    resume: bool = False,
    precision: torch.dtype = torch.float32,
    identity: Mapping[str, Any] | None = None,
    progress: Callable[[dict[str, Any]], None] = lambda entry: None,
) -> list[dict[str, Any]]:
    """Train the weights in place on the first of the stores; the history, with evaluations on the second.

    `precision`: of the products (bfloat16: weights, sums and what lies between products stay fp32).
    Checkpoint and history are in `folder` after every evaluation and when the training is interrupted; `resume` goes on
    from there: what follows is then what would have followed. TrainingError where `check_folder` has one, where the
    checkpoint is of another training (recipe, data, head or `identity`), and where numbers are no longer finite.
    """
    check_folder(folder, resume)
    run = _Run(trainee, stores, recipe, folder, precision, identity or {})
    if resume:
        run.load()
    try:
        while run.state.tokens < run.total:
            batches = shuffled(stores[0].spans, recipe.batch_tokens, recipe.seed, run.state.epoch)
            while run.state.batch < len(batches) and run.state.tokens < run.total:
                if run.state.tokens >= run.state.next_eval:
                    progress(run.evaluate())
                progress(run.step(batches[run.state.batch]))
            if run.state.batch >= len(batches):
                run.state = replace(run.state, epoch=run.state.epoch + 1, batch=0)
        if "accuracy" not in run.history[-1]:  # it is there where a finished training goes on
            progress(run.evaluate())
    finally:
        run.close()
    return run.history


@dataclass(frozen=True)
class _State:
    """Where a training stands."""

    epoch: int = 0
    batch: int = 0  # next one of the epoch
    tokens: int = 0  # answer tokens seen
    seconds: float = 0.0
    next_eval: int = 0  # tokens


class _Run:
    """A training under way: weights, optimizer, place and history, which go to disk together."""

    def __init__(
        self,
        trainee: Trainee,
        stores: tuple[StateStore, StateStore],
        recipe: Recipe,
        folder: Path,
        precision: torch.dtype,
        identity: Mapping[str, Any],
    ) -> None:
        self._precision = precision
        self._trainee, self._recipe, self._folder = trainee, recipe, folder
        self._store, self._held_out = stores
        contents = {**identity, **asdict(recipe), **_contents(trainee, stores)}
        self._made_of: dict[str, Any] = json.loads(json.dumps(contents))  # as it will be read
        self._is_whole = True  # weights and state are of the same step
        self.state = _State()
        self.history: list[dict[str, Any]] = []
        self.total = max(1, round(recipe.epochs * sum(span.num_rows for span in self._store.spans)))
        for weight in trainee.weights.values():
            weight.requires_grad_(True)
        self._optimizer = torch.optim.AdamW(
            trainee.weights.values(), recipe.learning_rate, _BETAS, weight_decay=recipe.weight_decay, fused=True
        )

    def evaluate(self) -> dict[str, Any]:
        """The entry of an evaluation, with which all is saved."""
        found = evaluate(self._trainee, self._held_out, self._recipe)
        self.history.append(self._standing() | found)
        self.state = replace(self.state, next_eval=self.state.next_eval + self._recipe.eval_every)
        self.save()
        return self.history[-1]

    def step(self, indices: list[int]) -> dict[str, Any]:
        """Train one batch of these spans; its entry."""
        start, recipe, state = time.perf_counter(), self._recipe, self.state
        share = state.tokens / self.total
        num_depths = recipe.depths if share >= recipe.deepen_at else recipe.first_depths
        output = self._trainee.target_output
        batch = make_batch(self._store, indices, num_depths, output.shape[1], output.device)
        rate = _rate(share, recipe)
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        try:
            loss = _gradients(self._trainee, batch, num_depths, recipe, self._precision)
        except TrainingError as error:
            raise TrainingError(f"batch {state.batch} of epoch {state.epoch}: {error}") from None
        self._is_whole = False
        self._optimizer.step()
        seconds = state.seconds + time.perf_counter() - start
        self.state = replace(state, batch=state.batch + 1, tokens=state.tokens + batch.num_rows, seconds=seconds)
        self.history.append(self._standing() | {"loss": loss, "lr": rate, "depths": num_depths})
        self._is_whole = True
        self._optimizer.zero_grad(set_to_none=True)
        return self.history[-1]

    def close(self) -> None:
        """Save, unless an interruption fell into the middle of a change of the weights."""
        if self._is_whole:
            self.save()
        for weight in self._trainee.weights.values():
            weight.requires_grad_(False)
            weight.grad = None

    def save(self) -> None:
        """Write checkpoint and history, each whole or not at all."""
        self._folder.mkdir(parents=True, exist_ok=True)
        held = {name: weight.detach() for name, weight in self._trainee.weights.items()}
        told = json.dumps({"state": asdict(self.state), "history": self.history, "made_of": self._made_of})
        partial = self._folder / f"{CHECKPOINT}.partial"
        torch.save({"weights": held, "optimizer": self._optimizer.state_dict(), "told": told}, partial)
        partial.replace(self._folder / CHECKPOINT)
        partial = self._folder / f"{HISTORY}.partial"
        partial.write_text(json.dumps(self.history) + "\n", encoding="utf-8")
        partial.replace(self._folder / HISTORY)

    def load(self) -> None:
        """Go back to what was saved; TrainingError where that is damaged or of another training."""
        path = self._folder / CHECKPOINT
        try:
            held = torch.load(path, map_location="cpu", weights_only=True)
            told = json.loads(held["told"])
        except Exception as error:  # pickle's own kinds
            raise TrainingError(f"{path}: can't be read ({type(error).__name__}: {error})") from error
        self._check_same(path, told["made_of"])
        with torch.no_grad():
            for name, weight in self._trainee.weights.items():
                weight.copy_(held["weights"][name])
        self._optimizer.load_state_dict(held["optimizer"])
        self.state, self.history = _State(**told["state"]), told["history"]

    def _check_same(self, path: Path, found: Mapping[str, Any]) -> None:
        numbers = asdict(self._recipe)
        names = [name for name in {**self._made_of, **found} if found.get(name) != self._made_of.get(name)]
        if names:
            told = [f"{name} {found.get(name)}, not {numbers[name]}" if name in numbers else name for name in names]
            raise TrainingError(f"{path}: is of another training ({'; '.join(told)}): train in another folder")

    def _standing(self) -> dict[str, Any]:
        return {"tokens": self.state.tokens, "seconds": round(self.state.seconds, 1), "epoch": self.state.epoch}


def _contents(trainee: Trainee, stores: tuple[StateStore, StateStore]) -> dict[str, Any]:
    """What a training is of, beside its recipe, as JSON."""
    return {
        "data": checksum(stores[0].spans),
        "held-out data": checksum(stores[1].spans),
        "head": {name: list(weight.shape) for name, weight in trainee.weights.items()},
        "vocabulary": zlib.crc32(trainee.vocabulary.cpu().numpy().tobytes()),
    }


def _rate(share: float, recipe: Recipe) -> float:
    """Linear warm-up, then a cosine down to final_rate."""
    if share < recipe.warm_up:
        return recipe.learning_rate * max(share / recipe.warm_up, 0.01)
    left = (share - recipe.warm_up) / max(1 - recipe.warm_up, 1e-9)
    return recipe.learning_rate * (recipe.final_rate + (1 - recipe.final_rate) * 0.5 * (1 + math.cos(math.pi * left)))


def _losses(trainee: Trainee, batch: Batch, num_depths: int, recipe: Recipe) -> Tensor:
    """Of each depth, [D], for one batch."""
    with torch.no_grad():
        probs = target_probs(batch, trainee.target_output)
    module, parameters = trainee.module, trainee.weights
    normed = module.depths(parameters, batch.token_ids, module.pair(parameters, batch.states), batch.rows, num_depths)
    return depth_losses(normed, trainee.output, probs, batch.is_valid, recipe.overlap_loss)


def _gradients(
    trainee: Trainee, batch: Batch, num_depths: int, recipe: Recipe, precision: torch.dtype = torch.float32
) -> list[float]:
    """Those of one batch, clipped; the loss of each depth. TrainingError where one is not finite."""
    with torch.autocast(batch.states.device.type, torch.bfloat16, enabled=precision is torch.bfloat16):
        losses = _losses(trainee, batch, num_depths, recipe)
    decay = torch.tensor([recipe.depth_decay**depth for depth in range(num_depths)], device=losses.device)
    total = (losses * decay).sum()
    value = float(total.detach())
    if not math.isfinite(value):
        raise TrainingError(f"the loss became {value}; a lower learning_rate may help")
    total.backward()  # type: ignore[no-untyped-call]
    norm = float(torch.nn.utils.clip_grad_norm_(trainee.weights.values(), recipe.clip))
    if not math.isfinite(norm):
        raise TrainingError(f"the gradient's norm became {norm}; a lower learning_rate may help")
    return [round(loss, 6) for loss in losses.detach().tolist()]


@torch.no_grad()
def evaluate(trainee: Trainee, store: StateStore, recipe: Recipe) -> dict[str, Any]:
    """By depth: accuracy against the target's top token and overlap sum min(p, q); and the tokens per target step that
    a chain of `depths` would give on the greedy answers (all answers, where none is greedy)."""
    scores = [DepthScores() for _ in range(recipe.depths)]
    module, weights, output = trainee.module, trainee.weights, trainee.target_output
    greedy = [span.temperature == 0.0 for span in store.spans]
    if not any(greedy):
        greedy = [True] * len(greedy)
    for indices in shuffled(store.spans, recipe.batch_tokens, recipe.seed, 0):
        batch = make_batch(store, indices, recipe.depths, output.shape[1], output.device)
        probs = target_probs(batch, output)
        num_rows = batch.rows.index.shape[1]
        paired = module.pair(weights, batch.states)
        is_greedy = torch.tensor([greedy[index] for index in indices], device=probs.device)
        is_alive = torch.ones_like(batch.is_valid[:, :num_rows])
        for depth, normed in enumerate(module.depths(weights, batch.token_ids, paired, batch.rows, recipe.depths)):
            span = slice(depth, depth + num_rows)
            tops = (trainee.vocabulary, batch.top_ids[:, span])
            found, is_alive = depth_scores(
                normed @ trainee.output.T, probs[:, span], tops, batch.is_valid[:, span], is_alive, is_greedy
            )
            scores[depth].add(found)
    expected, reach = 1.0, 1.0
    for each in scores:
        reach *= each.num_reached / max(each.num_started, 1)
        expected += reach
    return {
        "accuracy": [round(each.num_right / max(each.num_rows, 1), 4) for each in scores],
        "overlap": [round(each.overlap / max(each.num_rows, 1), 4) for each in scores],
        "tokens_per_step": round(expected, 3),
    }
