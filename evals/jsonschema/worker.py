"""A process that judges, so that a library that runs for ever is killed and counts as having refused."""

from __future__ import annotations

import multiprocessing
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from evals.jsonschema import backends
    from evals.jsonschema.data import Case
else:
    import backends

__all__ = ["RIGHT", "Worker", "verdict_of"]

RIGHT, REFUSED, SLOW, ACCEPTS, REJECTS, BOTH, MUTANT = "=rtARBM"


def verdict_of(backend: str, case: Case, limit: int | None = None) -> tuple[str, str]:
    """One letter and a detail: all right, refused, or what is wrong with which instances."""
    try:
        judge = backends.compiled(backend, case.schema)
    except backends.Refused as refusal:
        return REFUSED, str(refusal)
    accepts, rejects = [], []
    for i, (forms, is_valid) in enumerate(case.texts[:limit]):
        if is_valid and not judge(forms[0]):
            rejects.append(i)
        if not is_valid and any(judge(form) for form in forms):
            accepts.append(i)
    if not accepts and not rejects:
        texts = [text for text in case.mutants[:limit] if judge(text)]
        return (MUTANT, f"accepts {texts[0][:200]}") if texts else (RIGHT, "")
    letter = BOTH if accepts and rejects else ACCEPTS if accepts else REJECTS if rejects else RIGHT
    return letter, f"wrong accepts {accepts}, wrong rejects {rejects}"


def _serve(pipe: Any) -> None:
    while True:
        backend, case = pipe.recv()
        pipe.send(verdict_of(backend, case))


class Worker:
    """Judges cases one at a time in a process of its own, `seconds` each at most."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.process: Any = None

    def verdict(self, backend: str, case: Case) -> tuple[str, str]:
        """See verdict_of; SLOW where the time is over."""
        if self.process is None:
            self.pipe, theirs = multiprocessing.Pipe()
            self.process = multiprocessing.get_context("fork").Process(target=_serve, args=(theirs,), daemon=True)
            self.process.start()
        self.pipe.send((backend, case))
        if self.pipe.poll(self.seconds):
            try:
                letter, detail = self.pipe.recv()
                return str(letter), str(detail)
            except EOFError:
                pass
        self.close()
        return SLOW, f"more than {self.seconds} s, or the process died"

    def close(self) -> None:
        """End the process."""
        if self.process is not None:
            self.process.kill()
            self.process.join()
            self.process = None
