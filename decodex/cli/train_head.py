"""`decodex train-head`: a draft head for a model, from the model's own answers."""

from __future__ import annotations

import argparse
import json
import pathlib
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from tqdm.auto import tqdm

from decodex.cli.flags import Parser, add_flags, given
from decodex.spec.train.recipe import Recipe

__all__ = ["build_parser", "run"]


def build_parser() -> Parser:
    """The options of the command."""
    parser = Parser(prog="decodex train-head", description="Train a draft head on a model's own answers.")
    help = "eagle3: reads three layers; mtp: reads the last hidden state, drafts with the model's output layer"
    parser.add_argument("--method", choices=("eagle3", "mtp"), required=True, help=help)
    help = "demo model name, Hugging Face id or local folder"
    parser.add_argument("--model", default="smollm2-135m", metavar="NAME", help=help)
    help = "answers as decodex distill writes them, plain or .gz"
    parser.add_argument("--data", type=pathlib.Path, nargs="+", required=True, metavar="FILE", help=help)
    help = "folder of the head; checkpoints, hidden states, report.json, history.json and curves.png go there too"
    parser.add_argument("--out", type=folder_named, required=True, metavar="DIR", help=help)
    help = "start from this head, which keeps its draft vocabulary"
    parser.add_argument("--init", type=folder_named, metavar="DIR", help=help)
    help = "answers to evaluate on; default: some of the data is kept back"
    parser.add_argument("--held-out", type=pathlib.Path, metavar="FILE", help=help)
    help = "folder for the hidden states, which trainings on the same data share; default: in --out"
    parser.add_argument("--states", type=folder_named, metavar="DIR", help=help)
    parser.add_argument("--resume", action="store_true", help="go on from the checkpoint in --out")
    parser.add_argument("--device", default="auto", help="where it runs: auto is cuda if there is one, else cpu")
    help = "of products; bfloat16 is several times faster on a GPU, or a CPU with AMX"
    parser.add_argument("--precision", choices=("float32", "bfloat16"), default="float32", help=help)
    add_flags(parser, Recipe, rename={"held_out": "num-held-out"})
    return parser


def folder_named(text: str) -> pathlib.Path:
    """The path that is given; an empty one would be the current folder."""
    if not text:
        raise argparse.ArgumentTypeError("got '', expected a folder")
    return pathlib.Path(text)


def run(argv: Sequence[str]) -> int:
    """Train, and say what came of it."""
    arguments = build_parser().parse_exactly(argv)
    recipe = Recipe(**given(arguments, Recipe))
    from decodex.head_training import HeadTraining, train_head

    out: pathlib.Path = arguments.out
    job = HeadTraining(
        model=arguments.model,
        method=arguments.method,
        data=arguments.data,
        out=out,
        recipe=recipe,
        init=arguments.init,
        held_out=arguments.held_out,
        states=arguments.states,
        resume=arguments.resume,
        device=arguments.device,
        precision=arguments.precision,
    )
    progress = Progress(out)
    try:
        report = train_head(job, progress)
    except KeyboardInterrupt:
        how = " with --resume" if (out / "checkpoint.pt").exists() else ""
        print(f"\n{out}: the same command{how} goes on", file=sys.stderr)
        raise
    finally:
        progress.close()
    coverage = f"{report['vocabulary_coverage']:.1%} of the answers' tokens can be drafted"
    print(f"{out}: {report['method']} head; {coverage}, {standing(report)}")
    return 0


def standing(facts: Mapping[str, Any]) -> str:
    """What an evaluation found."""
    accuracy = " ".join(f"{share:.3f}" for share in facts["accuracy"])
    overlap = " ".join(f"{share:.3f}" for share in facts["overlap"])
    return f"{facts['tokens_per_step']:.2f} tokens per target step, accuracy {accuracy}, overlap {overlap}"


class Progress:
    """A bar for each phase, where there is a terminal; at each evaluation a line, and the curves drawn anew."""

    def __init__(self, out: pathlib.Path) -> None:
        """`out`: the folder of the history and the curves."""
        self._out = out
        self._draws = True  # until it turns out that it can't
        self._bar: Any = None
        self._shown: object = None

    def __call__(self, phase: str, facts: Mapping[str, Any]) -> None:
        """`facts`: `tokens` done, `of` how many where that is known; a loss, or what an evaluation found."""
        shown = phase, facts.get("of")
        if shown != self._shown:
            self.close()
            options = {"total": facts.get("of"), "initial": facts["tokens"], "disable": not sys.stderr.isatty()}
            self._bar, self._shown = tqdm(desc=phase, unit=" tokens", unit_scale=True, **options), shown
        self._bar.update(facts["tokens"] - self._bar.n)
        if "loss" in facts:
            self._bar.set_postfix_str("loss " + " ".join(f"{loss:.2f}" for loss in facts["loss"]), refresh=False)
        if "accuracy" in facts:
            tqdm.write(f"{facts['tokens']} tokens, {facts['seconds']:.0f} s: {standing(facts)}")
            self._draw()

    def close(self) -> None:
        """Leave the bar as it is."""
        if self._bar is not None:
            self._bar.close()
        self._bar = self._shown = None

    def _draw(self) -> None:
        from decodex.spec.train.curves import draw_curves

        if self._draws:
            history = json.loads((self._out / "history.json").read_text("utf-8"))
            self._draws = draw_curves(history, self._out / "curves.png")
