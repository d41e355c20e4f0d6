"""API keys: kept and compared as hashes, in constant time."""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Iterable
from pathlib import Path

from starlette.datastructures import Headers

from decodex.errors import RequestError
from decodex.server.config import ServerConfig
from decodex.server.errors import ApiError

__all__ = ["Keys"]


class Keys:
    """The keys that are let in; none means everybody is."""

    def __init__(self, digests: Iterable[bytes]) -> None:
        self._digests = tuple(digests)

    @classmethod
    def of(cls, config: ServerConfig) -> Keys:
        """Those of a config. RequestError names the file and line."""
        digests = [hashlib.sha256(key.encode()).digest() for key in config.keys]
        if config.api_key_file is not None:
            digests += _read(config.api_key_file)
        return cls(digests)

    def check(self, headers: Headers) -> None:
        """Refuse a request without one of the keys."""
        if not self._digests:
            return
        scheme, _, key = headers.get("authorization", "").partition(" ")
        digest = hashlib.sha256(key.strip().encode()).digest()
        matches = [hmac.compare_digest(digest, known) for known in self._digests]  # all of them, always
        if scheme.lower() != "bearer" or not any(matches):
            message = "Authorization: expected Bearer and a valid API key"
            headers_back = {"WWW-Authenticate": "Bearer"}
            raise ApiError(401, message, type="authentication_error", code="invalid_api_key", headers=headers_back)


def _read(name: str) -> list[bytes]:
    try:
        lines = Path(name).read_text("utf-8").splitlines()
    except (OSError, ValueError) as error:
        raise RequestError("api_key_file", name, "a readable file", str(error)) from None
    digests = []
    for number, line in enumerate(lines, 1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        digest = words[0].removeprefix("sha256:")
        if not re.fullmatch(r"[0-9a-fA-F]{64}", digest):
            expected = "the SHA-256 of a key, 64 hexadecimal digits"
            raise RequestError(f"{name}:{number}", "another text", expected, "printf %s KEY | sha256sum")
        digests.append(bytes.fromhex(digest))
    if not digests:
        raise RequestError("api_key_file", name, "a file with at least one key")
    return digests
