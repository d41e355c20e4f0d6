"""The model that a head is trained for: what it computes on its own answers, and the weights a head begins with."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from decodex.config import resolve_device
from decodex.errors import ModelError
from decodex.heads import SharedParts
from decodex.kv_cache import KVCache
from decodex.models.interface import CausalLM
from decodex.models.invariance import flat_batch
from decodex.models.llama_config import LlamaConfig
from decodex.models.loader import load_model
from decodex.models.source import ModelFiles, resolve_model
from decodex.models.weights import WeightReader
from decodex.spec.train.states import Captured, Span

__all__ = ["Precision", "TrainingTarget"]

Precision = Literal["float32", "bfloat16"]

_BLOCK = 16
_CAPTURE_TOKENS = 512  # of one forward
_BFLOAT16_TOKENS = 4096  # of one forward, padding included
_LOGITS_ROWS = 256  # logits of so many tokens at a time


@dataclass(frozen=True)
class TrainingTarget:
    """A model, and what its heads learn from it."""

    files: ModelFiles
    model: CausalLM
    parts: SharedParts
    device: torch.device
    taps: tuple[int, ...]
    precision: Precision

    @staticmethod
    def load(name: str, device: str, precision: Precision) -> TrainingTarget:
        """Raises ModelError."""
        files, where = resolve_model(name), resolve_device(device)
        if not LlamaConfig.supports(files.config):
            raise ModelError(f"{files.name}: heads are trained for the Llama family, not for {files.architecture}")
        model = load_model(files, device=where)
        assert isinstance(model, SharedParts)
        layers = model.num_layers
        taps = (1, layers // 2 - 1, layers - 4) if layers >= 6 else (0, layers // 2, layers - 1)
        return TrainingTarget(files, model, model, where, taps, precision)

    @torch.inference_mode()
    def capture(self, spans: Sequence[Span]) -> list[Captured]:
        """Taps, hidden states and logits of whole sequences, several in one forward."""
        if self.precision == "bfloat16":
            return self._network.capture(spans, self.taps)
        results: list[Captured] = []
        start = 0
        while start < len(spans):
            end, tokens = start + 1, len(spans[start].token_ids)
            while end < len(spans) and tokens + len(spans[end].token_ids) <= _CAPTURE_TOKENS:
                tokens += len(spans[end].token_ids)
                end += 1
            results += self._forward([list(span.token_ids) for span in spans[start:end]])
            start = end
        return results

    @functools.cached_property
    def _network(self) -> _Bfloat16Network:
        return _Bfloat16Network(self.files, self.device)

    def _forward(self, sequences: list[list[int]]) -> list[Captured]:
        blocks = -(-max(map(len, sequences)) // _BLOCK)
        kv = KVCache(self.model.kv_spec, blocks * len(sequences), _BLOCK, self.device)
        spans = [(number, tokens, 0) for number, tokens in enumerate(sequences)]
        out = self.model.forward(flat_batch(spans, blocks, _BLOCK, self.device), kv, self.taps, True)
        assert out.hidden is not None
        states = torch.cat([*(out.taps[layer] for layer in self.taps), out.hidden], dim=-1).cpu()
        totals, tops = out.logits.logsumexp(dim=-1).cpu(), out.logits.argmax(dim=-1).cpu()
        results, start = [], 0
        for tokens in sequences:
            part = slice(start, start + len(tokens))
            start += len(tokens)
            results.append(Captured(states[part], totals[part], tops[part]))
        return results

    def embedding(self) -> Tensor:
        """[V, H] fp32."""
        with torch.inference_mode():
            ids = torch.arange(self.model.vocab_size, device=self.device)
            rows = torch.cat([self.parts.embed(part) for part in ids.tensor_split(16)])
        return rows.clone()

    def weights(self) -> tuple[dict[str, Tensor], Tensor, Tensor]:
        """The last layer by the names within it, the final norm [H], the output layer [V, H]."""
        reader = WeightReader(self.files.shards)
        prefix = f"model.layers.{self.model.num_layers - 1}."
        layer = {name.removeprefix(prefix): reader.take(name) for name in reader.names() if name.startswith(prefix)}
        output = "lm_head.weight" if "lm_head.weight" in reader else "model.embed_tokens.weight"
        return layer, reader.take("model.norm.weight"), reader.take(output)


class _Bfloat16Network:
    """transformers' own modules with products in bfloat16 and everything between them in fp32.

    Several times as fast as the engine's kernels on a GPU or a CPU that multiplies bfloat16 (AMX), and as exact as a
    head can notice.
    """

    def __init__(self, files: ModelFiles, device: torch.device) -> None:
        import transformers

        loaded: Any = transformers.AutoModelForCausalLM.from_pretrained(files.path, dtype=torch.float32)
        self._device = device
        self._output = loaded.get_output_embeddings().weight.detach().to(device, torch.bfloat16)
        self._body = loaded.get_decoder().to(device).eval()
        for module in self._body.modules():
            if isinstance(module, torch.nn.Linear):
                module.weight = torch.nn.Parameter(module.weight.detach().bfloat16(), requires_grad=False)

    def capture(self, spans: Sequence[Span], taps: Sequence[int]) -> list[Captured]:
        """As TrainingTarget.capture."""
        order = sorted(range(len(spans)), key=lambda index: len(spans[index].token_ids))
        results: dict[int, Captured] = {}
        while order:
            longest = len(spans[order[-1]].token_ids)
            chosen = [order.pop() for _ in range(min(len(order), max(1, _BFLOAT16_TOKENS // longest)))]
            ids = torch.zeros(len(chosen), longest, dtype=torch.int64)
            for row, index in enumerate(chosen):
                tokens = spans[index].token_ids
                ids[row, : len(tokens)] = torch.tensor(tokens)
            with torch.autocast(self._device.type, torch.bfloat16):
                # causal: what pads the end changes nothing before it
                last, tapped = self._run(ids.to(self._device), taps)
            for row, index in enumerate(chosen):
                part = slice(0, len(spans[index].token_ids))
                hidden = last[row, part].float()
                states = torch.cat([*(tapped[tap][row, part].float() for tap in taps), hidden], dim=-1)
                results[index] = Captured(states.cpu(), *self._outcome(hidden))
        return [results[index] for index in range(len(spans))]

    def _run(self, token_ids: Tensor, taps: Sequence[int]) -> tuple[Tensor, dict[int, Tensor]]:
        """Of token ids [B, T]: hidden states after the final norm and outputs of the layers `taps`, [B, T, H] each."""
        found: dict[int, Tensor] = {}

        def keep(tap: int) -> Callable[[Any, Any, Tensor], None]:
            return lambda module, inputs, output: found.__setitem__(tap, output)

        hooks = [self._body.layers[tap].register_forward_hook(keep(tap)) for tap in taps]
        try:
            last = self._body(token_ids, use_cache=False).last_hidden_state
        finally:
            for hook in hooks:
                hook.remove()
        return last, found

    def _outcome(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """Of hidden states [T, H]: logsumexp of the logits and their argmax, [T]."""
        totals, tops = [], []
        for rows in torch.split(hidden.bfloat16(), _LOGITS_ROWS):
            logits = (rows @ self._output.T).float()
            totals.append(logits.logsumexp(dim=-1).cpu())
            tops.append(logits.argmax(dim=-1).cpu())
        return torch.cat(totals), torch.cat(tops)
