"""Every error in OpenAI's shape: {"error": {"message", "type", "param", "code"}}. Never a traceback."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any

from pydantic import ValidationError
from starlette.exceptions import HTTPException

from decodex.errors import DecodexError, EngineError, NoTokenLeftError, QueueFullError, RequestError
from decodex.server.json_text import JSONReply

__all__ = ["ApiError", "api_error", "error_reply", "invalid_body", "timed_out", "unknown_field"]

logger = logging.getLogger(__name__)

RETRY_AFTER = 1  # seconds; the queue moves on with every request that ends


class ApiError(Exception):
    """An error as the client gets it."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        type: str = "invalid_request_error",
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.body = {"error": {"message": message, "type": type, "param": param, "code": code}}
        self.headers = dict(headers or {})


def unknown_field(error: RequestError) -> ApiError:
    """For a field that there is not."""
    return ApiError(400, str(error), param=error.field, code="unknown_parameter")


def timed_out(seconds: float) -> ApiError:
    """For a request that took longer than the server allows; a client must not simply send it again."""
    message = f"the request took longer than the {seconds:g} seconds that this server allows"
    return ApiError(408, message, type="timeout_error", code="request_timeout", headers={"x-should-retry": "false"})


def api_error(error: BaseException) -> ApiError:
    """What an exception is to the client. An unexpected one is logged and says nothing but that."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, RequestError):
        is_too_long = error.hint.startswith(("max_model_len is", "the KV pool's size"))
        code = "context_length_exceeded" if is_too_long else "invalid_value"
        return ApiError(400, str(error), param=error.field, code=code)
    if isinstance(error, NoTokenLeftError):
        return ApiError(400, str(error), param=error.fields[0], code="no_token_left")
    if isinstance(error, QueueFullError):
        headers = {"Retry-After": str(RETRY_AFTER)}
        return ApiError(429, str(error), type="rate_limit_error", code="queue_full", headers=headers)
    if isinstance(error, HTTPException):
        phrase = HTTPStatus(error.status_code).phrase
        code = phrase.lower().replace(" ", "_")
        return ApiError(error.status_code, str(error.detail), code=code, headers=error.headers)
    if isinstance(error, EngineError):
        return ApiError(500, str(error), type="server_error", code="engine_error")
    if isinstance(error, DecodexError):
        return ApiError(500, str(error), type="server_error", code="internal_error")
    logger.error("an unexpected error", exc_info=error)
    return ApiError(500, "an internal error; the server's log has it", type="server_error", code="internal_error")


def error_reply(error: BaseException) -> JSONReply:
    """The response that an exception becomes."""
    shown = api_error(error)
    return JSONReply(shown.body, status_code=shown.status, headers=shown.headers)


def invalid_body(error: ValidationError, body: Any) -> ApiError:
    """What pydantic has to say, about the deepest field that it looked at."""
    found = [(_place(item["loc"], body), item) for item in error.errors(include_url=False, include_context=False)]
    place, item = max(found, key=lambda pair: len(pair[0]))
    param = _written(place)
    if item["type"] == "missing":
        return ApiError(400, f"{param}: is missing", param=param, code="missing_required_parameter")
    if item["type"] == "extra_forbidden":
        return ApiError(400, f"{param}: there is no such field", param=param, code="unknown_parameter")
    problems = list(dict.fromkeys(other["msg"] for at, other in found if at == place))
    shown = repr(item["input"])
    got = shown if len(shown) <= 120 else shown[:117] + "..."
    code = "invalid_type" if "type" in item["type"] else "invalid_value"
    return ApiError(400, f"{param}: got {got}; {' or: '.join(problems)}", param=param, code=code)


def _place(loc: Sequence[int | str], body: Any) -> tuple[int | str, ...]:
    """The steps of a location that the body has: between them pydantic names the types that it tried."""
    place: list[int | str] = []
    value = body
    for at, step in enumerate(loc):
        is_item = isinstance(value, list) and isinstance(step, int) and step < len(value)
        if is_item or (isinstance(value, Mapping) and step in value):
            value = value[step]
        elif at < len(loc) - 1 or not isinstance(value, Mapping):
            continue
        place.append(step)
    return tuple(place)


def _written(place: Sequence[int | str]) -> str:
    text = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in place)
    return text.removeprefix(".") or "body"
