"""create_app: the endpoints wired to one engine. No logic."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fastapi import FastAPI, Request, Response
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware

from decodex.async_llm import AsyncLLM
from decodex.server.auth import Keys
from decodex.server.chat import Chat
from decodex.server.chat_request import ChatFields
from decodex.server.completion_request import CompletionFields
from decodex.server.completions import Completions
from decodex.server.config import ServerConfig
from decodex.server.errors import error_reply
from decodex.server.generation import Generation
from decodex.server.health import health, ready, version
from decodex.server.json_text import JSONReply
from decodex.server.metrics import CONTENT_TYPE
from decodex.server.models import list_models, show_model
from decodex.server.openapi import Bodies, describe
from decodex.server.responses import Responses
from decodex.server.responses_request import ResponseFields
from decodex.server.service import Fields, Serve, Service
from decodex.server.tokenize import DetokenizeFields, TokenizeFields, detokenize, tokenize
from decodex.version import __version__

__all__ = ["create_app"]

_ERROR = {
    "description": "An error.",
    "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}},
}
ERRORS: dict[int | str, dict[str, Any]] = {"4XX": _ERROR, "5XX": _ERROR}


def create_app(llm: AsyncLLM, config: ServerConfig) -> FastAPI:
    """The application that serves `llm`; `app.state.service` is its Service. Raises RequestError (api_key_file)."""
    app = FastAPI(title="decodex", version=__version__, docs_url=None, redoc_url=None)
    service = app.state.service = Service(llm, config)
    keys, bodies = Keys.of(config), Bodies()
    if config.origins:
        app.add_middleware(
            CORSMiddleware, allow_origins=list(config.origins), allow_methods=["GET", "POST"], allow_headers=["*"]
        )
    app.add_exception_handler(HTTPException, _failed)
    app.add_exception_handler(Exception, _failed)

    def respond(request: Request, make: Callable[[], Any], *, is_open: bool = False) -> Response:
        try:
            if not is_open:
                keys.check(request.headers)
            return JSONReply(make())
        except Exception as error:
            return error_reply(error)

    def post(path: str, name: str, fields: type[Fields], serve: Serve, *, with_sampling: bool = False) -> None:
        async def endpoint(request: Request) -> Response:
            try:
                keys.check(request.headers)
            except Exception as error:
                reply: Response = error_reply(error)
            else:
                reply = await service.answer(request, serve)
            service.metrics.responded(path, reply.status_code)
            return reply

        extra = bodies.add(name, fields, with_sampling=with_sampling)
        app.add_api_route(
            path,
            endpoint,
            methods=["POST"],
            operation_id=name,
            openapi_extra=extra,
            responses=ERRORS,
            response_model=None,
        )

    post("/v1/chat/completions", "ChatRequest", ChatFields, Chat(service).serve, with_sampling=True)
    post("/v1/completions", "CompletionRequest", CompletionFields, Completions(service).serve, with_sampling=True)
    post("/v1/responses", "ResponseRequest", ResponseFields, Responses(service).serve, with_sampling=True)

    async def serve_tokenize(body: Any, _: Generation) -> Response:
        return JSONReply(await tokenize(service, body))

    async def serve_detokenize(body: Any, _: Generation) -> Response:
        return JSONReply(await detokenize(service, body))

    post("/tokenize", "TokenizeRequest", TokenizeFields, serve_tokenize)
    post("/detokenize", "DetokenizeRequest", DetokenizeFields, serve_detokenize)

    @app.get("/v1/models", responses=ERRORS, response_model=None)
    async def models(request: Request) -> Response:
        return respond(request, lambda: list_models(service))

    @app.get("/v1/models/{name:path}", responses=ERRORS, response_model=None)
    async def model(request: Request, name: str) -> Response:
        return respond(request, lambda: show_model(service, name))

    @app.get("/health", responses=ERRORS, response_model=None)
    async def is_healthy(request: Request) -> Response:
        return respond(request, lambda: health(service), is_open=True)

    @app.get("/ready", responses=ERRORS, response_model=None)
    async def is_ready(request: Request) -> Response:
        return respond(request, lambda: ready(service), is_open=True)

    @app.get("/version", responses=ERRORS, response_model=None)
    async def show_version(request: Request) -> Response:
        return respond(request, lambda: version(service), is_open=True)

    @app.get("/metrics", response_model=None)
    async def metrics() -> Response:
        return Response(service.metrics.text(), media_type=CONTENT_TYPE)

    describe(app, bodies, has_keys=bool(config.keys or config.api_key_file))
    return app


async def _failed(request: Request, error: Exception) -> Response:
    return error_reply(error)
