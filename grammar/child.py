"""A process that compiles what may take long, and is killed when it does.

It is a plain interpreter that reads frames (8 bytes of length, then a pickle) from its input and answers each on its
output: no fork of a threaded process, nothing of the caller's main module is imported. It is kept for the next one.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import selectors
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import IO, Any

import psutil

from decodex.grammar.errors import ConstraintError
from decodex.grammar.plan import Plan
from decodex.grammar.vocabulary import GrammarVocabulary

__all__ = ["CompileChild", "main"]

_HEADER = struct.Struct("<Q")
_POLL_SECONDS = 0.05
_START_SECONDS = 120.0  # the first import of everything, on a slow disk
_MAX_BYTES = 4 << 30  # resident memory of the process


class CompileChild:
    """The owner of the process: one compilation at a time, from any thread."""

    def __init__(self, vocabulary: GrammarVocabulary) -> None:
        self._vocabulary = vocabulary
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()
        self._is_closed = False

    def compile(self, plan: Plan, timeout: float, is_cancelled: Callable[[], bool]) -> bytes:
        """`compile_saved` over there; ConstraintError after `timeout` seconds or above the memory bound."""
        with self._lock:
            if self._is_closed:
                raise ConstraintError("the compiler is closed")
            process = self._started(is_cancelled)
            assert process.stdin is not None
            try:
                _write(process.stdin, plan)
                self._answer(process, _START_SECONDS, is_cancelled, f"loading {plan.backend}")
                answer = self._answer(process, timeout, is_cancelled, "compiling the constraint")
            except (OSError, EOFError):
                self._kill()
                raise ConstraintError(f"{plan.backend} failed while compiling the constraint") from None
            except ConstraintError:
                self._kill()
                raise
        if isinstance(answer, Exception):
            raise answer
        assert isinstance(answer, bytes)
        return answer

    def close(self) -> None:
        """End the process, whatever it does."""
        self._is_closed = True
        self._kill()

    def _started(self, is_cancelled: Callable[[], bool]) -> subprocess.Popen[bytes]:
        if self._process is not None and self._process.poll() is None:
            return self._process
        command = [sys.executable, "-c", "from decodex.grammar.child import main; main()"]
        paths = os.pathsep.join(path for path in sys.path if path)
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            bufsize=0,  # what is read is no more than one frame, so that the selector sees the next one
            env={**os.environ, "PYTHONPATH": paths},
        )
        assert self._process.stdin is not None
        vocabulary = self._vocabulary
        try:
            _write(self._process.stdin, (vocabulary.tokens, vocabulary.special_ids, vocabulary.eos_token_ids))
            self._answer(self._process, _START_SECONDS, is_cancelled, "starting the compiler")
        except (OSError, EOFError):
            self._kill()
            raise ConstraintError("the process for compiling constraints can't be started") from None
        except ConstraintError:
            self._kill()
            raise
        return self._process

    def _answer(
        self, process: subprocess.Popen[bytes], timeout: float, is_cancelled: Callable[[], bool], what: str
    ) -> Any:
        assert process.stdout is not None
        deadline = time.monotonic() + timeout
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            while not selector.select(_POLL_SECONDS):
                if time.monotonic() > deadline:
                    raise ConstraintError(f"{what} took longer than {timeout:g} seconds")
                if is_cancelled():
                    raise ConstraintError(f"{what} was cancelled")
                if _resident_bytes(process.pid) > _MAX_BYTES:
                    raise ConstraintError(f"{what} took more than {_MAX_BYTES >> 30} GiB of memory")
        return _read(process.stdout)

    def _kill(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()


def main() -> None:
    """The process: read the vocabulary, then plans, until the input ends."""
    source = os.fdopen(os.dup(0), "rb")
    target = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a library prints is no answer
    from decodex.grammar.backends.compile import compile_saved, warm

    try:
        tokens, special_ids, eos_token_ids = _read(source)
        vocabulary = GrammarVocabulary(tokens, special_ids, eos_token_ids, lambda text: [])
        _write(target, b"")
        while True:
            plan = _read(source)
            warm(plan.backend, vocabulary)
            _write(target, b"")  # from here on the time counts
            answer: bytes | ConstraintError
            try:
                answer = compile_saved(plan, vocabulary)
            except ConstraintError as error:
                answer = error
            except Exception as error:
                answer = ConstraintError(f"{plan.backend} failed: {type(error).__name__}: {error}"[:300])
            _write(target, answer)
    except (EOFError, BrokenPipeError):
        return


def _write(stream: IO[bytes], value: object) -> None:
    data = pickle.dumps(value)
    view = memoryview(_HEADER.pack(len(data)) + data)
    while view:  # an unbuffered stream takes what the pipe has room for
        view = view[stream.write(view) :]
    stream.flush()


def _read(stream: IO[bytes]) -> Any:
    (size,) = _HEADER.unpack(_exactly(stream, _HEADER.size))
    return pickle.loads(_exactly(stream, size))


def _exactly(stream: IO[bytes], size: int) -> bytes:
    parts = []
    while size:
        part = stream.read(size)
        if not part:
            raise EOFError
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def _resident_bytes(pid: int) -> int:
    try:
        return int(psutil.Process(pid).memory_info().rss)
    except psutil.Error:
        return 0
