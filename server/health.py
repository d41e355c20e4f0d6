"""/health: whether the engine lives; /ready: whether requests are taken; /version."""

from __future__ import annotations

from typing import Any

from decodex.server.errors import ApiError
from decodex.server.limits import shutting_down
from decodex.server.service import Service
from decodex.version import __version__

__all__ = ["health", "ready", "version"]


def health(service: Service) -> dict[str, Any]:
    """Raises ApiError when the engine has died."""
    failure = service.llm.failure
    if failure is not None:
        raise ApiError(503, f"the engine has ended: {failure}", type="server_error", code="engine_dead")
    return {"status": "ok"}


def ready(service: Service) -> dict[str, Any]:
    """Raises ApiError when the engine has died, or the server is stopping."""
    health(service)
    if service.gate.is_draining:
        raise shutting_down()
    return {"status": "ready"}


def version(service: Service) -> dict[str, Any]:
    """Version and fingerprint: what a seed belongs to."""
    return {"version": __version__, "system_fingerprint": service.llm.engine.fingerprint}
