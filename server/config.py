"""ServerConfig: what a server is started with, beside the engine's own options. Frozen, checked on construction."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from decodex.checks import Flag, Int, Number, OneOf, Texts
from decodex.definition import FILE_OR_TEXT, definition, option, run_checks
from decodex.errors import RequestError
from decodex.server.reasoning import REASONING_FORMATS
from decodex.server.tools.syntax import TOOL_CALL_FORMATS

__all__ = ["ServerConfig", "with_environment"]

MAX_KEYS = 1024


class Name:
    """A text that is not empty, or None."""

    expected = "a text"
    off = (None,)

    def __call__(self, field: str, value: Any) -> str | None:
        if value is not None and (not isinstance(value, str) or not value):
            raise RequestError(field, value, self.expected)
        return value


@definition
class ServerConfig:
    """The options of a server. Raises `RequestError` naming the field."""

    host: str = option(default="127.0.0.1", help="address to listen at; 0.0.0.0 is every interface")
    port: int = option(default=8000, help="port to listen at; 0 takes a free one", check=Int(0, 65535, optional=False))
    served_model_name: str | None = option(
        default=None, help="what clients call the model; default: the name of the model", check=Name()
    )
    api_key: tuple[str, ...] | list[str] | str | None = option(
        default=None,
        help="keys that clients must send one of (Authorization: Bearer KEY); the environment's DECODEX_API_KEY too",
        metavar="KEY",
        check=Texts(MAX_KEYS, 1024),
    )
    api_key_file: str | None = option(
        default=None,
        help="file with a SHA-256 of a key on each line, as `printf %s KEY | sha256sum` prints it",
        metavar="FILE",
        check=Name(),
    )
    cors_origins: tuple[str, ...] | list[str] | str | None = option(
        default=None,
        help="web origins whose pages may call the server; * is all",
        metavar="URL",
        check=Texts(256, 2048),
    )
    max_body_bytes: int = option(default=4 << 20, help="longest request body", check=Int(1024, optional=False))
    max_n: int = option(default=128, help="most choices for a prompt", check=Int(1, 128, optional=False))
    max_prompts: int = option(default=256, help="most prompts of a completion", check=Int(1, optional=False))
    max_logprobs: int = option(
        default=20,
        help="most log-probabilities at a position; -1 is all tokens",
        check=Int(-1, optional=False),
    )
    max_tokens_limit: int | None = option(
        default=None, help="most tokens that a request may ask for; default: the context", check=Int(1)
    )
    request_timeout: float | None = option(
        default=None, help="seconds after which a request is ended", check=Number(0.0, open_low=True)
    )
    drain_timeout: float = option(
        default=30.0, help="seconds that requests in flight have left after SIGTERM", check=Number(0.0, optional=False)
    )
    tool_call_format: str = option(
        default="auto",
        help="how the model writes tool calls; auto reads it off the chat template",
        choices=TOOL_CALL_FORMATS,
        check=OneOf(TOOL_CALL_FORMATS),
    )
    reasoning_format: str = option(
        default="auto",
        help="markers around the model's reasoning; auto reads them off the chat template",
        choices=REASONING_FORMATS,
        check=OneOf(REASONING_FORMATS),
    )
    chat_template: str | None = option(
        default=None, help="chat template (Jinja) in place of the model's own", metavar=FILE_OR_TEXT, check=Name()
    )
    access_log: bool = option(default=False, help="log a line for each request", check=Flag())

    def __post_init__(self) -> None:
        if not isinstance(self.host, str) or not self.host:
            raise RequestError("host", self.host, "an address")
        run_checks(self)

    @property
    def keys(self) -> tuple[str, ...]:
        """`api_key`, which is a tuple once it is checked."""
        assert isinstance(self.api_key, tuple), self.api_key
        return self.api_key

    @property
    def origins(self) -> tuple[str, ...]:
        """`cors_origins`, likewise."""
        assert isinstance(self.cors_origins, tuple), self.cors_origins
        return self.cors_origins


def with_environment(values: Mapping[str, Any], environment: Mapping[str, str]) -> dict[str, Any]:
    """The options, with the key of the environment where none is given (a command line is seen by every process)."""
    key = environment.get("DECODEX_API_KEY")
    return {**({"api_key": (key,)} if key and not values.get("api_key") else {}), **values}
