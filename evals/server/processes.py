"""The processes that are measured: `decodex serve` and the engine by itself, each stopped while the other works."""

from __future__ import annotations

import contextlib
import json
import pathlib
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from typing import Any

import psutil

__all__ = ["EngineProcess", "ServerProcess"]

HERE = pathlib.Path(__file__).resolve().parent
START_SECONDS = 240
STOP_SECONDS = 60


class _Process:
    """A child process."""

    def __init__(self, command: list[str], **options: Any) -> None:
        self.child = subprocess.Popen(command, **options)
        self.facts = psutil.Process(self.child.pid)

    @property
    def cpu_seconds(self) -> float:
        """Processor time so far."""
        times = self.facts.cpu_times()
        return float(times.user + times.system)

    @contextlib.contextmanager
    def working(self) -> Iterator[None]:
        """Let it run within, and not otherwise."""
        self.child.send_signal(signal.SIGCONT)
        try:
            yield
        finally:
            self.child.send_signal(signal.SIGSTOP)

    def stop(self) -> int:
        """End it as an operator would; its exit status."""
        self.child.send_signal(signal.SIGCONT)
        self.child.send_signal(signal.SIGTERM)
        try:
            return self.child.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.child.kill()
            return self.child.wait()


class ServerProcess(_Process):
    """`decodex serve` on a free port, once it is ready."""

    def __init__(self, model: str, *options: str) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port: int = probe.getsockname()[1]
        command = [sys.executable, "-m", "decodex", "serve", "--model", model, "--port", str(self.port), *options]
        super().__init__(command)
        for _ in range(START_SECONDS * 4):
            if self.child.poll() is not None:
                raise RuntimeError(f"the server has ended with status {self.child.returncode}")
            with contextlib.suppress(urllib.error.URLError, ConnectionError):
                self.get("/ready")
                return
            time.sleep(0.25)
        self.stop()
        raise RuntimeError("the server did not start")

    def get(self, path: str) -> str:
        """The text of a page of it."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=30) as response:
            text: str = response.read().decode()
            return text

    def metrics(self) -> dict[str, float]:
        """The samples of /metrics by name and labels."""
        lines = [line for line in self.get("/metrics").splitlines() if not line.startswith("#")]
        return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}


class EngineProcess(_Process):
    """engine_process.py with these options of an LLM, once the model is loaded."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        command = [sys.executable, str(HERE / "engine_process.py")]
        super().__init__(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.ask(**options)

    def ask(self, **request: Any) -> dict[str, Any]:
        """Send a line and wait for the answer."""
        assert self.child.stdin is not None
        assert self.child.stdout is not None
        self.child.stdin.write(json.dumps(request) + "\n")
        self.child.stdin.flush()
        line = self.child.stdout.readline()
        if not line:
            raise RuntimeError(f"the engine's process has ended with status {self.child.wait()}")
        reply: dict[str, Any] = json.loads(line)
        return reply
