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
from decodex.server.openapi import METRICS_REPLY, Bodies, describe, path_parameter, replies
from decodex.server.responses import Responses
from decodex.server.responses_request import ResponseFields
from decodex.server.service import Fields, Serve, Service
from decodex.server.tokenize import DetokenizeFields, TokenizeFields, detokenize, tokenize
from decodex.version import __version__

__all__ = ["create_app"]

Make = Callable[[Request], Any]


def create_app(llm: AsyncLLM, config: ServerConfig) -> FastAPI:
    """The application that serves `llm`; `app.state.service` is its Service. Raises RequestError (api_key_file)."""
    app = FastAPI(title="decodex", version=__version__, docs_url=None, redoc_url=None)
    service = app.state.service = Service(llm, config)
    if config.origins:
        app.add_middleware(
            CORSMiddleware, allow_origins=list(config.origins), allow_methods=["GET", "POST"], allow_headers=["*"]
        )
    for kind in (HTTPException, Exception):
        app.add_exception_handler(kind, _failed)
    routes = _Routes(app, service, Keys.of(config))

    async def serve_tokenize(body: Any, _: Generation) -> Response:
        return JSONReply(await tokenize(service, body))

    async def serve_detokenize(body: Any, _: Generation) -> Response:
        return JSONReply(await detokenize(service, body))

    chat, completion, response = Chat(service).serve, Completions(service).serve, Responses(service).serve
    routes.post("/v1/chat/completions", "Chat", ChatFields, chat, "ChatCompletion", "ChatChunk")
    routes.post("/v1/completions", "Completion", CompletionFields, completion, "Completion", "CompletionChunk")
    routes.post("/v1/responses", "Response", ResponseFields, response, "ResponseReply", "ResponseEvent")
    routes.post("/tokenize", "Tokenize", TokenizeFields, serve_tokenize, "TokenizeReply")
    routes.post("/detokenize", "Detokenize", DetokenizeFields, serve_detokenize, "DetokenizeReply")
    routes.get("/v1/models", lambda _: list_models(service), "ModelList")
    routes.get("/v1/models/{name:path}", lambda request: show_model(service, request.path_params["name"]), "Model")
    routes.get("/health", lambda _: health(service), "Status", is_open=True)
    routes.get("/ready", lambda _: ready(service), "Status", is_open=True)
    routes.get("/version", lambda _: version(service), "Version", is_open=True)

    @app.get("/metrics", response_model=None, responses=METRICS_REPLY, operation_id="metrics")
    async def metrics() -> Response:
        return Response(service.metrics.text(), media_type=CONTENT_TYPE)

    describe(app, routes.bodies, has_keys=bool(config.keys or config.api_key_file))
    return app


class _Routes:
    """Adds routes, with what the document says of them."""

    def __init__(self, app: FastAPI, service: Service, keys: Keys) -> None:
        self.bodies = Bodies()
        self._app = app
        self._service = service
        self._keys = keys

    def post(
        self, path: str, name: str, fields: type[Fields], serve: Serve, reply: str | None, chunk: str | None = None
    ) -> None:
        """A route that takes a body; with the fields of the sampling table where it streams (`chunk`)."""

        async def endpoint(request: Request) -> Response:
            try:
                self._keys.check(request.headers)
            except Exception as error:
                response: Response = error_reply(error)
            else:
                response = await self._service.answer(request, serve)
            self._service.metrics.responded(path, response.status_code)
            return response

        extra = self.bodies.add(f"{name}Request", fields, with_sampling=chunk is not None)
        self._app.add_api_route(
            path,
            endpoint,
            methods=["POST"],
            operation_id=name.lower(),
            openapi_extra=extra,
            responses=replies(reply, chunk),
            response_model=None,
        )

    def get(self, path: str, make: Make, reply: str, *, is_open: bool = False) -> None:
        """A route that shows something; `is_open`: without a key."""

        async def endpoint(request: Request) -> Response:
            try:
                if not is_open:
                    self._keys.check(request.headers)
                return JSONReply(make(request))
            except Exception as error:
                return error_reply(error)

        name = path.removeprefix("/v1").strip("/").partition("/")[0]
        self._app.add_api_route(
            path,
            endpoint,
            operation_id=name if "{" not in path else "model",
            openapi_extra=path_parameter("name") if "{" in path else None,
            responses=replies(reply),
            response_model=None,
        )


async def _failed(request: Request, error: Exception) -> Response:
    return error_reply(error)
