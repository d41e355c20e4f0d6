"""The heads that come with the demo model: what their drafts are worth, what they cost, and what they save."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

import torch

from decodex import LLM, RequestOutput, SamplingParams
from decodex.cost_profile import step_costs

if TYPE_CHECKING:
    from evals.acceptance.bench import (
        GROUPS,
        ROOT,
        WARM_TOKENS,
        Bench,
        Tally,
        by_turns,
        json_requests,
        kept_pace,
        tokens_of,
    )
else:  # this folder is on the path of a script; the root must not be
    from bench import GROUPS, ROOT, WARM_TOKENS, Bench, Tally, by_turns, json_requests, kept_pace, tokens_of

__all__ = ["TRAINED", "costs", "gains", "trained"]

CHAIN: dict[str, Any] = {"num_speculative_tokens": 4, "control": False}
TREES: dict[str, Any] = {
    "tree of 24": (5, {"num_children": 4, "num_expanded": 4, "max_nodes": 24}),
    "tree of 60": (7, {"num_children": 8, "num_expanded": 8, "max_nodes": 60}),
}
TRAINED: dict[str, tuple[float, dict[str, Any]]] = {
    "eagle3, chain of 4": (0.0, {"method": "eagle3", **CHAIN}),
    **{
        f"eagle3, {name}": (0.0, {"method": "eagle3", **CHAIN, "num_speculative_tokens": depth, "tree": tree})
        for name, (depth, tree) in TREES.items()
    },
    "eagle3, chain of 4, T = 1": (1.0, {"method": "eagle3", **CHAIN}),
    "mtp, chain of 4": (0.0, {"method": "mtp", **CHAIN}),
}


def trained(bench: Bench) -> dict[str, Any]:
    """The shipped heads on whole groups, uncontrolled: tokens per target step by group, with the outputs of plain
    decoding as the check."""
    result: dict[str, Any] = {}
    prompts = {group: bench.prompts[group][: bench.options.trained_questions] for group in GROUPS}
    flat = [prompt for group in GROUPS for prompt in prompts[group]]
    chosen = {name: TRAINED[name] for name in bench.options.trained_heads.split(";")}
    temperatures = {temperature for temperature, _ in chosen.values()}
    plain = {t: bench.run(flat, max_tokens=bench.options.trained_tokens, temperature=t)[0] for t in temperatures}
    for method in dict.fromkeys(config["method"] for _, config in chosen.values()):
        head = ROOT / "spec" / "heads" / bench.options.model / method
        if not head.is_dir():
            print(f"{method}: no head in {head}", flush=True)
            continue
        llm = LLM(
            bench.options.model,
            max_num_seqs=32,
            max_num_batched_tokens=2048,  # whole trees for all of them
            speculative_config={"model": str(head), "method": method, "control": False},
        )
        for name, (temperature, config) in chosen.items():
            if config["method"] == method:
                shape = {field: value for field, value in config.items() if field != "method"}
                params = SamplingParams(
                    max_tokens=bench.options.trained_tokens, temperature=temperature, seed=1, speculative=shape
                )
                outputs = llm.generate(flat, params, use_tqdm=False)
                assert tokens_of(outputs) == tokens_of(plain[temperature]), name
                tables = _by_group(outputs, {group: len(prompts[group]) for group in GROUPS})
                rates = {group: table["tokens_per_step"] for group, table in tables.items()}
                print(name, rates, tables["all"]["acceptance_by_depth"], flush=True)
                result[name] = {"questions": len(flat), "max_tokens": bench.options.trained_tokens, **tables}
    return result


def _by_group(outputs: list[RequestOutput], sizes: dict[str, int]) -> dict[str, Any]:
    """Reports of all outputs and of each group of them, which follow one another."""
    start, whole, tables = 0, Tally(), {}
    for group, size in sizes.items():
        tally = Tally()
        for each in (tally, whole):
            each.add(outputs[start : start + size], 1.0, 1.0)
        start += size
        tables[group] = tally.report()
    found = {"all": whole.report(), **tables}
    for table in found.values():
        del table["speed"]
    return found


def costs(bench: Bench) -> dict[str, Any]:
    """What a chain of K costs at batch 1, in plain steps: c_verify of a step with K + 1 rows, d of a draft step (from
    whole steps: c_verify + K d + what else a step with drafts costs), E tokens a step, and E / (c_verify + K d)."""
    options, plain = bench.options, bench.llm.engine
    head = ROOT / "spec" / "heads" / options.model / "eagle3"
    drafting = LLM(options.model, max_num_seqs=32, speculative_config={"model": str(head), "method": "eagle3", **CHAIN})
    engines = {"plain": plain, "chain": drafting.engine}
    profile = step_costs(plain.model, plain.fingerprint, torch.device("cpu")).table(8)
    result = {}
    for length in (1, 2, 3, 4, 6):
        chain = {**CHAIN, "num_speculative_tokens": length}
        steps, tokens, seconds, plain_steps, plain_seconds = 0, 0, 0.0, 0, 0.0
        for prompt in bench.prompts["mt_bench"][: options.questions]:
            params = {"max_tokens": options.max_tokens, "temperature": 0.0, "seed": 1, "ignore_eos": True}
            by_turns(
                engines, [prompt], SamplingParams(max_tokens=WARM_TOKENS, seed=1)
            )  # the prompt's blocks are cached
            [drafted], its_seconds = by_turns(
                {"chain": drafting.engine}, [prompt], SamplingParams(**params, speculative=chain)
            )["chain"]
            [_], other_seconds = by_turns({"plain": plain}, [prompt], SamplingParams(**params))["plain"]
            metrics = drafted.metrics.speculation
            assert metrics is not None
            steps, tokens, seconds = steps + metrics.num_steps, tokens + metrics.num_tokens, seconds + its_seconds
            plain_steps, plain_seconds = plain_steps + options.max_tokens, plain_seconds + other_seconds
        plain_step = plain_seconds / plain_steps
        step, verify = seconds / steps / plain_step, profile[length + 1] / profile[1]
        result[f"chain of {length}"] = {
            "E": round(tokens / steps, 3),
            "c_verify": round(verify, 3),
            "d": round((step - verify) / length, 3),
            "step": round(step, 3),
            "speed": round(tokens / steps / step, 3),
            "plain_step_ms": round(1000 * plain_step, 2),
        }
        print(f"chain of {length}", result[f"chain of {length}"], flush=True)
    return result


def gains(bench: Bench) -> dict[str, Any]:
    """Speed with the speculation that is on by default against plain decoding: chat and JSON schemas one at a time, by
    turns; chat with so many requests always running."""
    options = bench.options
    engines = {"plain": bench.llm.engine, "on": LLM(options.model, max_num_seqs=32).engine}
    chat = {"max_tokens": options.max_tokens, "temperature": 0.0, "seed": 1}
    asked: dict[str, list[tuple[list[int], dict[str, Any]]]] = {
        "chat": [(prompt, chat) for prompt in bench.prompts["mt_bench"][: options.gain_requests]],
        "json": json_requests(bench, options.gain_requests, options.max_tokens),
    }
    result: dict[str, Any] = {}
    for name, requests in asked.items():
        tally = Tally()
        for prompt, values in requests:
            try:
                by_turns(engines, [prompt], SamplingParams(**{**values, "max_tokens": WARM_TOKENS}))
            except ValueError as error:
                print(f"refused: {error}"[:150])
                continue
            found = by_turns(engines, [prompt], SamplingParams(**values))
            (outputs, seconds), (expected, plain_seconds) = found["on"], found["plain"]
            assert tokens_of(outputs) == tokens_of(expected), (name, prompt)
            tally.add(outputs, seconds, plain_seconds)
        result[name] = tally.report()
        print(name, result[name], flush=True)
    for size in (options.hurt_tokens, 4 * options.hurt_tokens):
        paces = kept_pace(
            engines, bench.prompts["mt_bench"], (8, 32), argparse.Namespace(**{**vars(options), "hurt_tokens": size})
        )
        for batch, pace in paces.items():
            result[f"chat, batch {batch}, {size} tokens"] = pace
            print(f"chat, batch {batch}, {size} tokens", pace, flush=True)
    return result
