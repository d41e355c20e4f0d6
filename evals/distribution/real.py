"""SmolLM2 for first tokens only: the prompt is computed once, its row of logits answers for every later seed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from decodex.config import EngineConfig
from decodex.engine import Engine
from decodex.kv_cache import KVCache
from decodex.models.interface import CausalLM, ForwardBatch, ForwardOutput
from decodex.models.loader import load_model
from decodex.models.source import resolve_model
from decodex.tokenizer import Tokenizer

__all__ = ["FirstTokens", "RealModel", "as_float64"]


class FirstTokens:
    """A model that computes the row after a prompt of `length` tokens once (`is_kept`), or every time."""

    def __init__(self, model: CausalLM, length: int) -> None:
        self._model = model
        self._length = length
        self.row: Tensor | None = None  # [V]
        self.is_kept = True

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def forward(
        self, batch: ForwardBatch, kv: KVCache, taps: tuple[int, ...] = (), wants_hidden: bool = False
    ) -> ForwardOutput:
        """See CausalLM."""
        is_last = batch.positions[batch.logits_rows] == self._length - 1
        if self.row is not None and self.is_kept and len(is_last) and bool(is_last.all()):
            return ForwardOutput(self.row.repeat(len(is_last), 1))
        output = self._model.forward(batch, kv, taps, wants_hidden)
        if len(is_last) and bool(is_last[0]):
            self.row = output.logits[0].clone()
        return output


class RealModel:
    """The demo model and its tokenizer, loaded once. Raises ModelError where it can't be fetched."""

    def __init__(self) -> None:
        files = resolve_model("smollm2-135m")
        self.tokenizer = Tokenizer(files.path)
        self.model = load_model(files, dtype="auto", quantization=None, device=torch.device("cpu"))

    def engine(self, prompt: Sequence[int]) -> tuple[Engine, FirstTokens]:
        """An engine whose model answers for `prompt` alone."""
        config = EngineConfig(
            kv_cache_gib=0.3,
            max_num_seqs=128,
            max_num_batched_tokens=1024,
            max_model_len=256,
            enable_prefix_caching=False,
        )
        first = FirstTokens(self.model, len(prompt))
        return Engine(config, cast(CausalLM, first), self.tokenizer), first


def as_float64(row: Tensor, vocab_size: int) -> np.ndarray[Any, np.dtype[np.float64]]:
    """A row of logits [V] without the tail beyond the tokenizer."""
    wide: np.ndarray[Any, np.dtype[np.float64]] = row[:vocab_size].double().numpy()
    return wide
