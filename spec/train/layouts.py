"""EAGLE-3 heads from one public layout into the other: the authors' own, and that of the speculators library.

They hold the same tensors; the decoder layer is `midlayer.*` or `layers.0.*`. The library keeps the layer's shape in
`transformer_layer_config`, and counts the layers that are read by their inputs (one more than by their outputs).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from decodex.spec.head_weights import HeadError, HeadWeights, write_tensors

__all__ = ["Layout", "convert_head"]

Layout = Literal["eagle3", "speculators"]
PREFIXES = {"eagle3": "midlayer.", "speculators": "layers.0."}  # of the decoder layer's tensors
SPECULATIVE_TOKENS = 4  # that engines reading the speculators layout draft unless told otherwise

_IDS = "eagle_aux_hidden_state_layer_ids"
_FLAGS = ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output")
_OF_HEAD = ("draft_vocab_size", "target_hidden_size", "tie_word_embeddings", "dtype", "torch_dtype")
_OF_LAYOUT = {
    "architectures", "auto_map", "eagle_config", "speculators_config", "speculators_model_type", "speculators_version",
    "transformer_layer_config", "transformers_version", "_name_or_path",
}  # fmt: skip


def convert_head(source: Path, out: Path, layout: Layout, *, target: str | None = None) -> None:
    """Write the EAGLE-3 head in the folder `source` to the folder `out` (new or empty) in the other layout.

    `target`: name of the model it drafts for, which the speculators layout has a place for. HeadError names what is
    missing or not of such a head.
    """
    config = _read_config(source / "config.json")
    kind = config.get("speculators_model_type")
    if kind not in (None, "eagle3"):
        raise HeadError(f"{source / 'config.json'}: field speculators_model_type is {kind!r}, expected 'eagle3'")
    if (kind is not None) == (layout == "speculators"):
        raise HeadError(f"{source}: this head is in the layout {layout!r} already")
    if out.exists() and any(out.iterdir()):
        raise HeadError(f"{out}: expected a folder that is new or empty")
    weights = HeadWeights.open(source)
    old, new = PREFIXES["eagle3" if layout == "speculators" else "speculators"], PREFIXES[layout]
    if "fc.weight" not in weights:
        raise HeadError(f"{source}: tensor 'fc.weight' is missing: is this an EAGLE-3 head?")
    tensors = {
        new + name.removeprefix(old) if name.startswith(old) else name: weights.take(name, weights.shape(name))
        for name in weights
    }
    converted = _to_speculators(config, target) if layout == "speculators" else _to_eagle3(config)
    out.mkdir(parents=True, exist_ok=True)
    write_tensors(out, tensors)
    (out / "config.json").write_text(json.dumps(converted, indent=1) + "\n", encoding="utf-8")


def _to_speculators(config: Mapping[str, Any], target: str | None) -> dict[str, Any]:
    nested = config.get("eagle_config") or {}
    ids = nested.get(_IDS, config.get(_IDS))
    method = {"proposal_type": "greedy", "speculative_tokens": SPECULATIVE_TOKENS}
    return {
        "architectures": ["Eagle3DraftModel"],
        "speculators_model_type": "eagle3",
        "speculators_config": {
            "algorithm": "eagle3",
            "default_proposal_method": "greedy",
            "proposal_methods": [{**method, "accept_tolerance": 0.0, "verifier_accept_k": 1}],
            "verifier": {"name_or_path": target, "architectures": []},
        },
        "draft_vocab_size": config.get("vocab_size"),
        "target_hidden_size": None,
        **{name: config[name] for name in _OF_HEAD if name in config},
        **{name: bool(nested.get(name, config.get(name, False))) for name in _FLAGS},
        _IDS: None if ids is None else [int(layer) + 1 for layer in ids],
        "transformer_layer_config": {"model_type": "llama", **_layer_shape(config)},
    }


def _to_eagle3(config: Mapping[str, Any]) -> dict[str, Any]:
    shape = config.get("transformer_layer_config")
    if not isinstance(shape, dict):
        raise HeadError(f"config.json: field transformer_layer_config is {shape!r}, expected an object")
    ids = config.get(_IDS)
    nested = {} if ids is None else {_IDS: [int(layer) - 1 for layer in ids]}
    return {
        "architectures": ["LlamaForCausalLMEagle3"],
        **_layer_shape(shape),
        **{name: config[name] for name in _OF_HEAD if config.get(name) is not None},
        **{name: True for name in _FLAGS if config.get(name)},
        "eagle_config": {**nested, "use_aux_hidden_state": True},
    }


def _layer_shape(config: Mapping[str, Any]) -> dict[str, Any]:
    """What a config says of the decoder layer alone."""
    others = {*_OF_HEAD, *_OF_LAYOUT, *_FLAGS, _IDS}
    return {name: value for name, value in config.items() if name not in others}


def _read_config(path: Path) -> dict[str, Any]:
    try:
        config = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise HeadError(f"{path}: can't be read as JSON ({error})") from error
    if not isinstance(config, dict):
        raise HeadError(f"{path}: expected a JSON object")
    return config
