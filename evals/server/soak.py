"""Many clients for minutes: random parameters, schemas, tools, mistakes and disconnects against `decodex serve`.

    make soak                                     # writes evals/results/soak.json; 1 if anything is wrong

While it runs: no error but those that a request was made for, streams come to their ends, constrained texts satisfy
their schemas. Afterwards: nothing runs, the KV cache is empty, and finished requests, sent again one at a time with the
seeds that came back and not streamed, give the same bits. `--replay-seconds` bounds that part: 0 is all of them (half
an hour). Memory, threads and open files grow neither in the last stretch of the clients nor in the replays.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import pathlib
import random
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import jsonschema_rs
import psutil

from decodex.cli.machine import machine_facts, version_facts

if TYPE_CHECKING:
    from evals.server import answers, asks, connection, processes
else:  # this folder is on the path of a script; the root must not be
    import answers
    import asks
    import connection
    import processes

ROOT = pathlib.Path(__file__).resolve().parents[2]
HANGS_AFTER = 600.0  # seconds without an end of a response
SAMPLE_SECONDS = 1.0
LOOKS = 3
STRETCHES = (0.4, 0.3, 0.3)  # of the time; what is loaded late, caches of grammars and their like come in the first
MOST_GROWTH = 0.05  # of memory, in the last stretch, and in the replays
MOST_THREADS = 8  # that pools may still start meanwhile; a thread a request would be thousands
IDLE = ("decodex_num_requests_running", "decodex_num_requests_waiting", "decodex_kv_cache_usage_ratio")


@dataclass
class Soak:
    """What has come of the requests so far."""

    counts: Counter[str] = field(default_factory=Counter)
    finished: list[tuple[asks.Ask, dict[int, answers.Choice]]] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)

    def fault(self, ask: asks.Ask, what: object) -> None:
        """Keep a fault, with the request that it is of."""
        self.faults.append(f"{what!s:.600} <- {ask.path} {json.dumps(ask.body):.1200}")


async def send(port: int, ask: asks.Ask) -> connection.Exchange | None:
    """The response to one request; None if the client has left before its end."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    exchange = connection.Exchange()
    try:
        async with asyncio.timeout(ask.leaves_after or HANGS_AFTER):
            writer.write(connection.request_bytes(ask.path, ask.body))
            while data := await reader.read(connection.MAX_READ):
                exchange.received.append(data)
        return exchange
    except TimeoutError:
        if ask.leaves_after is None:
            raise AssertionError(f"no end after {HANGS_AFTER} s: {b''.join(exchange.received)[-300:]!r}") from None
        return None
    finally:
        if ask.is_abrupt:
            writer.transport.abort()
        else:
            writer.close()


def judge(ask: asks.Ask, exchange: connection.Exchange, soak: Soak) -> None:
    """Count a whole response, or tell what is wrong with it."""
    if ask.is_mistake:
        soak.counts["refused"] += 1
        expected = 404 if ask.body.get("model") else 400
        error = json.loads(exchange.body)["error"]
        if exchange.status != expected or not error["param"]:
            soak.fault(ask, f"status {exchange.status}: {error}")
        return
    if exchange.status != 200:
        soak.fault(ask, f"status {exchange.status}: {exchange.body!r}")
        return
    choices = answers.read_answer(ask.path, exchange, bool(ask.body["stream"]))
    for choice in choices.values():
        if ask.schema is not None and choice.reason in ("stop", "completed"):
            jsonschema_rs.validate(ask.schema, json.loads(choice.text))
            soak.counts["validated"] += 1
    soak.counts["finished"] += 1
    soak.finished.append((ask, choices))


async def run_clients(port: int, soak: Soak, askers: list[asks.Asker], seconds: float) -> None:
    """Clients that send one request after the other until the time is up."""
    end = time.monotonic() + seconds

    async def one(asker: asks.Asker) -> None:
        while time.monotonic() < end:
            ask = asker.draw()
            soak.counts["requests"] += 1
            try:
                exchange = await send(port, ask)
                if exchange is None:
                    soak.counts["left"] += 1
                else:
                    judge(ask, exchange, soak)
            except (AssertionError, OSError, ValueError, LookupError) as error:
                soak.fault(ask, repr(error))

    await asyncio.gather(*(one(asker) for asker in askers))


async def replay(port: int, soak: Soak, seconds: float, seed: int) -> Counter[str]:
    """Send choices of finished requests again, in a random order, one at a time, until the time is up (0: all)."""
    counts: Counter[str] = Counter()
    choices = [(ask, choice) for ask, found in soak.finished for choice in found.values()]
    random.Random(seed).shuffle(choices)
    start = time.monotonic()
    for ask, choice in choices:
        counts["choices"] += 1
        if not choice.is_replayable:
            counts["not_replayable"] += 1
            continue
        if seconds and time.monotonic() - start > seconds:
            continue
        body = {name: value for name, value in ask.body.items() if name not in ("n", "stream")}
        again = asks.Ask(ask.path, {**body, "seed": choice.seed, "stream": False})
        try:
            exchange = await send(port, again)
            assert exchange is not None
            assert exchange.status == 200, exchange.body
            [other] = answers.read_answer(ask.path, exchange, False).values()
            assert other.replayed == choice.replayed, f"{other.replayed} is not {choice.replayed}"
            counts["replayed"] += 1
        except (AssertionError, OSError, ValueError, LookupError) as error:
            soak.fault(again, f"replay: {error!r}")
            counts["differ"] += 1
    return counts


class Watcher:
    """Samples what a process and its children hold."""

    def __init__(self, process: psutil.Process) -> None:
        self._process = process
        self.samples: list[dict[str, float]] = []

    def sample(self) -> dict[str, float]:
        """Memory, threads and open files now."""
        own, *children = (
            each.memory_info().rss / 2**20 for each in (self._process, *self._process.children(recursive=True))
        )
        return {
            "mib": round(own, 1),
            "children_mib": round(sum(children), 1),
            "threads": self._process.num_threads(),
            "files": self._process.num_fds(),
        }

    async def settled(self) -> dict[str, float]:
        """The same once connections that are just being closed are gone: the fewest files of some looks."""
        looks = [self.sample()]
        for _ in range(LOOKS):
            await asyncio.sleep(SAMPLE_SECONDS)
            looks.append(self.sample())
        return {**looks[-1], "files": min(look["files"] for look in looks)}

    async def run(self) -> None:
        """Sample for ever."""
        while True:
            self.samples.append(self.sample())
            await asyncio.sleep(SAMPLE_SECONDS)

    def stability(self, idle: list[dict[str, float]]) -> tuple[dict[str, Any], list[str]]:
        """What was held after each stretch and the replays, idle, and at most; and what has grown in the last two."""
        most = {name: max(one[name] for one in (*self.samples, *idle)) for name in idle[0]}
        grown = []
        for before, after in itertools.pairwise(idle[-3:]):
            bounds = {name: before[name] * (1 + MOST_GROWTH) for name in ("mib", "children_mib")}
            bounds |= {"threads": before["threads"] + MOST_THREADS, "files": before["files"]}
            grown += [f"{name} grows: {idle}" for name, bound in bounds.items() if after[name] > bound]
        return {"after_stretches": idle[:-1], "after_replays": idle[-1], "most": most}, grown


async def measure(server: processes.ServerProcess, options: argparse.Namespace) -> dict[str, Any]:
    """The whole soak."""
    soak = Soak()
    watcher = Watcher(server.facts)
    has_head = (ROOT / "spec" / "heads" / options.model / "eagle3").is_dir()
    askers = [asks.Asker(options.seed + number, has_head=has_head) for number in range(options.clients)]
    start = time.monotonic()
    watch = asyncio.ensure_future(watcher.run())
    idle = []
    for share in STRETCHES:
        await run_clients(server.port, soak, askers, options.seconds * share)
        soak.faults += await until_idle(server)
        idle.append(await watcher.settled())
    watch.cancel()
    seconds = time.monotonic() - start
    print(dict(soak.counts), idle, flush=True)
    replayed = await replay(server.port, soak, options.replay_seconds, options.seed)
    print(dict(replayed), flush=True)
    soak.faults += await until_idle(server)
    process, grown = watcher.stability([*idle, await watcher.settled()])
    metrics = server.metrics()
    responses = {name: count for name, count in metrics.items() if name.startswith("decodex_http_responses_total")}
    return {
        "seconds": round(seconds, 1),
        "counts": dict(soak.counts),
        "replays": dict(replayed),
        "process": process,
        "tokens": metrics["decodex_generation_tokens_total"],
        "preemptions": metrics["decodex_num_preemptions_total"],
        "responses": responses,
        "faults": [*soak.faults, *grown],
    }


async def until_idle(server: processes.ServerProcess, seconds: float = 10.0) -> list[str]:
    """Wait until nothing runs or waits and the KV cache is empty; what is still there in the end."""
    end = time.monotonic() + seconds
    while True:
        metrics = await asyncio.to_thread(server.metrics)
        held = {name: metrics[name] for name in IDLE if metrics[name] != 0}
        if not held or time.monotonic() > end:
            return [f"not idle: {held}"] if held else []
        await asyncio.sleep(0.1)


def main() -> int:
    """Soak and write; 1 if anything is wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=300.0)
    parser.add_argument("--replay-seconds", type=float, default=0.0, help="most time for replays; 0: replay everything")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kv-cache-gib", default="0.25", help="small enough that sequences are preempted")
    parser.add_argument("--max-num-seqs", default="48", help="fewer than the clients, so that requests wait")
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "evals" / "results" / "soak.json")
    options = parser.parse_args()
    flags = ("--kv-cache-gib", options.kv_cache_gib, "--max-num-seqs", options.max_num_seqs)
    server = processes.ServerProcess(options.model, *flags)
    try:
        report = asyncio.run(measure(server, options))
    finally:
        status = server.stop()
    if status != 0:
        report["faults"].append(f"the server's exit status is {status}")
    setup = {name: value for name, value in vars(options).items() if name != "out"}
    facts = {"machine": machine_facts(), "versions": version_facts("decodex", "torch", "uvicorn"), "setup": setup}
    num_faults, report["faults"] = len(report["faults"]), report["faults"][:20]
    result = {**facts, "num_faults": num_faults, **report}
    options.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(json.dumps({key: result[key] for key in ("num_faults", "process", "faults")}, indent=1))
    return 1 if num_faults else 0


if __name__ == "__main__":
    raise SystemExit(main())
