"""A head drafts the same tokens from the same logits in either layout, and what is written is what others read."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from fakes import FakeModel
from head_fakes import (
    EMBED,
    HEAD,
    NUM_LAYERS,
    SHAPES,
    H,
    Run,
    V,
    eagle3_full,
    eagle3_narrow,
    eagle3_nested,
    eagle3_speculators,
    eagle3_targets_head,
    write,
)
from torch import Tensor

from decodex.cli import main
from decodex.heads import load_drafter
from decodex.models.interface import ForwardOutput
from decodex.spec.head_weights import HeadError, HeadWeights
from decodex.spec.proposer import ProposerOptions
from decodex.spec.train.layouts import Layout, convert_head

Checkpoint = tuple[dict[str, Any], dict[str, Tensor]]


class SharingModel(FakeModel):
    """Of the size that the heads are for; its own states are only looked at when a head is loaded."""

    num_layers = NUM_LAYERS
    hidden_size = H

    def embed(self, token_ids: Tensor) -> Tensor:
        return EMBED[token_ids]

    def head(self, hidden: Tensor) -> Tensor:
        return hidden @ HEAD.T

    def forward(self, batch, kv, taps=(), wants_hidden=False):
        logits = super().forward(batch, kv).logits
        return ForwardOutput(logits, None, {tap: torch.ones(len(batch.token_ids), H) for tap in taps})


def run_of(folder: Path, shape: str) -> tuple[list[Any], list[Tensor]]:
    """The drafts of a head through its files, and the logits that they were chosen from."""
    tokenizer: Any = SimpleNamespace(encode=lambda text: list(range(V)))
    proposer = load_drafter("eagle3", str(folder), SharingModel(V), tokenizer, torch.device("cpu"))
    run = Run(proposer)
    run.options = [ProposerOptions(num_speculative_tokens=4, tree=SHAPES[shape])] * 3
    choosers = [run.prefill(4)] + [run.decode(4) for _ in range(3)]
    return run.drafts, [logits for chooser in choosers for logits in chooser.seen.values()]


def full_with_rope() -> Checkpoint:
    config, tensors = eagle3_full()
    rope = {"rope_type": "linear", "factor": 4.0}
    return {**config, "rope_scaling": rope, "eagle_aux_hidden_state_layer_ids": [0, 2, 7]}, tensors


HEADS: dict[str, tuple[Layout, Callable[[], Checkpoint]]] = {
    "nested": ("speculators", eagle3_nested),
    "narrow": ("speculators", eagle3_narrow),
    "flags, the target's head": ("speculators", eagle3_targets_head),
    "full, scaled angles": ("speculators", full_with_rope),
    "wrapped": ("eagle3", eagle3_speculators),
}


@pytest.mark.parametrize("shape", ["chain", "grown"])
@pytest.mark.parametrize("head", HEADS)
def test_a_converted_head_drafts_the_same_there_and_back(head: str, shape: str, tmp_path: Path) -> None:
    layout, make = HEADS[head]
    config, tensors = make()
    folders = [tmp_path / name for name in ("made", "there", "back")]
    folders[0].mkdir()
    write(folders[0], config, tensors, as_bin=head.startswith("full"))
    convert_head(folders[0], folders[1], layout)
    convert_head(folders[1], folders[2], "eagle3" if layout == "speculators" else "speculators")
    drafts, logits = run_of(folders[0], shape)
    assert any(draft is not None and len(draft) > 1 for draft in drafts)
    for folder in folders[1:]:
        same_drafts, same_logits = run_of(folder, shape)
        assert same_drafts == drafts
        assert all(torch.equal(a, b) for a, b in zip(same_logits, logits, strict=True))


def test_what_the_speculators_layout_holds(tmp_path: Path) -> None:
    config, tensors = eagle3_nested()
    more = {"torch_dtype": "float16", "architectures": ["LlamaForCausalLMEagle3"], "norm_before_residual": True}
    write(tmp_path, config | more, tensors)
    convert_head(tmp_path, tmp_path / "out", "speculators", target="org/target")
    assert json.loads((tmp_path / "out/config.json").read_text()) == {
        "architectures": ["Eagle3DraftModel"],
        "speculators_model_type": "eagle3",
        "speculators_config": {
            "algorithm": "eagle3",
            "default_proposal_method": "greedy",
            "proposal_methods": [
                {
                    "proposal_type": "greedy",
                    "speculative_tokens": 4,
                    "accept_tolerance": 0.0,
                    "verifier_accept_k": 1,
                }
            ],
            "verifier": {"name_or_path": "org/target", "architectures": []},
        },
        "draft_vocab_size": 10,
        "target_hidden_size": None,
        "torch_dtype": "float16",
        "norm_before_residual": True,
        "norm_before_fc": False,
        "fc_norm": False,
        "norm_output": False,
        "eagle_aux_hidden_state_layer_ids": [1, 4, 7],
        "transformer_layer_config": {
            "model_type": "llama",
            "hidden_size": 16,
            "intermediate_size": 20,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 6,
            "num_hidden_layers": 1,
            "rms_norm_eps": 1e-5,
            "rope_theta": 500.0,
            "vocab_size": 24,
        },
    }
    written = HeadWeights.open(tmp_path / "out")
    assert sorted(written) == sorted(name.replace("midlayer.", "layers.0.") for name in tensors)
    for name, tensor in tensors.items():
        same = written.take(name.replace("midlayer.", "layers.0."), tuple(tensor.shape))
        assert same.dtype == tensor.dtype
        assert torch.equal(same, tensor)


def test_what_the_authors_layout_holds(tmp_path: Path) -> None:
    config, tensors = eagle3_speculators()
    write(tmp_path, config, tensors)
    convert_head(tmp_path, tmp_path / "out", "eagle3")
    assert json.loads((tmp_path / "out/config.json").read_text()) == {
        "architectures": ["LlamaForCausalLMEagle3"],
        **config["transformer_layer_config"],
        "draft_vocab_size": 10,
        "norm_before_residual": True,
        "fc_norm": True,
        "norm_output": True,
        "eagle_config": {"eagle_aux_hidden_state_layer_ids": [0, 3, 6], "use_aux_hidden_state": True},
    }
    assert sorted(HeadWeights.open(tmp_path / "out")) == sorted(
        name.replace("layers.0.", "midlayer.") for name in tensors
    )


def test_what_is_no_such_head_is_refused(tmp_path: Path) -> None:
    config, tensors = eagle3_nested()
    with pytest.raises(HeadError, match=r"config.json: can't be read as JSON"):
        convert_head(tmp_path, tmp_path / "out", "eagle3")
    write(tmp_path, config, tensors)
    with pytest.raises(HeadError, match="in the layout 'eagle3' already"):
        convert_head(tmp_path, tmp_path / "out", "eagle3")
    with pytest.raises(HeadError, match="expected a folder that is new or empty"):
        convert_head(tmp_path, tmp_path, "speculators")
    write(tmp_path, {"speculators_model_type": "dflash"}, tensors)
    with pytest.raises(HeadError, match="speculators_model_type is 'dflash', expected 'eagle3'"):
        convert_head(tmp_path, tmp_path / "out", "eagle3")
    write(tmp_path, {"speculators_model_type": "eagle3"}, tensors)
    with pytest.raises(HeadError, match="transformer_layer_config is None, expected an object"):
        convert_head(tmp_path, tmp_path / "out", "eagle3")
    write(tmp_path, config, {"lm_head.weight": torch.ones(2, 2)})
    with pytest.raises(HeadError, match=r"'fc.weight' is missing: is this an EAGLE-3 head\?"):
        convert_head(tmp_path, tmp_path / "out", "speculators")
    assert not (tmp_path / "out").exists()


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path, *eagle3_nested())
    argv = ["convert-head", str(tmp_path), str(tmp_path / "out"), "--layout", "speculators", "--target", "org/target"]
    assert main(argv) == 0
    assert capsys.readouterr().out == f"{tmp_path / 'out'}: the head in the layout speculators\n"
    written = json.loads((tmp_path / "out/config.json").read_text())
    assert written["speculators_config"]["verifier"]["name_or_path"] == "org/target"
    assert main(argv) == 1
    assert capsys.readouterr().err.startswith(f"decodex convert-head: error: {tmp_path / 'out'}: expected a folder")
    with pytest.raises(SystemExit):
        main([*argv[:3], "--layout", "eagle"])
    assert "invalid choice: 'eagle'" in capsys.readouterr().err
