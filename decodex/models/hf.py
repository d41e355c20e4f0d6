"""The generic path: any causal LM of transformers whose attention goes through its attention interface.

transformers builds the modules and its code runs unchanged; packed weights, row-invariant functions and the paged
cache are put under it (row_invariant.py, hf_attention.py). What can't work that way is refused at load by name.
"""

from __future__ import annotations

import inspect
import logging
from typing import Any

import torch
from torch import Tensor, nn

from decodex.errors import ModelError
from decodex.kv_cache import KVCache
from decodex.models.hf_attention import IMPLEMENTATION, AttentionCall, Experts, Step, current_step, register
from decodex.models.hf_build import build_transformers_model, find_decoder_layers, pack_experts, pack_modules
from decodex.models.interface import ForwardBatch, ForwardOutput
from decodex.models.invariance import is_row_invariant
from decodex.models.llama import Packing
from decodex.models.row_invariant import PackedWeights, RowInvariant
from decodex.models.source import ModelFiles
from decodex.models.weights import WeightReader

__all__ = ["TransformersModel", "load_transformers_model"]

_LAYER_TYPES = {"full_attention", "sliding_attention"}
_log = logging.getLogger(__name__)


def load_transformers_model(files: ModelFiles, packing: Packing) -> TransformersModel:
    """Build, pack, probe and check the model in `files`; ModelError names the architecture when it can't run."""
    digest = WeightReader(files.shards).digest()  # also finds damaged files before anything is built
    register()
    network = build_transformers_model(files, packing, IMPLEMENTATION)
    try:
        model = TransformersModel(files, network, packing, digest)
        model.replayable = is_row_invariant(model, packing.device)
    except ModelError as error:
        raise ModelError(f"{files.architecture} can't run here: {error}") from error
    except (RuntimeError, TypeError, ValueError, AttributeError, KeyError, IndexError) as error:
        raise ModelError(f"{files.architecture} can't run here: {type(error).__name__}: {error}") from error
    if not model.replayable:
        _log.warning("%s: a row depends on its batch, so seeded outputs are not replayable", files.architecture)
    return model


class TransformersModel:
    """A `CausalLM`. Not to be used from two threads at once."""

    replayable = False

    def __init__(self, files: ModelFiles, network: Any, packing: Packing, digest: str) -> None:
        """Pack the weights of `network` in place and learn from a probe what each layer caches."""
        config = network.config.get_text_config()
        self.name = files.name
        self.weights_digest = digest
        self.vocab_size, self.hidden_size = int(config.vocab_size), int(config.hidden_size)
        self.num_layers = int(config.num_hidden_layers)
        self.max_position = _max_position(config)
        self._network = network
        self._device = packing.device
        self._packed = PackedWeights(packing.head)  # routers keep their precision under int8
        head = network.get_output_embeddings()
        self._experts: dict[int, Experts] = pack_experts(network, packing)
        pack_modules(network, self._packed, head, packing)
        self._head: nn.Module = head
        self._layers = find_decoder_layers(network, self.num_layers)
        self._keeps_rows = "logits_to_keep" in inspect.signature(network.forward).parameters
        self._windows: tuple[int, ...] = ()
        calls = self._probe()
        self.kv_spec = [call.kv for call in calls]
        self._windows = _windows(config, calls)
        held = {id(t): t for t in (*network.parameters(), *network.buffers())}
        packed_experts = sum(p.nbytes for e in self._experts.values() for p in (*e.up, *e.down))
        self.weight_nbytes = self._packed.nbytes + packed_experts + sum(_nbytes(t) for t in held.values())

    @torch.inference_mode()
    def forward(
        self, batch: ForwardBatch, kv: KVCache, taps: tuple[int, ...] = (), wants_hidden: bool = False
    ) -> ForwardOutput:
        """See CausalLM."""
        step = Step(batch, kv, self._windows, self._experts)
        kept: dict[int, Tensor] = {}
        hidden: list[Tensor] = []
        hooks = []
        if wants_hidden:
            hooks.append(self._head.register_forward_pre_hook(lambda _, args: hidden.append(args[0])))
        for tap in taps:
            hooks.append(self._layers[tap].register_forward_hook(_keep(kept, tap)))
        try:
            rows = torch.arange(len(batch.token_ids), device=self._device) if wants_hidden else batch.logits_rows
            logits = self._run(step, batch.token_ids, batch.positions, rows)
        finally:
            for hook in hooks:
                hook.remove()
        if wants_hidden:
            return ForwardOutput(logits.index_select(0, batch.logits_rows), hidden[0][0].clone(), kept)
        return ForwardOutput(logits, None, kept)

    def _run(self, step: Step, token_ids: Tensor, positions: Tensor, logits_rows: Tensor) -> Tensor:
        options: dict[str, Any] = {"logits_to_keep": logits_rows} if self._keeps_rows else {}
        token = current_step.set(step)
        try:
            with RowInvariant(self._packed):
                out = self._network(
                    input_ids=token_ids[None], position_ids=positions.long()[None], use_cache=False, **options
                )
        finally:
            current_step.reset(token)
        logits: Tensor = out.logits[0]
        return (logits if self._keeps_rows else logits.index_select(0, logits_rows)).float()

    @torch.inference_mode()
    def _probe(self) -> list[AttentionCall]:
        """One token without a cache: what each layer's attention is called with."""
        step = Step(None, None, (), self._experts)
        first = torch.zeros(1, dtype=torch.int64, device=self._device)
        self._run(step, first, first, first)
        if len(step.probed) != self.num_layers:
            raise ModelError(
                f"attention was called {len(step.probed)} times for {self.num_layers} layers: this architecture does "
                "not (only) use transformers' attention interface"
            )
        return step.probed


def _keep(kept: dict[int, Tensor], tap: int) -> Any:
    def hook(_module: nn.Module, _args: Any, output: Any) -> None:
        kept[tap] = (output[0] if isinstance(output, tuple) else output)[0].clone()

    return hook


def _max_position(config: Any) -> int:
    limit = getattr(config, "max_position_embeddings", None)
    if not isinstance(limit, int) or limit < 1:
        raise ModelError(f"config.json: field max_position_embeddings is {limit!r}, expected a whole number above 0")
    rope = getattr(config, "rope_parameters", None) or {}
    for part in (rope, *(value for value in rope.values() if isinstance(value, dict))):
        if part.get("rope_type") == "longrope":
            original = part.get("original_max_position_embeddings") or limit
            if original < limit:
                _log.warning("longrope: positions are limited to %d, where its factors don't change", original)
                limit = int(original)
    return limit


def _windows(config: Any, calls: list[AttentionCall]) -> tuple[int, ...]:
    kinds = getattr(config, "layer_types", None)
    if kinds is None:
        return tuple(call.window or 0 for call in calls)
    unknown = sorted(set(kinds) - _LAYER_TYPES)
    if unknown:
        raise ModelError(f"layers of type {unknown[0]!r} are not supported")
    configured = int(getattr(config, "sliding_window", None) or 0)
    return tuple((call.window or configured) if kind == "sliding_attention" else 0 for kind, call in zip(kinds, calls))


def _nbytes(tensor: Tensor) -> int:
    return 4 if not tensor.is_contiguous() and tensor.numel() else tensor.numel() * tensor.element_size()
