"""From constraints to compiled grammars, for any thread: cached, each constraint compiled once, bounded in time."""

from __future__ import annotations

import threading
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeoutError

from decodex.grammar.backends.compile import assemble, compile_here, is_risky
from decodex.grammar.cache import GrammarCache
from decodex.grammar.child import CompileChild
from decodex.grammar.completion import search_of
from decodex.grammar.constraint import Constraint
from decodex.grammar.errors import ConstraintError
from decodex.grammar.matcher import CompiledGrammar
from decodex.grammar.plan import Plan, plan_of
from decodex.grammar.vocabulary import GrammarVocabulary

__all__ = ["GrammarCompiler"]

_MAX_CACHE_BYTES = 256 << 20
_POLL_SECONDS = 0.05


class _Job:
    """One compilation that is under way, and how many wait for it."""

    def __init__(self, constraint: Constraint) -> None:
        self.constraint = constraint
        self.future: Future[CompiledGrammar] = Future()
        self.num_waiting = 0


class GrammarCompiler:
    """One per engine. `compile` blocks; the same constraint asked for by several threads is compiled once."""

    def __init__(
        self,
        vocabulary: GrammarVocabulary,
        *,
        max_cache_bytes: int = _MAX_CACHE_BYTES,
        timeout: float = 10.0,
        num_threads: int = 1,
    ) -> None:
        """timeout: seconds that a compilation without limits of its own may take (its wait for others not counted)."""
        self.vocabulary = vocabulary
        self.cache = GrammarCache(max_cache_bytes)
        self._timeout = timeout
        self._threads = ThreadPoolExecutor(num_threads, thread_name_prefix="grammar")
        self._risky_thread = ThreadPoolExecutor(1, thread_name_prefix="grammar-child")
        self._child = CompileChild(vocabulary)
        self._jobs: dict[Constraint, _Job] = {}
        self._lock = threading.Lock()
        self._is_closed = False

    def compile(self, constraint: Constraint, cancelled: threading.Event | None = None) -> CompiledGrammar:
        """The compiled grammar. ConstraintError: refused, too slow, or `cancelled` was set while waiting."""
        grammar = self.cache.get(constraint)
        if grammar is not None:
            return grammar
        with self._lock:
            if self._is_closed:
                raise ConstraintError("the compiler is closed")
            job = self._jobs.get(constraint)
            if job is None:
                if (grammar := self.cache.get(constraint)) is not None:  # finished a moment ago
                    return grammar
                job = self._jobs[constraint] = _Job(constraint)
                self._threads.submit(self._run, job)
            job.num_waiting += 1
        try:
            return self._wait(job, cancelled)
        finally:
            with self._lock:
                job.num_waiting -= 1

    def close(self) -> None:
        """End what is under way; every later call is refused."""
        with self._lock:
            self._is_closed = True
        self._child.close()
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._risky_thread.shutdown(wait=False, cancel_futures=True)
        with self._lock:
            for job in self._jobs.values():
                if not job.future.done():
                    job.future.set_exception(ConstraintError("the compiler is closed"))

    def _wait(self, job: _Job, cancelled: threading.Event | None) -> CompiledGrammar:
        while True:
            try:
                return job.future.result(None if cancelled is None else _POLL_SECONDS)
            except FutureTimeoutError:
                if cancelled is not None and cancelled.is_set():
                    raise ConstraintError("compiling the constraint was cancelled") from None

    def _run(self, job: _Job) -> None:
        try:
            if self._is_abandoned(job):
                raise ConstraintError("compiling the constraint was cancelled")
            self.vocabulary.warm()  # once, and not in a step of the engine
            search_of(self.vocabulary)
            plan = plan_of(job.constraint)
            if is_risky(plan):
                self._risky_thread.submit(self._run_risky, plan, job)
                return
            self._finish(job, compile_here(plan, self.vocabulary))
        except BaseException as error:
            self._fail(job, error)

    def _run_risky(self, plan: Plan, job: _Job) -> None:
        try:
            saved = self._child.compile(plan, self._timeout, lambda: self._is_abandoned(job))
            self._finish(job, assemble(plan, saved, self.vocabulary))
        except BaseException as error:
            self._fail(job, error)

    def _is_abandoned(self, job: _Job) -> bool:
        with self._lock:
            if job.num_waiting and not self._is_closed:
                return False
            self._drop(job)  # who asks from now on starts a new one
            return True

    def _finish(self, job: _Job, grammar: CompiledGrammar) -> None:
        self.cache.put(job.constraint, grammar)
        self._forget(job)
        if not job.future.done():
            job.future.set_result(grammar)

    def _fail(self, job: _Job, error: BaseException) -> None:
        self._forget(job)
        if isinstance(error, RecursionError):
            error = ConstraintError("the constraint is nested too deeply")
        elif not isinstance(error, ConstraintError):
            error = ConstraintError(f"the constraint can't be compiled ({type(error).__name__}: {error})"[:300])
        if not job.future.done():
            job.future.set_exception(error)

    def _forget(self, job: _Job) -> None:
        with self._lock:
            self._drop(job)

    def _drop(self, job: _Job) -> None:
        if self._jobs.get(job.constraint) is job:
            del self._jobs[job.constraint]
