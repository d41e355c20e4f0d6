"""What speculation saves on a real model: writes evals/results/acceptance.json and .png.

    .venv/bin/python evals/acceptance/run.py [--parts groups,json,prediction,identity,heads,hurts]

groups: tokens per target step, acceptance by depth and speed against plain decoding for each task group of Spec-Bench
and each proposer, greedy, one request at a time. json: the first schemas of Glaiveai2K, with and without the cascade of
forced and suffix. prediction: the plain output with one word changed in every fifth line is given as the prediction.
trained: tokens per target step of the shipped heads. identity, heads: with all kinds of parameters, with and without a
schema, the answers are those of plain decoding.
hurts: tokens/s with control on against plain for each group and so many requests at a time, with the lower bound of a
paired bootstrap.

Speeds of one part are measured in turns within one run (groups, hurts: engines over one model, step by step in turns);
a ratio is of total seconds unless it says otherwise.
"""

from __future__ import annotations

import argparse
import collections
import gzip
import itertools
import json
import pathlib
import random
import re
import statistics
import tempfile
import time
from typing import TYPE_CHECKING, Any

import torch

from decodex import LLM, EngineConfig, RequestOutput, SamplingParams
from decodex.cli.machine import machine_facts, version_facts
from decodex.cost_profile import step_costs
from decodex.engine import Engine
from decodex.models.source import resolve_model
from decodex.request import Request

if TYPE_CHECKING:
    from evals.acceptance import random_heads
else:  # this folder is on the path of a script; the root must not be
    import random_heads

ROOT = pathlib.Path(__file__).resolve().parents[2]
RESULTS = ROOT / "evals" / "results" / "acceptance.json"
SHARED = ROOT.parent / "shared" / "data"
GROUPS = ("mt_bench", "translation", "summarization", "qa", "math_reasoning", "rag")
METHODS: dict[str, Any] = {
    "ngram": {"method": "ngram"},
    "suffix": {"method": "suffix"},
    "suffix tree": {"method": "suffix", "tree": {"num_children": 3, "max_nodes": 16}},
    "cascade": True,
}
CASCADE = {"method": "cascade", "cascade": ["forced", "suffix"]}
FULL = {
    "top_p": 0.95,
    "top_k": 60,
    "min_p": 0.01,
    "repetition_penalty": 1.05,
    "frequency_penalty": 0.1,
    "presence_penalty": 0.1,
    "logit_bias": {198: -0.5},
    "no_repeat_ngram_size": 6,
}
SCHEMA = {
    "type": "object",
    "properties": {
        "summary": {"type": "string", "maxLength": 80},
        "topics": {"type": "array", "items": {"type": "string", "maxLength": 20}, "minItems": 2, "maxItems": 3},
        "kind": {"enum": ["question", "task", "story", "other"]},
    },
    "required": ["summary", "topics", "kind"],
    "additionalProperties": False,
}
MAX_PROMPT = 1500  # tokens of a question: longer documents are cut
NUM_RESAMPLES = 2000
TEMPERATURES = (0.0, 0.7, 1.2)
TRAINED: dict[str, tuple[float, dict[str, Any]]] = {
    "eagle3, chain of 4": (0.0, {"method": "eagle3", "num_speculative_tokens": 4, "control": False}),
    "eagle3, tree": (
        0.0,
        {
            "method": "eagle3",
            "num_speculative_tokens": 5,
            "control": False,
            "tree": {"num_children": 4, "num_expanded": 4, "max_nodes": 24},
        },
    ),
    "eagle3, chain of 4, T = 1": (1.0, {"method": "eagle3", "num_speculative_tokens": 4, "control": False}),
    "mtp, chain of 4": (0.0, {"method": "mtp", "num_speculative_tokens": 4, "control": False}),
}
TREES = (None, [3, 1, 1], {"num_children": 3, "num_expanded": 2, "max_nodes": 6})


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


def groups(bench: Bench) -> dict[str, Any]:
    """Each task group, one request at a time, each proposer beside plain decoding."""
    size = bench.options.questions
    engines = engines_of(bench, {"plain": False, **METHODS})
    params = SamplingParams(max_tokens=bench.options.max_tokens, temperature=0.0, seed=1)
    first = SamplingParams(max_tokens=1, temperature=0.0, seed=1)
    result: dict[str, Any] = {}
    for group in GROUPS:
        tallies = {name: Tally() for name in METHODS}
        for prompt in bench.prompts[group][:size]:
            by_turns(engines, [prompt], first)  # the prompt's blocks are cached
            found = by_turns(engines, [prompt], params)
            plain, plain_seconds = found["plain"]
            for name in METHODS:
                outputs, seconds = found[name]
                assert tokens_of(outputs) == tokens_of(plain), (group, name)
                tallies[name].add(outputs, seconds, plain_seconds)
        result[group] = {name: tally.report() for name, tally in tallies.items()}
        for name, report in result[group].items():
            print(f"{group:16s} {name:12s} {report}", flush=True)
    return result


def json_schemas(bench: Bench) -> dict[str, Any]:
    """JSON requests over real schemas at T = 0, plain and with the cascade, by turns."""
    tally = Tally()
    num_refused = 0
    with gzip.open(SHARED / "jsonschemabench" / "Glaiveai2K.jsonl.gz", "rt", encoding="utf-8") as lines:
        records = [json.loads(line) for line, _ in zip(lines, range(bench.options.schemas))]
    for number, record in enumerate(records):
        shown = json.dumps(record["schema"])[:500]
        prompt = bench.chat(f"Write an example of a JSON document that follows this JSON schema:\n{shown}")
        params = {"max_tokens": 128, "temperature": 0.0, "structured_outputs": {"json": record["schema"]}}
        try:
            bench.run([prompt], **{**params, "max_tokens": 1})
        except ValueError as error:
            print(f"refused: {error}"[:150])
            num_refused += 1
            continue
        runs = [(False, bench.run([prompt], **params))] if number % 2 == 0 else []
        runs.append((True, bench.run([prompt], **params, speculative=CASCADE)))
        if number % 2:
            runs.append((False, bench.run([prompt], **params)))
        found = dict(runs)
        assert tokens_of(found[True][0]) == tokens_of(found[False][0])
        tally.add(found[True][0], found[True][1], found[False][1])
    report = {"schemas": len(records), "refused": num_refused, **tally.report()}
    print("json", report, flush=True)
    return report


def changed(text: str) -> str:
    """The text with one word changed in every fifth line (lines of at least one word)."""
    lines = text.split("\n")
    for number in range(0, len(lines), 5):
        words = lines[number].split(" ")
        places = [i for i, word in enumerate(words) if re.search(r"\w", word)]
        if places:
            words[places[len(places) // 2]] = "quux"
            lines[number] = " ".join(words)
    return "\n".join(lines)


def prediction(bench: Bench) -> dict[str, Any]:
    """Long outputs in lines, predicted with a word changed in every fifth."""
    tasks = [
        "Write a Python class Stack with push, pop, peek, size and is_empty, with docstrings, one statement per line.",
        "List the numbers from 1 to 40 in words, one in a line.",
        "Write a shopping list of 30 things, one in a line.",
        "Write a poem of 24 lines about the sea.",
        "Write HTML for a page with a table of ten countries and their capitals, one tag per line.",
        "Write a C program that sorts an array of integers with quicksort and prints it.",
    ]
    tally = Tally()
    for task in tasks:
        prompt = bench.chat(task)
        params = {"max_tokens": 256, "temperature": 0.0}
        bench.run([prompt], max_tokens=1, temperature=0.0)
        plain, plain_seconds = bench.run([prompt], **params)
        predicted = changed(plain[0].outputs[0].text)
        outputs, seconds = bench.run([prompt], **params, prediction=predicted)
        again, again_seconds = bench.run([prompt], **params)
        assert tokens_of(outputs) == tokens_of(plain) == tokens_of(again)
        tally.add(outputs, seconds, (plain_seconds + again_seconds) / 2)
        print("prediction", round(plain_seconds / seconds, 2), tally.report()["tokens_per_step"], flush=True)
    print("prediction", tally.report(), flush=True)
    return tally.report()


def identity_prompts(bench: Bench) -> list[list[int]]:
    """Some of each task group."""
    each = -(-bench.options.prompts // len(GROUPS))
    prompts = [prompt for group in GROUPS for prompt in bench.prompts[group][:each]][: bench.options.prompts]
    random.Random(5).shuffle(prompts)
    return [prompt[:8] + prompt[8:][-100:] for prompt in prompts]


def full_params(bench: Bench, temperature: float, is_json: bool) -> dict[str, Any]:
    constraint = {"json": SCHEMA} if is_json else None
    lengths = {"max_tokens": bench.options.identity_tokens, "logprobs": 1}
    return {**FULL, **lengths, "temperature": temperature, "structured_outputs": constraint}


def identity(bench: Bench) -> dict[str, Any]:
    """64 prompts, three temperatures, the full parameter set, with and without a schema: the answers are the same."""
    prompts = identity_prompts(bench)
    methods = {**METHODS, "forced": {"method": "forced"}, "cascade, uncontrolled": {**CASCADE, "control": False}}
    num_compared = 0
    differing: list[str] = []
    for temperature in TEMPERATURES:
        for is_json in (False, True):
            params = full_params(bench, temperature, is_json)
            plain, _ = bench.run(prompts, **params)
            for name, method in methods.items():
                outputs, _ = bench.run(prompts, **params, speculative=method)
                num_compared += len(prompts)
                if [o.outputs for o in outputs] != [o.outputs for o in plain]:
                    differing.append(f"{name}, T = {temperature}, schema: {is_json}")
            print(f"T = {temperature}, schema: {is_json}: differing {differing}", flush=True)
    return {"prompts": len(prompts), "compared": num_compared, "differing": differing}


def heads(bench: Bench) -> dict[str, Any]:
    """The same for heads and a draft model with random weights, chains and trees."""
    prompts = identity_prompts(bench)[: bench.options.head_prompts]
    cases = [(temperature, is_json) for temperature in TEMPERATURES for is_json in (False, True)]
    expected = {case: bench.run(prompts, **full_params(bench, *case))[0] for case in cases}
    target = resolve_model(bench.options.model).path
    num_compared, num_accepted = 0, collections.Counter[str]()
    differing: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        for method in (*random_heads.METHODS, "draft_model"):
            path = pathlib.Path(folder) / method
            if method == "draft_model":
                random_heads.write_draft_model(target, path)
            else:
                random_heads.write_head(method, target, path)
            config = {"method": method, "model": str(path), "num_speculative_tokens": 3, "control": False}
            llm = LLM(bench.options.model, max_num_seqs=32, speculative_config=config)
            for case in cases:
                for tree in TREES:
                    params = {"seed": 1, **full_params(bench, *case), "speculative": {"tree": tree}}
                    outputs = llm.generate(prompts, SamplingParams(**params), use_tqdm=False)
                    metrics = [output.metrics.speculation for output in outputs]
                    assert all(m is not None and m.num_drafted for m in metrics)
                    num_accepted[method] += sum(m.num_accepted for m in metrics if m is not None)
                    num_compared += len(prompts)
                    if [o.outputs for o in outputs] != [o.outputs for o in expected[case]]:
                        differing.append(f"{method}, tree {tree}, T = {case[0]}, schema: {case[1]}")
            print(f"{method}: {num_accepted[method]} accepted, differing {differing}", flush=True)
    return {"prompts": len(prompts), "compared": num_compared, "accepted": num_accepted, "differing": differing}


def trained(bench: Bench) -> dict[str, Any]:
    """The shipped heads on whole groups, uncontrolled: tokens per target step by group, with the outputs of plain
    decoding as the check."""
    result: dict[str, Any] = {}
    prompts = {group: bench.prompts[group][: bench.options.trained_questions] for group in GROUPS}
    flat = [prompt for group in GROUPS for prompt in prompts[group]]
    plain = {t: bench.run(flat, max_tokens=bench.options.trained_tokens, temperature=t)[0] for t in (0.0, 1.0)}
    for name, (temperature, config) in TRAINED.items():
        head = ROOT / "spec" / "heads" / bench.options.model / config["method"]
        if not head.is_dir():
            print(f"{name}: no head in {head}", flush=True)
            continue
        llm = LLM(bench.options.model, max_num_seqs=32, speculative_config={"model": str(head), **config})
        params = SamplingParams(max_tokens=bench.options.trained_tokens, temperature=temperature, seed=1)
        outputs = llm.generate(flat, params, use_tqdm=False)
        assert tokens_of(outputs) == tokens_of(plain[temperature]), name
        start, whole, tables = 0, Tally(), {}
        for group in GROUPS:
            tally = Tally()
            part = outputs[start : start + len(prompts[group])]
            start += len(part)
            tally.add(part, 1.0, 1.0)
            whole.add(part, 1.0, 1.0)
            tables[group] = tally.report()
        result[name] = {"all": whole.report(), **tables}
        for table in result[name].values():
            del table["speed"]
        rates = {group: table["tokens_per_step"] for group, table in result[name].items()}
        print(name, rates, result[name]["all"]["acceptance_by_depth"], flush=True)
    return result


def lower_bound(ratios: list[float]) -> float:
    """5 % quantile of the mean of resampled paired ratios."""
    rng = random.Random(1)
    means = sorted(statistics.mean(rng.choices(ratios, k=len(ratios))) for _ in range(NUM_RESAMPLES))
    return round(means[NUM_RESAMPLES // 20], 3)


def hurts(bench: Bench) -> dict[str, Any]:
    """Does the default speculation ever cost speed, with so many requests always running?"""
    engines = engines_of(bench, {"plain": False, "on": True})
    result: dict[str, Any] = {}
    for group in GROUPS:
        prompts = [p[:8] + p[8:][-400:] for p in bench.prompts[group][:40]]
        by_turns(engines, prompts, SamplingParams(max_tokens=1, seed=1))  # the prompts' blocks are cached
        for batch in (1, 4, 8, 16, 32):
            ratios = []
            for number in range(bench.options.rounds + 1):
                order = dict(sorted(engines.items(), reverse=number % 2 == 1))
                speeds = kept_busy(order, prompts[number:] + prompts[:number], batch, bench.options)
                if number:  # control begins with what the round before taught it
                    ratios.append(speeds["on"] / speeds["plain"])
            result[f"{group}, batch {batch}"] = {
                "lower_bound": lower_bound(ratios),
                "median": round(statistics.median(ratios), 3),
                "ratios": [round(ratio, 3) for ratio in ratios],
            }
            print(group, batch, result[f"{group}, batch {batch}"], flush=True)
    return result


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


def plot(results: dict[str, Any], path: pathlib.Path) -> None:
    """Tokens per step and acceptance by depth, by task group."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (bars, curves) = pyplot.subplots(1, 2, figsize=(12, 4))
    width = 0.8 / len(METHODS)
    for place, name in enumerate(METHODS):
        heights = [results[group][name]["tokens_per_step"] for group in GROUPS]
        bars.bar([i + place * width for i in range(len(GROUPS))], heights, width, label=name)
    bars.set_xticks([i + 0.4 - width / 2 for i in range(len(GROUPS))], GROUPS, rotation=20)
    bars.set_ylabel("tokens per target step")
    bars.legend()
    for group in GROUPS:
        curve = results[group]["suffix"]["acceptance_by_depth"]
        curves.plot(range(1, len(curve) + 1), curve, marker="o", label=group)
    curves.set_xlabel("depth of the draft token (suffix)")
    curves.set_ylabel("accepted of those drafted")
    curves.set_ylim(0, 1)
    curves.legend()
    figure.tight_layout()
    figure.savefig(path, dpi=110)


PARTS = {
    "groups": groups,
    "json": json_schemas,
    "prediction": prediction,
    "identity": identity,
    "heads": heads,
    "trained": trained,
    "hurts": hurts,
}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--parts", default=",".join(PARTS))
    parser.add_argument("--questions", type=int, default=8, help="of each task group")
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--schemas", type=int, default=100)
    parser.add_argument("--prompts", type=int, default=64, help="of the part `identity`")
    parser.add_argument("--head-prompts", type=int, default=64, help="of the part `heads`")
    parser.add_argument("--trained-questions", type=int, default=80, help="of each group, of the part `trained`")
    parser.add_argument("--trained-tokens", type=int, default=256)
    parser.add_argument("--identity-tokens", type=int, default=48)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--hurt-tokens", type=int, default=64)
    parser.add_argument("--hurt-steps", type=int, default=64)
    parser.add_argument("--out", type=pathlib.Path, default=RESULTS)
    return parser.parse_args()


def main() -> None:
    options = arguments()
    bench = Bench(options)
    results = json.loads(options.out.read_text("utf-8")) if options.out.exists() else {}
    results |= {"machine": machine_facts(), "versions": version_facts("decodex", "torch")}
    for name in options.parts.split(","):
        results[name] = PARTS[name](bench)
        options.out.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    if "groups" in options.parts:
        plot(results["groups"], options.out.with_suffix(".png"))


if __name__ == "__main__":
    main()
