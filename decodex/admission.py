"""Admission: turns a prompt and parameters into a Request, or refuses with the field's name. No engine state changes.

Safe to call from any thread, so that tokenization never holds up the step loop.
"""

from __future__ import annotations

import itertools
import secrets
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from decodex.completion import Completion
from decodex.config import ResolvedConfig
from decodex.definition import check_int
from decodex.errors import RequestError
from decodex.features.feature import Feature
from decodex.grammars import Grammars
from decodex.kernels.rng import derive_seed
from decodex.outputs import SpeculationMetrics
from decodex.params import SamplingParams
from decodex.processors import LogitsProcessor, ProcessorSet
from decodex.request import Request
from decodex.request import Sequence as RequestSequence
from decodex.speculative_config import SpeculativeConfig, speculation_of
from decodex.tokenizer import Tokenizer

__all__ = ["Admission", "Prompt"]

Prompt = str | Sequence[int] | Mapping[str, Any]

PROMPT_KEYS = ("prompt", "prompt_token_ids")
PREDICTED_CHARACTERS = 16  # of a prediction's text for each token that an output can have
DRAWN_SEED_BITS = 53  # exact in JSON


class Admission:
    """Checks requests against one loaded model and pool."""

    def __init__(
        self,
        config: ResolvedConfig,
        tokenizer: Tokenizer,
        model_vocab_size: int,
        features: Sequence[Feature],
        grammars: Grammars,
        processors: Sequence[LogitsProcessor] = (),
        speculation: SpeculativeConfig | bool | None = None,
    ) -> None:
        """`features` refuse what this model can't honour; `processors` and `speculation` are the engine's own."""
        self._speculation = speculation
        self._grammars = grammars
        self._config = config
        self._features = features
        self._processors = processors
        self._tokenizer = tokenizer
        self._vocab_size = min(tokenizer.vocab_size, model_vocab_size)
        self._arrivals = itertools.count()
        self._names = itertools.count()

    def admit(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        request_id: str | None = None,
        priority: int = 0,
        cache_salt: str = "",
        cancelled: threading.Event | None = None,
    ) -> Request:
        """A request ready to be queued. Raises RequestError naming the field. Blocks while a constraint is compiled,
        until `cancelled` is set."""
        params = SamplingParams() if params is None else params
        if not isinstance(params, SamplingParams):
            raise RequestError("params", params, "SamplingParams")
        check_int("priority", priority, -(2**31), 2**31 - 1)
        text, token_ids = self.tokens_of(prompt)
        max_total = self._max_total_tokens(len(token_ids), params)
        self._check_params(params)
        grammar = self._grammars.compile(params, cancelled)
        start = None if grammar is None else grammar.begin(max_total - len(token_ids))
        request = Request(
            request_id=f"request-{next(self._names)}" if request_id is None else request_id,
            arrival=next(self._arrivals),
            prompt=text,
            prompt_token_ids=token_ids,
            params=params,
            seed=self._seed(params),
            priority=priority,
            cache_salt=cache_salt,
            speculation=speculation_of(params.speculative, self._speculation, params.prediction),
            prediction=self._prediction(params),
            prompt_logprobs=None if params.prompt_logprobs is None else [None],
        )
        for index in range(params.n):
            seed = derive_seed(request.seed, index)
            constrained = None if start is None else start.fork()
            completion = Completion(index, seed, params, max_total - len(token_ids), self._tokenizer, constrained)
            seq = RequestSequence(request, index, seed, max_total, completion, list(token_ids), len(token_ids))
            seq.constrained = constrained
            if params.logits_processors or self._processors:
                seq.processors = ProcessorSet(self._processors, params.logits_processors or ())
                if seq.processors.stateful:
                    request.metrics.speculation_off = f"{seq.processors.stateful[0]} does not declare pure = True"
            request.sequences.append(seq)
        if request.speculation is not None:
            request.metrics.speculation = SpeculationMetrics()
        return request

    def _check_params(self, params: SamplingParams) -> None:
        """What can only be judged with the model at hand: token ids, log-probabilities, the features' own."""
        for name in ("stop_token_ids", "logprob_token_ids"):
            for index, token in enumerate(getattr(params, name)):
                self._check_token(f"{name}[{index}]", token)
        for name in ("logprobs", "prompt_logprobs"):
            if getattr(params, name) is not None:
                check_int(name, getattr(params, name), -1, self._vocab_size)
        for feature in self._features:
            feature.check(params)

    def _prediction(self, params: SamplingParams) -> tuple[int, ...]:
        """As far as an output can reach."""
        wanted, limit = params.prediction, self._config.max_model_len
        if isinstance(wanted, str):
            return tuple(
                self._tokenizer.encode(wanted[: limit * PREDICTED_CHARACTERS], add_special_tokens=False)[:limit]
            )
        return tuple(self._check_token(f"prediction[{i}]", token) for i, token in enumerate((wanted or ())[:limit]))

    def _seed(self, params: SamplingParams) -> int:
        if params.seed is not None:
            return params.seed
        return secrets.randbits(DRAWN_SEED_BITS) if self._config.seed is None else self._config.seed

    def tokens_of(self, prompt: Prompt) -> tuple[str | None, list[int]]:
        """A prompt's text, where it has one, and its token ids. Raises RequestError."""
        if isinstance(prompt, Mapping):
            keys = list(prompt)
            if len(keys) != 1 or keys[0] not in PROMPT_KEYS:
                raise RequestError("prompt", dict(prompt), "one of the keys 'prompt' or 'prompt_token_ids'")
            prompt = prompt[keys[0]]
            if isinstance(prompt, str) != (keys[0] == "prompt"):
                raise RequestError(keys[0], prompt, "text" if keys[0] == "prompt" else "a list of token ids")
        if isinstance(prompt, str):
            if not prompt:
                raise RequestError("prompt", prompt, "at least one character")
            try:
                prompt.encode()
            except UnicodeEncodeError:
                raise RequestError("prompt", prompt, "text without lone surrogates") from None
            return prompt, self._tokenizer.encode(prompt)
        if isinstance(prompt, bytes) or not isinstance(prompt, Sequence):
            raise RequestError("prompt", prompt, "a string or a list of token ids")
        if not prompt:
            raise RequestError("prompt", prompt, "at least one token id")
        return None, [self._check_token(f"prompt[{index}]", token) for index, token in enumerate(prompt)]

    def _check_token(self, field: str, token: Any) -> int:
        return check_int(field, token, 0, self._vocab_size - 1)

    def _max_total_tokens(self, num_prompt: int, params: SamplingParams) -> int:
        config = self._config
        pool_tokens = config.num_blocks * config.block_size
        limit = min(config.max_model_len, pool_tokens)
        what = "max_model_len" if limit == config.max_model_len else "the KV pool's size (see kv_cache_gib)"
        if num_prompt >= limit:
            raise RequestError("prompt", f"{num_prompt} tokens", f"at most {limit - 1} tokens", f"{what} is {limit}")
        if params.max_tokens is not None and num_prompt + params.max_tokens > limit:
            hint = f"{what} is {limit} and the prompt has {num_prompt} tokens"
            raise RequestError("max_tokens", params.max_tokens, f"at most {limit - num_prompt} here", hint)
        if params.max_tokens is None and params.min_tokens > limit - num_prompt:
            raise RequestError("min_tokens", params.min_tokens, f"at most {limit - num_prompt} here")
        return limit if params.max_tokens is None else num_prompt + params.max_tokens
