"""The law of what the engine emits, against an independent float64 implementation of every parameter's formula.

    .venv/bin/python evals/distribution/run.py        # writes evals/results/distribution.json; status 1: a cell fails

Toy model: the joint law of three tokens in a row and that of the first, for each cell of grid.py; SmolLM2: the first
token. Pearson's chi-square over seeds that are fixed. A cell fails where p < 0.001 / number of cells, or where a token
came that its law excludes; a control (the law of other parameters) fails where it passes. `catches` is the total
variation from which on every deviation of a cell is found with a probability of 90 %.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import sys
import time
from collections import Counter
from collections.abc import Hashable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from decodex.cli.machine import machine_facts, version_facts
from decodex.engine import Engine
from decodex.errors import ModelError
from decodex.features.vocabulary import Vocabulary
from decodex.params import SamplingParams

if TYPE_CHECKING:
    from evals.distribution import chi_square, grid, pipeline64, real, toy
else:  # this folder is on the path of a script; the root must not be
    import chi_square
    import grid
    import pipeline64
    import real
    import toy

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
LEVEL = 0.001  # of all cells together
CHOICES = 128
NUM_NEW = 3
PROMPT = "The best thing about the"
MARGIN = 1e-5

Law = dict[Hashable, float]
Cell = dict[str, Any]


def sample(
    engine: Engine, prompt: list[int], values: Mapping[str, Any], count: int, first_seed: int
) -> Counter[Hashable]:
    """Outputs of `count` choices (a multiple of CHOICES), as tuples of token ids."""
    counts: Counter[Hashable] = Counter()
    for seed in range(first_seed, first_seed + count // CHOICES):
        request = engine.admission.admit(prompt, SamplingParams(n=CHOICES, seed=seed, **values))
        engine.add(request)
        if len(engine.scheduler.waiting) < 1024 and seed < first_seed + count // CHOICES - 1:
            continue
        while engine.has_work:
            for done in engine.step():
                if done.is_finished:
                    counts.update(tuple(choice.token_ids) for choice in engine.output_of(done).outputs)
                    assert done.error is None, done.error
    return counts


def toy_law(
    values: Mapping[str, Any], margin: float, output: tuple[int, ...] = ()
) -> Iterator[tuple[tuple[int, ...], float]]:
    """Whole outputs of the toy model that can come, with their probabilities."""
    is_ended = bool(output) and output[-1] in toy.EOS and not values["ignore_eos"]
    if len(output) == NUM_NEW or is_ended:
        yield output, 1.0
        return
    row = pipeline64.Row(toy.PROMPT, output, toy.EOS, toy.EXEMPT, toy.BREAKERS)
    p = pipeline64.law(toy.logits_after([*toy.PROMPT, *output]), values, row, margin)
    for token in np.flatnonzero(p).tolist():
        for whole, share in toy_law(values, margin, (*output, token)):
            yield whole, share * float(p[token])


def first_tokens(outcomes: Mapping[Hashable, Any]) -> dict[Hashable, Any]:
    """Counts or probabilities of the first token, from those of whole outputs (tuples)."""
    marginal: dict[Hashable, Any] = {}
    for outcome, share in outcomes.items():
        assert isinstance(outcome, tuple)
        marginal[outcome[:1]] = marginal.get(outcome[:1], 0) + share
    return marginal


def cell(model: str, test: str, values: Mapping[str, Any], counts: Mapping[Hashable, int], laws: list[Law]) -> Cell:
    """One test's line; `laws` under the margins 0, +, -."""
    possible = frozenset(outcome for law in laws for outcome, p in law.items() if p > 0)
    result = chi_square.fit(counts, laws[0], possible)
    return {
        "model": model,
        "test": test,
        "params": {k: str(v) if isinstance(v, dict) else v for k, v in values.items()},
        "samples": result.num_samples,
        "bins": result.num_bins,
        "chi_square": round(result.statistic, 2),
        "p": result.p_value,
        "impossible": result.impossible,
        "tv": round(result.total_variation, 5),
        "tv_by_chance": round(result.total_variation_by_chance, 5),
    }


def toy_cells(count: int) -> list[Cell]:
    """Two tests for each cell of the toy grid: joint and first."""
    cells = []
    engines = {drafts: toy.toy_engine(drafts) for drafts in (False, True)}
    for index, (chosen, drafts) in enumerate(grid.TOY):
        values = {"ignore_eos": True, **chosen}
        counts = sample(
            engines[drafts], list(toy.PROMPT), {"max_tokens": NUM_NEW, **values}, count, 100_000 * (index + 1)
        )
        laws: list[Law] = [dict(toy_law(values, margin)) for margin in (0.0, MARGIN, -MARGIN)]
        name = "toy, drafted trees" if drafts else "toy"
        cells.append(cell(name, "three tokens", chosen, counts, laws))
        cells.append(cell(name, "first token", chosen, first_tokens(counts), [first_tokens(law) for law in laws]))
    return cells


def controls(count: int) -> list[Cell]:
    """Pairs of parameters that are close: the engine under one, the law of the other."""
    cells, engine = [], toy.toy_engine()
    for index, (asked, other) in enumerate(grid.CONTROLS):
        counts = sample(
            engine,
            list(toy.PROMPT),
            {"max_tokens": NUM_NEW, "ignore_eos": True, **asked},
            count,
            7_000_000 + 1000 * index,
        )
        right, wrong = (dict[Hashable, float](toy_law({"ignore_eos": True, **v}, 0.0)) for v in (asked, other))
        line = cell("toy", "three tokens", asked, counts, [wrong, right])
        line |= {"law_of": other, "tv_of_laws": round(chi_square.total_variation(right, wrong), 5)}
        cells.append(line)
    return cells


def real_cells(count: int) -> list[Cell]:
    """First tokens of SmolLM2."""
    model = real.RealModel()
    prompt = model.tokenizer.encode(PROMPT)
    engine, first = model.engine(prompt)
    vocabulary = Vocabulary(model.tokenizer, model.model.vocab_size)
    row = pipeline64.Row(
        prompt, eos=vocabulary.eos_token_ids, exempt=vocabulary.eos_token_ids | set(vocabulary.newline_ids())
    )
    first.is_kept = False
    fixed = {"max_tokens": 1, "ignore_eos": True}
    every_time = sample(engine, prompt, fixed, 2 * CHOICES, 1)
    first.is_kept = True
    assert sample(engine, prompt, fixed, 2 * CHOICES, 1) == every_time, "the kept row is not the model's"
    assert first.row is not None
    logits = real.as_float64(first.row, vocabulary.size)
    cells = []
    for index, values in enumerate(grid.REAL):
        counts = sample(engine, prompt, {**fixed, **values}, count, 20_000_000 + 10_000 * index)
        laws: list[Law] = []
        for margin in (0.0, MARGIN, -MARGIN):
            p = pipeline64.law(logits, {**values, "ignore_eos": True}, row, margin)
            laws.append({(token,): float(p[token]) for token in np.flatnonzero(p).tolist()})
        cells.append(cell("smollm2-135m", "first token", values, counts, laws))
    return cells


def judged(cells: list[Cell], wrong: list[Cell]) -> dict[str, Any]:
    """Adds each cell's `catches`; the summary of all."""
    bound = LEVEL / len(cells)
    for line in [*cells, *wrong]:
        line["catches"] = round(chi_square.detectable(line["samples"], line["bins"], bound), 5)
    failed = [line for line in cells if line["p"] < bound]
    missed = [line for line in wrong if line["p"] >= bound]
    p_values = np.array([line["p"] for line in cells if line["bins"] > 1])
    groups = sorted({(line["model"], line["test"]) for line in cells})
    return {
        "cells": len(cells),
        "bound": bound,
        "least_p": float(p_values.min()),
        "p_quartiles": [round(float(q), 3) for q in np.quantile(p_values, (0.25, 0.5, 0.75))],
        "failed": len(failed),
        "controls": len(wrong),
        "controls_missed": len(missed),
        "power": 0.9,
        "catches": {
            f"{model}, {test}": max(
                c["catches"] for c in cells if (c["model"], c["test"]) == (model, test) and c["bins"] > 1
            )
            for model, test in groups
        },
    }


def main() -> int:
    """Run, write, judge."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=128 * CHOICES, help="outputs of each toy cell")
    parser.add_argument("--real-samples", type=int, default=160 * CHOICES, help="first tokens of each SmolLM2 cell")
    parser.add_argument("--toy-only", action="store_true", help="leave SmolLM2 out")
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "evals" / "results" / "distribution.json")
    options = parser.parse_args()
    start = time.monotonic()
    cells = toy_cells(options.samples)
    wrong = controls(options.samples)
    if not options.toy_only:
        try:
            cells += real_cells(options.real_samples)
        except ModelError as error:
            print(f"SmolLM2 is left out: {error}", file=sys.stderr)
    summary = judged(cells, wrong)
    result = {
        "summary": summary,
        "machine": machine_facts(),
        "versions": version_facts("decodex", "torch", "numpy"),
        "seconds": round(time.monotonic() - start),
        "cells": cells,
        "controls": wrong,
    }
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(summary, indent=1))
    for line in cells:
        if line["p"] < summary["bound"]:
            print("FAILED", json.dumps(line))
    for line in wrong:
        if line["p"] >= summary["bound"]:
            print("MISSED", json.dumps(line))
    return int(summary["failed"] > 0 or summary["controls_missed"] > 0)


if __name__ == "__main__":
    sys.exit(main())
