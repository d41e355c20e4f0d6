"""The independent check: finished texts are validated again by other libraries, in a process that can be killed.

Nothing is shared with the backends that made the masks. One per engine; the process starts when it is first needed.
"""

from __future__ import annotations

import json
import os
import queue
import socket
import subprocess
import sys
import threading
import time
import weakref
from concurrent.futures import Future
from pathlib import Path
from typing import NamedTuple

from decodex.grammar.constraint import Constraint
from decodex.grammar.ebnf import is_ebnf
from decodex.grammar.productions import productions_of

__all__ = ["CheckUnavailable", "IndependentCheck"]

SCRIPT = Path(__file__).with_name("check_worker.py")
START_TIMEOUT = 60.0  # seconds; a start takes a quarter of one on an idle machine
MAX_REPLY = 1 << 20


class CheckUnavailable(RuntimeError):
    """A text that could not be judged: the worker failed, was killed, or took too long."""


class _Job(NamedTuple):
    constraint: Constraint
    text: str
    verdict: Future[str | None]

    def request(self) -> bytes:
        """The line for the worker; a grammar is sent as its productions."""
        kind, stated = self.constraint.kind, self.constraint.text
        if kind == "grammar":
            stated = json.dumps(productions_of(stated))
        return json.dumps([kind, stated, self.text]).encode() + b"\n"


class IndependentCheck:
    """Judges texts one after another. `timeout`: seconds for one text, then its worker is killed and replaced."""

    def __init__(self, *, timeout: float = 10.0) -> None:
        self._timeout = timeout
        self._lock = threading.Lock()
        self._worker: _Worker | None = None

    def start(self) -> None:
        """Have the process started, without waiting for it."""
        self._current()

    @staticmethod
    def judges(constraint: Constraint) -> bool:
        """Whether there is a second opinion on such constraints."""
        if constraint.kind == "grammar":
            return is_ebnf(constraint.text)  # Lark's terminals mean something else to every library
        return constraint.is_whole_output

    def submit(self, constraint: Constraint, text: str) -> Future[str | None]:
        """What is wrong with `text`, or None if nothing is; CheckUnavailable where it can't be said."""
        verdict: Future[str | None] = Future()
        self._current().jobs.put(_Job(constraint, text, verdict))
        return verdict

    def close(self) -> None:
        """End the process. What is still to be judged becomes unavailable."""
        with self._lock:
            worker, self._worker = self._worker, None
        if worker is not None:
            worker.stop()

    def _current(self) -> _Worker:
        with self._lock:
            if self._worker is None or self._worker.owner != os.getpid():  # a fork has no thread of its own
                self._worker = _Worker(self._timeout)
                weakref.finalize(self, self._worker.stop)
            return self._worker


class _Worker:
    """A thread that owns the process: starts it, talks to it, kills it."""

    def __init__(self, timeout: float) -> None:
        self.owner = os.getpid()
        self.jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._timeout = timeout
        self._stopping = False
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self._thread = threading.Thread(target=self._run, name="decodex-check", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the process and the thread; a fork leaves its parent's alone."""
        if os.getpid() != self.owner:
            return
        self._stopping = True
        self.jobs.put(None)
        process = self._process
        if process is not None:
            process.kill()
        if threading.current_thread() is not self._thread:
            self._thread.join(timeout=5.0)

    def _run(self) -> None:
        self._try_start()
        while True:
            job = self.jobs.get()
            if job is None or self._stopping:
                break
            if job.verdict.set_running_or_notify_cancel():
                self._judge(job)
        self._kill()
        while job is not None or not self.jobs.empty():
            if job is not None and not job.verdict.done():
                job.verdict.set_exception(CheckUnavailable("the check was closed"))
            job = self.jobs.get() if not self.jobs.empty() else None

    def _judge(self, job: _Job) -> None:
        try:
            if self._process is None or self._process.poll() is not None:
                self._kill()
                self._start()
            reply = json.loads(self._ask(job.request(), self._timeout))
        except (OSError, ValueError) as error:
            self._kill()
            reply = {"failed": f"the worker gave no answer within {self._timeout:g} s or ended ({error})"}
        if "failed" in reply:
            job.verdict.set_exception(CheckUnavailable(reply["failed"]))
        else:
            job.verdict.set_result(reply["fault"])

    def _try_start(self) -> None:
        try:
            self._start()
        except (OSError, ValueError):
            self._kill()

    def _start(self) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            command = [sys.executable, "-P", str(SCRIPT), str(os.getpid())]
            self._socket = ours
            fd = theirs.fileno()
            self._process = subprocess.Popen(command, stdin=fd, stdout=fd, start_new_session=True)
        if self._stopping:
            raise OSError("the check was closed")
        if self._ask(b"", START_TIMEOUT) != b"ready":
            raise OSError("the worker did not start")

    def _ask(self, request: bytes, timeout: float) -> bytes:
        """Send a line and read one. TimeoutError or another OSError where that fails."""
        assert self._socket is not None
        deadline = time.monotonic() + timeout
        self._socket.settimeout(timeout)
        self._socket.sendall(request)
        reply = b""
        while not reply.endswith(b"\n"):
            self._socket.settimeout(max(deadline - time.monotonic(), 0.001))
            part = self._socket.recv(1 << 16)
            reply += part
            if not part or len(reply) > MAX_REPLY:
                raise OSError("the worker has ended")
        return reply.rstrip(b"\n")

    def _kill(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None
