"""`decodex serve`: serve a model to OpenAI clients over HTTP.

SIGTERM and SIGINT end it gracefully: requests in flight have `drain_timeout` seconds left. The exit status is 0 then,
and 1 when the engine has died.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import pathlib
import signal
import sys
from collections.abc import Generator, Sequence
from typing import TYPE_CHECKING, Any

from decodex.cli.flags import Parser, add_flags, given
from decodex.cli.loading import add_engine_flags
from decodex.config import EngineConfig
from decodex.server.config import ServerConfig, with_environment

if TYPE_CHECKING:
    import uvicorn

    from decodex.async_llm import AsyncLLM

__all__ = ["build_parser", "run", "serve"]

logger = logging.getLogger(__name__)

WATCH_INTERVAL = 0.1  # seconds between looks at the engine
LINGER = 1.0  # seconds in which a dead engine's requests get their replies, and /health is seen red
FORCE_AFTER = 5.0  # seconds beyond drain_timeout after which connections are cut
SWITCH_INTERVAL = 0.001  # seconds: the event loop must not keep the step loop waiting for Python's lock


def build_parser() -> Parser:
    """The options of the command."""
    parser = Parser(prog="decodex serve", description="Serve a model to OpenAI clients over HTTP.")
    add_flags(parser, ServerConfig)
    add_engine_flags(parser)
    return parser


def run(argv: Sequence[str]) -> int:
    """Load the model and serve it until a signal comes or the engine dies."""
    arguments = build_parser().parse_exactly(argv)
    engine = EngineConfig(**given(arguments, EngineConfig))
    options = with_environment(given(arguments, ServerConfig), os.environ)
    options.setdefault("served_model_name", served_name(engine.model))
    config = ServerConfig(**options)
    from decodex.async_llm import AsyncLLM
    from decodex.engine import Engine

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    sys.setswitchinterval(SWITCH_INTERVAL)
    llm = AsyncLLM.from_engine(Engine.load(engine))
    try:
        return asyncio.run(serve(llm, config))
    finally:
        llm.shutdown()


def served_name(model: str) -> str:
    """What clients call a model: the name or id that was given; of a path its last part."""
    is_path = pathlib.Path(model).exists()
    return pathlib.Path(model).resolve().name if is_path else model


async def serve(llm: AsyncLLM, config: ServerConfig) -> int:
    """Serve until a signal comes (0) or the engine dies (1)."""
    import uvicorn

    from decodex.server.app import create_app

    app = create_app(llm, config)
    server = _server_class()(
        uvicorn.Config(
            app,
            host=config.host,
            port=config.port,
            access_log=config.access_log,
            log_config=None,
            lifespan="off",
            server_header=False,
            timeout_graceful_shutdown=int(config.drain_timeout + FORCE_AFTER) + 1,
        )
    )
    loop = asyncio.get_running_loop()
    draining = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, draining.set)
    serving = asyncio.ensure_future(server.serve())
    stopping = asyncio.ensure_future(_stop_in_time(server, app.state.service.gate, config.drain_timeout, draining))
    dying = asyncio.ensure_future(_watch(llm, server))
    try:
        await serving
    finally:
        stopping.cancel()
        dying.cancel()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)
    if not server.started:
        return 1
    return 0 if llm.failure is None else 1


def _server_class() -> type[uvicorn.Server]:
    """uvicorn's server without its handling of signals, which are sent again in the end."""
    import uvicorn

    class Server(uvicorn.Server):
        @contextlib.contextmanager
        def capture_signals(self) -> Generator[None]:
            yield

    return Server


async def _stop_in_time(server: uvicorn.Server, gate: Any, timeout: float, draining: asyncio.Event) -> None:
    """Once a signal has come: take no more requests, and end what runs when its time is up. A second signal ends it at
    once."""
    from decodex.server.limits import shutting_down

    await draining.wait()
    draining.clear()
    logger.info("stopping: requests in flight have %g seconds", timeout)
    gate.is_draining = True
    server.should_exit = True
    try:
        await asyncio.wait_for(draining.wait(), timeout)
    except TimeoutError:
        logger.warning("the time is up: ending what is in flight")
    gate.end_all(shutting_down())


async def _watch(llm: AsyncLLM, server: uvicorn.Server) -> None:
    """End the server when its engine has died."""
    while llm.failure is None:
        await asyncio.sleep(WATCH_INTERVAL)
    logger.error("the engine has died: %s", llm.failure)
    await asyncio.sleep(LINGER)
    server.should_exit = True
