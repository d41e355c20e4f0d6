"""The EAGLE-3 head (Li et al. 2025, arXiv 2503.01840), also as the speculators library wraps it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from decodex.kernels.norm import rms_norm
from decodex.spec.decoder_layer import DecoderLayer, Entries, LayerConfig, Rotary
from decodex.spec.head import load_embedding, load_vocabulary
from decodex.spec.head_weights import HeadError, HeadWeights, read_count, read_section
from decodex.spec.target import StepTensors, TargetParts

__all__ = ["Eagle3Head", "LayerIds", "tap_layers"]

LayerIds = Literal["auto", "output", "input"]
_FLAGS = ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output")


def tap_layers(config: Mapping[str, Any], num_layers: int, layer_ids: LayerIds = "auto") -> tuple[int, ...]:
    """Layers whose outputs the head reads, low to high (0-based).

    `layer_ids` says what eagle_aux_hidden_state_layer_ids count: outputs of layers, or inputs (one more). "auto":
    outputs where the field is nested in `eagle_config`, inputs at the top level of a `speculators` checkpoint.
    """
    nested = read_section(config, "eagle_config")
    ids = nested.get("eagle_aux_hidden_state_layer_ids")
    is_input = layer_ids == "input"
    if ids is None:
        ids = config.get("eagle_aux_hidden_state_layer_ids")
        is_input = is_input or (layer_ids == "auto" and "speculators_model_type" in config)
    if ids is None:
        layers: tuple[int, ...] = (1, num_layers // 2 - 1, num_layers - 4)
        given = "the default taps of EAGLE-3"
    else:
        if not isinstance(ids, Sequence) or not all(type(index) is int for index in ids):
            raise HeadError(
                f"config.json: field eagle_aux_hidden_state_layer_ids is {ids!r}, expected numbers of layers"
            )
        layers = tuple(index - is_input for index in ids)
        given = f"eagle_aux_hidden_state_layer_ids {list(ids)} ({'inputs' if is_input else 'outputs'} of layers)"
    if not layers or min(layers) < 0 or max(layers) >= num_layers:
        raise HeadError(f"config.json: {given} need the outputs of layers {list(layers)}, the target has {num_layers}")
    return layers


class Eagle3Head:
    """One decoder layer over [embedding; fused taps]; its output is what the next entry is paired with."""

    shift = 1
    needs_hidden = False

    def __init__(
        self, config: Mapping[str, Any], weights: HeadWeights, target: TargetParts, layer_ids: LayerIds = "auto"
    ) -> None:
        """`config`: the checkpoint's config.json. HeadError names what is missing, unknown or misshapen."""
        shape = {**config, **read_section(config, "transformer_layer_config")}
        flags = {name: bool(_flag(config, name)) for name in _FLAGS}
        self.taps = tap_layers(config, target.num_layers, layer_ids)
        layer = LayerConfig.read(shape)
        hidden, width = layer.hidden_size, read_count(config, "target_hidden_size", target.hidden_size)
        if width != target.hidden_size:
            raise HeadError(f"config.json: target_hidden_size is {width}, the target's is {target.hidden_size}")
        if read_count(shape, "num_hidden_layers", 1) != 1:
            raise HeadError(f"config.json: num_hidden_layers is {shape['num_hidden_layers']}, expected 1")
        prefix = "layers.0." if any(name.startswith("layers.0.") for name in weights) else "midlayer."
        num_taps = len(self.taps)
        self.max_position = target.max_position
        self.kv_layers = [layer.kv_layer]
        self._eps = layer.rms_norm_eps
        self._fc = weights.linear(["fc"], [hidden], num_taps * width)
        self._fused_norm = weights.vector("input_norm.weight", num_taps * width) if flags["norm_before_fc"] else None
        names = [f"fc_norm.{index}.weight" for index in range(num_taps)] if flags["fc_norm"] else []
        self._tap_norms = [weights.vector(name, width) for name in names]
        self._layer = DecoderLayer(weights, prefix, layer, 2 * hidden)
        self._input_norm = weights.vector(f"{prefix}input_layernorm.weight", hidden)
        self._hidden_norm = weights.vector(f"{prefix}hidden_norm.weight", hidden)
        norm = weights.vector("norm.weight", hidden)
        self._embed = load_embedding(weights, "embed_tokens.weight", hidden, target)
        self.token_map = load_vocabulary(weights, config, target)
        self._layer.end_with(norm, self._load_head(weights, target, hidden))
        weights.refuse_untaken()
        self._residual_is_normed, self._carries_normed = flags["norm_before_residual"], flags["norm_output"]
        self._rotary = Rotary(target.rope_frequencies(shape), weights.device)

    def _load_head(self, weights: HeadWeights, target: TargetParts, hidden: int) -> Callable[[Tensor], Tensor]:
        """Its own output layer; the target's where the checkpoint has none and the vocabulary is the target's."""
        size = target.vocab_size if self.token_map is None else self.token_map.shape[0]
        if "lm_head.weight" in weights or self.token_map is not None or hidden != target.hidden_size:
            return weights.linear(["lm_head"], [size], hidden)
        return target.head

    def inputs(self, step: StepTensors, rows: Tensor) -> Tensor:
        """The fused taps, [R, h]."""
        taps = [step.taps[layer].index_select(0, rows) for layer in self.taps]
        if self._tap_norms:
            taps = [rms_norm(tap, norm, self._eps) for tap, norm in zip(taps, self._tap_norms)]
        fused = torch.cat(taps, dim=-1)
        if self._fused_norm is not None:
            rms_norm(fused, self._fused_norm, self._eps, fused)
        return self._fc(fused)

    def forward(
        self, token_ids: Tensor, hidden: Tensor | None, entries: Entries, step: StepTensors
    ) -> tuple[Tensor, Tensor]:
        """See Head."""
        assert hidden is not None, "an EAGLE-3 entry is paired with a hidden state"
        stream = rms_norm(hidden, self._hidden_norm, self._eps) if self._residual_is_normed else hidden
        pieces = ((self._embed(token_ids), self._input_norm), (hidden, self._hidden_norm))
        cos_sin = self._rotary.table(entries.num_positions)
        stream, normed, logits = self._layer.whole(stream, pieces, entries, cos_sin, step.kv_k[0], step.kv_v[0])
        return normed if self._carries_normed else stream, logits


def _flag(config: Mapping[str, Any], name: str) -> Any:
    nested = read_section(config, "eagle_config")
    return nested.get(name, config.get(name, False))
