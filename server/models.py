"""/v1/models: the one model that is served."""

from __future__ import annotations

from typing import Any

from decodex.server.service import Service

__all__ = ["list_models", "show_model"]


def _card(service: Service) -> dict[str, Any]:
    return {
        "id": service.model_name,
        "object": "model",
        "created": service.created,
        "owned_by": "decodex",
        "max_model_len": service.limits.max_model_len,
    }


def list_models(service: Service) -> dict[str, Any]:
    """The list."""
    return {"object": "list", "data": [_card(service)]}


def show_model(service: Service, name: str) -> dict[str, Any]:
    """One model. ApiError if there is none of this name."""
    service.check_model(name)
    return _card(service)
