"""/v1/completions: one or more prompts continued, with OpenAI's fields and ours."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from fastapi import Response

from decodex.errors import RequestError
from decodex.outputs import CompletionOutput, RequestOutput
from decodex.params import SamplingParams
from decodex.server.chunks import chunks
from decodex.server.completion_request import CompletionFields, check_stream_options
from decodex.server.generation import Generation, Job
from decodex.server.logprobs import TextOffset, completion_logprobs, prompt_logprobs
from decodex.server.pieces import Piece, Progress
from decodex.server.sampling import Sampling, read_sampling, split_body
from decodex.server.service import Service, new_id, parse
from decodex.server.sse import EventStream
from decodex.server.usage import usage_of

__all__ = ["Completions"]

DEFAULT_MAX_TOKENS = 16


class Completions:
    """Makes the responses."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def serve(self, body: Any, generation: Generation) -> Response:
        """The response to a body. Raises what the service turns into errors."""
        service = self._service
        own, others = split_body(body, CompletionFields.model_fields, "a completion")
        fields = parse(CompletionFields, own)
        service.check_model(fields.model)
        fields.check()
        options = check_stream_options(fields.stream_options, fields.stream)
        params, sampling = self._params(fields, read_sampling(others))
        prompts = await self._tokenize(fields)
        job = Job(new_id("cmpl"), prompts, params, sampling.priority, sampling.cache_salt)
        try:
            await generation.start(job, only_last=not fields.stream)
        except RequestError as error:
            raise sampling.renamed(error) from None
        reply = _Reply(service, fields, job)
        if not fields.stream:
            outputs = await generation.last()
            return await service.reply(lambda: reply.whole(outputs), outputs, params)
        first = await generation.next()
        assert first is not None, "a generation without an output"
        return EventStream(chunks(first, generation, reply, options), generation.close)

    def _params(self, fields: CompletionFields, sampling: Sampling) -> tuple[SamplingParams, Sampling]:
        values = sampling.values
        limit = self._service.config.max_tokens_limit
        default = DEFAULT_MAX_TOKENS if limit is None else min(limit, DEFAULT_MAX_TOKENS)
        values["max_tokens"] = default if fields.max_tokens is None else fields.max_tokens
        if fields.max_tokens == 0 and fields.echo:
            values["max_tokens"] = 1  # generated and thrown away
        if fields.logprobs is not None:
            values["logprobs"] = fields.logprobs
            if fields.echo:
                values.setdefault("prompt_logprobs", fields.logprobs)
        return sampling.params(self._service.config), sampling

    async def _tokenize(self, fields: CompletionFields) -> list[list[int]]:
        prompts, most = fields.prompts, self._service.config.max_prompts
        if not 0 < len(prompts) <= most:
            raise RequestError("prompt", f"{len(prompts)} prompts", f"1 to {most} on this server")
        for index, prompt in enumerate(prompts):
            place = "prompt" if len(prompts) == 1 else f"prompt[{index}]"
            sizes = (len(prompt), 0) if isinstance(prompt, str) else (0, len(prompt))
            self._service.check_size(place, *sizes)
        admission = self._service.llm.engine.admission

        def tokenize() -> list[list[int]]:
            found = []
            for index, prompt in enumerate(prompts):
                try:
                    found.append(admission.tokens_of(prompt)[1])
                except RequestError as error:
                    place = "prompt" if len(prompts) == 1 else f"prompt[{index}]"
                    field = place + error.field.removeprefix("prompt")
                    raise RequestError(field, error.got, error.expected, error.hint) from None
            return found

        return await self._service.beside_loop(tokenize, sum(map(len, prompts)))


class _Reply:
    """One request's response, whole or in events."""

    def __init__(self, service: Service, fields: CompletionFields, job: Job) -> None:
        self._service = service
        self._fields = fields
        self._params = job.params
        self._is_thrown_away = fields.max_tokens == 0
        self._head = {
            "id": job.request_id,
            "object": "text_completion",
            "created": int(time.time()),
            "model": service.model_name,
        }
        self._offsets: dict[int, TextOffset] = {}

    def whole(self, outputs: list[RequestOutput]) -> dict[str, Any]:
        """The response body."""
        choices = []
        for place, output in enumerate(outputs):
            for choice in output.outputs:
                piece = Progress().advance(choice)
                assert piece is not None, choice
                choices.append(self._choice(place, output, choice, piece, is_first=True))
        return {**self._head, "choices": choices, "usage": self.usage(outputs), **self._service.facts(outputs)}

    def chunk_head(self, output: RequestOutput) -> dict[str, Any]:
        """See Reply."""
        return {**self._head, **self._service.facts([output])}

    def chunk_choice(
        self, place: int, output: RequestOutput, choice: CompletionOutput, piece: Piece, is_first: bool
    ) -> dict[str, Any] | None:
        """See Reply."""
        shown = self._choice(place, output, choice, piece, is_first)
        says_something = shown["text"] or shown["finish_reason"] or shown["logprobs"] or shown.get("token_ids")
        return shown if says_something else None

    def usage(self, outputs: Sequence[RequestOutput]) -> dict[str, Any]:
        """See Reply."""
        return usage_of(outputs, without_output=self._is_thrown_away)

    def _choice(
        self, place: int, output: RequestOutput, choice: CompletionOutput, piece: Piece, is_first: bool
    ) -> dict[str, Any]:
        fields, index = self._fields, place * self._params.n + choice.index
        text, token_ids = piece.text, list(piece.token_ids)
        logprobs: list[Any] | None = None if piece.logprobs is None else list(piece.logprobs)
        finish_reason, stop_reason = piece.finish_reason, piece.stop_reason
        if self._is_thrown_away:
            text, token_ids, stop_reason = "", [], None
            logprobs = None if logprobs is None else []
            finish_reason = finish_reason and "length"
        shown_ids = list(token_ids)
        if fields.echo and is_first:
            text = self._prompt_text(place, output) + text
            shown_ids = output.prompt_token_ids + shown_ids
            if logprobs is not None:
                logprobs = [*(output.prompt_logprobs or ()), *logprobs]
        shown: dict[str, Any] = {"index": index, "text": text, "logprobs": None, "finish_reason": finish_reason}
        if logprobs is not None and fields.logprobs is not None:
            offset = self._offsets.setdefault(index, TextOffset(self._params.skip_special_tokens))
            wanted = (fields.logprobs, self._params.logprob_token_ids or ())
            shown["logprobs"] = completion_logprobs(shown_ids, logprobs, *wanted, self._service.texts, offset)
        shown |= {"stop_reason": stop_reason, "seed": choice.seed}
        if is_first and self._params.prompt_logprobs is not None:
            shown["prompt_logprobs"] = prompt_logprobs(output.prompt_logprobs)
        if fields.return_token_ids:
            shown["token_ids"] = token_ids
            if is_first:
                shown["prompt_token_ids"] = output.prompt_token_ids
        return shown

    def _prompt_text(self, place: int, output: RequestOutput) -> str:
        prompt = self._fields.prompts[place]
        if isinstance(prompt, str):
            return prompt
        return self._service.tokenizer.decode(output.prompt_token_ids, self._params.skip_special_tokens)
