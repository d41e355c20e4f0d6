"""What is refused of a head's checkpoint, by name; which layers are tapped; a draft model in its own paged KV."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from fakes import VOCAB, FakeModel, hash_logits
from head_fakes import LAYOUTS, NUM_LAYERS, SHAPES, TARGET, Run, eagle3_narrow, eagle3_nested, eagle3_speculators, write
from torch import Tensor

from decodex.heads import draft_forward
from decodex.spec.draft_model import DraftModel
from decodex.spec.eagle3 import Eagle3Head, tap_layers
from decodex.spec.head_proposer import HeadProposer
from decodex.spec.head_weights import HeadError, HeadWeights
from decodex.spec.mtp import mtp_layout
from decodex.spec.proposer import ProposerOptions


def load(config: dict, tensors: dict[str, Tensor], folder: Path) -> Eagle3Head:
    return Eagle3Head(config, write(folder, config, tensors), TARGET)


REFUSED = {
    "missing": ({}, {"midlayer.mlp.up_proj.weight": None}, "'midlayer.mlp.up_proj.weight' is missing"),
    "unknown": ({}, {"midlayer.extra.weight": torch.ones(3)}, "'midlayer.extra.weight' has no place"),
    "misshapen": ({}, {"fc.weight": torch.ones(16, 32)}, r"'fc.weight' has shape \[16, 32\], .* \[16, 48\]"),
    "no map": ({}, {"d2t": None, "t2d": None}, "'d2t' is missing, draft_vocab_size is 10"),
    "map beyond": (
        {},
        {"d2t": torch.full((10,), 20)},
        r"'d2t' gives 10 target ids in 20\.\.29, expected 10 in 0\.\.23",
    ),
    "map twice": ({}, {"d2t": -torch.arange(10)}, "'d2t' gives 1 target ids"),
    "other marks": ({}, {"t2d": torch.ones(24, dtype=torch.bool)}, "'t2d' marks other tokens"),
    "no head": ({}, {"lm_head.weight": None}, "'lm_head.weight' is missing"),
    "unused norm": ({}, {"input_norm.weight": torch.ones(48)}, "'input_norm.weight' has no place"),
    "absent norm": ({"norm_before_fc": True}, {}, "'input_norm.weight' is missing"),
    "target's width": ({"target_hidden_size": 32}, {}, "target_hidden_size is 32, the target's is 16"),
    "two layers": ({"num_hidden_layers": 2}, {}, "num_hidden_layers is 2, expected 1"),
    "no width": ({"hidden_size": None}, {}, "hidden_size is None"),
    "activation": ({"hidden_act": "gelu"}, {}, "hidden_act is 'gelu'"),
    "no embedding": (
        {"hidden_size": 12, "target_hidden_size": 16},
        {**eagle3_narrow()[1], "embed_tokens.weight": None},
        "'embed_tokens.weight' is missing, and the target's is 16 wide, not 12",
    ),
    "embedding": ({"hidden_size": 8}, {}, r"'fc.weight' has shape"),
    "numbers of layers": (
        {"eagle_config": {"eagle_aux_hidden_state_layer_ids": "x"}},
        {},
        "layer_ids is 'x', expected",
    ),
    "a list as an object": ({"eagle_config": [1]}, {}, r"eagle_config is \[1\], expected an object"),
    "a text as a number": ({"draft_vocab_size": "9"}, {}, "draft_vocab_size is '9', expected a whole number"),
    "KV heads": ({"num_key_value_heads": -1}, {}, "num_key_value_heads is -1, expected a whole number"),
    "kinds of layers": ({"layer_types": 5}, {}, "layer_types is 5, expected a list"),
    "epsilon": ({"rms_norm_eps": "small"}, {}, "rms_norm_eps is 'small', expected a number"),
    "whole numbers as weights": (
        {},
        {"norm.weight": torch.ones(16, dtype=torch.int32)},
        "'norm.weight' is torch.int32",
    ),
    "doubles as weights": (
        {},
        {"norm.weight": torch.ones(16, dtype=torch.float64)},
        "'norm.weight' is torch.float64, expected bfloat16, float16 or float32",
    ),
    "a text as a number of layers": ({"num_hidden_layers": "x"}, {}, "num_hidden_layers is 'x', expected a whole"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_checkpoint_that_does_not_fit_is_refused_by_name(case: str, tmp_path: Path) -> None:
    fields, changes, message = REFUSED[case]
    config, tensors = eagle3_nested()
    changed = {name: tensor for name, tensor in (tensors | changes).items() if tensor is not None}
    with pytest.raises(HeadError, match=message):
        load(config | fields, changed, tmp_path)


OPTIONAL = ("d2t", "t2d", "bias", "embed_tokens.weight", "shared_head.head.weight", "q_norm.weight", "k_norm.weight")


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_tensor_of_every_layout_is_needed(layout: str) -> None:
    """Leave out one after another: the loader names it, or something that the checkpoint can't be without it."""
    tested = LAYOUTS[layout]
    readers = {name: (lambda tensor=tensor: tensor) for name, tensor in tested.tensors.items()}
    needed = [name for name in readers if not name.endswith(OPTIONAL) and not name.startswith("model.layers.0.")]
    for absent in needed:
        if layout == "eagle3-own-vocabulary" and absent == "lm_head.weight":
            continue  # the target's, then
        with pytest.raises(HeadError, match=r"is missing|no multi-token-prediction module") as error:
            tested.read(tested.config, HeadWeights({n: r for n, r in readers.items() if n != absent}, "here"))
        assert absent.split(".", 1)[1] in str(error.value)
    for name in (n for n in needed if "layers" in n or "fc" in n):
        prefix, _, _ = name.rpartition("weight")
        with pytest.raises(HeadError, match=f"{prefix}scales.* has no place"):
            tested.read(tested.config, HeadWeights({**readers, f"{prefix}scales": readers[name]}, "here"))


def test_unreadable_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(HeadError, match=r"no \*.safetensors and no pytorch_model"):
        HeadWeights.open(tmp_path)
    (tmp_path / "pytorch_model.bin").write_bytes(b"junk")
    with pytest.raises(HeadError, match=r"pytorch_model.bin"):
        HeadWeights.open(tmp_path)
    torch.save({"fc.weight": SimpleNamespace(call=os.system)}, tmp_path / "pytorch_model.bin")
    with pytest.raises(HeadError, match="refused"):
        HeadWeights.open(tmp_path)
    torch.save({"fc.weight": [1, 2]}, tmp_path / "pytorch_model.bin")
    with pytest.raises(HeadError, match="expected a dictionary of tensors"):
        HeadWeights.open(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"junk and more")
    with pytest.raises(HeadError, match=r"model.safetensors: can't be read"):
        HeadWeights.open(tmp_path)


def test_layer_ids_by_convention() -> None:
    nested = {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [0, 3, 6]}}
    wrapped = {"speculators_model_type": "eagle3", "eagle_aux_hidden_state_layer_ids": [1, 4, 7]}
    top = {"eagle_aux_hidden_state_layer_ids": [1, 4, 7]}
    assert tap_layers(nested, 8) == tap_layers(wrapped, 8) == tap_layers(top, 8, "input") == (0, 3, 6)
    assert tap_layers(wrapped, 8, "output") == tap_layers(top, 8) == (1, 4, 7)
    assert tap_layers(nested, 8, "output") == (0, 3, 6)
    assert tap_layers({}, 30) == tap_layers({"speculators_model_type": "eagle3"}, 30) == (1, 14, 26)
    with pytest.raises(HeadError, match=r"\[0, 3, 6\] \(inputs of layers\) need .* \[-1, 2, 5\]"):
        tap_layers(nested, 8, "input")
    with pytest.raises(HeadError, match="the target has 6"):
        tap_layers(nested, 6)


def test_the_wrapper_reads_inputs_of_layers(tmp_path: Path) -> None:
    config, tensors = eagle3_speculators()
    assert load(config, tensors, tmp_path).taps == (0, 3, 6)


def test_a_checkpoint_without_module_is_refused() -> None:
    with pytest.raises(HeadError, match=rf"model.layers.{NUM_LAYERS}.eh_proj.weight \(DeepSeek\), mtp.fc.weight"):
        mtp_layout({"model.embed_tokens.weight": 0}, NUM_LAYERS)


@pytest.mark.parametrize("shape", SHAPES)
def test_a_draft_model_continues_committed_and_drafted_tokens(shape: str) -> None:
    """The fake model finds its prefix in the KV cache alone, and fails at wrong places, positions or contexts."""
    model = FakeModel(VOCAB)
    run = Run(
        HeadProposer("draft_model", DraftModel(draft_forward(model), [(1, 1, 1)], model.max_position)), vocab=VOCAB
    )
    run.options = [ProposerOptions(num_speculative_tokens=4, tree=SHAPES[shape])] * 3
    num_drafts = 0
    for step in range(5):
        seen = (run.decode(4) if step else run.prefill(4)).seen
        for (view, path), logits in seen.items():
            torch.testing.assert_close(logits, torch.from_numpy(hash_logits([*run.sequences[view], *path], VOCAB)))
        num_drafts += sum(len(draft) for draft in run.drafts if draft is not None)
    assert num_drafts == 5 * 3 * {"chain": 4, "static": 12, "grown": 9}[shape]


def test_beyond_the_draft_models_positions_nothing_is_written_or_drafted() -> None:
    model = FakeModel(VOCAB, max_position=14)
    run = Run(HeadProposer("draft_model", DraftModel(draft_forward(model), [(1, 1, 1)], 14)), vocab=VOCAB)
    run.prefill(2)
    short, single, long = run.drafts
    assert short is not None
    assert single is not None
    assert long is None
    for _ in range(4):
        run.decode(2)
