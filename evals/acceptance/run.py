"""What speculation saves on a real model: writes evals/results/acceptance.json and .png.

    .venv/bin/python evals/acceptance/run.py [--parts groups,json,prediction,identity,heads,hurts]

groups: tokens per target step, acceptance by depth and speed against plain decoding for each task group of Spec-Bench
and each proposer, greedy, one request at a time. json: the first schemas of Glaiveai2K, with and without the cascade of
forced and suffix. prediction: the plain output with one word changed in every fifth line is given as the prediction.
trained: tokens per target step of the heads that come with the model. costs: what a draft step of the EAGLE-3 head
costs. gains: speed with what is on by default. identity, heads: with all kinds of parameters, with and without a
schema, the answers are those of plain decoding.
hurts: tokens/s with control on against plain for each group and so many requests at a time, with the lower bound of a
paired bootstrap.

Speeds of one part are measured in turns within one run (groups, hurts: engines over one model, step by step in turns);
a ratio is of total seconds unless it says otherwise.
"""

from __future__ import annotations

import argparse
import collections
import json
import pathlib
import random
import re
import tempfile
from typing import TYPE_CHECKING, Any

from decodex import LLM, SamplingParams
from decodex.cli.machine import machine_facts, version_facts
from decodex.models.source import resolve_model

if TYPE_CHECKING:
    from evals.acceptance import random_heads
    from evals.acceptance.bench import (
        GROUPS,
        ROOT,
        Bench,
        Tally,
        by_turns,
        engines_of,
        json_requests,
        kept_pace,
        tokens_of,
    )
    from evals.acceptance.trained import TRAINED, costs, gains, trained
else:  # this folder is on the path of a script; the root must not be
    import random_heads
    from bench import GROUPS, ROOT, Bench, Tally, by_turns, engines_of, json_requests, kept_pace, tokens_of
    from trained import TRAINED, costs, gains, trained

RESULTS = ROOT / "evals" / "results" / "acceptance.json"
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
TEMPERATURES = (0.0, 0.7, 1.2)
TREES = (None, [3, 1, 1], {"num_children": 3, "num_expanded": 2, "max_nodes": 6})


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
    for number, (prompt, params) in enumerate(json_requests(bench, bench.options.schemas, 128)):
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
    report = {"schemas": bench.options.schemas, "refused": num_refused, **tally.report()}
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


def hurts(bench: Bench) -> dict[str, Any]:
    """Does the default cascade ever cost speed, with so many requests always running?"""
    engines = engines_of(bench, {"plain": False, "on": True})
    result: dict[str, Any] = {}
    for group in GROUPS:
        prompts = [p[:8] + p[8:][-400:] for p in bench.prompts[group][:40]]
        for batch, found in kept_pace(engines, prompts, (1, 4, 8, 16, 32), bench.options).items():
            result[f"{group}, batch {batch}"] = found
            print(group, batch, found, flush=True)
    return result


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
    "costs": costs,
    "gains": gains,
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
    parser.add_argument("--trained-heads", default=";".join(TRAINED), help="of the part `trained`, by semicolons")
    parser.add_argument("--gain-requests", type=int, default=24, help="of the part `gains`")
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
        found = PARTS[name](bench)
        results[name] = {**results.get(name, {}), **found} if name == "trained" else found  # its heads run one by one
        options.out.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    if "groups" in options.parts:
        plot(results["groups"], options.out.with_suffix(".png"))


if __name__ == "__main__":
    main()
