"""The features of the row pipeline, in its order: steps 2 (masks), 3 (penalties), 4 (processors) and 5 (grammar)."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import torch

from decodex.features.bad_words import BadWords
from decodex.features.bias import AllowedTokens, LogitBias
from decodex.features.custom import CustomProcessors
from decodex.features.dry import Dry
from decodex.features.feature import Feature
from decodex.features.grammar import GrammarMasks
from decodex.features.min_tokens import MinTokens
from decodex.features.no_repeat import NoRepeatNgram
from decodex.features.penalties import Penalties
from decodex.features.thinking import ThinkingBudget
from decodex.features.vocabulary import Vocabulary

__all__ = ["build_features"]


def build_features(
    vocabulary: Vocabulary, processors: Sequence[Any] = (), device: torch.device | None = None
) -> tuple[Feature, ...]:
    """One object each for an engine; `processors` are the engine's own logits processors, `device` is the model's."""
    # beside a forward that keeps every core busy masks take longer, and it takes longer by more than they do
    is_all_busy = (device is None or device.type == "cpu") and torch.get_num_threads() >= (os.cpu_count() or 1)
    return (
        LogitBias(vocabulary.size),
        AllowedTokens(vocabulary.size),
        BadWords(vocabulary),
        NoRepeatNgram(),
        MinTokens(vocabulary.eos_token_ids, vocabulary.size),
        ThinkingBudget(vocabulary),
        Penalties(),
        Dry(vocabulary),
        CustomProcessors(processors),
        GrammarMasks(is_ahead=not is_all_busy),
    )
