"""A model of eight tokens whose logits depend on the last token and its position, and random drafts for it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import torch

from decodex.config import EngineConfig
from decodex.engine import Engine
from decodex.kv_cache import KVCache, LayerKV
from decodex.models.interface import ForwardBatch, ForwardOutput
from decodex.spec.draft import Draft
from decodex.spec.proposer import ProposerView
from decodex.tokenizer import Tokenizer

__all__ = ["BREAKERS", "EOS", "EXEMPT", "PROMPT", "VOCAB_SIZE", "logits_after", "toy_engine"]

TEXTS = ("</s>", "a", "b", "c", "d", "e", "f", "\n")
VOCAB_SIZE = len(TEXTS)
EOS = frozenset({0})
EXEMPT = frozenset({0, 7})  # XTC: end of sequence and newline
BREAKERS = frozenset({7})  # DRY's default breakers among the tokens
PROMPT = (1, 2, 3, 1, 2, 4, 1, 2)
NUM_POSITIONS = 16
TABLE = np.random.default_rng(20240229).normal(0.0, 1.4, (NUM_POSITIONS, VOCAB_SIZE, VOCAB_SIZE)).astype(np.float32)


def logits_after(tokens: Sequence[int]) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Logits [V] of the token after `tokens`."""
    row: np.ndarray[Any, np.dtype[np.float64]] = TABLE[len(tokens) - 1, tokens[-1]].astype(np.float64)
    return row


class ToyModel:
    """Reads its logits from TABLE; keys and values are not looked at."""

    name = "toy"
    vocab_size = VOCAB_SIZE
    hidden_size = 1
    num_layers = 1
    max_position = NUM_POSITIONS
    kv_spec: tuple[LayerKV, ...] = (LayerKV(1, 1, 1),)
    replayable = True
    weight_nbytes = TABLE.nbytes
    weights_digest = "toy"

    def forward(self, batch: ForwardBatch, kv: KVCache, taps: tuple[int, ...] = ()) -> ForwardOutput:
        """See CausalLM."""
        rows = batch.logits_rows
        positions, tokens = batch.positions[rows].numpy(), batch.token_ids[rows].numpy()
        return ForwardOutput(torch.from_numpy(TABLE[positions, tokens]), None)


class ToyTokenizer:
    """Token i is TEXTS[i]."""

    eos_token_ids = EOS
    special_ids = EOS
    vocab_size = VOCAB_SIZE

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Letter by letter."""
        return [TEXTS.index(letter) for letter in text]

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """Joined letters."""
        return "".join(TEXTS[i] for i in ids if not (skip_special_tokens and i in EOS))

    def token_bytes(self) -> list[bytes]:
        """Of every token."""
        return [text.encode() for text in TEXTS]


class RandomDrafts:
    """Trees of random tokens."""

    name = "random"

    def __init__(self, seed: int) -> None:
        self._rng = np.random.default_rng(seed)

    def propose(self, views: Sequence[ProposerView]) -> list[Draft | None]:
        """See Proposer."""
        drafts: list[Draft | None] = []
        for _ in views:
            tokens = self._rng.integers(0, VOCAB_SIZE, 4).tolist()
            drafts.append(Draft(tuple(tokens), tuple(int(self._rng.integers(-1, node)) for node in range(4))))
        return drafts

    def forget(self, key: int) -> None:
        """See Proposer."""


def toy_engine(with_drafts: bool = False) -> Engine:
    """An engine over the toy model, for 1024 sequences at a time."""
    blocks, block_size = 4096, 8
    config = EngineConfig(
        block_size=block_size,
        kv_cache_gib=blocks * block_size * 8 / 2**30,
        max_num_seqs=1024,
        max_num_batched_tokens=8192,
        max_model_len=NUM_POSITIONS,
        enable_prefix_caching=False,
    )
    proposer = RandomDrafts(5) if with_drafts else None
    return Engine(config, cast(Any, ToyModel()), cast(Tokenizer, ToyTokenizer()), proposer=proposer)
