"""Draft heads (in the public layouts) and a draft model with random weights for a target: their drafts are worthless,
and the tokens must be the same all the same."""

from __future__ import annotations

import json
import pathlib
import shutil
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

__all__ = ["METHODS", "write_draft_model", "write_head"]

METHODS = ("eagle", "eagle3", "mtp")
DRAFT_VOCABULARY = 4096


def write_head(method: str, target: pathlib.Path, folder: pathlib.Path, seed: int = 1) -> None:
    """A checkpoint of one layer for the target whose config.json lies in `target`."""
    config: dict[str, Any] = json.loads((target / "config.json").read_text("utf-8"))
    width, num_layers = config["hidden_size"], config["num_hidden_layers"]
    own = {name: config[name] for name in config if name not in ("num_hidden_layers", "architectures", "torch_dtype")}
    own["num_hidden_layers"] = 1
    if method == "eagle":
        shapes = {"fc.weight": (width, 2 * width), **_layer(config, "layers.0.", width)}
    elif method == "eagle3":
        own |= {"draft_vocab_size": DRAFT_VOCABULARY, "target_hidden_size": width}
        shapes = {
            "fc.weight": (width, 3 * width),
            **_layer(config, "midlayer.", 2 * width),
            "midlayer.input_layernorm.weight": (width,),
            "midlayer.hidden_norm.weight": (width,),
            "norm.weight": (width,),
            "lm_head.weight": (DRAFT_VOCABULARY, width),
        }
    else:
        own |= {"num_nextn_predict_layers": 1, "num_hidden_layers": num_layers}
        prefix = f"model.layers.{num_layers}."
        shapes = {
            **{f"{prefix}{name}.weight": (width,) for name in ("enorm", "hnorm", "shared_head.norm")},
            f"{prefix}eh_proj.weight": (width, 2 * width),
            f"{prefix}input_layernorm.weight": (width,),
            **_layer(config, prefix, width),
        }
    generator = torch.Generator().manual_seed(seed)
    tensors = {name: _random(shape, generator) for name, shape in shapes.items()}
    if method == "eagle3":
        ids = torch.randperm(config["vocab_size"], generator=generator)[:DRAFT_VOCABULARY].sort().values
        tensors["d2t"] = ids - torch.arange(DRAFT_VOCABULARY)
        tensors["t2d"] = torch.zeros(config["vocab_size"], dtype=torch.bool).index_fill_(0, ids, True)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(own), encoding="utf-8")
    save_file(tensors, folder / "model.safetensors")


def write_draft_model(target: pathlib.Path, folder: pathlib.Path, seed: int = 1) -> None:
    """A causal model of one narrow layer with the vocabulary of the target that lies in `target`."""
    known = json.loads((target / "config.json").read_text("utf-8"))
    config = LlamaConfig(
        vocab_size=known["vocab_size"],
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=known["max_position_embeddings"],
    )
    torch.manual_seed(seed)
    LlamaForCausalLM(config).save_pretrained(folder)
    for file in target.iterdir():
        if "token" in file.name or file.suffix in (".jinja", ".txt"):
            shutil.copy(file, folder)


def _random(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    if len(shape) == 1:
        return torch.ones(shape)
    values: Tensor = torch.randn(shape, generator=generator) * shape[-1] ** -0.5
    return values.half()


def _layer(config: dict[str, Any], prefix: str, in_features: int) -> dict[str, tuple[int, ...]]:
    width, inner = config["hidden_size"], config["intermediate_size"]
    dim = config.get("head_dim") or width // config["num_attention_heads"]
    queries, keys = config["num_attention_heads"] * dim, config["num_key_value_heads"] * dim
    return {
        f"{prefix}self_attn.q_proj.weight": (queries, in_features),
        f"{prefix}self_attn.k_proj.weight": (keys, in_features),
        f"{prefix}self_attn.v_proj.weight": (keys, in_features),
        f"{prefix}self_attn.o_proj.weight": (width, queries),
        f"{prefix}mlp.gate_proj.weight": (inner, width),
        f"{prefix}mlp.up_proj.weight": (inner, width),
        f"{prefix}mlp.down_proj.weight": (width, inner),
        f"{prefix}post_attention_layernorm.weight": (width,),
    }
