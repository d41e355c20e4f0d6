"""What can't be loaded says so once, with the file, tensor, field or architecture in the message."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from decodex.errors import ModelError, RequestError
from decodex.models.interface import CausalLM
from decodex.models.loader import load_model
from decodex.models.source import resolve_model

Fresh = Callable[[str], Path]


def load(folder: Path, **options: Any) -> CausalLM:
    return load_model(resolve_model(str(folder)), **options)


def edit_config(folder: Path, **fields: Any) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **fields}))


def edit_weights(folder: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    weights = load_file(folder / "model.safetensors")
    change(weights)
    save_file(weights, folder / "model.safetensors", {"format": "pt"})


@pytest.mark.parametrize("name", ["llama", "phi3"])
def test_missing_tensor(fresh_folder: Fresh, name: str) -> None:
    folder = fresh_folder(name)
    edit_weights(folder, lambda weights: weights.pop("model.layers.1.post_attention_layernorm.weight"))
    with pytest.raises(ModelError, match=r"model\.layers\.1\.post_attention_layernorm\.weight"):
        load(folder)


@pytest.mark.parametrize("name", ["llama", "phi3"])
def test_unknown_tensor(fresh_folder: Fresh, name: str) -> None:
    folder = fresh_folder(name)
    edit_weights(folder, lambda weights: weights.update({"model.layers.0.gizmo.weight": torch.zeros(3)}))
    with pytest.raises(ModelError, match=r"'model\.layers\.0\.gizmo\.weight'.*has no place"):
        load(folder)


def test_misshapen_tensor(fresh_folder: Fresh) -> None:
    folder = fresh_folder("llama")
    edit_weights(folder, lambda weights: weights.update({"model.norm.weight": torch.zeros(3)}))
    with pytest.raises(ModelError, match=r"'model\.norm\.weight' has shape \[3\], config\.json needs \[64\]"):
        load(folder)


@pytest.mark.parametrize("name", ["llama", "gemma2"])
@pytest.mark.parametrize("keep", [0, 4, 60, 5000, -1])
def test_truncated_weights(fresh_folder: Fresh, name: str, keep: int) -> None:
    folder = fresh_folder(name)
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:keep])
    with pytest.raises(ModelError, match=r"model\.safetensors: (truncated|corrupt)"):
        load(folder)


@pytest.mark.parametrize(
    ("field", "value"),
    [("hidden_size", None), ("num_hidden_layers", 0), ("vocab_size", "many"), ("num_key_value_heads", 3)],
)
def test_bad_config_field(fresh_folder: Fresh, field: str, value: object) -> None:
    folder = fresh_folder("llama")
    edit_config(folder, **{field: value})
    with pytest.raises(ModelError, match=rf"config\.json.*{field.split('_key')[0]}"):
        load(folder)


def test_bad_rope_base(fresh_folder: Fresh) -> None:
    folder = fresh_folder("llama")
    edit_config(folder, rope_parameters={"rope_type": "default", "rope_theta": "x"})
    with pytest.raises(ModelError, match=r"config\.json: rope field rope_theta is 'x', expected a number above 0"):
        load(folder)


def test_unknown_architecture(fresh_folder: Fresh) -> None:
    folder = fresh_folder("llama")
    edit_config(folder, architectures=["GizmoForCausalLM"], model_type="gizmo")
    with pytest.raises(ModelError, match=r"GizmoForCausalLM can't be loaded from .*config\.json"):
        load(folder)


def test_prequantized_checkpoint(fresh_folder: Fresh) -> None:
    folder = fresh_folder("llama")
    edit_config(folder, quantization_config={"quant_method": "gptq", "bits": 4})
    with pytest.raises(ModelError, match="quantization_config 'gptq'"):
        load(folder)


SMALL: dict[str, Any] = {
    "vocab_size": 32,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 32,
}


def save_refused(folder: Path, config: Any) -> Path:
    """A folder that looks like a model of this config; refusal comes before weights are read."""
    config.save_pretrained(folder)
    save_file({"model.embed_tokens.weight": torch.zeros(32, 32)}, folder / "model.safetensors", {"format": "pt"})
    return folder


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (transformers.MambaConfig(vocab_size=32, hidden_size=32, num_hidden_layers=2), "MambaForCausalLM keeps"),
        (transformers.Qwen3NextConfig(**SMALL), "Qwen3NextForCausalLM keeps recurrent state"),
        (transformers.JambaConfig(**SMALL), "JambaForCausalLM keeps recurrent state"),
        (transformers.T5Config(vocab_size=32, d_model=32, num_layers=2), "T5ForConditionalGeneration is an enc"),
        (transformers.ViTConfig(hidden_size=32), "ViTModel .*is not a causal language model"),
    ],
    ids=["mamba", "qwen3-next", "jamba", "t5", "vit"],
)
def test_refused_by_kind(tmp_path: Path, config: Any, message: str) -> None:
    config.architectures = [message.split()[0]]
    with pytest.raises(ModelError, match=message):
        load(save_refused(tmp_path / "model", config))


def test_refused_when_attention_bypasses_the_interface(tmp_path: Path) -> None:
    """Bloom adds ALiBi inside its own attention code: nothing would ever be written to the paged cache."""
    config = transformers.BloomConfig(vocab_size=32, hidden_size=32, n_layer=2, n_head=2)
    transformers.BloomForCausalLM(config).save_pretrained(tmp_path / "bloom")
    with pytest.raises(ModelError, match="BloomForCausalLM can't run here"):
        load(tmp_path / "bloom")


def test_options_name_the_field(fresh_folder: Fresh) -> None:
    folder = fresh_folder("llama")
    with pytest.raises(RequestError, match="dtype: got 'int4'"):
        load(folder, dtype="int4")
    with pytest.raises(RequestError, match="quantization: got 'awq'"):
        load(folder, quantization="awq")
