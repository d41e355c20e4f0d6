"""The learning curves of a training as a picture, over the answer tokens seen."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

__all__ = ["draw_curves"]

_log = logging.getLogger(__name__)
_MAX_POINTS = 200  # of a loss curve; each is a mean


def draw_curves(history: Sequence[Mapping[str, Any]], path: Path) -> bool:
    """Write a PNG with the losses, and accuracy, overlap and tokens per target step on held-out answers.

    An entry has `tokens`, and `loss` (a number, or one for each depth) or what an evaluation found: `accuracy` and
    `overlap` (by depth), `tokens_per_step`. Without matplotlib (the extra `train`) nothing is written but a note in
    the log; the result says whether there is a picture.
    """
    try:
        import matplotlib
    except ImportError:
        _log.warning("%s is not drawn: matplotlib is not installed (pip install 'decodex[train]')", path)
        return False
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (losses, accuracy, speed) = pyplot.subplots(1, 3, figsize=(15, 4.5), layout="constrained")
    steps = [entry for entry in history if "loss" in entry]
    for depth in range(max((len(_by_depth(entry["loss"])) for entry in steps), default=0)):
        losses.plot(*_loss_curve(steps, depth), color=f"C{depth}", label=f"depth {depth + 1}")
    found = [entry for entry in history if "accuracy" in entry]
    tokens = [entry["tokens"] for entry in found]
    for depth in range(max((len(entry["accuracy"]) for entry in found), default=0)):
        label = f"depth {depth + 1}"
        accuracy.plot(tokens, [entry["accuracy"][depth] for entry in found], ".-", color=f"C{depth}", label=label)
        accuracy.plot(tokens, [entry["overlap"][depth] for entry in found], ":", color=f"C{depth}")
    speed.plot(tokens, [entry["tokens_per_step"] for entry in found], ".-")
    titles = ("training loss", "top token as the target's (dotted: sum min(p, q))", "tokens per target step, chain")
    for axes, title in zip((losses, accuracy, speed), titles, strict=True):
        axes.set(title=title, xlabel="answer tokens seen")
        axes.grid(alpha=0.3)
    for axes in (losses, accuracy):
        if axes.get_legend_handles_labels()[1]:
            axes.legend()
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.partial")
    figure.savefig(partial, format="png", dpi=100)
    pyplot.close(figure)
    partial.replace(path)
    return True


def _by_depth(loss: float | Sequence[float]) -> Sequence[float]:
    return loss if isinstance(loss, Sequence) else [loss]


def _loss_curve(steps: Sequence[Mapping[str, Any]], depth: int) -> tuple[list[float], list[float]]:
    """Tokens and means of the loss at one depth, where it was trained."""
    points = [(entry["tokens"], each[depth]) for entry in steps if len(each := _by_depth(entry["loss"])) > depth]
    width = -(-len(points) // _MAX_POINTS)
    parts = [points[start : start + width] for start in range(0, len(points), width)]
    tokens, losses = ([sum(point[i] for point in part) / len(part) for part in parts] for i in (0, 1))
    return tokens, losses
