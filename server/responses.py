"""/v1/responses: one output of a conversation, with OpenAI's items and events."""

from __future__ import annotations

import functools
import time
from collections.abc import AsyncGenerator, Iterable
from typing import Any

from fastapi import Response

from decodex.errors import RequestError
from decodex.outputs import RequestOutput
from decodex.params import SamplingParams
from decodex.server.conversation import Conversations, Prepared
from decodex.server.errors import api_error
from decodex.server.generation import Generation, Job
from decodex.server.json_text import JSONReply, as_json
from decodex.server.logprobs import chat_logprobs
from decodex.server.pieces import Piece, Progress
from decodex.server.reasoning import num_reasoning_tokens
from decodex.server.responses_events import OutputItems, new_item_id
from decodex.server.responses_request import ResponseFields, messages_of, set_sampling, tool_request_of
from decodex.server.sampling import Sampling, read_sampling, split_body
from decodex.server.service import LONG_TEXT, Service, parse
from decodex.server.sse import EventStream
from decodex.server.tools.delta import Delta
from decodex.server.tools.request import ToolRequest
from decodex.server.usage import usage_of
from decodex.structured_outputs import FIELD

__all__ = ["Responses"]


class Responses:
    """Makes the responses."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._conversations = Conversations(service.tokenizer, service.config)

    async def serve(self, body: Any, generation: Generation) -> Response:
        """The response to a body. Raises what the service turns into errors."""
        service = self._service
        own, others = split_body(body, ResponseFields.model_fields, "a response")
        fields = parse(ResponseFields, own)
        service.check_model(fields.model)
        fields.check()
        request = tool_request_of(fields)
        sampling = read_sampling(others)
        set_sampling(fields, sampling)
        try:
            prepared = await self._prepare(fields, request, sampling)
            sampling.values["max_tokens"] = service.max_tokens(fields.max_output_tokens, len(prepared.token_ids))
            params = sampling.params(service.config)
            job = Job(new_item_id("resp"), [prepared.token_ids], params, sampling.priority, sampling.cache_salt)
            await generation.start(job, only_last=not fields.stream)
        except RequestError as error:
            raise sampling.renamed(error) from None
        reply = _Reply(service, fields, others, request, prepared, job)
        if not fields.stream:
            [output] = await generation.last()
            return JSONReply(reply.whole(output))
        first = await generation.next()
        assert first is not None, "a generation without an output"
        return EventStream(reply.events(first[1], generation), generation.close, end=b"")

    async def _prepare(self, fields: ResponseFields, request: ToolRequest | None, sampling: Sampling) -> Prepared:
        """The prompt and the plan of the output, whose parameters go into `sampling`."""
        is_list = isinstance(fields.input, list)
        self._service.check_size("input", 0, len(fields.input) if is_list else 0)
        messages = messages_of(fields)
        size = sum(len(message["content"]) for message in messages)
        self._service.check_size("input", size, 0)
        is_constrained = FIELD in sampling.values
        if request is not None and not is_constrained:
            sampling.names[FIELD] = "tools"
        sampling.names |= {"prompt": "input", "messages": "input", "max_tokens": "max_output_tokens"}
        prepare = functools.partial(
            self._conversations.prepare,
            messages,
            request,
            sampling,
            effort=fields.effort,
            effort_field="reasoning.effort",
            template_values=fields.chat_template_kwargs,
        )
        takes_long = is_constrained or request is not None
        prepared = await self._service.beside_loop(prepare, LONG_TEXT if takes_long else size)
        _check_logprobs(fields, prepared)
        return prepared


def _check_logprobs(fields: ResponseFields, prepared: Prepared) -> None:
    """Tokens belong to a text as a whole where it is all there is."""
    if fields.wants_logprobs and (prepared.plan.names or prepared.plan.reasoning is not None):
        expected = "no log-probabilities beside tools or reasoning"
        raise RequestError("include", fields.include, expected, "chat completions have them for all tokens")


class _Reply:
    """One request's response, whole or in events."""

    def __init__(
        self,
        service: Service,
        fields: ResponseFields,
        others: dict[str, Any],
        request: ToolRequest | None,
        prepared: Prepared,
        job: Job,
    ) -> None:
        self._service = service
        self._fields = fields
        self._params = job.params
        self._plan = prepared.plan
        self._parser = prepared.plan.parser()
        self._progress = Progress()
        self._output = OutputItems()
        self._held: list[dict[str, Any]] = []  # log-probabilities of tokens whose text is held back
        self._head = _head(service, fields, others, request, job)

    def whole(self, output: RequestOutput) -> dict[str, Any]:
        """The response body."""
        self._advance(output)
        return self._response(output)

    async def events(self, first: RequestOutput, generation: Generation) -> AsyncGenerator[bytes]:
        """One chunk of events for each commit. An error is told as the response's failure."""
        number = _Numbers()
        output = first
        begun = {**self._head, "status": "in_progress", **self._service.facts([first])}
        yield number.written({"type": f"response.{what}", "response": begun} for what in ("created", "in_progress"))
        try:
            item: tuple[int, RequestOutput] | None = (0, first)
            while item is not None:
                output = item[1]
                if events := self._advance(output):
                    yield number.written(events)
                item = await generation.next()
        except Exception as error:
            shown = api_error(error).body["error"]
            failed = {"code": "server_error", "message": shown["message"]}
            response = {**self._response(output), "status": "failed", "error": failed, "incomplete_details": None}
            yield number.written([{"type": "response.failed", "response": response}])
            return
        response = self._response(output)
        yield number.written([{"type": f"response.{response['status']}", "response": response}])

    def _advance(self, output: RequestOutput) -> list[dict[str, Any]]:
        """The events of what an output adds."""
        piece = self._progress.advance(output.outputs[0])
        if piece is None:
            return []
        deltas = self._parser.feed(piece.text)
        if piece.finish_reason is not None:
            deltas += self._parser.finish()
        self._held += self._logprobs(piece)
        if self._held and not deltas and piece.finish_reason is not None:
            deltas = [Delta()]  # tokens without a text of their own
        events = []
        for delta in deltas:
            events += self._output.add(delta, self._held)
            self._held = []
        if piece.finish_reason is not None:
            events += self._output.finish(piece.finish_reason == "length")
        return events

    def _logprobs(self, piece: Piece) -> list[dict[str, Any]]:
        if piece.logprobs is None or not self._fields.wants_logprobs:
            return []
        also = self._params.logprob_token_ids or ()
        shown = chat_logprobs(
            piece.token_ids,
            piece.logprobs,
            self._fields.top_logprobs or 0,
            also,
            self._service.texts,
            self._params.skip_special_tokens,
        )
        return [_with_bytes(entry) for entry in shown["content"]]

    def _response(self, output: RequestOutput) -> dict[str, Any]:
        [choice] = output.outputs
        is_cut = choice.finish_reason == "length"
        count = num_reasoning_tokens(choice.token_ids, self._service.texts.bytes_of, self._plan.reasoning)
        return {
            **self._head,
            "status": "incomplete" if is_cut else "completed",
            "completed_at": None if is_cut else int(time.time()),
            "incomplete_details": {"reason": "max_output_tokens"} if is_cut else None,
            "output": self._output.items,
            "usage": _usage(output, count),
            **self._service.facts([output]),
        }


class _Numbers:
    """Counts events."""

    def __init__(self) -> None:
        self._count = 0

    def written(self, events: Iterable[dict[str, Any]]) -> bytes:
        """Events with their numbers, as they are sent."""
        chunks = []
        for one in events:
            text = as_json({**one, "sequence_number": self._count})
            chunks.append(b"event: " + one["type"].encode() + b"\ndata: " + text + b"\n\n")
            self._count += 1
        return b"".join(chunks)


def _with_bytes(entry: dict[str, Any]) -> dict[str, Any]:
    """A token that is not shown has no bytes; here that is an empty list."""
    top = [_with_bytes(one) for one in entry.get("top_logprobs", ())]
    return {**entry, "bytes": entry["bytes"] or [], **({"top_logprobs": top} if "top_logprobs" in entry else {})}


def _usage(output: RequestOutput, reasoning_tokens: int) -> dict[str, Any]:
    usage = usage_of([output], reasoning_tokens)
    return {
        "input_tokens": usage["prompt_tokens"],
        "input_tokens_details": {**usage["prompt_tokens_details"], "cache_write_tokens": 0},  # none are charged for
        "output_tokens": usage["completion_tokens"],
        "output_tokens_details": usage["completion_tokens_details"],
        "total_tokens": usage["total_tokens"],
    }


def _head(
    service: Service, fields: ResponseFields, others: dict[str, Any], request: ToolRequest | None, job: Job
) -> dict[str, Any]:
    """What a response says of its request."""
    params: SamplingParams = job.params
    tools = () if request is None else request.tools
    shown = [
        {
            "type": "function",
            "name": tool.name,
            "description": tool.description,
            "parameters": dict(tool.parameters),
            "strict": tool.strict,
        }
        for tool in tools
    ]
    return {
        "id": job.request_id,
        "object": "response",
        "created_at": int(time.time()),
        "completed_at": None,
        "status": "in_progress",
        "background": False,
        "error": None,
        "incomplete_details": None,
        "instructions": fields.instructions,
        "max_output_tokens": fields.max_output_tokens,
        "metadata": others.get("metadata") or {},
        "model": service.model_name,
        "output": [],
        "parallel_tool_calls": fields.parallel_tool_calls is not False,
        "previous_response_id": None,
        "prompt_cache_key": others.get("prompt_cache_key"),
        "reasoning": {"effort": fields.effort, "summary": None},
        "safety_identifier": others.get("safety_identifier"),
        "service_tier": "default",
        "store": False,
        "temperature": params.temperature,
        "text": {"format": (fields.text.format if fields.text else None) or {"type": "text"}},
        "tool_choice": fields.tool_choice or "auto",
        "tools": shown,
        "top_logprobs": fields.top_logprobs or 0,
        "top_p": 1.0 if params.top_p is None else params.top_p,
        "truncation": "disabled",
        "usage": None,
        "user": others.get("user"),
    }
