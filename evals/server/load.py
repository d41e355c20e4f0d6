"""The server's cost: tokens/s and time to the first token over HTTP, beside the engine by itself.

    .venv/bin/python evals/server/load.py         # writes evals/results/server.json

Three processes: `decodex serve`, the engine by itself (engine_process.py), and this one, a client on plain sockets; of
the first two, the one that is not asked is stopped by signal. A round is the same conversations, parameters and seeds,
answered by the engine, streamed, and not streamed, in an order that rotates; the texts must be the same. A ratio is the
median over rounds of the paired ratio. The first token is timed one request at a time, with nothing else to do.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import statistics
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from decodex.cli.machine import machine_facts, version_facts

if TYPE_CHECKING:
    from evals.server import connection, processes
else:  # this folder is on the path of a script; the root must not be
    import connection
    import processes

ROOT = pathlib.Path(__file__).resolve().parents[2]
DATA = ROOT.parent / "shared" / "data" / "mt_bench" / "question.jsonl"
PATH = "/v1/chat/completions"
BUILT_IN = [
    "What is a glacier and how does it move?",
    "Write a short letter that thanks a teacher.",
    "Explain recursion to a ten-year-old.",
    "How does a bicycle stay upright?",
]
MODES = ("engine", "stream", "whole")
BARS = {"stream": 0.90, "whole": 0.95}
BAR_FIRST_MS = 15.0


@dataclass
class Measurements:
    """What was measured, one item a round or a request."""

    speeds: dict[str, list[float]] = field(default_factory=lambda: {mode: [] for mode in MODES})  # tokens/s
    cpu: dict[str, list[float]] = field(default_factory=lambda: {mode: [] for mode in MODES})  # s, of the process
    client_cpu: list[float] = field(default_factory=list)  # share of the time while it streams
    first: dict[str, list[float]] = field(default_factory=lambda: {"engine": [], "stream": []})  # seconds


class Bench:
    """The two processes, and what is asked of them."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._questions = questions()
        clients, gib = options.clients, options.kv_cache_gib
        # the server gets every prompt twice
        flags = ["--max-num-seqs", str(clients), "--kv-cache-gib", str(gib), "--no-enable-prefix-caching"]
        limits = {"max_num_seqs": clients, "kv_cache_gib": gib, "enable_prefix_caching": False}
        self.engine = processes.EngineProcess({"model": options.model, **limits})
        try:
            self.server = processes.ServerProcess(options.model, *flags)
        except BaseException:
            self.engine.stop()
            raise
        self.found = Measurements()

    def stop(self) -> None:
        """End the processes."""
        self.engine.stop()
        self.server.stop()

    def ask(self, number: int, count: int, max_tokens: int) -> tuple[list[Any], list[dict[str, Any]]]:
        """Conversations, other ones for each `number`, and parameters."""
        texts = [self._questions[(number + place) % len(self._questions)] for place in range(count)]
        conversations = [
            [{"role": "user", "content": f"Question {number}.{place}: {text}"}] for place, text in enumerate(texts)
        ]
        same = {"temperature": 0.8, "top_p": 0.9, "ignore_eos": True, "max_tokens": max_tokens}
        return conversations, [{**same, "seed": 1000 * number + place} for place in range(count)]

    def round(self, number: int, *, counts: bool = True) -> None:
        """Every mode once; `counts`: it is no warm-up."""
        conversations, params = self.ask(number, self._options.clients, self._options.max_tokens)
        texts: dict[str, list[str]] = {}
        num_tokens, seconds = 0, {}
        for mode in (*MODES[number % 3 :], *MODES[: number % 3]):
            process = self.engine if mode == "engine" else self.server
            with process.working():
                before, own = process.cpu_seconds, time.process_time()
                if mode == "engine":
                    reply = self.engine.ask(op="all", conversations=conversations, params=params)
                    seconds[mode], texts[mode], num_tokens = reply["seconds"], reply["texts"], reply["num_tokens"]
                else:
                    seconds[mode], texts[mode] = self._exchange(conversations, params, mode == "stream")
                if counts:
                    self.found.cpu[mode].append(round(process.cpu_seconds - before, 2))
                    if mode == "stream":
                        self.found.client_cpu.append(round((time.process_time() - own) / seconds[mode], 4))
        for mode in MODES:
            assert texts[mode] == texts["engine"], f"round {number}: {mode} has other texts"
            if counts:
                self.found.speeds[mode].append(round(num_tokens / seconds[mode], 2))

    def _exchange(self, conversations: list[Any], params: list[Any], stream: bool) -> tuple[float, list[str]]:
        requests = [
            connection.request_bytes(PATH, {"messages": messages, "stream": stream, **fields})
            for messages, fields in zip(conversations, params, strict=True)
        ]
        exchanges = connection.exchange_all(self.server.port, requests)
        assert {exchange.status for exchange in exchanges} == {200}, exchanges[0].received[:1]
        texts = [streamed_text(each) if stream else whole_text(each) for each in exchanges]
        return max(exchange.seconds for exchange in exchanges), texts

    def first_tokens(self, number: int, count: int, *, counts: bool = True) -> None:
        """One request at a time: first by the engine and then over HTTP, or the other way round."""
        for place in range(count):
            conversations, params = self.ask(10_000 + number * count + place, 1, 2)
            for mode in ("engine", "stream") if place % 2 else ("stream", "engine"):
                with (self.engine if mode == "engine" else self.server).working():
                    if mode == "engine":
                        seconds = self.engine.ask(op="first", conversations=conversations, params=params)["seconds"]
                    else:
                        body = {"messages": conversations[0], "stream": True, **params[0]}
                        request = connection.request_bytes(PATH, body)
                        [exchange] = connection.exchange_all(self.server.port, [request])
                        seconds = exchange.first_seconds
                if counts:
                    self.found.first[mode].append(seconds)


def questions() -> list[str]:
    """First turns of MT-bench, or a list that is built in."""
    if not DATA.exists():
        return BUILT_IN
    return [json.loads(line)["turns"][0] for line in DATA.read_text("utf-8").splitlines()]


def streamed_text(exchange: connection.Exchange) -> str:
    """The text of a stream."""
    return "".join(choice["delta"].get("content") or "" for event in exchange.events for choice in event["choices"])


def whole_text(exchange: connection.Exchange) -> str:
    """The text of a response."""
    text: str = json.loads(exchange.body)["choices"][0]["message"]["content"]
    return text


def summary(found: Measurements) -> dict[str, Any]:
    """Medians of paired ratios, and whether they pass."""
    told: dict[str, Any] = {"tokens_per_second": {m: statistics.median(found.speeds[m]) for m in MODES}}
    told["ratio"] = {
        mode: round(
            statistics.median(a / b for a, b in zip(found.speeds[mode], found.speeds["engine"], strict=True)), 4
        )
        for mode in BARS
    }
    told["first_token_p50_ms"] = {
        mode: round(1000 * statistics.median(values), 2) for mode, values in found.first.items()
    }
    told["first_token_more_ms"] = round(told["first_token_p50_ms"]["stream"] - told["first_token_p50_ms"]["engine"], 2)
    pairs = zip(found.first["stream"], found.first["engine"], strict=True)
    told["first_token_paired_more_ms"] = round(1000 * statistics.median(a - b for a, b in pairs), 2)
    told["bars"] = {**BARS, "first_token_more_ms": BAR_FIRST_MS}
    told["passes"] = told["first_token_more_ms"] <= BAR_FIRST_MS and all(
        told["ratio"][mode] >= bar for mode, bar in BARS.items()
    )
    return told


def main() -> int:
    """Measure and write; 1 where a bar is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--max-tokens", type=int, default=96)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--firsts", type=int, default=8, help="requests whose first token is timed, in each round")
    parser.add_argument("--kv-cache-gib", type=float, default=0.5)
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "evals" / "results" / "server.json")
    options = parser.parse_args()
    bench = Bench(options)
    try:
        bench.round(0, counts=False)
        bench.first_tokens(0, 2, counts=False)
        for number in range(1, options.rounds + 1):
            bench.round(number)
            bench.first_tokens(number, options.firsts)
            print({mode: speeds[-1] for mode, speeds in bench.found.speeds.items()}, flush=True)
    finally:
        bench.stop()
    told = summary(bench.found)
    found = bench.found
    rounds = {"tokens_per_second": found.speeds, "cpu_seconds": found.cpu, "client_cpu_share": found.client_cpu}
    setup = {name: value for name, value in vars(options).items() if name != "out"}
    facts = {"machine": machine_facts(), "versions": version_facts("decodex", "torch", "uvicorn", "fastapi")}
    result = {**facts, "setup": setup, "summary": told, "rounds": rounds}
    options.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(told, indent=1))
    return 0 if told["passes"] else 1


if __name__ == "__main__":
    raise SystemExit(main())
