"""`decodex bench`: tokens/s over batch sizes, prompt and output lengths and sampling variants."""

from __future__ import annotations

import argparse
import itertools
import json
import pathlib
import random
import statistics
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from decodex.cli.flags import Parser, as_list
from decodex.cli.loading import add_engine_flags, load_llm
from decodex.cli.machine import machine_facts, version_facts
from decodex.definition import check_int
from decodex.errors import RequestError
from decodex.params import SamplingParams

if TYPE_CHECKING:
    from decodex.llm import LLM

__all__ = ["SAMPLINGS", "Cell", "build_parser", "measure_cell", "run"]

SAMPLINGS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "sample": {"temperature": 0.8},
    "top_p": {"temperature": 0.8, "top_p": 0.9},
    "top_k": {"temperature": 0.8, "top_k": 50},
    "min_p": {"temperature": 0.8, "min_p": 0.05},
    "logprobs": {"temperature": 0.0, "logprobs": 5},
}


@dataclass(frozen=True)
class Cell:
    """One line of the table; medians over the rounds."""

    batch: int
    prompt_tokens: int
    output_tokens: int
    sampling: str
    tokens_per_second: float  # new tokens of the whole batch, prompt processing included
    first_token_ms: float
    step_ms: float  # between tokens once all decode


def counts(text: str) -> list[int]:
    """A list of positive numbers from a flag."""
    values = [int(value) for value in as_list(text, int)]
    if not values or min(values) < 1:
        raise argparse.ArgumentTypeError(f"got {text!r}, expected numbers of at least 1")
    return values


def sampling_names(text: str) -> list[str]:
    """A list of sampling variants from a flag."""
    names = text.split(",")
    if unknown := [name for name in names if name not in SAMPLINGS]:
        raise argparse.ArgumentTypeError(f"got {unknown[0]!r}, expected any of {', '.join(SAMPLINGS)}")
    return names


def build_parser() -> Parser:
    """The options of the command."""
    parser = Parser(prog="decodex bench", description="Measure tokens/s on this machine with random prompts.")
    parser.add_argument("--batch-sizes", type=counts, default=[1, 8, 32], metavar="LIST", help="prompts in a batch")
    parser.add_argument("--prompt-lens", type=counts, default=[32], metavar="LIST", help="tokens in a prompt")
    parser.add_argument("--output-lens", type=counts, default=[64], metavar="LIST", help="new tokens a prompt")
    names = "variants: " + ", ".join(SAMPLINGS)
    parser.add_argument("--sampling", type=sampling_names, default=["greedy"], metavar="LIST", help=names)
    parser.add_argument("--rounds", type=int, default=3, metavar="N", help="repetitions; medians are shown")
    parser.add_argument("--json", type=pathlib.Path, metavar="FILE", help="also write the numbers to this file")
    add_engine_flags(parser)
    return parser


def run(argv: Sequence[str]) -> int:
    """Measure every cell and print the table as it grows."""
    arguments = build_parser().parse_exactly(argv)
    check_int("--rounds", arguments.rounds, 1)
    if arguments.json is not None and not arguments.json.absolute().parent.is_dir():
        raise RequestError("--json", str(arguments.json), "a file in a folder that exists")
    start = time.perf_counter()
    llm = load_llm(arguments)
    ready_seconds = time.perf_counter() - start
    machine, versions = machine_facts(), version_facts("decodex", "torch", "transformers")
    print(f"{machine['cpu']}, {machine['cores']} cores, kernels {machine['kernels']}; ready in {ready_seconds:.1f} s")
    print(f"{'batch':>5} {'prompt':>6} {'output':>6} {'sampling':>8} {'tokens/s':>9} {'first ms':>9} {'step ms':>8}")
    cells = []
    grid = itertools.product(arguments.sampling, arguments.prompt_lens, arguments.output_lens, arguments.batch_sizes)
    for sampling, prompt_tokens, output_tokens, batch in grid:
        params = SamplingParams(max_tokens=output_tokens, ignore_eos=True, seed=0, **SAMPLINGS[sampling])
        cell = measure_cell(llm, batch, prompt_tokens, params, arguments.rounds, sampling)
        cells.append(cell)
        print(
            f"{cell.batch:5} {cell.prompt_tokens:6} {cell.output_tokens:6} {cell.sampling:>8} "
            f"{cell.tokens_per_second:9.1f} {cell.first_token_ms:9.1f} {cell.step_ms:8.2f}",
            flush=True,
        )
    if arguments.json is not None:
        facts = {"machine": machine, "versions": versions, "ready_seconds": round(ready_seconds, 2)}
        text = json.dumps({**facts, "cells": [asdict(cell) for cell in cells]}, indent=2)
        arguments.json.write_text(text + "\n", encoding="utf-8")
    return 0


def measure_cell(llm: LLM, batch: int, prompt_tokens: int, params: SamplingParams, rounds: int, sampling: str) -> Cell:
    """Medians over `rounds` after one warm-up; new random prompts each round, so no prefix is cached."""
    source = random.Random(batch * 1_000_003 + prompt_tokens)
    speeds, firsts, steps = [], [], []
    for number in range(rounds + 1):
        vocabulary = range(llm.tokenizer.vocab_size)
        prompts = [source.choices(vocabulary, k=prompt_tokens) for _ in range(batch)]
        start = time.perf_counter()
        outputs = llm.generate(prompts, params, use_tqdm=False)
        seconds = time.perf_counter() - start
        for output in outputs:
            if output.error is not None:
                raise output.error
        if number == 0:
            continue
        new_tokens = [len(output.outputs[0].token_ids) for output in outputs]
        speeds.append(sum(new_tokens) / seconds)
        for output, count in zip(outputs, new_tokens, strict=True):
            times = output.metrics
            assert times.first_token_time is not None, output.request_id
            assert times.finished_time is not None, output.request_id
            firsts.append(times.first_token_time - times.arrival_time)
            steps.append((times.finished_time - times.first_token_time) / max(1, count - 1))
    return Cell(
        batch,
        prompt_tokens,
        params.max_tokens or 0,
        sampling,
        round(statistics.median(speeds), 1),
        round(statistics.median(firsts) * 1000, 1),
        round(statistics.median(steps) * 1000, 2),
    )
