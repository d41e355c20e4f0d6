"""The row pipeline without the engine: tensors in, tensors out, for anyone's decoding loop.

    logits = model(ids).logits[:, -1]                                     # [L, V]
    tokens = functional.sample(logits, params, token_ids=ids.tolist())    # [L] int64

Every function takes logits [L, V] fp32 on any device, L rows of V tokens; those that end in `_` change them in place
and return them. The rows of a call may belong to anything: a row's result depends on its own arguments alone. Nothing
is kept between calls but a tokenizer's byte table: each call reads the histories that it is given from their beginning.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ParamSpec, TypeVar

import torch
from torch import Tensor

from decodex.batch import Rows
from decodex.errors import RequestError
from decodex.features.pipeline import build_features
from decodex.features.vocabulary import Vocabulary
from decodex.functional_checks import (
    MAX_POSITION,
    checked_logits,
    checked_params,
    drawn_seed,
    histories_of,
    integers,
    known_tokenizer,
    prompts_of,
)
from decodex.kernels import sampling as _sampling
from decodex.kernels.bitmask import apply_token_bitmask_
from decodex.kernels.rng import seed_bits
from decodex.params import SamplingParams
from decodex.processors import ProcessorSet
from decodex.slot_params import SlotParams
from decodex.tokenizer import Tokenizer

__all__ = ["apply_penalties_", "apply_token_bitmask_", "gumbel_argmax", "process_", "sample", "truncate_"]

Params = SamplingParams | Sequence[SamplingParams]
P = ParamSpec("P")
R = TypeVar("R")

_vocabularies: weakref.WeakKeyDictionary[Tokenizer, dict[int, Vocabulary]] = weakref.WeakKeyDictionary()


def _whatever_the_defaults(function: Callable[P, R]) -> Callable[P, R]:
    """Runs under torch's own default dtype and device, which a caller's script may have changed."""

    @functools.wraps(function)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
        dtype, device = torch.get_default_dtype(), torch.get_default_device()
        if dtype == torch.float32 and device.type == "cpu":
            return function(*args, **kwargs)
        try:
            torch.set_default_dtype(torch.float32)
            with torch.device("cpu"):
                return function(*args, **kwargs)
        finally:
            torch.set_default_dtype(dtype)

    return wrapped


@dataclass(frozen=True)
class _Row:
    """What features see of a row's sequence."""

    token_ids: list[int]
    num_prompt_tokens: int
    processors: ProcessorSet | None
    constrained: None = None  # grammars belong to the engine


class _NoTokenizer:
    """Stands in where the caller has none: a vocabulary without texts and ends."""

    eos_token_ids: frozenset[int] = frozenset()
    special_ids: frozenset[int] = frozenset()

    def __init__(self, vocab_size: int) -> None:
        self.vocab_size = vocab_size

    def token_bytes(self) -> None:
        """Not known."""

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Nothing."""
        return []


@_whatever_the_defaults
def sample(
    logits: Tensor,
    params: Params,
    *,
    token_ids: Sequence[Sequence[int]] | None = None,
    num_prompt_tokens: int | Sequence[int] | None = None,
    positions: Sequence[int] | Tensor | None = None,
    tokenizer: Tokenizer | None = None,
) -> Tensor:
    """Tokens [L] int64 for logits [L, V] (any floating dtype, not modified): steps 2 to 8 of the row pipeline.

    `params`: for all rows, or one for each. The noise of a row depends on (seed, position, token) only, so rows that
    share a seed and a position share their noise; without a seed each row's is drawn anew. `token_ids`: the tokens
    before each row, which penalties and bans look at; `num_prompt_tokens`: how many of them are the prompt's, needed by
    what looks at the output alone. `positions` [L]: absolute positions of the tokens that are drawn, default
    len(token_ids[l]). `tokenizer` (decodex's, or a fast one of transformers): needed by bad_words, min_tokens,
    max_thinking_tokens and DRY's breakers. Custom processors are called as they are, without copies: what they
    remember is the caller's. What only ends or reports an output (n, stop, max_tokens, logprobs) is not looked at.
    A row with nothing left is -1. Raises RequestError naming the argument, or the parameter that needs another one.
    """
    logits, rows = _prepared(logits, params, token_ids, num_prompt_tokens, positions, tokenizer)
    return _sampling.sample_rows(logits, rows)


@_whatever_the_defaults
def process_(
    logits: Tensor,
    params: Params,
    *,
    token_ids: Sequence[Sequence[int]] | None = None,
    num_prompt_tokens: int | Sequence[int] | None = None,
    tokenizer: Tokenizer | None = None,
) -> Tensor:
    """Steps 2 to 4 in place on logits [L, V] fp32: masks, penalties, custom processors. Arguments as for `sample`."""
    logits = checked_logits(logits, in_place=True)
    each = checked_params(params, len(logits))
    histories = histories_of(token_ids, each, logits.shape[1])
    _apply_features_(logits, each, histories, num_prompt_tokens, known_tokenizer(tokenizer, each))
    return logits


@_whatever_the_defaults
def truncate_(logits: Tensor, params: Params, *, positions: Sequence[int] | Tensor | None = None) -> Tensor:
    """Steps 6 and 7 in place on logits [L, V] fp32: (logit - max) / T where a token is kept, -inf elsewhere.

    A softmax of the result is the distribution that step 8 draws from; T = 0 leaves 0 at the arg-max. `positions` [L]
    are only looked at by XTC, whose coin they and the seed decide (default 0).
    """
    logits = checked_logits(logits, in_place=True)
    each = checked_params(params, len(logits))
    return _sampling.truncate_(logits, _sampling_rows(each, positions, [0] * len(each), logits.device))


@_whatever_the_defaults
def gumbel_argmax(logits: Tensor, seeds: Sequence[int] | Tensor, positions: Sequence[int] | Tensor) -> Tensor:
    """Tokens [L] int64: arg-max of logits [L, V] fp32 plus the Gumbel noise of (seed, position, token).

    `seeds`: [L] ints in [-2^63, 2^64) or int64; `positions`: [L] ints from 0. A draw from softmax(logits) without
    temperature or truncation, and the noise that `sample` and the engine use for the same seed and position.
    """
    logits = checked_logits(logits, in_place=True)
    bits = [seed_bits(seed) for seed in integers("seeds", seeds, len(logits), -(2**63), 2**64 - 1)]
    places = integers("positions", positions, len(logits), 0, MAX_POSITION)
    device = logits.device
    seeds_of, places_of = torch.tensor(bits, dtype=torch.int64), torch.tensor(places, dtype=torch.int64)
    return _sampling.gumbel_argmax(logits, seeds_of.to(device), places_of.to(device))


@_whatever_the_defaults
def apply_penalties_(
    logits: Tensor,
    prompt_ids: Sequence[Sequence[int]],
    output_ids: Sequence[Sequence[int]],
    *,
    repetition_penalty: float = 1.0,
    frequency_penalty: float = 0.0,
    presence_penalty: float = 0.0,
) -> Tensor:
    """Penalties in place on logits [L, V] fp32, given the tokens of each row's prompt and output (L lists of ints).

    A token of either is divided by `repetition_penalty` where its logit is positive and multiplied elsewhere; then
    frequency_penalty * count and presence_penalty * (count > 0) of the output are subtracted. For penalties that differ
    by row use `process_`, for ready-made lists `decodex.kernels.penalties.apply_penalties_`.
    """
    params = SamplingParams(
        repetition_penalty=repetition_penalty,
        frequency_penalty=frequency_penalty,
        presence_penalty=presence_penalty,
    )
    if len(prompt_ids) != len(output_ids):
        raise RequestError("output_ids", f"{len(output_ids)} lists", f"one for each of the {len(prompt_ids)} prompts")
    histories = [[*prompt, *output] for prompt, output in zip(prompt_ids, output_ids, strict=True)]
    return process_(logits, params, token_ids=histories, num_prompt_tokens=[len(prompt) for prompt in prompt_ids])


def _vocabulary(tokenizer: Tokenizer | None, vocab_size: int) -> Vocabulary:
    """The byte table and word automata of a tokenizer, kept as long as the tokenizer lives."""
    if tokenizer is None:
        return Vocabulary(_NoTokenizer(vocab_size), vocab_size)  # type: ignore[arg-type]
    known = _vocabularies.setdefault(tokenizer, {})
    if vocab_size not in known:
        known[vocab_size] = Vocabulary(weakref.proxy(tokenizer), vocab_size)
    return known[vocab_size]


def _apply_features_(
    logits: Tensor,
    params: list[SamplingParams],
    histories: list[list[int]],
    num_prompt_tokens: int | Sequence[int] | None,
    tokenizer: Tokenizer | None,
) -> None:
    prompts = prompts_of(num_prompt_tokens, histories, params)
    vocabulary = _vocabulary(tokenizer, logits.shape[1])
    features = build_features(vocabulary)
    sequences = []
    for slot, item in enumerate(params):
        if item.min_tokens and not item.ignore_eos and not vocabulary.eos_token_ids:
            raise RequestError("min_tokens", item.min_tokens, "a tokenizer whose end of sequence the logits have")
        processors = None
        if item.logits_processors:
            processors = ProcessorSet((), item.logits_processors, is_copied=False)
        sequences.append(_Row(histories[slot], prompts[slot], processors))
        for feature in features:
            feature.check(item)
            feature.add(slot, item)
    rows = Rows(
        slots=torch.arange(len(params)),
        positions=torch.tensor([len(tokens) for tokens in histories], dtype=torch.int64),
        slots_host=list(range(len(params))),
        num_output_host=[len(tokens) - prompt for tokens, prompt in zip(histories, prompts, strict=True)],
        ancestors=[()] * len(params),
        sequences=sequences,
    )
    for feature in features:
        feature.apply(logits[:, : vocabulary.size], rows)
    logits[:, vocabulary.size :] = -torch.inf
    if rows.errors:
        row, message = next(iter(rows.errors.items()))
        raise RequestError("logits_processors", f"row {row}: {message}", "a processor that works")


def _sampling_rows(
    params: list[SamplingParams],
    positions: Sequence[int] | Tensor | None,
    default: list[int],
    device: torch.device,
    exempt: Sequence[int] = (),
) -> _sampling.SamplingRows:
    lines = SlotParams(len(params), exempt)
    for slot, item in enumerate(params):
        lines.write(slot, item, drawn_seed(item))
    places = default if positions is None else integers("positions", positions, len(params), 0, MAX_POSITION)
    return lines.rows(torch.arange(len(params)), torch.tensor(places, dtype=torch.int64), device)


def _prepared(
    logits: Tensor,
    params: Params,
    token_ids: Sequence[Sequence[int]] | None,
    num_prompt_tokens: int | Sequence[int] | None,
    positions: Sequence[int] | Tensor | None,
    tokenizer: Tokenizer | None,
) -> tuple[Tensor, _sampling.SamplingRows]:
    """Logits after step 4 in a tensor of their own, and the numbers of the steps behind."""
    logits = checked_logits(logits, in_place=False)
    each = checked_params(params, len(logits))
    histories = histories_of(token_ids, each, logits.shape[1])
    tokenizer = known_tokenizer(tokenizer, each)
    logits = logits.to(torch.float32, copy=True, memory_format=torch.contiguous_format)
    _apply_features_(logits, each, histories, num_prompt_tokens, tokenizer)
    exempt: list[int] = []
    if tokenizer is not None:
        vocabulary = _vocabulary(tokenizer, logits.shape[1])
        exempt = [*vocabulary.eos_token_ids, *vocabulary.newline_ids()]
    lengths = [len(tokens) for tokens in histories]
    return logits, _sampling_rows(each, positions, lengths, logits.device, exempt)
