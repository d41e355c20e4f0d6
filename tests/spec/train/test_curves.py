"""The picture of a training is drawn from its history, or said to be missing."""

from __future__ import annotations

import pathlib
import sys
from typing import Any

import pytest

from decodex.spec.train.curves import _loss_curve, draw_curves

EVALUATION: dict[str, Any] = {"accuracy": [0.4, 0.2], "overlap": [0.3, 0.1], "tokens_per_step": 1.5}
HISTORY: list[dict[str, Any]] = [
    {"tokens": 0, "seconds": 0.0, **EVALUATION},
    *({"tokens": 10 * i, "loss": [5.0 / i, 6.0][: 1 + i // 500], "lr": 1e-3} for i in range(1, 1000)),
    {"tokens": 10_000, "seconds": 9.0, **EVALUATION},
]


@pytest.mark.parametrize("history", [HISTORY, HISTORY[:1], HISTORY[1:4], [{"tokens": 1, "loss": 2.0}], []])
def test_a_picture_is_drawn(history: list[dict[str, Any]], tmp_path: pathlib.Path) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / "new" / "curves.png"
    assert draw_curves(history, path)
    assert [each.name for each in path.parent.iterdir()] == ["curves.png"]
    data = path.read_bytes()
    assert data.startswith(b"\x89PNG")
    assert data.endswith(b"IEND\xaeB`\x82")


def test_a_loss_is_drawn_as_means_from_where_its_depth_is_trained() -> None:
    steps = [entry for entry in HISTORY if "loss" in entry]
    tokens, losses = _loss_curve(steps, 0)
    assert len(tokens) == len(losses) == 200
    assert tokens[:2] == [30.0, 80.0]
    assert losses[0] == pytest.approx((5 + 2.5 + 5 / 3 + 1.25 + 1) / 5)
    tokens, losses = _loss_curve(steps, 1)
    assert tokens[0] >= 5000
    assert set(losses) == {6.0}


def test_without_matplotlib_there_is_a_note(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert not draw_curves(HISTORY, tmp_path / "curves.png")
    assert "curves.png is not drawn: matplotlib is not installed (pip install 'decodex[train]')" in caplog.text
    assert not list(tmp_path.iterdir())
