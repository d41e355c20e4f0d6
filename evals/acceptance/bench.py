"""What the parts of this evaluation share: the model and its questions, counts of what requests came to, engines that
step by turns."""

from __future__ import annotations

import argparse
import collections
import gzip
import itertools
import json
import pathlib
import random
import statistics
import time
from typing import Any

import torch

from decodex import LLM, EngineConfig, RequestOutput, SamplingParams
from decodex.cost_profile import step_costs
from decodex.engine import Engine
from decodex.request import Request

ROOT = pathlib.Path(__file__).resolve().parents[2]
SHARED = ROOT.parent / "shared" / "data"
GROUPS = ("mt_bench", "translation", "summarization", "qa", "math_reasoning", "rag")
MAX_PROMPT = 1500  # tokens of a question: longer documents are cut
NUM_RESAMPLES = 2000
WARM_TOKENS = 4  # after which a prompt's blocks are cached, also those of heads: they are written a step later


def group_of(category: str) -> str:
    return category if category in GROUPS else "mt_bench"


class Bench:
    """The model and the questions as prompts."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.llm = LLM(options.model, max_num_seqs=32, speculative_config=None)
        self.prompts: dict[str, list[list[int]]] = {group: [] for group in GROUPS}
        for line in (SHARED / "spec_bench" / "question.jsonl").read_text("utf-8").splitlines():
            question = json.loads(line)
            tokens = self.chat(question["turns"][0])
            self.prompts[group_of(question["category"])].append(tokens[:8] + tokens[8:][-MAX_PROMPT:])

    def chat(self, text: str) -> list[int]:
        return self.llm.tokenizer.apply_chat_template([{"role": "user", "content": text}])

    def run(self, prompts: list[list[int]], **params: Any) -> tuple[list[RequestOutput], float]:
        """Outputs and the seconds that they took."""
        start = time.perf_counter()
        outputs = self.llm.generate(prompts, SamplingParams(**{"seed": 1, **params}), use_tqdm=False)
        return outputs, time.perf_counter() - start


def tokens_of(outputs: list[RequestOutput]) -> list[list[int]]:
    return [choice.token_ids for output in outputs for choice in output.outputs]


class Tally:
    """What requests under one method came to."""

    def __init__(self) -> None:
        self.seconds = self.plain_seconds = 0.0
        self.steps = self.tokens = self.drafted = self.accepted = 0
        self.drafted_at: collections.Counter[int] = collections.Counter()
        self.accepted_at: collections.Counter[int] = collections.Counter()
        self.by_proposer: dict[str, list[int]] = {}

    def add(self, outputs: list[RequestOutput], seconds: float, plain_seconds: float) -> None:
        self.seconds += seconds
        self.plain_seconds += plain_seconds
        for output in outputs:
            metrics = output.metrics.speculation
            assert metrics is not None
            self.steps += metrics.num_steps
            self.tokens += metrics.num_tokens
            self.drafted += metrics.num_drafted
            self.accepted += metrics.num_accepted
            self.drafted_at.update(dict(enumerate(metrics.drafted_at)))
            self.accepted_at.update(dict(enumerate(metrics.accepted_at)))
            for name, counts in metrics.by_proposer.items():
                known = self.by_proposer.setdefault(name, [0, 0])
                known[0] += counts[0]
                known[1] += counts[1]

    def report(self) -> dict[str, Any]:
        depths = [depth for depth in sorted(self.drafted_at) if self.drafted_at[depth]][:8]
        return {
            "tokens_per_step": round(self.tokens / self.steps, 3),
            "speed": round(self.plain_seconds / self.seconds, 3),
            "drafted": self.drafted,
            "accepted": self.accepted,
            "acceptance_by_depth": [round(self.accepted_at[d] / self.drafted_at[d], 3) for d in depths],
            "by_proposer": self.by_proposer,
        }


def engines_of(bench: Bench, configs: dict[str, Any]) -> dict[str, Engine]:
    """Engines over one model, each with its speculative_config."""
    source = bench.llm.engine
    costs = step_costs(source.model, source.fingerprint, torch.device("cpu"))
    engines = {}
    for name, value in configs.items():
        config = EngineConfig(model=bench.options.model, max_num_seqs=32, speculative_config=value)
        engines[name] = Engine(config, source.model, source.tokenizer)
        if value is not False:
            engines[name].speculation.begin_control(costs)
    return engines


def by_turns(
    engines: dict[str, Engine], prompts: list[list[int]], params: SamplingParams
) -> dict[str, tuple[list[RequestOutput], float]]:
    """The same requests in each engine, with seconds; the engines step by turns: what slows one slows the others."""
    requests = {
        name: [engine.admission.admit(prompt, params) for prompt in prompts] for name, engine in engines.items()
    }
    for name, engine in engines.items():
        for request in requests[name]:
            engine.add(request)
    seconds = dict.fromkeys(engines, 0.0)
    while any(engine.has_work for engine in engines.values()):
        for name, engine in engines.items():
            if engine.has_work:
                start = time.perf_counter()
                engine.step()
                seconds[name] += time.perf_counter() - start
    return {
        name: ([engine.output_of(request) for request in requests[name]], seconds[name])
        for name, engine in engines.items()
    }


def lower_bound(ratios: list[float]) -> float:
    """5 % quantile of the mean of resampled paired ratios."""
    rng = random.Random(1)
    means = sorted(statistics.mean(rng.choices(ratios, k=len(ratios))) for _ in range(NUM_RESAMPLES))
    return round(means[NUM_RESAMPLES // 20], 3)


def kept_busy(
    engines: dict[str, Engine], prompts: list[list[int]], batch: int, options: argparse.Namespace
) -> dict[str, float]:
    """Tokens per second of each engine over so many steps with `batch` requests in flight: an ended one is followed by
    the next. In a batch that is left to run out, the slowest request alone decides, however many tokens are guessed.
    """
    seconds, tokens = dict.fromkeys(engines, 0.0), dict.fromkeys(engines, 0)
    order = {name: itertools.count() for name in engines}
    flying: dict[str, list[Request]] = {name: [] for name in engines}
    for step in range(-2, options.hurt_steps):  # two steps to begin with
        for name, engine in engines.items():
            for request in [request for request in flying[name] if request.is_finished]:
                flying[name].remove(request)
                tokens[name] += num_tokens_of(request)
            while len(flying[name]) < batch:
                number = next(order[name])
                # the first ones are at all stages of their answers
                size = options.hurt_tokens * (number + 1) // batch if number < batch else options.hurt_tokens
                params = SamplingParams(max_tokens=size + 2, temperature=0.0, ignore_eos=True, seed=1)
                flying[name].append(engine.admission.admit(prompts[number % len(prompts)], params))
                engine.add(flying[name][-1])
            if step == 0:
                tokens[name] = -sum(map(num_tokens_of, flying[name]))
            start = time.perf_counter()
            engine.step()
            seconds[name] += time.perf_counter() - start if step >= 0 else 0.0
    for name, engine in engines.items():
        tokens[name] += sum(map(num_tokens_of, flying[name]))
        for request in flying[name]:
            engine.abort(request.request_id)
    return {name: tokens[name] / seconds[name] for name in engines}


def num_tokens_of(request: Request) -> int:
    return sum(len(seq.completion.token_ids) for seq in request.sequences)


def kept_pace(
    engines: dict[str, Engine], prompts: list[list[int]], batches: tuple[int, ...], options: argparse.Namespace
) -> dict[int, dict[str, Any]]:
    """Tokens/s of the engine "on" by those of "plain" for each number of requests that always run, in paired rounds."""
    by_turns(engines, prompts, SamplingParams(max_tokens=WARM_TOKENS, seed=1))  # the prompts' blocks are cached
    result = {}
    for batch in batches:
        ratios = []
        for number in range(options.rounds + 1):
            order = dict(sorted(engines.items(), reverse=number % 2 == 1))
            speeds = kept_busy(order, prompts[number:] + prompts[:number], batch, options)
            if number:  # control begins with what the round before taught it
                ratios.append(speeds["on"] / speeds["plain"])
        result[batch] = {
            "lower_bound": lower_bound(ratios),
            "median": round(statistics.median(ratios), 3),
            "ratios": [round(ratio, 3) for ratio in ratios],
        }
    return result


def json_requests(bench: Bench, count: int, max_tokens: int) -> list[tuple[list[int], dict[str, Any]]]:
    """Prompts and parameters for documents of the first schemas of Glaiveai2K, greedy."""
    with gzip.open(SHARED / "jsonschemabench" / "Glaiveai2K.jsonl.gz", "rt", encoding="utf-8") as lines:
        schemas = [json.loads(line)["schema"] for line, _ in zip(lines, range(count))]
    texts = [
        f"Write an example of a JSON document that follows this JSON schema:\n{json.dumps(s)[:500]}" for s in schemas
    ]
    same = {"max_tokens": max_tokens, "temperature": 0.0, "seed": 1}
    return [(bench.chat(text), {**same, "structured_outputs": {"json": s}}) for text, s in zip(texts, schemas)]
