"""The decoder layer of draft heads (Llama's, with what the layouts vary) over paged KV, and its rotary angles."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from decodex.kernels import backend
from decodex.kernels.activation import silu_mul
from decodex.kernels.attention import RowContexts, paged_attention
from decodex.kernels.layer import FusedLayer, LayerParts, Piece, fuse_layer
from decodex.kernels.linear import PackedLinear
from decodex.kernels.norm import rms_norm
from decodex.kernels.rope import rope_and_store_
from decodex.spec.head_weights import HeadError, HeadWeights, read_count
from decodex.spec.target import KVLayer

__all__ = ["DecoderLayer", "Entries", "LayerConfig", "Rotary"]

_ANGLE_BLOCK = 1024  # positions computed at a time
_FEW = 32  # rows that are worth a call of their own kind: of more the products take nearly all the time
_FEW_WANTED = 6  # the same where some only write: what they compute for nothing costs little beside the weights


@dataclass(frozen=True)
class Entries:
    """R KV entries that a forward writes, and what their rows read."""

    positions: Tensor  # [R] int32
    slots: Tensor  # [R] int64
    rows: RowContexts  # of the R rows
    num_positions: int  # above the largest position
    wanted: Tensor | None = None  # [W] int64, rows whose output is wanted; None: all
    wanted_rows: RowContexts | None = None  # of these rows

    def of_all(self) -> Entries:
        """The same entries with the output of every row wanted."""
        return self if self.wanted is None else replace(self, wanted=None, wanted_rows=None)


@dataclass(frozen=True)
class LayerConfig:
    """A layer by its numbers."""

    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_norm_eps: float
    window: int  # 0: full attention

    @property
    def kv_layer(self) -> KVLayer:
        """Its shape in the KV cache."""
        return (self.num_kv_heads, self.head_dim, self.head_dim)

    @staticmethod
    def read(config: Mapping[str, Any], layer: int = 0) -> LayerConfig:
        """From config.json; HeadError names a field that is missing or out of range."""
        if config.get("hidden_act", "silu") not in ("silu", "swish"):
            raise HeadError(f"config.json: field hidden_act is {config['hidden_act']!r}, expected 'silu'")
        heads, hidden = read_count(config, "num_attention_heads"), read_count(config, "hidden_size")
        kv_heads = read_count(config, "num_key_value_heads", heads)
        head_dim = read_count(config, "head_dim", hidden // heads)
        if heads % kv_heads:
            raise HeadError(f"config.json: num_attention_heads {heads} is no multiple of the {kv_heads} KV heads")
        kinds = config.get("layer_types") or ["full_attention"]
        if not isinstance(kinds, Sequence):
            raise HeadError(f"config.json: field layer_types is {kinds!r}, expected a list")
        is_sliding = kinds[min(layer, len(kinds) - 1)] == "sliding_attention"
        return LayerConfig(
            hidden_size=hidden,
            intermediate_size=read_count(config, "intermediate_size"),
            num_heads=heads,
            num_kv_heads=kv_heads,
            head_dim=head_dim,
            rms_norm_eps=_epsilon(config),
            window=read_count(config, "sliding_window") if is_sliding else 0,
        )


def _epsilon(config: Mapping[str, Any]) -> float:
    value = config.get("rms_norm_eps") or 1e-6
    if not isinstance(value, (int, float)) or not 0 < value < 1:
        raise HeadError(f"config.json: field rms_norm_eps is {value!r}, expected a number between 0 and 1")
    return float(value)


class Rotary:
    """cos and sin of positions, computed as far as they were asked for."""

    def __init__(self, frequencies: Tensor, device: torch.device) -> None:
        """`frequencies`: angle per position of each rotated pair, [R/2] fp32."""
        self._frequencies = frequencies
        self._held = torch.empty(0, 2 * frequencies.shape[0], device=device)

    def table(self, num_positions: int) -> Tensor:
        """[P, R] fp32 (cos, then sin) with P at least `num_positions`."""
        held = self._held.shape[0]
        if held < num_positions:
            last = -(-num_positions // _ANGLE_BLOCK) * _ANGLE_BLOCK
            angles = torch.arange(held, last).float()[:, None] * self._frequencies
            more = torch.cat((angles.cos(), angles.sin()), dim=-1).to(self._held.device)
            self._held = torch.cat((self._held, more))
        return self._held


class DecoderLayer:
    """stream += attention(input); stream += MLP(norm(stream)). The caller makes the attention's input."""

    def __init__(
        self,
        weights: HeadWeights,
        prefix: str,
        config: LayerConfig,
        in_features: int | None = None,
        norm_offset: float = 0.0,
    ) -> None:
        """Take the layer `prefix`. Biases, q and k norms and an output gate (q_proj of twice the height: per head the
        query, then the gate) are where the checkpoint has them; `norm_offset` is added to every norm's weight."""
        attn, mlp, inner = f"{prefix}self_attn.", f"{prefix}mlp.", config.intermediate_size
        hidden, dim = config.hidden_size, config.head_dim
        width = in_features or hidden
        q_dim, kv_dim = config.num_heads * dim, config.num_kv_heads * dim
        self._config, self._q_dim, self._scale = config, q_dim, dim**-0.5
        self._gate: PackedLinear | None = None
        if weights.shape(f"{attn}q_proj.weight") == (2 * q_dim, width):
            both = weights.take_weight(f"{attn}q_proj.weight", (2 * q_dim, width)).view(config.num_heads, 2, dim, width)
            keys = [weights.take_weight(f"{attn}{name}_proj.weight", (kv_dim, width)) for name in "kv"]
            self._qkv = weights.pack(torch.cat([both[:, 0].reshape(q_dim, width), *keys]))
            self._gate = weights.pack(both[:, 1].reshape(q_dim, width))
        else:
            self._qkv = weights.linear([f"{attn}{name}_proj" for name in "qkv"], [q_dim, kv_dim, kv_dim], width)
        self._kv = weights.linear([f"{attn}{name}_proj" for name in "kv"], [kv_dim, kv_dim], width)
        norms = [f"{attn}{name}_norm.weight" for name in "qk"]
        has_norms = any(name in weights for name in norms)
        self._q_norm, self._k_norm = ((weights.vector(name, dim, norm_offset) if has_norms else None) for name in norms)
        self._out = weights.linear([f"{attn}o_proj"], [hidden], q_dim)
        self._post_norm = weights.vector(f"{prefix}post_attention_layernorm.weight", hidden, norm_offset)
        self._gate_up = weights.linear([f"{mlp}gate_proj", f"{mlp}up_proj"], [inner, inner], hidden)
        self._down = weights.linear([f"{mlp}down_proj"], [hidden], inner)
        self._final_norm: Tensor | None = None
        self._head: Callable[[Tensor], Tensor] | None = None
        self._fused = self._fuse()

    def end_with(self, final_norm: Tensor, head: Callable[[Tensor], Tensor]) -> None:
        """What `whole` does behind the layer: a norm [H] and the output layer."""
        self._final_norm, self._head = final_norm, head
        self._fused = self._fuse()

    def _fuse(self) -> FusedLayer | None:
        config = self._config
        parts = LayerParts(
            *(self._qkv, self._out, self._gate_up, self._down, self._post_norm, self._q_norm, self._k_norm),
            *(config.num_heads, config.num_kv_heads, config.head_dim, config.rms_norm_eps, config.window),
        )
        if isinstance(self._head, PackedLinear):
            parts = replace(parts, final_norm=self._final_norm, head=self._head)
        return fuse_layer(parts) if self._gate is None else None

    def whole(
        self, stream: Tensor, pieces: Sequence[Piece], entries: Entries, cos_sin: Tensor, k: Tensor, v: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The stream after the layer, its final norm and the logits, of wanted rows; the attention's input is `pieces`
        side by side, each through its norm."""
        assert self._head is not None, "a layer without an end"
        assert self._final_norm is not None, "a layer without an end"
        wanted, fused = entries.wanted, self._fused
        if wanted is not None and not len(wanted):
            self._write(self._attn_input(pieces), entries, cos_sin, k, v)
            return stream[:0], stream[:0], self._head(stream[:0])
        if fused is not None and self._is_few(stream, entries):
            end = fused(stream, pieces, entries.positions, entries.slots, entries.rows, cos_sin, k, v)
            if end is not None:
                normed, logits = end
                if wanted is None:
                    return stream, normed, logits
                return stream.index_select(0, wanted), normed.index_select(0, wanted), logits.index_select(0, wanted)
            stream = stream if wanted is None else stream.index_select(0, wanted)
        else:
            stream = self(stream, self._attn_input(pieces), entries, cos_sin, k, v)
        normed = rms_norm(stream, self._final_norm, self._config.rms_norm_eps)
        return stream, normed, self._head(normed)

    def _attn_input(self, pieces: Sequence[Piece]) -> Tensor:
        eps = self._config.rms_norm_eps
        normed = [x if norm is None else rms_norm(x, norm, eps) for x, norm in pieces]
        return torch.cat(normed, dim=1) if len(normed) > 1 else normed[0]

    def _write(self, attn_input: Tensor, entries: Entries, cos_sin: Tensor, k: Tensor, v: Tensor) -> None:
        """The entries' keys and values alone."""
        norms = (None, self._k_norm, self._config.rms_norm_eps)
        rope_and_store_(self._kv(attn_input), entries.positions, cos_sin, entries.slots, k, v, *norms)

    @staticmethod
    def _is_few(stream: Tensor, entries: Entries) -> bool:
        limit = _FEW if entries.wanted is None else _FEW_WANTED
        return stream.shape[0] <= limit and backend.library is not None

    def __call__(
        self, stream: Tensor, attn_input: Tensor, entries: Entries, cos_sin: Tensor, k: Tensor, v: Tensor
    ) -> Tensor:
        """The stream after the layer: in place, or [W, H] where entries.wanted leaves rows out (these only write)."""
        config, rows = self._config, entries.rows
        if self._fused is not None and self._head is None and self._is_few(stream, entries):
            self._fused(stream, [(attn_input, None)], entries.positions, entries.slots, rows, cos_sin, k, v)
            return stream if entries.wanted is None else stream.index_select(0, entries.wanted)
        qkv = self._qkv(attn_input)
        norms = (self._q_norm, self._k_norm, config.rms_norm_eps)
        rope_and_store_(qkv, entries.positions, cos_sin, entries.slots, k, v, *norms)
        query = qkv[:, : self._q_dim]
        if entries.wanted is not None:
            assert entries.wanted_rows is not None, "rows are wanted without their contexts"
            query, stream, attn_input = (t.index_select(0, entries.wanted) for t in (query, stream, attn_input))
            rows = entries.wanted_rows
        query = query.view(-1, config.num_heads, config.head_dim)
        context = paged_attention(query, k, v, rows, self._scale, config.window).flatten(1)
        if self._gate is not None:
            context *= self._gate(attn_input).sigmoid_()
        self._out(context, None, stream)
        gate_up = self._gate_up(rms_norm(stream, self._post_norm, config.rms_norm_eps))
        self._down(silu_mul(gate_up), None, stream)
        return stream
