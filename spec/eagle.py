"""The EAGLE-1 head (Li et al. 2024, arXiv 2401.15077): predicts the target's next hidden state, and reads its head."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from decodex.kernels.norm import rms_norm
from decodex.spec.decoder_layer import DecoderLayer, Entries, LayerConfig, Rotary
from decodex.spec.head import load_embedding
from decodex.spec.head_weights import HeadError, HeadWeights, read_count
from decodex.spec.target import StepTensors, TargetParts

__all__ = ["EagleHead"]


class EagleHead:
    """fc over [embedding; hidden], then decoder layers, the first without a norm before attention; no final norm."""

    shift = 1
    taps: tuple[int, ...] = ()
    needs_hidden = True
    token_map: Tensor | None = None

    def __init__(self, config: Mapping[str, Any], weights: HeadWeights, target: TargetParts) -> None:
        """`config`: the checkpoint's config.json. HeadError names what is missing, unknown or misshapen."""
        num_layers = read_count(config, "num_hidden_layers", 1)
        layers = [LayerConfig.read(config, index) for index in range(num_layers)]
        hidden = layers[0].hidden_size
        if hidden != target.hidden_size:
            raise HeadError(f"config.json: hidden_size is {hidden}, the target's is {target.hidden_size}")
        self.max_position = target.max_position
        self.kv_layers = [layer.kv_layer for layer in layers]
        self._eps = layers[0].rms_norm_eps
        self._embed = load_embedding(weights, "embed_tokens.weight", hidden, target)
        self._fc = weights.linear(["fc"], [hidden], 2 * hidden)
        self._layers = [DecoderLayer(weights, f"layers.{i}.", layer) for i, layer in enumerate(layers)]
        names = [f"layers.{index}.input_layernorm.weight" for index in range(1, num_layers)]
        self._input_norms = [None, *(weights.vector(name, hidden) for name in names)]
        weights.refuse_untaken()
        self._head = target.head
        self._rotary = Rotary(target.rope_frequencies(config), weights.device)

    def inputs(self, step: StepTensors, rows: Tensor) -> Tensor:
        """The target's hidden states, [R, H]."""
        assert step.hidden is not None, "an EAGLE head needs the target's hidden states"
        return step.hidden.index_select(0, rows)

    def forward(
        self, token_ids: Tensor, hidden: Tensor | None, entries: Entries, step: StepTensors
    ) -> tuple[Tensor, Tensor]:
        """See Head."""
        assert hidden is not None, "an EAGLE entry is paired with a hidden state"
        stream = self._fc(torch.cat((self._embed(token_ids), hidden), dim=-1))
        cos_sin, inner = self._rotary.table(entries.num_positions), entries.of_all()
        for index, (layer, norm) in enumerate(zip(self._layers, self._input_norms)):
            attn_input = stream if norm is None else rms_norm(stream, norm, self._eps)
            is_last = index == len(self._layers) - 1
            stream = layer(
                stream, attn_input, entries if is_last else inner, cos_sin, step.kv_k[index], step.kv_v[index]
            )
        return stream, self._head(stream)
