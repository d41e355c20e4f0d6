"""SamplingParams: what a request asks of the row pipeline. Owned by the user, frozen, validated on construction."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from decodex.definition import check_bool, check_int, check_number, definition, option
from decodex.errors import RequestError

__all__ = ["SamplingParams"]

MAX_CHOICES = 128
MAX_LOGPROBS = 20
MAX_STOP_STRINGS = 64
MAX_STOP_LENGTH = 1024


@definition
class SamplingParams:
    """How the tokens of one request are chosen.

    Every spelling of "off" (None, 0, -1 for `top_k`; None, 1.0 for `top_p`; None, 0 for `min_p`) is the same as
    absent. Raises `RequestError` naming the field. See docs/architecture.md for the order of the row pipeline.
    """

    n: int = option(
        default=1,
        help="number of choices for each prompt; choice k draws from a seed derived from the request's",
    )
    temperature: float = option(default=1.0, help="logits are divided by it; 0 is greedy (arg-max)")
    top_k: int | None = option(default=None, help="keep the k most likely tokens; None, 0 or -1 is off")
    top_p: float | None = option(
        default=None, help="keep the smallest set of most likely tokens with this mass; 1.0 is off"
    )
    min_p: float | None = option(
        default=None, help="drop tokens less likely than min_p times the most likely one; 0 is off"
    )
    seed: int | None = option(
        default=None, help="64-bit seed; drawn from the operating system and returned when absent"
    )
    max_tokens: int | None = option(
        default=16, help="most tokens to generate; None is up to the context length"
    )
    min_tokens: int = option(
        default=0, help="no end of sequence, stop token or stop string before this many tokens"
    )
    stop: tuple[str, ...] | list[str] | str | None = option(
        default=None, help="strings that end the text where they appear", metavar="STR"
    )
    stop_token_ids: tuple[int, ...] | list[int] | None = option(
        default=None, help="token ids that end the sequence", metavar="ID"
    )
    include_stop_str_in_output: bool = option(
        default=False, help="keep the stop string or stop token in the text"
    )
    ignore_eos: bool = option(default=False, help="generate past the model's end of sequence")
    logprobs: int | None = option(
        default=None, help="return the chosen token's log-probability and this many most likely ones"
    )
    skip_special_tokens: bool = option(default=True, help="leave special tokens out of the text")

    def __post_init__(self) -> None:
        def put(name: str, value: object) -> None:
            object.__setattr__(self, name, value)

        put("n", check_int("n", self.n, 1, MAX_CHOICES))
        put("temperature", check_number("temperature", self.temperature, 0.0))
        put("top_k", self._top_k())
        top_p = 1.0 if self.top_p is None else check_number("top_p", self.top_p, 0.0, 1.0, open_low=True)
        put("top_p", None if top_p == 1.0 else top_p)
        min_p = 0.0 if self.min_p is None else check_number("min_p", self.min_p, 0.0, 1.0)
        put("min_p", min_p or None)
        if self.seed is not None:
            put("seed", check_int("seed", self.seed, -(2**63), 2**64 - 1) % 2**64)
        if self.max_tokens is not None:
            put("max_tokens", check_int("max_tokens", self.max_tokens, 1))
        put("min_tokens", check_int("min_tokens", self.min_tokens, 0))
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise RequestError("min_tokens", self.min_tokens, f"at most max_tokens = {self.max_tokens}")
        put("stop", self._stop())
        put("stop_token_ids", self._stop_token_ids())
        for name in ("include_stop_str_in_output", "ignore_eos", "skip_special_tokens"):
            check_bool(name, getattr(self, name))
        if self.logprobs is not None:
            put("logprobs", check_int("logprobs", self.logprobs, 0, MAX_LOGPROBS))

    def _top_k(self) -> int | None:
        if self.top_k is None:
            return None
        top_k = check_int("top_k", self.top_k, -1)
        return top_k if top_k > 0 else None

    def _stop(self) -> tuple[str, ...]:
        stop: Any = self.stop
        if stop is None:
            return ()
        if isinstance(stop, str):
            stop = (stop,)
        if not isinstance(stop, Sequence) or len(stop) > MAX_STOP_STRINGS:
            raise RequestError("stop", stop, f"a string or a list of at most {MAX_STOP_STRINGS} strings")
        for index, text in enumerate(stop):
            if not isinstance(text, str) or not 0 < len(text) <= MAX_STOP_LENGTH:
                raise RequestError(f"stop[{index}]", text, f"a string of 1 to {MAX_STOP_LENGTH} characters")
        return tuple(stop)

    def _stop_token_ids(self) -> tuple[int, ...]:
        ids: Any = self.stop_token_ids
        if ids is None:
            return ()
        if isinstance(ids, (str, bytes)) or not isinstance(ids, Sequence):
            raise RequestError("stop_token_ids", ids, "a list of token ids")
        return tuple(check_int(f"stop_token_ids[{i}]", token, 0) for i, token in enumerate(ids))
