"""Service: what the endpoints share, and the one way in which a request becomes a response."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar

from fastapi import Request, Response
from pydantic import BaseModel, ConfigDict, ValidationError

from decodex.async_llm import LONG_TEXT, AsyncLLM
from decodex.errors import RequestError
from decodex.outputs import RequestOutput
from decodex.params import SamplingParams
from decodex.server.config import ServerConfig
from decodex.server.errors import ApiError, error_reply, invalid_body
from decodex.server.generation import Generation
from decodex.server.json_text import JSONReply, as_json_in_turns
from decodex.server.limits import ClientGone, Gate, read_body, unless_gone
from decodex.server.logprobs import TokenTexts
from decodex.server.metrics import Metrics
from decodex.server.sse import EventStream

__all__ = ["LONG_TEXT", "Fields", "Service", "new_id", "parse"]

T = TypeVar("T")
F = TypeVar("F", bound="Fields")
Serve = Callable[[Any, Generation], Awaitable[Response]]

LONGEST_TOKEN = 64  # bytes, where the tokenizer does not tell
LONG_REPLY = 4_000  # tokens and log-probabilities


class Fields(BaseModel):
    """Fields of a request that an endpoint reads itself: no others, and no conversions."""

    model_config = ConfigDict(extra="forbid", strict=True)


def parse(kind: type[F], values: Mapping[str, Any]) -> F:
    """The fields of a body, null being the same as absent. Raises ApiError that names the field."""
    given = {name: value for name, value in values.items() if value is not None}
    try:
        return kind.model_validate(given)
    except ValidationError as error:
        raise invalid_body(error, given) from None
    except RecursionError:
        raise ApiError(400, "the body is nested too deeply", code="invalid_value") from None


def new_id(prefix: str) -> str:
    """An id for a response."""
    return f"{prefix}-{uuid.uuid4().hex}"


class Service:
    """One loaded model as its endpoints see it."""

    def __init__(self, llm: AsyncLLM, config: ServerConfig) -> None:
        self.llm = llm
        self.config = config
        self.tokenizer = llm.tokenizer
        if config.chat_template is not None:
            self.tokenizer.use_chat_template(config.chat_template)
        self.limits = llm.engine.config
        self.metrics = Metrics(llm.engine)
        self.gate = Gate(self.limits.max_queued_requests + self.limits.max_num_seqs)
        self.model_name = config.served_model_name or llm.engine.model.name
        self.created = int(time.time())
        self.texts = TokenTexts(self.tokenizer)
        longest = max(map(len, self.tokenizer.token_bytes() or [b"x" * LONGEST_TOKEN]))
        self._most_characters = 2 * longest * self.limits.max_model_len

    async def answer(self, request: Request, serve: Serve) -> Response:
        """Read a request's body and let `serve` make the response; whatever goes wrong becomes an error's."""
        generation: Generation | None = None
        response: Response | None = None
        try:
            generation = Generation(self.llm, self.gate, self.metrics, self.config.request_timeout)
            async with generation.limited():
                body = await read_body(request, self.config.max_body_bytes, self.gate)
                response = await unless_gone(request, serve(body, generation))
            if isinstance(response, EventStream):
                generation.limit_stream()
        except ClientGone:
            response = Response(status_code=499)
        except Exception as error:
            response = error_reply(error)
        finally:
            if generation is not None and not isinstance(response, EventStream):
                generation.close()
        response.headers["x-request-id"] = new_id("req")
        return response

    def check_model(self, name: str | None) -> None:
        """Refuse any other model than the one there is."""
        if name is not None and name != self.model_name:
            message = f"model: got {name!r}, expected {self.model_name!r}, the only one here"
            raise ApiError(404, message, param="model", code="model_not_found")

    def check_size(self, field: str, num_characters: int, num_items: int) -> None:
        """Refuse what is too long in any case, before time is spent on it: a text of so many characters, a list of so
        many token ids or messages, each of which is a token at least."""
        limit = self.limits.max_model_len
        if num_items >= limit or num_characters > self._most_characters:
            got = f"{num_characters} characters" if num_items < limit else f"{num_items} items"
            raise RequestError(field, got, f"at most {limit - 1} tokens", f"max_model_len is {limit}")

    async def beside_loop(self, work: Callable[[], T], size: int) -> T:
        """Do some work on a text of `size` characters: in a thread where that could hold up the event loop."""
        return work() if size < LONG_TEXT else await asyncio.to_thread(work)

    async def reply(
        self, make: Callable[[], Any], outputs: Sequence[RequestOutput], params: SamplingParams
    ) -> JSONReply:
        """The response whose value `make` gives; a long one (log-probabilities) is made beside the event loop."""
        of_output, of_prompt = (
            1 + (self.tokenizer.vocab_size if count == -1 else count or 0)
            for count in (params.logprobs, params.prompt_logprobs)
        )
        size = of_output * sum(len(choice.token_ids) for output in outputs for choice in output.outputs)
        if params.prompt_logprobs is not None:
            size += of_prompt * sum(len(output.prompt_token_ids) for output in outputs)
        if size < LONG_REPLY:
            return JSONReply(make())
        return JSONReply(await asyncio.to_thread(lambda: as_json_in_turns(make())))

    def max_tokens(self, wanted: int | None, num_prompt: int) -> int | None:
        """The length of an output where the request leaves it open."""
        limit = self.config.max_tokens_limit
        if wanted is not None or limit is None:
            return wanted
        return max(1, min(limit, self.limits.max_model_len - num_prompt))

    def facts(self, outputs: list[RequestOutput]) -> dict[str, Any]:
        """What lets a response be replayed."""
        first = outputs[0]
        return {
            "system_fingerprint": first.system_fingerprint,
            "seed": first.outputs[0].seed,
            "replayable": all(output.replayable for output in outputs),
        }
