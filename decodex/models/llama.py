"""The lean decoder: the Llama family as nine kernel calls a layer over packed weights and the paged cache."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from decodex.errors import ModelError
from decodex.kernels.activation import silu_mul
from decodex.kernels.attention import paged_attention
from decodex.kernels.linear import PackedLinear, pack_linear
from decodex.kernels.norm import rms_norm
from decodex.kernels.rope import rope_and_store_
from decodex.kv_cache import KVCache, LayerKV
from decodex.models.interface import ForwardBatch, ForwardOutput
from decodex.models.llama_config import LlamaConfig, rope_frequencies
from decodex.models.weights import WeightReader

__all__ = ["LlamaModel", "Packing"]

_ANGLE_BLOCK = 1024  # positions computed at a time, so that a value never depends on how many are held
_EAGER_POSITIONS = 32768  # models with fewer positions hold all angles from the start


@dataclass(frozen=True)
class Packing:
    """How weights are held: `dtype` None keeps the checkpoint's; `is_int8` packs all layers but the head so."""

    dtype: torch.dtype | None
    is_int8: bool
    device: torch.device

    def linear(self, weights: list[Tensor], biases: list[Tensor] | None = None) -> PackedLinear:
        """One packed layer of the given weights [N_i, K] stacked by rows."""
        weight = self.place(torch.cat(weights) if len(weights) > 1 else weights[0])
        bias = None if biases is None else torch.cat(biases).to(self.device)
        return pack_linear(weight, bias, "int8" if self.is_int8 else "auto")

    def head(self, weight: Tensor, bias: Tensor | None = None) -> PackedLinear:
        """The output layer [V, H]; stays in 16 or 32 bits under int8 since a tied one is the embedding too."""
        return pack_linear(self.place(weight), bias)

    def place(self, weight: Tensor) -> Tensor:
        """On the device, in the dtype that is held."""
        return weight.to(self.device, self.dtype or weight.dtype)

    def vector(self, weight: Tensor) -> Tensor:
        """Norm weights are fp32 everywhere."""
        return weight.to(self.device, torch.float32)


@dataclass(frozen=True, slots=True)
class _Layer:
    input_norm: Tensor  # [H] fp32
    qkv: PackedLinear
    q_norm: Tensor | None  # [D] fp32
    k_norm: Tensor | None  # [D] fp32
    out: PackedLinear
    post_norm: Tensor  # [H] fp32
    gate_up: PackedLinear
    down: PackedLinear
    window: int  # 0 = full attention


class LlamaModel:
    """A `CausalLM`. Row-invariant on a CPU because each kernel is; not to be used from two threads at once."""

    def __init__(self, name: str, config: LlamaConfig, weights: WeightReader, packing: Packing) -> None:
        """Pack the weights tensor by tensor; ModelError names a missing, misshapen or unknown one."""
        self.name = name
        self.config = config
        self.vocab_size, self.hidden_size = config.vocab_size, config.hidden_size
        self.num_layers, self.max_position = config.num_layers, config.max_position
        self.kv_spec = [LayerKV(config.num_kv_heads, config.head_dim, config.head_dim)] * config.num_layers
        self._device = packing.device
        self.replayable = packing.device.type == "cpu"  # products of other devices depend on the number of rows
        self._scale = config.head_dim**-0.5
        reader = _Tensors(weights, config, packing)
        self._layers = [reader.layer(index) for index in range(config.num_layers)]
        self._norm, self._embed, self._head = reader.ends()
        reader.refuse_untaken()
        self.weights_digest = weights.digest()
        self.weight_nbytes = reader.nbytes
        self._inv_freq = rope_frequencies(config)
        self._cos_sin = torch.empty(0, config.head_dim)  # [P, D] fp32, cos then sin
        if config.max_position <= _EAGER_POSITIONS:
            self._hold_angles(config.max_position)
        self._scratch = _Scratch(config, packing.device)

    @torch.inference_mode()
    def forward(
        self, batch: ForwardBatch, kv: KVCache, taps: tuple[int, ...] = (), wants_hidden: bool = False
    ) -> ForwardOutput:
        """See CausalLM."""
        config, eps, scale = self.config, self.config.rms_norm_eps, self._scale
        rows, positions, slots = batch.rows, batch.positions, batch.slot_mapping
        num_tokens = batch.token_ids.shape[0]
        if self._cos_sin.shape[0] < config.max_position:
            self._hold_angles(int(positions.max()) + 1)
        cos_sin = self._cos_sin
        normed, qkv, context, gate_up, act = self._scratch.take(num_tokens)
        query = qkv[:, : config.num_heads * config.head_dim].view(num_tokens, config.num_heads, config.head_dim)
        heads_out = context.view(num_tokens, config.num_heads, config.head_dim)
        kept: dict[int, Tensor] = {}
        stream = self._embed(batch.token_ids)
        for index, layer in enumerate(self._layers):
            k, v = kv.k[index], kv.v[index]
            layer.qkv(rms_norm(stream, layer.input_norm, eps, normed), qkv)
            rope_and_store_(qkv, positions, cos_sin, slots, k, v, layer.q_norm, layer.k_norm, eps)
            paged_attention(query, k, v, rows, scale, layer.window, out=heads_out)
            layer.out(context, None, stream)
            layer.gate_up(rms_norm(stream, layer.post_norm, eps, normed), gate_up)
            layer.down(silu_mul(gate_up, act), None, stream)
            if index in taps:
                kept[index] = stream.clone()
        wanted = batch.logits_rows
        last = stream if wanted.shape[0] == num_tokens == 1 else stream.index_select(0, wanted)
        logits = self._head(rms_norm(last, self._norm, eps))
        return ForwardOutput(logits, rms_norm(stream, self._norm, eps) if wants_hidden else None, kept)

    def embed(self, token_ids: Tensor) -> Tensor:
        """Embeddings [T, H] fp32 of [T] int64, as the first layer gets them."""
        return self._embed(token_ids)

    def head(self, hidden: Tensor) -> Tensor:
        """Logits [T, V] fp32 of [T, H] fp32 hidden states after the final norm."""
        return self._head(hidden)

    def _hold_angles(self, num_positions: int) -> None:
        """Have cos and sin for at least `num_positions` (fp32, as transformers computes them)."""
        held = self._cos_sin.shape[0]
        blocks = [self._cos_sin]
        while held < num_positions:
            positions = torch.arange(held, held + _ANGLE_BLOCK).float()
            angles = positions[:, None] * self._inv_freq
            blocks.append(torch.cat((angles.cos(), angles.sin()), dim=-1).to(self._device))
            held += _ANGLE_BLOCK
        if len(blocks) > 1:
            self._cos_sin = torch.cat([b.to(self._device) for b in blocks])


class _Scratch:
    """Activations of one layer, reused by all layers and by later steps of at most as many rows."""

    def __init__(self, config: LlamaConfig, device: torch.device) -> None:
        q_dim, kv_dim = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
        inner = config.intermediate_size
        self._widths = (config.hidden_size, q_dim + 2 * kv_dim, q_dim, 2 * inner, inner)
        self._device = device
        self._held: tuple[Tensor, ...] = ()
        self._views: tuple[Tensor, ...] = ()

    def take(self, num_tokens: int) -> tuple[Tensor, ...]:
        """normed [T,H], qkv [T,(Hq+2Hkv)D], context [T,Hq*D], gate_up [T,2I], act [T,I]; contents undefined."""
        if self._views and self._views[0].shape[0] == num_tokens:
            return self._views
        if not self._held or self._held[0].shape[0] < num_tokens:
            self._held = tuple(torch.empty(num_tokens, width, device=self._device) for width in self._widths)
        self._views = tuple(buffer[:num_tokens] for buffer in self._held)
        return self._views


class _Tensors:
    """Takes the checkpoint's tensors by the family's names and packs them."""

    def __init__(self, weights: WeightReader, config: LlamaConfig, packing: Packing) -> None:
        self._weights, self._config, self._packing = weights, config, packing
        self._prefix = "" if "embed_tokens.weight" in weights else "model."
        self.nbytes = 0

    def layer(self, index: int) -> _Layer:
        c, prefix = self._config, f"{self._prefix}layers.{index}."
        q_dim, kv_dim, inner = c.num_heads * c.head_dim, c.num_kv_heads * c.head_dim, c.intermediate_size
        attn, mlp = f"{prefix}self_attn.", f"{prefix}mlp."
        qkv = ([f"{attn}{n}_proj" for n in "qkv"], [q_dim, kv_dim, kv_dim])
        return _Layer(
            input_norm=self._vector(f"{prefix}input_layernorm.weight", c.hidden_size),
            qkv=self._linear(*qkv, c.hidden_size, c.has_qkv_bias),
            q_norm=self._vector(f"{attn}q_norm.weight", c.head_dim) if c.has_qk_norm else None,
            k_norm=self._vector(f"{attn}k_norm.weight", c.head_dim) if c.has_qk_norm else None,
            out=self._linear([f"{attn}o_proj"], [c.hidden_size], q_dim, c.has_o_bias),
            post_norm=self._vector(f"{prefix}post_attention_layernorm.weight", c.hidden_size),
            gate_up=self._linear([f"{mlp}gate_proj", f"{mlp}up_proj"], [inner, inner], c.hidden_size, c.has_mlp_bias),
            down=self._linear([f"{mlp}down_proj"], [c.hidden_size], inner, c.has_mlp_bias),
            window=c.windows[index],
        )

    def ends(self) -> tuple[Tensor, Callable[[Tensor], Tensor], PackedLinear]:
        """Final norm, embedding look-up, head. A tied head is the only copy of the embedding."""
        c = self._config
        norm = self._vector(f"{self._prefix}norm.weight", c.hidden_size)
        table = self._weights.take(f"{self._prefix}embed_tokens.weight", (c.vocab_size, c.hidden_size))
        if c.has_tied_head:
            head = self._packing.head(table)
            self.nbytes += head.nbytes
            return norm, head.rows, head
        held = self._packing.place(table)
        head = self._packing.head(self._weights.take("lm_head.weight", (c.vocab_size, c.hidden_size)))
        self.nbytes += head.nbytes + held.numel() * held.element_size()
        return norm, lambda ids: held.index_select(0, ids).float(), head

    def refuse_untaken(self) -> None:
        """A tensor that nothing reads means that this decoder is not the model that was trained."""
        ignored = ("rotary_emb.inv_freq", "lm_head.weight") if self._config.has_tied_head else ("rotary_emb.inv_freq",)
        # modules that predict further tokens: decodex/heads.py reads them
        drafters = (f"model.layers.{self._config.num_layers}.", "model.mtp_layers.", "mtp.")
        unknown = [n for n in self._weights.untaken() if not n.endswith(ignored) and not n.startswith(drafters)]
        if unknown:
            raise ModelError(
                f"{self._config.architecture}: tensor {unknown[0]!r} of the checkpoint has no place in this "
                f"architecture ({len(unknown)} such tensors)"
            )

    def _vector(self, name: str, size: int) -> Tensor:
        vector = self._packing.vector(self._weights.take(name, (size,)))
        self.nbytes += 4 * size
        return vector

    def _linear(self, names: list[str], sizes: list[int], in_features: int, has_bias: bool) -> PackedLinear:
        weights = [self._weights.take(f"{n}.weight", (size, in_features)) for n, size in zip(names, sizes)]
        biases = [self._weights.take(f"{n}.bias", (size,)) for n, size in zip(names, sizes)] if has_bias else None
        packed = self._packing.linear(weights, biases)
        self.nbytes += packed.nbytes
        return packed
