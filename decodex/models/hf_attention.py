"""Our paged attention as an attention implementation of transformers, and its experts over packed weights.

transformers looks both up by name; the step that a call belongs to travels in a context variable, because not every
architecture passes keyword arguments down to its attention.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from decodex.errors import ModelError
from decodex.kernels.attention import paged_attention
from decodex.kernels.linear import PackedLinear
from decodex.kv_cache import KVCache, LayerKV
from decodex.models.interface import ForwardBatch

__all__ = ["IMPLEMENTATION", "AttentionCall", "Experts", "Step", "current_step", "register"]

IMPLEMENTATION = "decodex"
# tensors that attention modules are handed and that change nothing in our attention
_HARMLESS = frozenset({"position_ids", "cache_position", "position_embeddings", "cu_seq_lens_q", "cu_seq_lens_k"})


@dataclass(frozen=True)
class AttentionCall:
    """What one layer asked for, recorded by the probe."""

    kv: LayerKV
    window: int | None  # None: the layer passed no window


@dataclass
class Step:
    """One forward: where keys go and come from. Without a cache it is the probe, which records and returns zeros."""

    batch: ForwardBatch | None
    kv: KVCache | None
    windows: tuple[int, ...]  # per layer
    experts: dict[int, Experts]  # id of the experts module -> packed weights
    layer: int = 0  # attention calls so far
    probed: list[AttentionCall] = field(default_factory=list)


@dataclass(frozen=True)
class Experts:
    """The packed projections of one mixture-of-experts layer, by expert."""

    up: list[PackedLinear]  # gate and up together where the experts are gated
    down: list[PackedLinear]


current_step: ContextVar[Step] = ContextVar("decodex_step")


def register() -> None:
    """Make the implementation name known to transformers (again is harmless)."""
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    ALL_ATTENTION_FUNCTIONS.register(IMPLEMENTATION, attention)
    try:
        from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS
    except ImportError:  # releases before the experts interface run their experts through F.linear
        return
    ALL_EXPERTS_FUNCTIONS.register(IMPLEMENTATION, experts)


def attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None = None,
    scaling: float | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """query [1,Hq,T,Dk], key [1,Hkv,T,Dk], value [1,Hkv,T,Dv] -> [1,T,Hq,Dv], through the current step's cache."""
    step = current_step.get()
    layer = step.layer
    step.layer += 1
    num_tokens, num_heads, v_dim = query.shape[2], query.shape[1], value.shape[-1]
    if step.kv is None or step.batch is None:
        _refuse_unknown(module, attention_mask, options)
        window = options.get("sliding_window")
        kv = LayerKV(key.shape[1], key.shape[3], v_dim)
        step.probed.append(AttentionCall(kv, None if window is None else int(window)))
        return query.new_zeros(1, num_tokens, num_heads, v_dim), None
    k_cache, v_cache = step.kv.k[layer], step.kv.v[layer]
    k_cache.index_copy_(0, step.batch.slot_mapping, key[0].transpose(0, 1))
    v_cache.index_copy_(0, step.batch.slot_mapping, value[0].transpose(0, 1))
    sinks = options.get("s_aux")
    out = paged_attention(
        query[0].transpose(0, 1).contiguous(),
        k_cache,
        v_cache,
        step.batch.rows,
        query.shape[-1] ** -0.5 if scaling is None else float(scaling),
        step.windows[layer],
        float(options.get("softcap") or 0.0),
        None if sinks is None else sinks.float().contiguous(),
    )
    return out[None], None


def experts(module: Any, hidden: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
    """hidden [T,H], top_k_index and top_k_weights [T,k] -> [T,H]; each row adds its experts in ascending order."""
    packed = current_step.get().experts[id(module)]
    out = torch.zeros_like(hidden)
    activation: Callable[[Tensor], Tensor] = getattr(module, "_apply_gate" if module.has_gate else "act_fn")
    for expert in sorted(set(top_k_index.flatten().tolist())):
        rows, place = torch.where(top_k_index == expert)
        inner = activation(packed.up[expert](hidden[rows]))
        outer = packed.down[expert](inner)
        if getattr(module, "has_post_expert_norm", False):
            outer = module.post_expert_norm(outer)
        out[rows] += outer * top_k_weights[rows, place, None]
    return out


def _refuse_unknown(module: nn.Module, mask: Tensor | None, options: dict[str, Any]) -> None:
    name = type(module).__name__
    if mask is not None:
        raise ModelError(f"{name} needs an attention mask of its own, which paged attention does not have")
    if options.get("is_causal") is False or getattr(module, "is_causal", True) is False:
        raise ModelError(f"{name} is not causal attention")
    for key, value in options.items():
        if isinstance(value, Tensor) and key not in _HARMLESS | {"s_aux"}:
            raise ModelError(f"{name} passes {key!r} to its attention, which paged attention does not know")
