"""Heads in training against plain torch and against the heads that draft: the same logits, depth by depth."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
from head_fakes import (
    CONFIG,
    EMBED,
    HEAD,
    NUM_LAYERS,
    TARGET,
    TARGET_IDS,
    H,
    Run,
    frequencies,
    layer_shapes,
    tensors_of,
)
from torch import Tensor
from train_fakes import SHAPES, TAPS, ExactStore, ToyHead, make_head, make_spans

from decodex.head_training import Method, write_head
from decodex.spec.eagle3 import Eagle3Head
from decodex.spec.head_proposer import HeadProposer
from decodex.spec.head_weights import HeadWeights
from decodex.spec.mtp import MtpHead, mtp_layout
from decodex.spec.proposer import ProposerOptions
from decodex.spec.target import Choices
from decodex.spec.train.batches import Batch, make_batch
from decodex.spec.train.head_module import HeadModule, new_weights

DEPTHS = 4
METHODS = get_args(Method)
CPU = torch.device("cpu")
pytestmark = pytest.mark.usefixtures("one_thread")


def logits_of(head: ToyHead, batch: Batch, paired: Tensor | None = None) -> list[Tensor]:
    """[B, A, V_d] of each depth."""
    module, weights = head.module, head.weights
    paired = module.pair(weights, batch.states) if paired is None else paired
    return [x @ head.output.T for x in module.depths(weights, batch.token_ids, paired, batch.rows, DEPTHS)]


def places(store: ExactStore) -> list[tuple[int, int, int]]:
    """All (sequence, row, depth) that predict a token of the answer: row a is entry answer_start - 1 + a."""
    return [
        (number, row, depth)
        for number, span in enumerate(store.spans)
        for row in range(span.num_rows)
        for depth in range(min(DEPTHS, span.num_rows - row))
    ]


def expected_logits(head: ToyHead, store: ExactStore, place: tuple[int, int, int]) -> Tensor:
    """What the head drafts from after the true tokens up to this depth, in plain torch."""
    number, row, depth = place
    span = store.spans[number]
    committed = span.answer_start + 1 + row  # tokens: entries 0..i, i + 2 of them
    tokens = list(span.token_ids)
    states = head.states(store.read(number), committed - 1)
    return head.oracle().logits(tokens[:committed], states, tuple(tokens[committed : committed + depth]))


@pytest.mark.parametrize("method", METHODS)
def test_rows_see_what_a_draft_of_true_tokens_would(method: Method) -> None:
    head, store = make_head(method), ExactStore(make_spans())
    batch = make_batch(store, [2, 0, 3, 1], DEPTHS, H, CPU)
    found = logits_of(head, batch)
    batch_of = {2: 0, 0: 1, 3: 2, 1: 3}
    assert len(places(store)) == 43
    for place in places(store):
        number, row, depth = place
        expected = expected_logits(head, store, place)
        torch.testing.assert_close(found[depth][batch_of[number], row], expected, atol=2e-5, rtol=2e-5)


@pytest.mark.parametrize("method", METHODS)
def test_gradients_are_those_of_plain_torch(method: Method) -> None:
    """Also those that go from a depth to the ones before, whose outputs it reads."""
    head, store = make_head(method), ExactStore(make_spans(((9, 3), (5, 1))))
    batch = make_batch(store, [0, 1], DEPTHS, H, CPU)
    weighing = torch.randn(2, 5, DEPTHS, len(TARGET_IDS), generator=torch.Generator().manual_seed(0))
    for weight in head.weights.values():
        weight.requires_grad_(True)
    found = logits_of(head, batch)
    total = sum((found[d][n, row] * weighing[n, row, d]).sum() for n, row, d in places(store))
    gradients = torch.autograd.grad(total, list(head.weights.values()))
    total = sum((expected_logits(head, store, place) * weighing[place]).sum() for place in places(store))
    expected = torch.autograd.grad(total, list(head.weights.values()))
    for name, gradient, true in zip(head.weights, gradients, expected, strict=True):
        assert float(true.abs().max()) > 0, name
        torch.testing.assert_close(gradient, true, atol=1e-4, rtol=1e-4, msg=lambda text, name=name: f"{name}: {text}")


@pytest.mark.parametrize("method", METHODS)
def test_a_row_reads_states_up_to_its_own_and_tokens_up_to_its_depth(method: Method) -> None:
    """Nothing of other sequences, of padding, or of states that its draft wouldn't have."""
    head, store = make_head(method), ExactStore(make_spans())
    batch = make_batch(store, [0, 1, 2, 3], DEPTHS, H, CPU)
    size, length = batch.token_ids.shape
    # every token of the batch is a row of an embedding of its own, so that its influence can be seen
    embedding = EMBED[batch.token_ids].flatten(0, 1).requires_grad_(True)
    module = HeadModule(method, head.config, frequencies(CONFIG), embedding, head.prefix)
    tokens = torch.arange(size * length).view(size, length)
    paired = head.module.pair(head.weights, batch.states).detach().requires_grad_(True)
    outputs = module.depths(head.weights, tokens, paired, batch.rows, DEPTHS)
    for number, row, depth in places(store):
        value = outputs[depth][number, row].sum()
        of_states, of_tokens = torch.autograd.grad(value, [paired, embedding], retain_graph=True)
        entry = store.spans[number].answer_start - 1 + row
        read = of_states.abs().sum(-1).nonzero().tolist()
        assert read == [[number, at] for at in range(entry + 1)]
        read = of_tokens.abs().sum(-1).nonzero().flatten().tolist()
        assert read == [number * length + at for at in range(1, entry + 2 + depth)]


def load(folder: Path) -> Any:
    config = json.loads((folder / "config.json").read_text())
    weights = HeadWeights.open(folder)
    if "eagle_config" in config:
        return Eagle3Head(config, weights, TARGET)
    layout = mtp_layout(weights, NUM_LAYERS)
    return MtpHead(config, weights.below(layout.prefix), TARGET, layout)


@pytest.mark.parametrize("method", METHODS)
def test_the_written_checkpoint_drafts_what_was_trained(method: Method, tmp_path: Path) -> None:
    """The answers token by token through the proposer's paged KV, with true tokens for drafts."""
    head, store = make_head(method), ExactStore(make_spans(SHAPES[:3]))
    batch = make_batch(store, [0, 1, 2], DEPTHS, H, CPU)
    expected = logits_of(head, batch)
    write_head(tmp_path, method, head.config, head.weights, TARGET_IDS.tolist(), EMBED.shape[0])
    loaded = load(tmp_path)
    assert torch.equal(loaded.token_map, TARGET_IDS)
    truth = [list(span.token_ids) for span in store.spans]
    run = Run(HeadProposer(method, loaded))
    run.options = [ProposerOptions(num_speculative_tokens=DEPTHS)] * 3
    seen: dict[tuple[int, int, int], Tensor] = {}

    def choose(
        logits: Tensor, views: list[int], paths: list[tuple[int, ...]], width: int, token_map: Tensor
    ) -> Choices:
        chosen = []
        for logit, view, path in zip(logits, views, paths, strict=True):
            size = len(run.sequences[view])
            seen[view, size - 1 - store.spans[view].answer_start, len(path)] = logit.clone()
            chosen.append([truth[view][size + len(path)]] * width)
        return Choices(chosen, [[1.0] * width] * len(chosen))

    run.choose = choose
    written = [0] * 3
    for step in range(max(span.num_rows for span in store.spans)):
        ends = [min(span.answer_start + 1 + step, len(span.token_ids) - 1) for span in store.spans]
        run.sequences = [tokens[:end] for tokens, end in zip(truth, ends)]
        ranges = [(at, [tokens[: i + 1] for i in range(at, end - 1)]) for tokens, at, end in zip(truth, written, ends)]
        is_done = [not rows for _, rows in ranges]
        depths = [0 if done else min(DEPTHS, len(t) - end) for done, t, end in zip(is_done, truth, ends)]
        run.step(ranges, depths)
        written = [end - 1 for end in ends]
    assert sorted(seen) == sorted(places(store))
    for (number, row, depth), logits in seen.items():
        torch.testing.assert_close(logits, expected[depth][number, row], atol=2e-4, rtol=2e-4)


def test_new_weights_come_from_the_target_where_shapes_allow() -> None:
    layer = tensors_of(layer_shapes(""))
    layer["input_layernorm.weight"] = tensors_of({"n": (H,)})["n"]
    ends = (torch.arange(float(H)), HEAD[TARGET_IDS])
    config = {**CONFIG, "num_taps": len(TAPS)}
    for method, prefix in (("eagle3", "midlayer."), ("mtp", "p.")):
        made = new_weights(method, config, prefix, layer, ends, torch.Generator())
        again = new_weights(method, config, prefix, layer, ends, torch.Generator())
        assert all(torch.equal(made[name], again[name]) for name in made)
        for name, tensor in layer.items():
            if "norm" not in name:
                assert torch.equal(made[f"{prefix}{name}"][:, -tensor.shape[1] :], tensor)
        own = f"{prefix}hidden_norm.weight" if method == "eagle3" else f"{prefix}input_layernorm.weight"
        assert torch.equal(made[own], layer["input_layernorm.weight"])
        final = "norm.weight" if method == "eagle3" else f"{prefix}shared_head.norm.weight"
        assert torch.equal(made[final], ends[0])
        narrow = new_weights(method, {**config, "intermediate_size": 12}, prefix, layer, ends, torch.Generator())
        assert narrow[f"{prefix}mlp.down_proj.weight"].shape == (H, 12)
    assert torch.equal(
        new_weights("eagle3", config, "", layer, ends, torch.Generator())["lm_head.weight"], HEAD[TARGET_IDS]
    )
