"""Coupled trees against recursive rejection on real logits: how often one of m children of a node is accepted.

    .venv/bin/python evals/acceptance/trees.py [--questions 20] [--positions 16] [--seeds 12]

The target is SmolLM2, the drafter a copy whose weights were perturbed by Gaussian noise of `noise` standard deviations
of each matrix. Rows are positions of Spec-Bench questions in the chat template. A node's children are, coupled, the m
largest of log q + the noise that also draws the target's token; under rejection m draws from q without replacement,
tested one after another. Both run through the engine's kernels, with the same seeds. A node's children decide alone, so
this is what decides how deep a tree of that width gets. Writes evals/results/acceptance_trees.json; status 1 where
rejection accepts more for m >= 2, beyond two standard errors of the paired difference.
"""

from __future__ import annotations

import argparse
import json
import pathlib
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer

from decodex.cli.machine import machine_facts, version_facts
from decodex.kernels.sampling import gumbel_argmax
from decodex.kernels.verify import log_law
from decodex.models.source import resolve_model
from decodex.spec.draft import ROOT as AT_ROOT
from decodex.spec.draft import Draft
from decodex.spec.verify import draw_proposals, verify_step

ROOT = pathlib.Path(__file__).resolve().parents[2]
QUESTIONS = ROOT.parent / "shared" / "data" / "spec_bench" / "question.jsonl"
WIDTHS = (1, 2, 4)
TEMPERATURES = (0.7, 1.0, 1.2)
NOISES = (0.05, 0.1, 0.15)
NUM_TOKENS = 96  # of each question
CHUNK = 64  # rows at once


def read_rows(num_questions: int, num_positions: int, noises: tuple[float, ...]) -> list[Tensor]:
    """Logits [R, V] fp32 of the target and of each perturbed copy, at the last positions of the questions."""
    path = str(resolve_model("smollm2-135m").path)
    tokenizer = AutoTokenizer.from_pretrained(path)
    lines = QUESTIONS.read_text().splitlines()
    texts = [json.loads(line)["turns"][0] for line in lines[:: len(lines) // num_questions][:num_questions]]
    prompts = []
    for text in texts:
        chat: Any = tokenizer.apply_chat_template([{"role": "user", "content": text}], return_dict=True)
        prompts.append(torch.tensor([chat["input_ids"][:NUM_TOKENS]]))
    found = []
    for noise in (0.0, *noises):
        model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
        generator = torch.Generator().manual_seed(0)
        with torch.inference_mode():
            for weight in model.parameters():
                if weight.ndim == 2 and noise:
                    weight.add_(noise * weight.std() * torch.randn(weight.shape, generator=generator))
            rows = [model(prompt).logits[0, -num_positions:] for prompt in prompts]
        found.append(torch.cat(rows))
    return found


def draw_shared(logs: Tensor, seeds: Tensor, positions: Tensor, num: int) -> Tensor:
    """The `num` largest [R, num] of logs + the noise that draws the target's token."""
    left, drawn = logs.clone(), []
    for _ in range(num):
        drawn.append(gumbel_argmax(left, seeds, positions))
        left.scatter_(1, drawn[-1][:, None].clamp(min=0), -torch.inf)
    return torch.stack(drawn, 1)


def matches(p: Tensor, q: Tensor, seed: int) -> tuple[dict[int, Tensor], dict[int, Tensor]]:
    """By width, whether a child is accepted [R] fp64 in each row: coupled, and under rejection."""
    num_rows = len(p)
    seeds, positions = torch.full((num_rows,), seed), torch.arange(1, num_rows + 1)
    tokens = gumbel_argmax(log_law(p), seeds, positions)
    children = draw_shared(log_law(q), seeds, positions, max(WIDTHS))
    is_match = children == tokens[:, None]
    coupled = {width: is_match[:, :width].any(1).double() for width in WIDTHS}
    proposals = draw_proposals(q, seeds, positions, positions, max(WIDTHS)).tolist()
    drafts = []
    for row, drawn in enumerate(proposals):
        ids = tuple(token for token in drawn if token >= 0)
        drafts.append(Draft(ids, (AT_ROOT,) * len(ids), laws=q[row].expand(len(ids), -1)))
    # The law after a child decides nothing here: the next rows will do. A narrower tree has the first of the children.
    laws = torch.cat([p, p[:1].expand(max(WIDTHS), -1)])
    results = verify_step("rejection", laws, range(num_rows), drafts, seeds.tolist(), positions.tolist())
    first = torch.tensor([accepted[0] if accepted else max(WIDTHS) for _, accepted in results])
    return coupled, {width: (first < width).double() for width in WIDTHS}


def compare(target: Tensor, drafter: Tensor, temperature: float, seeds: range) -> list[dict[str, Any]]:
    """A line for each width: acceptance of both, the difference and its standard error over rows."""
    means: dict[tuple[str, int], list[Tensor]] = {}
    optimum = []
    for begin in range(0, len(target), CHUNK):
        p = torch.softmax(target[begin : begin + CHUNK] / temperature, 1)
        q = torch.softmax(drafter[begin : begin + CHUNK] / temperature, 1)
        optimum.append(torch.minimum(p, q).sum(1))
        runs = [matches(p, q, 1_000_000 * begin + seed) for seed in seeds]
        for width in WIDTHS:
            for side, name in enumerate(("coupled", "rejection")):
                mean = torch.stack([run[side][width] for run in runs]).mean(0)
                means.setdefault((name, width), []).append(mean)
    lines = []
    for width in WIDTHS:
        # One child is accepted with the probability sum of min(p, q): known, and what chance gave there is taken off.
        chance = torch.cat(means["rejection", 1]) - torch.cat(optimum).double()
        coupled, rejection = torch.cat(means["coupled", width]), torch.cat(means["rejection", width]) - chance
        difference = coupled - rejection
        lines.append(
            {
                "children": width,
                "coupled": round(float(coupled.mean()), 4),
                "rejection": round(float(rejection.mean()), 4),
                "difference": round(float(difference.mean()), 4),
                "standard_error": round(float(difference.std() / len(difference) ** 0.5), 4),
            }
        )
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--questions", type=int, default=20)
    parser.add_argument("--positions", type=int, default=16)
    parser.add_argument("--seeds", type=int, default=12)
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "evals" / "results" / "acceptance_trees.json")
    args = parser.parse_args()
    target, *drafters = read_rows(args.questions, args.positions, NOISES)
    table: list[dict[str, Any]] = []
    for noise, drafter in zip(NOISES, drafters, strict=True):
        for temperature in TEMPERATURES:
            first = len(table) * args.seeds  # seeds of its own: cells that share noise share its luck
            for line in compare(target, drafter, temperature, range(first, first + args.seeds)):
                table.append({"noise": noise, "temperature": temperature, **line})
                print(table[-1], flush=True)
    worse = [line for line in table if line["children"] > 1 and line["difference"] < -2 * line["standard_error"]]
    report = {
        "machine": machine_facts(),
        "versions": version_facts(),
        "rows": len(target),
        "seeds": args.seeds,
        "table": table,
        "rejection_is_better": len(worse),
    }
    args.out.write_text(json.dumps(report, indent=1) + "\n")
    return 1 if worse else 0


if __name__ == "__main__":
    raise SystemExit(main())
