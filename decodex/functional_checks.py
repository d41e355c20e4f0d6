"""What the functional API is given, checked and in one form; RequestError names the argument."""

from __future__ import annotations

import operator
import secrets
import tempfile
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from decodex.errors import RequestError
from decodex.params import SamplingParams
from decodex.tokenizer import Tokenizer

__all__ = [
    "MAX_POSITION",
    "checked_logits",
    "checked_params",
    "drawn_seed",
    "histories_of",
    "integers",
    "known_tokenizer",
    "prompts_of",
]

NEED_HISTORY = (
    "dry_multiplier",
    "no_repeat_ngram_size",
    "bad_words",
    "max_thinking_tokens",
    "min_tokens",
    "repetition_penalty",
    "frequency_penalty",
    "presence_penalty",
    "logits_processors",
)
NEED_OUTPUT = ("frequency_penalty", "presence_penalty", "bad_words", "max_thinking_tokens", "min_tokens")
NEED_TOKENIZER = ("bad_words", "max_thinking_tokens")
MAX_POSITION = 2**31 - 1

_adapted: weakref.WeakKeyDictionary[Any, Tokenizer] = weakref.WeakKeyDictionary()


def checked_logits(logits: Any, *, in_place: bool) -> Tensor:
    """Logits [L, V]; those that are changed in place must be fp32 with rows of their own."""
    expected = "a float32 tensor [L, V] whose rows don't overlap" if in_place else "a floating-point tensor [L, V]"
    if not isinstance(logits, Tensor) or logits.layout is not torch.strided:
        raise RequestError("logits", type(logits).__name__, expected)
    is_shaped = logits.ndim == 2 and logits.shape[1] > 0 and logits.is_floating_point()
    is_own = is_shaped and logits.stride(1) == 1 and (len(logits) < 2 or logits.stride(0) >= logits.shape[1])
    if not is_shaped or (in_place and (logits.dtype is not torch.float32 or not is_own)):
        got = f"{logits.dtype} {tuple(logits.shape)}, strides {logits.stride()}"
        raise RequestError("logits", got, expected)
    return logits


def checked_params(params: Any, num_rows: int) -> list[SamplingParams]:
    """One for each row."""
    is_list = isinstance(params, Sequence) and all(isinstance(item, SamplingParams) for item in params)
    if not isinstance(params, SamplingParams) and not is_list:
        raise RequestError("params", params, "SamplingParams, or a list of them")
    each = [params] * num_rows if isinstance(params, SamplingParams) else list(params)
    if len(each) != num_rows:
        raise RequestError("params", f"{len(each)} items", f"one, or one for each of the {num_rows} rows")
    for item in each:
        if item.structured_outputs is not None:
            hint = "apply_token_bitmask_ takes a matcher's masks"
            raise RequestError("structured_outputs", item.structured_outputs, "to be absent outside of an engine", hint)
    return each


def integers(field: str, values: Any, num: int, low: int, high: int) -> list[int]:
    """`num` ints in [low, high] from a list or an integer tensor."""
    expected = f"{num} integers in {low} .. {high}"
    if isinstance(values, Tensor):
        if values.is_floating_point() or values.ndim != 1:
            raise RequestError(field, f"{values.dtype} {tuple(values.shape)}", expected)
        values = values.tolist()
    try:
        found = [operator.index(value) for value in values]
    except TypeError:
        raise RequestError(field, values, expected) from None
    if len(found) != num or any(not low <= value <= high for value in found):
        raise RequestError(field, found, expected)
    return found


def histories_of(token_ids: Any, params: Sequence[SamplingParams], vocab_size: int) -> list[list[int]]:
    """The tokens before each row; none where nothing looks at them."""
    if token_ids is not None:
        if isinstance(token_ids, (str, bytes)) or not hasattr(token_ids, "__len__") or len(token_ids) != len(params):
            raise RequestError("token_ids", token_ids, f"one list for each of the {len(params)} rows")
        histories = []
        for row, tokens in enumerate(token_ids):
            if not hasattr(tokens, "__len__"):
                raise RequestError(f"token_ids[{row}]", tokens, "a list of token ids")
            histories.append(integers(f"token_ids[{row}]", tokens, len(tokens), 0, vocab_size - 1))
        return histories
    for item in params:
        for name in NEED_HISTORY:
            if getattr(item, name):
                raise RequestError(name, getattr(item, name), "token_ids, which it looks at")
    return [[] for _ in params]


def prompts_of(
    num_prompt_tokens: Any, histories: Sequence[Sequence[int]], params: Sequence[SamplingParams]
) -> list[int]:
    """How many tokens of each history are the prompt's; all of them where nothing needs to know."""
    if num_prompt_tokens is None:
        for item in params:
            for name in NEED_OUTPUT:
                if getattr(item, name):
                    raise RequestError("num_prompt_tokens", None, f"a number: {name} looks at the output alone")
        return [len(tokens) for tokens in histories]
    if isinstance(num_prompt_tokens, int):
        num_prompt_tokens = [num_prompt_tokens] * len(histories)
    longest = max((len(tokens) for tokens in histories), default=0)
    found = integers("num_prompt_tokens", num_prompt_tokens, len(histories), 0, longest)
    for row, (num, tokens) in enumerate(zip(found, histories, strict=True)):
        if num > len(tokens):
            raise RequestError(f"num_prompt_tokens[{row}]", num, f"at most the {len(tokens)} tokens of the row")
    return found


def known_tokenizer(tokenizer: Any, params: Sequence[SamplingParams]) -> Any:
    """A decodex tokenizer, made from one of transformers' where it is that; None where none is needed."""
    if tokenizer is None:
        for item in params:
            names = [name for name in NEED_TOKENIZER if getattr(item, name) not in (None, ())]
            names += ["dry_sequence_breakers"] if item.dry_multiplier and item.dry_sequence_breakers else []
            names += ["min_tokens"] if item.min_tokens and not item.ignore_eos else []
            if names:
                raise RequestError("tokenizer", None, f"a tokenizer, which {names[0]} needs")
        return None
    if hasattr(tokenizer, "token_bytes"):
        return tokenizer
    if not hasattr(tokenizer, "backend_tokenizer"):
        raise RequestError("tokenizer", tokenizer, "a decodex Tokenizer, or a fast tokenizer of transformers")
    if tokenizer not in _adapted:
        with tempfile.TemporaryDirectory() as folder:
            tokenizer.save_pretrained(folder)
            _adapted[tokenizer] = Tokenizer(Path(folder))
    return _adapted[tokenizer]


def drawn_seed(params: SamplingParams) -> int:
    """The seed of a row; one from the operating system where the parameters have none."""
    return secrets.randbits(53) if params.seed is None else params.seed
