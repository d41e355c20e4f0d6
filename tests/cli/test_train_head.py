"""`decodex train-head` up to the training itself, which a stand-in takes the place of."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from decodex import head_training
from decodex.cli import main
from decodex.cli.train_head import Progress, build_parser
from decodex.definition import options_of
from decodex.head_training import HeadTraining
from decodex.spec.train import curves
from decodex.spec.train.errors import TrainingError
from decodex.spec.train.recipe import Recipe

FOUND: dict[str, Any] = {
    "tokens": 90,
    "seconds": 2.0,
    "accuracy": [0.5, 0.25],
    "overlap": [0.4, 0.2],
    "tokens_per_step": 1.62,
}


@pytest.fixture
def jobs(monkeypatch: pytest.MonkeyPatch) -> list[HeadTraining]:
    """What was asked for."""
    asked: list[HeadTraining] = []

    def stand_in(job: HeadTraining, progress: Callable[[str, Mapping[str, Any]], None]) -> dict[str, Any]:
        asked.append(job)
        job.out.mkdir(exist_ok=True)
        (job.out / "history.json").write_text(json.dumps([FOUND]))
        for phase, facts in [
            ("capture", {"tokens": 40, "of": 80}),
            ("capture", {"tokens": 80, "of": 80}),
            ("capture", {"tokens": 5, "of": 5}),
            ("train", {"tokens": 30, "seconds": 1.0, "loss": [2.0, 3.0], "lr": 1e-3}),
            ("train", FOUND),
        ]:
            progress(phase, facts)
        return {"method": job.method, "vocabulary_coverage": 0.987, **FOUND}

    monkeypatch.setattr(head_training, "train_head", stand_in)
    return asked


def test_a_command_line_becomes_a_job(
    jobs: list[HeadTraining], tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "checkpoint.pt").touch()
    argv = f"train-head --method mtp --model m --data a b.gz --out {out} --epochs 2.5 --depths 3 --resume --device cpu"
    assert main([*argv.split(), "--init", "i", "--held-out", "h", "--states", "s"]) == 0
    path = pathlib.Path
    assert jobs == [
        HeadTraining(
            model="m",
            method="mtp",
            data=[path("a"), path("b.gz")],
            out=out,
            recipe=Recipe(epochs=2.5, depths=3),
            init=path("i"),
            held_out=path("h"),
            states=path("s"),
            resume=True,
            device="cpu",
        )
    ]
    found = "1.62 tokens per target step, accuracy 0.500 0.250, overlap 0.400 0.200"
    lines = capsys.readouterr().out.splitlines()
    assert lines == [
        f"90 tokens, 2 s: {found}",
        f"{out}: mtp head; 98.7% of the answers' tokens can be drafted, {found}",
    ]


def test_what_is_not_given_is_the_definitions_own(jobs: list[HeadTraining], tmp_path: pathlib.Path) -> None:
    argv = ["train-head", "--method", "eagle3", "--data", "a", "--out", str(tmp_path / "out")]
    assert main(argv) == 0
    assert jobs == [HeadTraining("smollm2-135m", "eagle3", [pathlib.Path("a")], tmp_path / "out", Recipe())]


def test_every_number_of_the_recipe_is_a_flag() -> None:
    flags = build_parser()._option_string_actions
    names = {field.name.replace("_", "-") for field in options_of(Recipe)} - {"held-out"} | {"num-held-out"}
    assert {f"--{name}" for name in names} <= set(flags)


@pytest.mark.parametrize(("has_checkpoint", "how"), [(True, " with --resume"), (False, "")])
def test_an_interrupted_training_says_how_to_go_on(
    has_checkpoint: bool,
    how: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: pathlib.Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A capture that was interrupted has no checkpoint, and needs none."""

    def interrupted(job: HeadTraining, progress: object) -> None:
        if has_checkpoint:
            job.out.mkdir()
            (job.out / "checkpoint.pt").touch()
        raise KeyboardInterrupt

    monkeypatch.setattr(head_training, "train_head", interrupted)
    argv = ["train-head", "--method", "eagle3", "--data", "a", "--out", str(tmp_path / "out")]
    assert main(argv) == 130
    assert f"out: the same command{how} goes on\ninterrupted\n" in capsys.readouterr().err


def test_a_folder_with_a_training_or_without_one_is_refused_before_anything_is_done(
    monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("decodex.training_target.load_model", None)
    argv = ["train-head", "--method", "eagle3", "--data", "a", "--out", str(tmp_path)]
    assert main([*argv, "--resume"]) == 2
    (tmp_path / "checkpoint.pt").touch()
    assert main(argv) == 2
    path = tmp_path / "checkpoint.pt"
    assert capsys.readouterr().err.splitlines() == [
        f"decodex train-head: error: {path}: no checkpoint to go on from (a capture goes on without resume)",
        f"decodex train-head: error: {path}: is there already: go on from it (resume), or train in another folder",
    ]


@pytest.mark.parametrize("name", ["out", "states", "init"])
def test_an_argument_that_is_no_folder_is_named(
    name: str, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "file"
    file.touch()
    argv = ["train-head", "--method", "eagle3", "--data", "a", "--out", str(tmp_path / "out")]
    assert main([*argv, f"--{name}", str(file)]) == 2
    assert f"error: {name}: got {str(file)!r}, expected a folder" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="2"):
        main([*argv, f"--{name}", ""])
    assert f"{name}: got '', expected a folder" in capsys.readouterr().err


def test_curves_are_drawn_at_every_evaluation_if_they_can_be(
    monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    drawn: list[Any] = []

    def draw(history: list[Any], path: pathlib.Path) -> bool:
        drawn.append((len(history), path))
        return len(drawn) < 2

    monkeypatch.setattr(curves, "draw_curves", draw)
    progress = Progress(tmp_path)
    for size in range(1, 5):
        (tmp_path / "history.json").write_text(json.dumps([FOUND] * size))
        progress("train", {"tokens": 9, "seconds": 1.0, "loss": [2.0], "lr": 1e-3})
        progress("train", FOUND)
    progress.close()
    assert drawn == [(1, tmp_path / "curves.png"), (2, tmp_path / "curves.png")]


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ("--method eagle --data a --out b", "argument --method: invalid choice: 'eagle'"),
        ("--data a --out b", "the following arguments are required: --method"),
        ("--method mtp --data a --out b --depths 0", "depths: got 0, expected 1 to 16"),
        ("--method mtp --data a --out b --depths 1.5", "argument --depths: got '1.5', expected an integer"),
        ("--method mtp --data a --out b --epoch 1", "unknown argument --epoch; did you mean '--epochs'?"),
        ("--method mtp --data a --out b", "a:1: field id is missing"),
    ],
)
def test_a_mistake_is_one_line_and_status_2(
    arguments: str, complaint: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(job: HeadTraining, progress: object) -> None:
        raise TrainingError("a:1: field id is missing")

    monkeypatch.setattr(head_training, "train_head", refuse)
    try:
        status: object = main(["train-head", *arguments.split()])
    except SystemExit as stop:
        status = stop.code
    message = capsys.readouterr().err
    assert status == 2
    assert message.startswith(f"decodex train-head: error: {complaint}")
    assert message.count("\n") == 1
