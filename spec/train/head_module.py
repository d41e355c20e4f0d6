"""Draft heads as differentiable functions of their weights, which go by the names of the checkpoint."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from decodex.spec.decoder_layer import LayerConfig

__all__ = ["HeadModule", "Rows", "new_weights"]

Weights = dict[str, Tensor]


@dataclass(frozen=True)
class Rows:
    """The rows of a batch that predict: A of each of B sequences, some of them padding."""

    index: Tensor  # [B, A] int64: the entry i of each row
    reads: Tensor  # [B, A, L] bool: the entries of depth 0 that it attends to, j <= i


class HeadModule:
    """An EAGLE-3 head or an MTP module (DeepSeek's layout) in training: depth by depth, each fed with its own output.

    The wirings are those of spec/eagle3.py and spec/mtp.py; the target's embedding and (MTP) output rows are frozen.
    """

    def __init__(
        self, method: str, config: Mapping[str, Any], inv_freq: Tensor, embedding: Tensor, prefix: str
    ) -> None:
        """`config`: the head's config.json; inv_freq [D/2] fp32; embedding [V, H] fp32 (the target's); `prefix`: of the
        decoder layer's names."""
        self.is_eagle3 = method == "eagle3"
        self.shape = LayerConfig.read(config)
        self._prefix, self._inv_freq, self._embedding = prefix, inv_freq, embedding

    def pair(self, weights: Weights, states: Tensor) -> Tensor:
        """What entries of depth 0 are paired with, [B, L, H], from the target's states [B, L, S]."""
        width = self._embedding.shape[1]
        if not self.is_eagle3:
            return states[..., -width:]
        return functional.linear(states[..., :-width], weights["fc.weight"]).float()

    def depths(self, weights: Weights, token_ids: Tensor, paired: Tensor, rows: Rows, num_depths: int) -> list[Tensor]:
        """For each depth what the output layer reads, [B, A, H], after the final norm.

        token_ids [B, L + D] int64: entry i of depth k holds token i + 1 + k; paired [B, L, H].
        """
        num_entries = paired.shape[1]
        every = torch.arange(num_entries, device=paired.device)
        stream, attn_input = self._inputs(weights, token_ids[:, 1 : num_entries + 1], paired)
        keys, values = self._keys_values(weights, attn_input, every)
        at = rows.index[..., None].expand(-1, -1, stream.shape[-1])
        stream = stream.gather(1, at)
        attn_input = attn_input.gather(1, rows.index[..., None].expand(-1, -1, attn_input.shape[-1]))
        own: list[tuple[Tensor, Tensor]] = []
        results = []
        for depth in range(num_depths):
            if depth:
                tokens = token_ids.gather(1, rows.index + (1 + depth))
                stream, attn_input = self._inputs(weights, tokens, stream)
                own.append(self._keys_values(weights, attn_input, rows.index + depth))
            context = self._attend(weights, attn_input, rows, depth, (keys, values), own)
            stream = stream + self._linear(weights, "self_attn.o_proj", context)
            normed = self._norm(stream, self._of(weights, "post_attention_layernorm"))
            gate = functional.silu(self._linear(weights, "mlp.gate_proj", normed))
            up = self._linear(weights, "mlp.up_proj", normed)
            stream = stream + self._linear(weights, "mlp.down_proj", gate * up)
            final = "norm.weight" if self.is_eagle3 else f"{self._prefix}shared_head.norm.weight"
            results.append(self._norm(stream, weights[final]))
        return results

    def _inputs(self, weights: Weights, tokens: Tensor, paired: Tensor) -> tuple[Tensor, Tensor]:
        """The residual stream and what attention reads, for tokens [B, N] paired with [B, N, H]."""
        embedded = functional.embedding(tokens, self._embedding)
        if self.is_eagle3:
            first = self._norm(embedded, self._of(weights, "input_layernorm"))
            return paired, torch.cat((first, self._norm(paired, self._of(weights, "hidden_norm"))), dim=-1)
        first, second = (
            self._norm(part, weights[f"{self._prefix}{name}.weight"])
            for part, name in ((embedded, "enorm"), (paired, "hnorm"))
        )
        stream = self._linear(weights, "eh_proj", torch.cat((first, second), dim=-1)).float()
        return stream, self._norm(stream, self._of(weights, "input_layernorm"))

    def _keys_values(self, weights: Weights, attn_input: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """[B, N, Hkv, D] each."""
        keys, values = (self._split(self._linear(weights, f"self_attn.{name}_proj", attn_input)) for name in "kv")
        return self._rotate(keys, positions), values

    def _attend(
        self,
        weights: Weights,
        attn_input: Tensor,
        rows: Rows,
        depth: int,
        first: tuple[Tensor, Tensor],
        own: list[tuple[Tensor, Tensor]],
    ) -> Tensor:
        """Each row over the entries j <= i of depth 0 and its own entries of later depths; [B, A, Hq * D]."""
        shape, (batch, num_rows) = self.shape, rows.index.shape
        group = shape.num_heads // shape.num_kv_heads
        query = self._split(self._linear(weights, "self_attn.q_proj", attn_input))
        query = self._rotate(query, rows.index + depth) * shape.head_dim**-0.5
        query = query.view(batch, num_rows, shape.num_kv_heads, group, -1).permute(0, 2, 3, 1, 4)  # [B, Hkv, G, A, D]
        keys, values = (part.permute(0, 2, 1, 3) for part in first)  # [B, Hkv, L, D]
        flat = query.reshape(batch, shape.num_kv_heads, group * num_rows, -1)
        scores = (flat @ keys.mT).view(batch, shape.num_kv_heads, group, num_rows, -1)
        scores = scores.masked_fill(~rows.reads[:, None, None], float("-inf"))
        more = [torch.einsum("bhgad,bahd->bhga", query, key)[..., None] for key, _ in own]
        weight = torch.cat((scores, *more), dim=-1).softmax(dim=-1)
        size = keys.shape[2]
        seen = weight[..., :size].reshape(batch, shape.num_kv_heads, group * num_rows, -1) @ values
        context = seen.view(batch, shape.num_kv_heads, group, num_rows, -1)
        for place, (_, value) in enumerate(own):
            context = context + torch.einsum("bhga,bahd->bhgad", weight[..., size + place], value)
        return context.permute(0, 3, 1, 2, 4).flatten(2)

    def _split(self, flat: Tensor) -> Tensor:
        """[B, N, h * D] as heads [B, N, h, D]."""
        return flat.view(flat.shape[0], flat.shape[1], -1, self.shape.head_dim)

    def _rotate(self, heads: Tensor, positions: Tensor) -> Tensor:
        """Rotary embedding of [B, N, h, D] at positions [N] or [B, N]."""
        angles = positions[..., None].float() * self._inv_freq
        cos, sin = angles.cos()[..., None, :], angles.sin()[..., None, :]
        rotated = 2 * self._inv_freq.shape[0]
        left, right = heads[..., :rotated].chunk(2, dim=-1)
        turned = torch.cat((left * cos - right * sin, right * cos + left * sin), dim=-1)
        return torch.cat((turned, heads[..., rotated:]), dim=-1)

    def _norm(self, x: Tensor, weight: Tensor) -> Tensor:
        normed: Tensor = functional.rms_norm(x, x.shape[-1:], weight, self.shape.rms_norm_eps)
        return normed

    def _linear(self, weights: Weights, name: str, x: Tensor) -> Tensor:
        result: Tensor = functional.linear(x, self._of(weights, name))
        return result

    def _of(self, weights: Weights, name: str) -> Tensor:
        return weights[f"{self._prefix}{name}.weight"]


def new_weights(
    method: str,
    config: Mapping[str, Any],
    prefix: str,
    last_layer: Mapping[str, Tensor],
    ends: tuple[Tensor, Tensor],
    generator: torch.Generator,
) -> Weights:
    """Weights to start from: MLP, norms and the last tap come from the target, where shapes allow.

    `last_layer`: the target's last decoder layer by the names within it; `ends`: its final norm [H] and the rows of its
    output layer that the head drafts [V_d, H].
    """
    shape = LayerConfig.read(config)
    hidden, inner = shape.hidden_size, shape.intermediate_size
    q_dim, kv_dim = shape.num_heads * shape.head_dim, shape.num_kv_heads * shape.head_dim
    norm, output = ends
    width = 2 * hidden if method == "eagle3" else hidden

    def random(rows: int, columns: int) -> Tensor:
        return torch.randn(rows, columns, generator=generator) / math.sqrt(columns)

    def copied(name: str, rows: int, columns: int) -> Tensor:
        own = last_layer.get(name)
        return own.float().clone() if own is not None and tuple(own.shape) == (rows, columns) else random(rows, columns)

    weights: Weights = {}
    for name, rows in (("q", q_dim), ("k", kv_dim), ("v", kv_dim)):
        key = f"self_attn.{name}_proj.weight"
        later = copied(key, rows, hidden)
        weights[f"{prefix}{key}"] = torch.cat((0.5 * random(rows, hidden), later), dim=1) if width > hidden else later
    weights[f"{prefix}self_attn.o_proj.weight"] = copied("self_attn.o_proj.weight", hidden, q_dim)
    for name, size in (("gate", (inner, hidden)), ("up", (inner, hidden)), ("down", (hidden, inner))):
        weights[f"{prefix}mlp.{name}_proj.weight"] = copied(f"mlp.{name}_proj.weight", *size)

    def norm_of(name: str) -> Tensor:
        own = last_layer.get(name)
        return own.float().clone() if own is not None and tuple(own.shape) == (hidden,) else torch.ones(hidden)

    weights[f"{prefix}post_attention_layernorm.weight"] = norm_of("post_attention_layernorm.weight")
    if method == "eagle3":
        taps = int(config["num_taps"])
        through = torch.cat((torch.zeros(hidden, (taps - 1) * hidden), torch.eye(hidden)), dim=1)
        weights["fc.weight"] = through + 0.02 * random(hidden, taps * hidden)
        weights[f"{prefix}input_layernorm.weight"] = torch.ones(hidden)
        weights[f"{prefix}hidden_norm.weight"] = norm_of("input_layernorm.weight")
        weights["norm.weight"] = norm.float().clone()
        weights["lm_head.weight"] = output.float().clone()
    else:
        weights[f"{prefix}enorm.weight"] = torch.ones(hidden)
        weights[f"{prefix}hnorm.weight"] = torch.ones(hidden)
        through = torch.cat((torch.zeros(hidden, hidden), torch.eye(hidden)), dim=1)
        weights[f"{prefix}eh_proj.weight"] = through + 0.2 * random(hidden, 2 * hidden)
        weights[f"{prefix}input_layernorm.weight"] = norm_of("input_layernorm.weight")
        weights[f"{prefix}shared_head.norm.weight"] = norm.float().clone()
    return weights
