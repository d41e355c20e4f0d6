"""The text side of one choice: detokenization, stop conditions and the one finish reason.

Tokens are fed one at a time, however many a step accepted, so that the cut never depends on how they arrived.
"""

from __future__ import annotations

from decodex.constrained import ConstrainedText
from decodex.detokenizer import Detokenizer
from decodex.outputs import CompletionOutput, Logprob
from decodex.params import SamplingParams
from decodex.repetition import RepetitionStop
from decodex.tokenizer import Tokenizer

__all__ = ["Completion"]


class Completion:
    """Grows by `push` until it has a finish reason; then it never changes again."""

    def __init__(
        self,
        index: int,
        seed: int,
        params: SamplingParams,
        max_tokens: int,
        tokenizer: Tokenizer,
        constrained: ConstrainedText | None = None,
    ) -> None:
        """`constrained`: the choice's place in its grammar, which `push` advances."""
        self.index = index
        self.seed = seed
        self.finish_reason: str | None = None
        self.stop_reason: int | str | None = None
        self.check: str | None = None  # see CompletionOutput; "pending" before the verdict
        self.token_ids: list[int] = []
        self._params = params
        self._max_tokens = max_tokens
        self._constrained = constrained
        is_end = not params.ignore_eos or constrained is not None
        self._eos = tokenizer.eos_token_ids if is_end else frozenset()
        self._stop_ids = frozenset(params.stop_token_ids or ())
        self._stops = tuple(params.stop or ())
        self._hold = max((len(s) for s in self._stops), default=1) - 1
        self._loop = None if params.repetition_stop is None else RepetitionStop(params)
        is_whole = constrained is not None and params.whole_output is not None
        bytes_of = constrained.bytes_of if constrained is not None and is_whole else None
        self._detokenizer = Detokenizer(tokenizer, params.skip_special_tokens, bytes_of)
        self._text = ""
        self._logprobs: list[dict[int, Logprob]] | None = None if params.logprobs is None else []
        self._cumulative = 0.0

    @property
    def text(self) -> str:
        """What may be shown: while running, without an ending that a stop string could still claim."""
        if self.finish_reason is not None or self._hold == 0:
            return self._text
        return self._text[: max(0, len(self._text) - self._hold)]

    def push(self, token_id: int, logprobs: dict[int, Logprob] | None = None) -> bool:
        """Take one more token; returns whether the choice is finished by it. MatcherError: the grammar's backend failed
        on it."""
        assert self.finish_reason is None, f"a token after the end: {token_id} after {self.finish_reason}"
        self.token_ids.append(token_id)
        if self._logprobs is not None and logprobs is not None:
            self._logprobs.append(logprobs)
            self._cumulative += logprobs[token_id].logprob
        may_stop = len(self.token_ids) > self._params.min_tokens
        is_eos, is_stop = token_id in self._eos, token_id in self._stop_ids
        if is_eos and self._constrained is not None:
            self._constrained.end()
        if may_stop and (is_eos or is_stop):
            if self._params.include_stop_str_in_output:
                self._text += self._detokenizer.append(token_id)
            self._text += self._detokenizer.flush()
            return self._finish("stop", token_id if is_stop else None)
        is_complete = self._constrained is not None and self._constrained.push(token_id)
        before = len(self._text)
        self._text += self._detokenizer.append(token_id)
        if may_stop and self._cut_at_stop_string(before):
            return True
        if is_complete:  # nothing else could follow: whatever min_tokens and ignore_eos say
            self._text += self._detokenizer.flush()
            return self._finish("stop", None)
        if self._loop is not None and self._loop.push(token_id) and may_stop:
            before = len(self._text)
            self._text += self._detokenizer.flush()
            return self._cut_at_stop_string(before) or self._finish("stop", "repetition")
        if len(self.token_ids) >= self._max_tokens:
            before = len(self._text)
            self._text += self._detokenizer.flush()
            is_complete = self._constrained is not None and self._constrained.is_finished_by_budget
            reason = "stop" if is_complete else "length"
            return (may_stop and self._cut_at_stop_string(before)) or self._finish(reason, None)
        return False

    def finish(self, reason: str) -> None:
        """End from outside: abort or error, also instead of an end whose text is still being validated. Tokens and
        text so far stay."""
        if self.finish_reason is None:
            self._text += self._detokenizer.flush()
        self._finish(reason, None)

    def output(self) -> CompletionOutput:
        """A snapshot that later tokens don't change. An end is not told before its text has been validated."""
        is_told = self.check != "pending"
        constraint = self._params.constrained
        return CompletionOutput(
            index=self.index,
            text=self.text,
            token_ids=list(self.token_ids),
            logprobs=None if self._logprobs is None else list(self._logprobs),
            cumulative_logprob=None if self._logprobs is None else self._cumulative,
            finish_reason=self.finish_reason if is_told else None,
            stop_reason=self.stop_reason if is_told else None,
            seed=self.seed,
            check=self.check if is_told else None,
            schema=None if constraint is None else constraint.schema,
        )

    def _cut_at_stop_string(self, before: int) -> bool:
        """Look for the earliest stop string that ends in text[before:]; the longest one if several start there."""
        best: tuple[int, int, str] | None = None
        for stop in self._stops:
            at = self._text.find(stop, max(0, before - len(stop) + 1))
            if at >= 0 and (best is None or (at, -len(stop)) < best[:2]):
                best = (at, -len(stop), stop)
        if best is None:
            return False
        at, _, stop = best
        self._text = self._text[: at + len(stop)] if self._params.include_stop_str_in_output else self._text[:at]
        return self._finish("stop", stop)

    def _finish(self, reason: str, stop_reason: int | str | None) -> bool:
        self.finish_reason = reason
        self.stop_reason = stop_reason
        return True
