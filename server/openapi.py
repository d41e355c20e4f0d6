"""The OpenAPI document: request bodies from the same definitions that read them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from decodex.server.openapi_replies import REPLIES
from decodex.server.responses_schema import RESPONSE_REPLIES
from decodex.server.sampling import TABLE
from decodex.server.service import Fields

__all__ = ["METRICS_REPLY", "Bodies", "describe", "path_parameter", "replies"]

_REF = "#/components/schemas/{model}"
ERROR = {
    "type": "object",
    "properties": {
        "error": {
            "type": "object",
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": ["string", "null"]},
            },
            "required": ["message", "type", "param", "code"],
        }
    },
    "required": ["error"],
}


METRICS_REPLY: dict[int | str, dict[str, Any]] = {
    200: {"description": "Prometheus metrics.", "content": {"text/plain": {"schema": {"type": "string"}}}}
}


def _reference(name: str) -> dict[str, str]:
    return {"$ref": _REF.format(model=name)}


def replies(name: str | None, chunk: str | None = None) -> dict[int | str, dict[str, Any]]:
    """The `responses` of a route: its reply, or a stream of `chunk`, and errors."""
    content: dict[str, Any] = {"application/json": {"schema": {"type": "object"} if name is None else _reference(name)}}
    told = "The reply."
    if chunk is not None:
        content["text/event-stream"] = {"schema": {"type": "string"}}
        told = f"The reply; with stream, events of {chunk}, or Error."
    error = {"description": "An error.", "content": {"application/json": {"schema": _reference("Error")}}}
    return {200: {"description": told, "content": content}, "4XX": error, "5XX": error}


def path_parameter(name: str) -> dict[str, Any]:
    """The `openapi_extra` of a route with a parameter in its path."""
    return {"parameters": [{"name": name, "in": "path", "required": True, "schema": {"type": "string"}}]}


class Bodies:
    """The schemas of request bodies, by name."""

    def __init__(self) -> None:
        self.schemas: dict[str, Any] = {"Error": ERROR, **REPLIES, **RESPONSE_REPLIES}

    def add(self, name: str, fields: type[Fields], *, with_sampling: bool) -> dict[str, Any]:
        """Define a body; what FastAPI takes as `openapi_extra` of its route."""
        schema = fields.model_json_schema(ref_template=_REF)
        for inner, definition in schema.pop("$defs", {}).items():
            self.schemas[inner] = definition
        if with_sampling:
            schema["properties"] = {
                **schema["properties"],
                **{
                    known.name: {**known.schema, "description": known.help}
                    for known in TABLE.values()
                    if known.name not in schema["properties"]
                },
            }
        self.schemas[name] = {**schema, "title": name}
        content = {"application/json": {"schema": _reference(name)}}
        return {"requestBody": {"required": True, "content": content}}


def describe(app: FastAPI, bodies: Bodies, *, has_keys: bool) -> None:
    """Let the app answer with the whole document."""

    def document() -> Mapping[str, Any]:
        if app.openapi_schema is None:
            made = get_openapi(title=app.title, version=app.version, routes=app.routes, description=app.description)
            components = made.setdefault("components", {})
            components.setdefault("schemas", {}).update(bodies.schemas)
            if has_keys:
                components["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
                made["security"] = [{"key": []}]
            app.openapi_schema = made
        return app.openapi_schema

    app.openapi = document  # type: ignore[method-assign,assignment]
