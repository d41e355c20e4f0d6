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

    `params`: for all rows, or one for each; `seed` is taken from there (None is 0) and the noise of a row depends on
    (seed, position, token) only. `token_ids`: the tokens before each row, which penalties and bans look at;
    `num_prompt_tokens`: how many of them are the prompt's, needed by what looks at the output alone. `positions` [L]:
    absolute positions of the tokens that are drawn, default len(token_ids[l]). `tokenizer`: needed by bad_words,
    min_tokens, max_thinking_tokens and DRY's breakers. A row with nothing left is -1.
    Raises RequestError for a parameter that needs what was not given.
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
    each = _one_each(params, len(logits))
    _apply_features_(logits, each, _histories(token_ids, each), num_prompt_tokens, tokenizer)
    return logits


@_whatever_the_defaults
def truncate_(logits: Tensor, params: Params, *, positions: Sequence[int] | Tensor | None = None) -> Tensor:
    """Steps 6 and 7 in place on logits [L, V] fp32: (logit - max) / T where a token is kept, -inf elsewhere.

    A softmax of the result is the distribution that step 8 draws from; T = 0 leaves 0 at the arg-max. `positions` [L]
    are only looked at by XTC, whose coin they and the seed decide (default 0).
    """
    each = _one_each(params, len(logits))
    return _sampling.truncate_(logits, _sampling_rows(each, positions, [0] * len(each), logits.device))


@_whatever_the_defaults
def gumbel_argmax(logits: Tensor, seeds: Sequence[int] | Tensor, positions: Sequence[int] | Tensor) -> Tensor:
    """Tokens [L] int64: arg-max of logits [L, V] fp32 plus the Gumbel noise of (seed, position, token).

    `seeds`: [L] ints in [-2^63, 2^64) or int64; `positions`: [L] ints from 0. A draw from softmax(logits) without
    temperature or truncation, and the noise that `sample` and the engine use for the same seed and position.
    """
    if not isinstance(seeds, Tensor):
        seeds = torch.tensor([seed_bits(seed) for seed in seeds], dtype=torch.int64)
    places = torch.as_tensor(positions, dtype=torch.int64)
    return _sampling.gumbel_argmax(logits, seeds.to(logits.device), places.to(logits.device))


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


def _one_each(params: Params, num_rows: int) -> list[SamplingParams]:
    each = [params] * num_rows if isinstance(params, SamplingParams) else list(params)
    if len(each) != num_rows:
        raise RequestError("params", f"{len(each)} items", f"one, or one for each of the {num_rows} rows")
    for item in each:
        if item.structured_outputs is not None:
            hint = "apply_token_bitmask_ takes a matcher's masks"
            raise RequestError("structured_outputs", item.structured_outputs, "to be absent outside of an engine", hint)
    return each


def _histories(token_ids: Sequence[Sequence[int]] | None, params: list[SamplingParams]) -> list[list[int]]:
    if token_ids is not None:
        if len(token_ids) != len(params):
            raise RequestError("token_ids", f"{len(token_ids)} lists", f"one for each of the {len(params)} rows")
        return [list(tokens) for tokens in token_ids]
    for item in params:
        for name in ("dry_multiplier", "no_repeat_ngram_size", "bad_words", "max_thinking_tokens", "min_tokens"):
            if getattr(item, name):
                raise RequestError(name, getattr(item, name), "token_ids, which it looks at")
        if item.has_penalties or item.logits_processors:
            name = "penalties" if item.has_penalties else "logits_processors"
            raise RequestError(name, "a value", "token_ids, which they look at")
    return [[] for _ in params]


def _refuse_output_rules(params: list[SamplingParams]) -> None:
    for item in params:
        for name in ("frequency_penalty", "presence_penalty", "bad_words", "max_thinking_tokens", "min_tokens"):
            if getattr(item, name):
                raise RequestError("num_prompt_tokens", None, f"a number: {name} looks at the output alone")


def _apply_features_(
    logits: Tensor,
    params: list[SamplingParams],
    histories: list[list[int]],
    num_prompt_tokens: int | Sequence[int] | None,
    tokenizer: Tokenizer | None,
) -> None:
    if num_prompt_tokens is None:
        _refuse_output_rules(params)
    if isinstance(num_prompt_tokens, int):
        num_prompt_tokens = [num_prompt_tokens] * len(params)
    prompts = [len(tokens) for tokens in histories] if num_prompt_tokens is None else list(num_prompt_tokens)
    vocabulary = _vocabulary(tokenizer, logits.shape[1])
    features = build_features(vocabulary)
    sequences = []
    for slot, item in enumerate(params):
        if item.min_tokens and not item.ignore_eos and not vocabulary.eos_token_ids:
            raise RequestError("min_tokens", item.min_tokens, "a tokenizer, which knows the end of sequence")
        processors = ProcessorSet((), item.logits_processors or ()) if item.logits_processors else None
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
        lines.write(slot, item, item.seed or 0)
    places = torch.as_tensor(default if positions is None else positions, dtype=torch.int64)
    return lines.rows(torch.arange(len(params)), places.cpu(), device)


def _prepared(
    logits: Tensor,
    params: Params,
    token_ids: Sequence[Sequence[int]] | None,
    num_prompt_tokens: int | Sequence[int] | None,
    positions: Sequence[int] | Tensor | None,
    tokenizer: Tokenizer | None,
) -> tuple[Tensor, _sampling.SamplingRows]:
    """Logits after step 4 in a tensor of their own, and the numbers of the steps behind."""
    each = _one_each(params, len(logits))
    histories = _histories(token_ids, each)
    logits = logits.to(torch.float32, copy=True)
    _apply_features_(logits, each, histories, num_prompt_tokens, tokenizer)
    exempt: list[int] = []
    if tokenizer is not None:
        vocabulary = _vocabulary(tokenizer, logits.shape[1])
        exempt = [*vocabulary.eos_token_ids, *vocabulary.newline_ids()]
    lengths = [len(tokens) for tokens in histories]
    return logits, _sampling_rows(each, positions, lengths, logits.device, exempt)
