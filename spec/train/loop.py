"""The training loop: losses, rates, evaluations, and checkpoints from which an interrupted run goes on unchanged."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from decodex.spec.train.batches import Batch, make_batch, shuffled
from decodex.spec.train.errors import TrainingError
from decodex.spec.train.head_module import HeadModule
from decodex.spec.train.loss import DepthScores, depth_loss, depth_scores, target_probs
from decodex.spec.train.recipe import Recipe
from decodex.spec.train.states import StateStore

__all__ = ["Trainee", "evaluate", "train"]

CHECKPOINT = "checkpoint.pt"
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


@dataclass
class _State:
    """Where a training stands."""

    epoch: int = 0
    batch: int = 0  # next one of the epoch
    tokens: int = 0  # answer tokens seen
    seconds: float = 0.0
    next_eval: int = 0  # tokens


def train(
    trainee: Trainee,
    stores: tuple[StateStore, StateStore],
    recipe: Recipe,
    folder: Path,
    *,
    resume: bool = False,
    identity: Mapping[str, Any] | None = None,
    progress: Callable[[dict[str, Any]], None] = lambda entry: None,
) -> list[dict[str, Any]]:
    """Train the weights in place on the first of the stores; the history, with evaluations on the second.

    A checkpoint stands in `folder` after every evaluation and when the training is interrupted; `resume` goes on from
    it: what follows is then what would have followed. TrainingError where there is none, or one of another training
    (`identity`).
    """
    store, held_out = stores
    hidden, device = trainee.target_output.shape[1], trainee.target_output.device
    parameters = trainee.weights
    for weight in parameters.values():
        weight.requires_grad_(True)
    optimizer = torch.optim.AdamW(
        parameters.values(), recipe.learning_rate, _BETAS, weight_decay=recipe.weight_decay, fused=True
    )
    state = _State()
    history: list[dict[str, Any]] = []
    made_of = json.dumps({"recipe": asdict(recipe), **(identity or {})}, sort_keys=True)
    if resume:
        state, history = _load(folder, parameters, optimizer, made_of)
    rows_an_epoch = sum(span.num_rows for span in store.spans)
    total = max(1, round(recipe.epochs * rows_an_epoch))
    is_whole = True  # not in the middle of a step
    try:
        while state.tokens < total:
            batches = shuffled(store.spans, recipe.batch_tokens, recipe.seed, state.epoch)
            while state.batch < len(batches) and state.tokens < total:
                if state.tokens >= state.next_eval:
                    state.next_eval += recipe.eval_every
                    history.append(_standing(state) | evaluate(trainee, held_out, recipe))
                    progress(history[-1])
                    _save(folder, parameters, optimizer, state, history, made_of)
                start = time.perf_counter()
                share = state.tokens / total
                num_depths = recipe.depths if share >= recipe.deepen_at else recipe.first_depths
                batch = make_batch(store, batches[state.batch], num_depths, hidden, device)
                rate = _rate(share, recipe)
                for group in optimizer.param_groups:
                    group["lr"] = rate
                is_whole = False
                loss = _step(trainee, batch, num_depths, recipe)
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)
                state.batch += 1
                state.tokens += batch.num_rows
                state.seconds += time.perf_counter() - start
                is_whole = True
                history.append(_standing(state) | {"loss": loss, "lr": rate, "depths": num_depths})
                progress(history[-1])
            if state.batch >= len(batches):
                state.epoch, state.batch = state.epoch + 1, 0
        history.append(_standing(state) | evaluate(trainee, held_out, recipe))
        progress(history[-1])
    finally:
        if is_whole:
            _save(folder, parameters, optimizer, state, history, made_of)
        for weight in parameters.values():
            weight.requires_grad_(False)
    return history


def _standing(state: _State) -> dict[str, Any]:
    return {"tokens": state.tokens, "seconds": round(state.seconds, 1), "epoch": state.epoch}


def _rate(share: float, recipe: Recipe) -> float:
    """Linear warm-up, then a cosine down to final_rate."""
    if share < recipe.warm_up:
        return recipe.learning_rate * max(share / recipe.warm_up, 0.01)
    left = (share - recipe.warm_up) / max(1 - recipe.warm_up, 1e-9)
    return recipe.learning_rate * (recipe.final_rate + (1 - recipe.final_rate) * 0.5 * (1 + math.cos(math.pi * left)))


def _step(trainee: Trainee, batch: Batch, num_depths: int, recipe: Recipe) -> list[float]:
    """Gradients of one batch; the loss of each depth. TrainingError where it is not finite."""
    with torch.no_grad():
        probs = target_probs(batch, trainee.target_output)
    num_rows = batch.rows.index.shape[1]
    module, parameters, head = trainee.module, trainee.weights, trainee.output
    normed = module.depths(parameters, batch.token_ids, module.pair(parameters, batch.states), batch.rows, num_depths)
    losses = []
    for depth, each in enumerate(normed):
        span = slice(depth, depth + num_rows)
        losses.append(depth_loss(each @ head.T, probs[:, span], batch.is_valid[:, span], recipe.overlap_loss))
    total = sum((loss * recipe.depth_decay**depth for depth, loss in enumerate(losses)), start=torch.zeros(()))
    value = float(total.detach())
    if not math.isfinite(value):
        raise TrainingError(f"the loss became {value}; a lower learning_rate may help")
    total.backward()  # type: ignore[no-untyped-call]
    torch.nn.utils.clip_grad_norm_(parameters.values(), recipe.clip)
    return [round(float(loss.detach()), 6) for loss in losses]


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


def _save(
    folder: Path,
    parameters: dict[str, Tensor],
    optimizer: torch.optim.Optimizer,
    state: _State,
    history: list[dict[str, Any]],
    made_of: str,
) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    partial = folder / f"{CHECKPOINT}.partial"
    held = {name: weight.detach() for name, weight in parameters.items()}
    told = {"state": asdict(state), "history": json.dumps(history), "made_of": made_of}
    torch.save({"weights": held, "optimizer": optimizer.state_dict(), **told}, partial)
    partial.replace(folder / CHECKPOINT)


def _load(
    folder: Path, parameters: dict[str, Tensor], optimizer: torch.optim.Optimizer, made_of: str
) -> tuple[_State, list[dict[str, Any]]]:
    path = folder / CHECKPOINT
    if not path.is_file():
        raise TrainingError(f"{path}: no checkpoint to go on from")
    try:
        held = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # pickle's own kinds
        raise TrainingError(f"{path}: can't be read ({type(error).__name__}: {error})") from error
    if held["made_of"] != made_of:
        raise TrainingError(f"{path}: is of another recipe, model or data; without --resume the training starts anew")
    with torch.no_grad():
        for name, weight in parameters.items():
            weight.copy_(held["weights"][name])
    optimizer.load_state_dict(held["optimizer"])
    return _State(**held["state"]), json.loads(held["history"])
