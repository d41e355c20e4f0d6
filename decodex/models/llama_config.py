"""What the lean decoder needs from config.json, and whether it can run a model at all."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from decodex.errors import ModelError

__all__ = ["LlamaConfig", "rope_frequencies"]

_ARCHITECTURES = ("LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM")
_ROPE_TYPES = ("default", "linear", "llama3", "dynamic")


@dataclass(frozen=True)
class LlamaConfig:
    """The Llama family by its numbers. Widths in elements."""

    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_position: int
    rms_norm_eps: float
    rope: dict[str, Any]  # rope_type, rope_theta and the type's own fields
    has_tied_head: bool
    has_qkv_bias: bool
    has_o_bias: bool
    has_mlp_bias: bool
    has_qk_norm: bool
    windows: tuple[int, ...]  # per layer, 0 = full attention

    @staticmethod
    def supports(config: Mapping[str, Any]) -> bool:
        """Whether the lean decoder covers this config.json; the generic path takes the others."""
        names = config.get("architectures") or [""]
        rope = _rope_fields(config)
        return (
            names[0] in _ARCHITECTURES
            and config.get("hidden_act", "silu") in ("silu", "swish")
            and rope["rope_type"] in _ROPE_TYPES
            and float(rope.get("partial_rotary_factor", 1.0)) == 1.0
            and config.get("quantization_config") is None
        )

    @staticmethod
    def read(config: Mapping[str, Any]) -> LlamaConfig:
        """From config.json; ModelError names a field that is missing or out of range."""
        architecture = str(config["architectures"][0])
        heads, hidden = _count(config, "num_attention_heads"), _count(config, "hidden_size")
        num_layers = _count(config, "num_hidden_layers")
        head_dim = int(config.get("head_dim") or (128 if architecture.startswith("Qwen3") else hidden // heads))
        kv_heads = int(config.get("num_key_value_heads") or heads)
        if heads % kv_heads:
            raise ModelError(f"config.json: num_attention_heads {heads} is no multiple of the {kv_heads} KV heads")
        is_qwen2 = architecture.startswith("Qwen2")
        has_bias = bool(config.get("attention_bias", False))
        return LlamaConfig(
            architecture=architecture,
            vocab_size=_count(config, "vocab_size"),
            hidden_size=hidden,
            intermediate_size=_count(config, "intermediate_size"),
            num_layers=num_layers,
            num_heads=heads,
            num_kv_heads=kv_heads,
            head_dim=head_dim,
            max_position=_count(config, "max_position_embeddings"),
            rms_norm_eps=float(config.get("rms_norm_eps", 1e-6)),
            rope=_rope_fields(config),
            has_tied_head=bool(config.get("tie_word_embeddings", False)),
            has_qkv_bias=is_qwen2 or has_bias,
            has_o_bias=has_bias and not is_qwen2,
            has_mlp_bias=bool(config.get("mlp_bias", False)),
            has_qk_norm=architecture.startswith("Qwen3"),
            windows=_windows(config, architecture, num_layers),
        )


def _count(config: Mapping[str, Any], field: str) -> int:
    value = config.get(field)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ModelError(f"config.json: field {field} is {value!r}, expected a whole number above 0")
    return value


def _rope_fields(config: Mapping[str, Any]) -> dict[str, Any]:
    """One form for the newer `rope_parameters` and the older `rope_theta` + `rope_scaling`."""
    scaling = config.get("rope_parameters") or config.get("rope_scaling") or {}
    fields = dict(scaling) if isinstance(scaling, Mapping) else {}
    fields["rope_type"] = str(fields.get("rope_type") or fields.pop("type", None) or "default")
    fields.setdefault("rope_theta", config.get("rope_theta") or 10000.0)
    if "partial_rotary_factor" in config:
        fields.setdefault("partial_rotary_factor", config["partial_rotary_factor"])
    return fields


def _windows(config: Mapping[str, Any], architecture: str, num_layers: int) -> tuple[int, ...]:
    window = int(config.get("sliding_window") or 0)
    if architecture.startswith("Llama") or not window:
        return (0,) * num_layers
    if architecture.startswith("Mistral"):
        return (window,) * num_layers
    if not config.get("use_sliding_window", False):
        return (0,) * num_layers
    first = int(config.get("max_window_layers", 28))
    kinds = config.get("layer_types") or [
        "sliding_attention" if layer >= first else "full_attention" for layer in range(num_layers)
    ]
    return tuple(window if kind == "sliding_attention" else 0 for kind in kinds)


def rope_frequencies(config: LlamaConfig) -> Tensor:
    """Angle per position of each rotated pair, [D/2] fp32 (RoFormer; Llama 3.1's scaling by wavelength).

    `dynamic` (NTK) scales only beyond max_position_embeddings, where no position of ours goes: it is `default` here.
    """
    rope, dim = config.rope, config.head_dim
    exponents = torch.arange(0, dim, 2, dtype=torch.int64).float() / dim
    frequencies = 1.0 / (_rope_number(rope, "rope_theta") ** exponents)
    if rope["rope_type"] == "linear":
        return frequencies / _rope_number(rope, "factor")
    if rope["rope_type"] != "llama3":
        return frequencies
    factor = _rope_number(rope, "factor")
    low, high = _rope_number(rope, "low_freq_factor"), _rope_number(rope, "high_freq_factor")
    original = _rope_number(rope, "original_max_position_embeddings")
    wavelengths = 2 * math.pi / frequencies
    slow = torch.where(wavelengths > original / low, frequencies / factor, frequencies)
    smooth = (original / wavelengths - low) / (high - low)
    blended = (1 - smooth) * slow / factor + smooth * slow
    is_between = (wavelengths >= original / high) & (wavelengths <= original / low)
    return torch.where(is_between, blended, slow)


def _rope_number(rope: Mapping[str, Any], field: str) -> float:
    value = rope.get(field)
    if not isinstance(value, (int, float)) or value <= 0:
        raise ModelError(f"config.json: rope field {field} is {value!r}, expected a number above 0")
    return float(value)
