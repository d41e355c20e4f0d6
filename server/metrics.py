"""Prometheus metrics: the engine's state when it is asked, and what requests have seen and used."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from decodex.engine import Engine
from decodex.outputs import RequestOutput

__all__ = ["CONTENT_TYPE", "Metrics"]

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
FIRST_TOKEN = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 30.0, 60.0)
BETWEEN_TOKENS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5)
WHOLE = (0.1, 0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0)


class Metrics:
    """All metrics of one server, in a registry of its own."""

    def __init__(self, engine: Engine) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(_EngineState(engine))

        def counter(name: str, help: str, *labels: str) -> Counter:
            return Counter(f"decodex_{name}", help, labels, registry=self._registry)

        def histogram(name: str, help: str, buckets: tuple[float, ...]) -> Histogram:
            return Histogram(f"decodex_{name}", help, buckets=buckets, registry=self._registry)

        self._responses = counter("http_responses", "Responses by path and status.", "path", "status")
        self._finished = counter("request_success", "Choices by the reason of their end.", "finished_reason")
        self._prompt_tokens = counter("prompt_tokens", "Tokens of prompts.")
        self._output_tokens = counter("generation_tokens", "Tokens generated.")
        self._cached_tokens = counter("prefix_cache_hits", "Tokens of prompts that came from the prefix cache.")
        self._preemptions = counter("num_preemptions", "Times that a sequence was preempted.")
        self._drafted = counter("spec_decode_draft_tokens", "Tokens drafted, by proposer.", "proposer")
        self._accepted = counter("spec_decode_accepted_tokens", "Drafted tokens accepted, by proposer.", "proposer")
        self._drafted_at = counter(
            "spec_decode_draft_tokens_per_pos", "Tokens drafted, by depth in the draft.", "position"
        )
        self._accepted_at = counter(
            "spec_decode_accepted_tokens_per_pos", "Drafted tokens accepted, by depth in the draft.", "position"
        )
        self._refused = counter("constraints_refused", "Constraints that can't be honoured, by kind.", "kind")
        self._first_token = histogram("time_to_first_token_seconds", "From request to first token.", FIRST_TOKEN)
        self._between = histogram(
            "inter_token_latency_seconds",
            "Between tokens: of each commit when streaming, else the mean of a request.",
            BETWEEN_TOKENS,
        )
        self._whole = histogram("e2e_request_latency_seconds", "From request to its end.", WHOLE)
        for reason in ("stop", "length", "abort", "error"):
            self._finished.labels(reason)

    def text(self) -> bytes:
        """Everything, as Prometheus reads it."""
        return generate_latest(self._registry)

    def responded(self, path: str, status: int) -> None:
        """Count a response."""
        self._responses.labels(path, str(status)).inc()

    def refused_constraint(self, kind: str) -> None:
        """Count a constraint that was refused."""
        self._refused.labels(kind).inc()

    def first_token(self, seconds: float) -> None:
        """Observe the wait for the first token."""
        self._first_token.observe(seconds)

    def between_tokens(self, seconds: float) -> None:
        """Observe the time for a token after the first."""
        self._between.observe(seconds)

    def ended(self, outputs: Iterable[RequestOutput], seconds: float) -> None:
        """Count what a request has used, however it ended."""
        self._whole.observe(seconds)
        for output in outputs:
            self._prompt_tokens.inc(len(output.prompt_token_ids))
            self._cached_tokens.inc(output.metrics.num_cached_tokens)
            self._preemptions.inc(output.metrics.num_preemptions)
            for choice in output.outputs:
                self._output_tokens.inc(len(choice.token_ids))
                self._finished.labels(choice.finish_reason or "abort").inc()
            self._speculated(output)

    def _speculated(self, output: RequestOutput) -> None:
        known = output.metrics.speculation
        if known is None:
            return
        for proposer, (drafted, accepted) in list(known.by_proposer.items()):
            self._drafted.labels(proposer).inc(drafted)
            self._accepted.labels(proposer).inc(accepted)
        for counts, metric in ((known.drafted_at, self._drafted_at), (known.accepted_at, self._accepted_at)):
            for depth, count in enumerate(list(counts)):
                metric.labels(str(depth)).inc(count)


class _EngineState(Collector):
    """What the engine knows, read when asked; its thread goes on meanwhile."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def collect(self) -> Iterator[Metric]:
        scheduler, verdicts = self._engine.scheduler, self._engine.verdicts
        total = self._engine.config.num_blocks
        gauges = (
            ("num_requests_running", "Sequences in the batch.", len(scheduler.running)),
            ("num_requests_waiting", "Sequences that wait.", len(scheduler.waiting)),
            ("kv_cache_usage_ratio", "Blocks of the KV cache in use, of 1.", 1 - scheduler.pool.num_free / total),
        )
        for name, help, value in gauges:
            yield GaugeMetricFamily(f"decodex_{name}", help, value)
        masks = self._engine.mask_times
        counters = (
            ("grammar_mask_seconds", "Time spent filling grammar masks.", masks.seconds),
            ("grammar_mask_rows", "Rows whose grammar masks were filled.", masks.num_rows),
            ("output_check_mismatches", "Outputs that the validation found wrong.", verdicts.num_mismatches),
            ("output_check_unavailable", "Outputs that could not be validated.", verdicts.num_unavailable),
        )
        for name, help, value in counters:
            yield CounterMetricFamily(f"decodex_{name}", help, value)
