"""Tokens/s of decodex beside other engines: same weights, same prompts, same machine, one interleaved run.

    make peers
    .venv/bin/python evals/speed/run.py            # writes evals/results/speed.json
    # evals/results/speed_heads.json: --engines decodex,openvino,vllm,llamacpp --gguf FILE --batches 1
    # --samplings greedy,json --singles 5 --max-tokens 96 --out evals/results/speed_heads.json

Each engine is a process that stays loaded (worker.py); all but the one that computes are stopped by signal.
In every round each case (batch x sampling) is run by every engine in turn, the order rotating; a batch of 1 is
`--singles` prompts one after the other. decodex runs plain, and with the draft head that comes with the model. A peer
is measured in 16-bit and 32-bit weights and compared in the faster; a variant that is more than SLOW_FACTOR times
slower than its sibling in a case is not repeated there. A ratio is the median over rounds of the paired ratio. The
sampling "json" is greedy under JSON schemas, of decodex and OpenVINO; its answers end where they end.
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import itertools
import json
import os
import pathlib
import signal
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass, field
from typing import Any

from decodex.cli.machine import machine_facts, version_facts
from decodex.models.source import resolve_model
from decodex.tokenizer import Tokenizer

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
SAMPLINGS: dict[str, dict[str, float]] = {
    "greedy": {"temperature": 0.0},
    "top_p": {"temperature": 0.8, "top_p": 0.9},
    "full": {  # decodex and vllm only
        "temperature": 0.8,
        "repetition_penalty": 1.1,
        "frequency_penalty": 0.2,
        "min_p": 0.02,
        "top_k": 50,
        "top_p": 0.9,
        "seed": 7,
    },
}
JSON = "json"
WITHOUT_JSON = ("vllm", "transformers")
SLOW_FACTOR = 3.0
BUILT_IN_PROMPTS = [
    "What is a glacier and how does it move?",
    "Write a short letter that thanks a teacher.",
    "Explain recursion to a ten-year-old.",
    "List five uses of a paper clip.",
    "How does a bicycle stay upright?",
    "Summarize the causes of the First World War.",
    "Give me a recipe for a simple vegetable soup.",
    "What should I look at when I buy a used car?",
]


@dataclass
class Worker:
    """One engine in one weight precision, as a process of its own that is stopped unless it is asked."""

    engine: str
    variant: str
    process: subprocess.Popen[str]
    ready_after: float = 0.0
    versions: dict[str, str] = field(default_factory=dict)
    failure: str = ""  # why it is not asked any more

    @property
    def name(self) -> str:
        return f"{self.engine}/{self.variant}"

    def ask(self, **request: Any) -> dict[str, Any]:
        """Send one request and wait for its reply; raises RuntimeError with the engine's own words."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.send_signal(signal.SIGCONT)
        try:
            self.process.stdin.write(json.dumps(request) + "\n")
            self.process.stdin.flush()
            line = self.process.stdout.readline()
        except BrokenPipeError:
            line = ""
        finally:
            self.send_signal(signal.SIGSTOP)
        reply: dict[str, Any] = json.loads(line) if line else {"ok": False, "error": "the process ended"}
        if not reply["ok"]:
            raise RuntimeError(without_places(f"{self.name}: {reply['error']}"))
        return reply

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal to the process and the processes it started, if any is left."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, number)

    def stop(self) -> None:
        """End the process and the processes it started."""
        self.send_signal(signal.SIGTERM)
        self.send_signal(signal.SIGCONT)
        try:
            self.process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self.send_signal(signal.SIGKILL)
            self.process.wait()


def without_places(text: str) -> str:
    """A message without the folders of this machine."""
    return text.replace(str(ROOT), ".").replace(str(pathlib.Path.home()), "~")


def start_worker(engine: str, variant: str, model: pathlib.Path, peers: pathlib.Path) -> Worker:
    """Start and load one engine; raises RuntimeError when it is absent or cannot load."""
    python = pathlib.Path(sys.executable) if engine == "decodex" else peers / engine / "bin" / "python"
    if not python.exists():
        raise RuntimeError(f"{engine}: absent (make peers)")
    if engine == "openvino":
        model = export_openvino(model, variant, peers)
    logs = peers / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    with open(logs / f"{engine}-{variant}.log", "w", encoding="utf-8") as log:
        process = subprocess.Popen(
            [str(python), str(HERE / "worker.py"), engine],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            start_new_session=True,
        )
    worker = Worker(engine, variant, process)
    try:
        reply = worker.ask(op="load", model=str(model), dtype=variant)
    except RuntimeError:
        worker.stop()
        raise
    worker.ready_after, worker.versions = reply["seconds"], reply["versions"]
    return worker


def export_openvino(model: pathlib.Path, variant: str, peers: pathlib.Path) -> pathlib.Path:
    """The model in OpenVINO's format, exported once for each precision."""
    weight_format = {"float16": "fp16", "float32": "fp32"}[variant]
    out = peers / "openvino" / "models" / f"{model.name}-{weight_format}"
    if not (out / "openvino_model.bin").exists():
        command = [
            str(peers / "openvino" / "bin" / "optimum-cli"),
            "export",
            "openvino",
            "--model",
            str(model),
        ]
        command += ["--task", "text-generation-with-past", "--weight-format", weight_format, str(out)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"openvino/{variant}: export failed: {done.stderr.strip().splitlines()[-1:]}")
    return out


def chat_prompts(model: str, count: int) -> tuple[list[list[int]], str]:
    """`count` chat prompts as token ids, and where their text is from."""
    texts, source = BUILT_IN_PROMPTS, "built-in list"
    data = ROOT.parent / "shared" / "data" / "mt_bench" / "question.jsonl"
    if data.exists():
        lines = data.read_text(encoding="utf-8").splitlines()
        texts, source = [json.loads(line)["turns"][0] for line in lines], "mt_bench, first turns"
    tokenizer = Tokenizer(resolve_model(model).path)
    chosen = itertools.islice(itertools.cycle(texts), count)
    return [tokenizer.apply_chat_template([{"role": "user", "content": text}]) for text in chosen], source


def json_prompts(model: str, count: int) -> list[tuple[list[int], dict[str, Any]]]:
    """`count` prompts as token ids, each with its JSON schema: the first ones of Glaiveai2K."""
    tokenizer = Tokenizer(resolve_model(model).path)
    found = []
    with gzip.open(ROOT.parent / "shared" / "data" / "jsonschemabench" / "Glaiveai2K.jsonl.gz", "rt") as lines:
        for line in itertools.islice(lines, count):
            schema = json.loads(line)["schema"]
            text = f"Write an example of a JSON document that follows this JSON schema:\n{json.dumps(schema)[:500]}"
            found.append((tokenizer.apply_chat_template([{"role": "user", "content": text}]), schema))
    return found


@dataclass(frozen=True)
class Case:
    """One cell of the table."""

    batch: int
    sampling: str

    @property
    def name(self) -> str:
        return f"{self.sampling}/{self.batch}"


@dataclass
class Measurements:
    """Tokens/s of every (case, worker), one entry a round (None: not run in that round)."""

    rounds: dict[tuple[str, str], list[float | None]] = field(default_factory=dict)

    def add(self, case: Case, worker: Worker, speed: float | None) -> None:
        self.rounds.setdefault((case.name, worker.name), []).append(speed)

    def median(self, case: Case, worker: Worker) -> float:
        speeds = [speed for speed in self.rounds.get((case.name, worker.name), []) if speed is not None]
        return statistics.median(speeds) if speeds else 0.0

    def is_slow(self, case: Case, worker: Worker, workers: list[Worker]) -> bool:
        """Whether a sibling variant was more than SLOW_FACTOR times as fast in this case."""
        own = self.median(case, worker)
        siblings = [w for w in workers if w.engine == worker.engine and w is not worker]
        return own > 0 and any(self.median(case, sibling) > SLOW_FACTOR * own for sibling in siblings)

    def ratio(self, case: Case, ours: Worker, theirs: Worker) -> float:
        """Median over rounds of our speed by theirs in the same round."""
        pairs = zip(self.rounds[case.name, ours.name], self.rounds[case.name, theirs.name], strict=True)
        return statistics.median(a / b for a, b in pairs if a is not None and b is not None)


@dataclass(frozen=True)
class Prompts:
    """What is asked: conversations, and documents with their schemas."""

    chat: list[list[int]]
    json: list[tuple[list[int], dict[str, Any]]]

    def requests(self, case: Case, singles: int) -> list[dict[str, Any]]:
        """The requests of a case to a worker: one, or for a batch of 1 several."""
        count = singles if case.batch == 1 else case.batch
        if case.sampling == JSON:
            ids, schemas = zip(*self.json[:count])
            parts = [slice(start, start + case.batch) for start in range(0, count, case.batch)]
            return [{"prompts": ids[part], "schemas": schemas[part]} for part in parts]
        starts = range(0, count, case.batch)
        return [
            {"prompts": self.chat[start : start + case.batch], "sampling": SAMPLINGS[case.sampling]} for start in starts
        ]


def speed_of(worker: Worker, case: Case, requests: list[dict[str, Any]], max_tokens: int) -> float | None:
    """Tokens/s of one run of a case; None from a peer that can't, or that failed, then or before (ours failing ends the
    run)."""
    cannot_batch = worker.engine == "llamacpp" and case.batch > 1
    if worker.failure or cannot_batch or (case.sampling == JSON and worker.engine in WITHOUT_JSON):
        return None
    tokens, seconds = 0, 0.0
    for request in requests:
        try:
            reply = worker.ask(op="run", max_tokens=max_tokens, **request)
        except RuntimeError as error:
            if worker.engine == "decodex":
                raise
            worker.failure = str(error)
            print(worker.failure, file=sys.stderr)
            return None
        expected = case.batch * max_tokens
        if case.sampling != JSON:
            assert reply["tokens"] == expected, f"{worker.name}: {reply['tokens']} tokens, expected {expected}"
        tokens, seconds = tokens + reply["tokens"], seconds + reply["seconds"]
    return tokens / seconds


def measure(workers: list[Worker], cases: list[Case], prompts: Prompts, options: argparse.Namespace) -> Measurements:
    """Warm every worker up, then run the rounds."""
    for worker, case in itertools.product(workers, cases):
        speed_of(worker, case, prompts.requests(case, singles=1), options.warm_up_tokens)
    result = Measurements()
    for number in range(options.rounds):
        for case in cases:
            order = workers[number % len(workers) :] + workers[: number % len(workers)]
            slow = {w.name for w in order if result.is_slow(case, w, workers)}
            for worker in order:
                time.sleep(options.pause)
                is_run = worker.name not in slow
                asked = prompts.requests(case, options.singles)
                speed = speed_of(worker, case, asked, options.max_tokens) if is_run else None
                result.add(case, worker, speed)
                if speed is not None:
                    print(f"round {number} {case.name:>10} {worker.name:<24} {speed:8.1f} tokens/s", flush=True)
    return result


def report(workers: list[Worker], cases: list[Case], result: Measurements, absent: dict[str, str]) -> dict[str, Any]:
    """Ratios against each peer's faster variant, and everything measured."""
    plain, with_heads = (worker for worker in workers if worker.engine == "decodex")
    peers = sorted({worker.engine for worker in workers} - {"decodex"})

    def against_peers(ours: Worker) -> dict[str, dict[str, Any]]:
        found = {engine: _ratios(ours, workers, engine, cases, result) for engine in peers}
        return {engine: ratios for engine, ratios in found.items() if ratios}

    return {
        "ratios": against_peers(plain),
        "ratios_with_heads": {
            "decodex, plain": {case.name: round(result.ratio(case, with_heads, plain), 2) for case in cases},
            **against_peers(with_heads),
        },
        "absent": absent,
        "failed": {worker.name: worker.failure for worker in workers if worker.failure},
        "tokens_per_second": {
            case.name: {worker.name: round(result.median(case, worker), 1) for worker in workers} for case in cases
        },
        "rounds": {f"{case} {worker}": speeds for (case, worker), speeds in result.rounds.items()},
        "ready_after_seconds": {worker.name: round(worker.ready_after, 1) for worker in workers},
        "versions": {worker.engine: worker.versions for worker in workers},
    }


def _ratios(
    ours: Worker, workers: list[Worker], engine: str, cases: list[Case], result: Measurements
) -> dict[str, dict[str, Any]]:
    """By case, against the faster variant of a peer."""
    found: dict[str, dict[str, Any]] = {}
    for case in cases:
        variants = [w for w in workers if w.engine == engine and result.median(case, w) > 0]
        if variants:
            best = max(variants, key=lambda w: result.median(case, w))
            found[case.name] = {"ratio": round(result.ratio(case, ours, best), 2), "against": best.variant}
    return found


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--engines", default="decodex,openvino,vllm,transformers", help="also: llamacpp (4-bit GGUF)")
    parser.add_argument("--batches", default="1,8,32")
    parser.add_argument("--samplings", default="greedy,top_p,json", help="also: full (decodex and vllm)")
    parser.add_argument("--singles", type=int, default=12, help="prompts of a batch of 1, one after the other")
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--warm-up-tokens", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--pause", type=float, default=0.5, help="seconds of quiet before each run")
    parser.add_argument("--gguf", default="", help="the file that llamacpp loads")
    parser.add_argument("--peers", type=pathlib.Path, default=ROOT / ".peers")
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "evals" / "results" / "speed.json")
    return parser.parse_args()


def start_workers(options: argparse.Namespace) -> tuple[list[Worker], dict[str, str]]:
    """Every engine in its precisions, and the reason for each that is absent."""
    precisions = {
        "decodex": ("plain", "heads"),
        "openvino": ("float16", "float32"),
        "llamacpp": ("q4",),
    }
    workers: list[Worker] = []
    absent: dict[str, str] = {}
    model = resolve_model(options.model).path
    for engine in options.engines.split(","):
        for variant in precisions.get(engine, ("bfloat16", "float32")):
            path = pathlib.Path(options.gguf) if engine == "llamacpp" else model
            try:
                workers.append(start_worker(engine, variant, path, options.peers))
                print(f"{workers[-1].name}: ready after {workers[-1].ready_after:.1f} s")
            except RuntimeError as error:
                absent[f"{engine}/{variant}"] = without_places(str(error))
                print(f"{engine}/{variant}: {error}", file=sys.stderr)
                if engine == "decodex":
                    raise
    return workers, absent


def main() -> None:
    options = arguments()
    batches = [int(batch) for batch in options.batches.split(",")]
    count = max(*batches, options.singles)
    chat, source = chat_prompts(options.model, count)
    samplings = options.samplings.split(",")
    prompts = Prompts(chat, json_prompts(options.model, count) if JSON in samplings else [])
    workers, absent = start_workers(options)
    try:
        cases = [Case(batch, sampling) for sampling in samplings for batch in batches]
        result = measure(workers, cases, prompts, options)
        facts = {
            "machine": machine_facts(),
            "conductor": version_facts("decodex", "torch"),
            "settings": {
                "model": options.model,
                "prompts": source,
                "prompt_tokens": [len(prompt) for prompt in chat],
                "prompts_of_batch_1": options.singles,
                "new_tokens": options.max_tokens,
                "rounds": options.rounds,
                "samplings": {name: SAMPLINGS.get(name, "greedy, first schemas of Glaiveai2K") for name in samplings},
                "prefix_caching": False,
                "compute": "float32 where the engine lets one choose; variants name the weights",
            },
            **report(workers, cases, result, absent),
        }
    finally:
        for worker in workers:
            worker.stop()
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")
    shown = {name: facts[name] for name in ("ratios", "ratios_with_heads")}
    print(json.dumps({**shown, "absent": absent}, indent=2))


if __name__ == "__main__":
    main()
