"""/v1/chat/completions: a conversation answered, with tools, reasoning, OpenAI's fields and ours."""

from __future__ import annotations

import functools
import time
from collections.abc import Sequence
from typing import Any

from fastapi import Response

from decodex.errors import RequestError
from decodex.outputs import CompletionOutput, RequestOutput
from decodex.server.chat_request import ChatFields, template_messages, tools_of
from decodex.server.chunks import chunks
from decodex.server.completion_request import check_stream_options
from decodex.server.conversation import Conversations
from decodex.server.generation import Generation, Job
from decodex.server.logprobs import chat_logprobs, prompt_logprobs
from decodex.server.pieces import Piece, Progress
from decodex.server.reasoning import num_reasoning_tokens
from decodex.server.sampling import Sampling, read_sampling, split_body
from decodex.server.service import Service, new_id, parse
from decodex.server.sse import EventStream
from decodex.server.tools.plan import Delta, OutputParser, OutputPlan
from decodex.server.usage import usage_of
from decodex.structured_outputs import FIELD

__all__ = ["Chat"]

ALWAYS_LONG = 1 << 30  # for what is to be done beside the event loop whatever the text's size


class Chat:
    """Makes the responses."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._conversations = Conversations(service.tokenizer, service.config)

    async def serve(self, body: Any, generation: Generation) -> Response:
        """The response to a body. Raises what the service turns into errors."""
        service = self._service
        own, others = split_body(body, ChatFields.model_fields, "a chat completion")
        if isinstance(messages := own.get("messages"), list):
            service.check_size("messages", 0, len(messages))
        fields = parse(ChatFields, own)
        service.check_model(fields.model)
        options = check_stream_options(fields.stream_options, fields.stream)
        sampling = read_sampling(others)
        prompt, plan = await self._prepare(fields, sampling)
        self._set_length(fields, sampling, len(prompt))
        params = sampling.params(service.config)
        job = Job(new_id("chatcmpl"), [prompt], params, sampling.priority, sampling.cache_salt)
        try:
            await generation.start(job, only_last=not fields.stream)
        except RequestError as error:
            raise sampling.renamed(error) from None
        reply = _Reply(service, fields, job, plan)
        if not fields.stream:
            [output] = await generation.last()
            return await service.reply(lambda: reply.whole(output), [output], params)
        first = await generation.next()
        assert first is not None, "a generation without an output"
        return EventStream(chunks(first, generation, reply, options), generation.close)

    async def _prepare(self, fields: ChatFields, sampling: Sampling) -> tuple[list[int], OutputPlan]:
        """The prompt's tokens and the plan of the output, whose parameters go into `sampling`."""
        request = tools_of(fields.tools, fields.tool_choice, fields.parallel_tool_calls)
        messages = template_messages(fields.messages)
        is_constrained = FIELD in sampling.values
        if fields.tools and not is_constrained:
            sampling.names[FIELD] = "tools"
        prepare = functools.partial(
            self._conversations.prepare,
            messages,
            request,
            sampling,
            effort=fields.reasoning_effort,
            template_values=fields.chat_template_kwargs,
            add_generation_prompt=fields.add_generation_prompt,
        )
        size = sum(len(message["content"]) for message in messages if "content" in message)
        self._service.check_size("messages", size, 0)
        try:
            takes_long = is_constrained or request is not None
            prepared = await self._service.beside_loop(prepare, ALWAYS_LONG if takes_long else size)
        except RequestError as error:
            raise sampling.renamed(error) from None
        return prepared.token_ids, prepared.plan

    def _set_length(self, fields: ChatFields, sampling: Sampling, num_prompt: int) -> None:
        name, longest = fields.length
        sampling.values["max_tokens"] = self._service.max_tokens(longest, num_prompt)
        sampling.names["max_tokens"] = name
        sampling.names["prompt"] = "messages"
        if fields.num_logprobs is not None:
            sampling.values["logprobs"] = fields.num_logprobs
            sampling.names["logprobs"] = "top_logprobs"


class _Reply:
    """One request's response, whole or in chunks."""

    def __init__(self, service: Service, fields: ChatFields, job: Job, plan: OutputPlan) -> None:
        self._service = service
        self._fields = fields
        self._params = job.params
        self._plan = plan
        self._num_logprobs = job.params.logprobs
        self._head = {"id": job.request_id, "created": int(time.time()), "model": service.model_name}
        self._parsers: dict[int, OutputParser] = {}

    def whole(self, output: RequestOutput) -> dict[str, Any]:
        """The response body."""
        choices = []
        for choice in output.outputs:
            piece = Progress().advance(choice)
            assert piece is not None, choice
            parser = self._plan.parser()
            message = merge(parser.feed(piece.text) + parser.finish())
            calls = message.get("tool_calls")
            if calls:
                for call in calls:
                    del call["index"]
            content = message.pop("content", None if calls else "")
            shown = {"role": "assistant", "content": content, "refusal": None, **message}
            reason = parser.finish_reason(piece.finish_reason)
            choices.append({"index": choice.index, "message": shown, **self._rest(choice, piece, reason)})
        return {
            **self._head,
            "object": "chat.completion",
            "choices": choices,
            "usage": self.usage([output]),
            **self._service.facts([output]),
            **self._of_prompt(output),
        }

    def chunk_head(self, output: RequestOutput) -> dict[str, Any]:
        """See Reply."""
        return {**self._head, "object": "chat.completion.chunk", **self._service.facts([output])}

    def chunk_choice(
        self, place: int, output: RequestOutput, choice: CompletionOutput, piece: Piece, is_first: bool
    ) -> dict[str, Any] | None:
        """See Reply."""
        if choice.index not in self._parsers:
            self._parsers[choice.index] = self._plan.parser()
        parser = self._parsers[choice.index]
        deltas = parser.feed(piece.text)
        if piece.finish_reason is not None:
            deltas += parser.finish()
        delta = merge(deltas)
        rest = self._rest(choice, piece, parser.finish_reason(piece.finish_reason))
        if not (is_first or delta or piece.finish_reason or rest["logprobs"] or rest.get("token_ids")):
            return None
        if is_first:
            delta = {"role": "assistant", "content": "", **delta}
            rest |= self._of_prompt(output) if choice.index == 0 else {}
        return {"index": choice.index, "delta": delta, **rest}

    def usage(self, outputs: Sequence[RequestOutput]) -> dict[str, Any]:
        """See Reply."""
        count = 0
        if self._plan.reasoning is not None:
            count = sum(
                num_reasoning_tokens(choice.token_ids, self._service.texts.bytes_of, self._plan.reasoning)
                for output in outputs
                for choice in output.outputs
            )
        return usage_of(outputs, count)

    def _rest(self, choice: CompletionOutput, piece: Piece, finish_reason: str | None) -> dict[str, Any]:
        """What is said of a choice beside its message."""
        logprobs = None
        if piece.logprobs is not None and self._num_logprobs is not None:
            logprobs = chat_logprobs(
                piece.token_ids,
                piece.logprobs,
                self._num_logprobs,
                self._params.logprob_token_ids or (),
                self._service.texts,
                self._params.skip_special_tokens,
            )
        rest = {
            "logprobs": logprobs,
            "finish_reason": finish_reason,
            "stop_reason": piece.stop_reason,
            "seed": choice.seed,
        }
        return {**rest, "token_ids": piece.token_ids} if self._fields.return_token_ids else rest

    def _of_prompt(self, output: RequestOutput) -> dict[str, Any]:
        found: dict[str, Any] = {}
        if self._params.prompt_logprobs is not None:
            found["prompt_logprobs"] = prompt_logprobs(output.prompt_logprobs)
        if self._fields.return_token_ids:
            found["prompt_token_ids"] = output.prompt_token_ids
        return found


def merge(deltas: Sequence[Delta]) -> dict[str, Any]:
    """Deltas as one message, or one piece of it: what they say of each thing joined."""
    found: dict[str, Any] = {}
    calls: dict[int, dict[str, Any]] = {}
    for delta in deltas:
        if delta.content:
            found["content"] = found.get("content", "") + delta.content
        if delta.reasoning:
            found["reasoning_content"] = found.get("reasoning_content", "") + delta.reasoning
        if delta.call is not None:
            call = calls.setdefault(delta.call.index, {"index": delta.call.index})
            if delta.call.id is not None:
                call |= {"id": delta.call.id, "type": "function"}
            function = call.setdefault("function", {})
            if delta.call.name is not None:
                function["name"] = delta.call.name
            function["arguments"] = function.get("arguments", "") + delta.call.arguments
    return {**found, "tool_calls": list(calls.values())} if calls else found
