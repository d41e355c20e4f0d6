"""`decodex distill` over a toy engine: interrupted, continued, and what it refuses before a model is loaded."""

from __future__ import annotations

import json
import os
import pathlib
import signal

import pytest
from fakes import make_engine

from decodex.cli import distill, main
from decodex.llm import LLM
from decodex.spec.train.records import read_records


@pytest.fixture
def llm(monkeypatch: pytest.MonkeyPatch) -> LLM:
    made = LLM.from_engine(make_engine(max_num_seqs=4, max_model_len=24))
    monkeypatch.setattr(distill, "load_llm", lambda arguments: made)
    return made


@pytest.fixture
def prompts(tmp_path: pathlib.Path) -> pathlib.Path:
    path = tmp_path / "prompts.jsonl"
    path.write_text("".join(json.dumps({"id": f"p{i}", "prompt": "bcdefg"[: 1 + i % 6]}) + "\n" for i in range(12)))
    return path


def test_ctrl_c_keeps_what_is_there(
    llm: LLM,
    prompts: pathlib.Path,
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = tmp_path / "out.jsonl"
    argv = ["distill", str(prompts), "--out", str(out), "--max-tokens", "9", "--temperatures", "0.5,0:1"]
    plain, num_steps = llm.engine.step, 0

    def interrupted() -> list:
        nonlocal num_steps
        num_steps += 1
        if num_steps == 12:
            os.kill(os.getpid(), signal.SIGINT)
        return plain()

    monkeypatch.setattr(llm.engine, "step", interrupted)
    before = signal.getsignal(signal.SIGINT)
    assert main(argv) == 130
    assert signal.getsignal(signal.SIGINT) is before
    captured = capsys.readouterr()
    assert captured.err.endswith("interrupted\n")
    num_found = len(read_records([out], 12))
    assert 0 < num_found < 12
    assert captured.out.startswith(f"{num_found} answers, ")
    assert main(argv) == 0
    assert f"; {num_found} answers were there, 0 prompts skipped" in capsys.readouterr().out
    assert {record.temperature for record in read_records([out], 12)} == {0.0, 0.5}
    assert len(read_records([out], 12)) == 12


def test_limit_comes_after_the_ids_of_other_files(llm: LLM, prompts: pathlib.Path, tmp_path: pathlib.Path) -> None:
    first, second = tmp_path / "first.jsonl", tmp_path / "second.jsonl"
    assert main(["distill", str(prompts), "--out", str(first), "--limit", "5", "--max-tokens", "9"]) == 0
    argv = ["distill", str(prompts), "--out", str(second), "--limit", "4", "--max-tokens", "9"]
    assert main([*argv, "--skip-ids-in", str(first)]) == 0
    assert sorted(r.id for r in read_records([first], 12)) == ["p0", "p1", "p2", "p3", "p4"]
    assert sorted(r.id for r in read_records([second], 12)) == ["p5", "p6", "p7", "p8"]


def test_nothing_but_skipped_prompts_is_a_failure(llm: LLM, tmp_path: pathlib.Path) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text(json.dumps({"id": "a", "prompt": "b" * 30}))
    assert main(["distill", str(prompts), "--out", str(tmp_path / "out.jsonl")]) == 1


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ("{prompts}", "the following arguments are required: --out"),
        (
            "{prompts} --out {folder}/none/out.jsonl",
            "--out: got '{folder}/none/out.jsonl', expected a file in a folder",
        ),
        ("{prompts} --out {folder}/out.jsonl.gz", "--out: got '{folder}/out.jsonl.gz', expected a plain file"),
        ("{prompts} --out {folder}/o --temperatures 1:x", "argument --temperatures: got 'x', expected a number"),
        ("{prompts} --out {folder}/o --temperatures 1:0", "temperatures: got ((1.0, 0.0),), expected"),
        ("{prompts} --out {folder}/o --temperatures -1", "temperature: got -1.0, expected"),
        ("{prompts} --out {folder}/o --max-tokens 0", "max_tokens: got 0, expected"),
        ("{prompts} --out {folder}/o --limit 0", "--limit: got 0, expected an integer >= 1"),
        ("{prompts} --out {folder}/o --skip-ids-in {prompts}", "{prompts}:1: field response_ids is missing"),
        ("{folder}/none --out {folder}/o", "{folder}/none: can't be read after line 0"),
        ("{prompts} --out {folder}/o --max-num-seqs 0", "max_num_seqs: got 0, expected"),
        ("{prompts} --out {folder}/o --top-p 0.5", "unknown argument --top-p"),
    ],
)
def test_a_mistake_is_one_line_and_status_2(
    arguments: str,
    complaint: str,
    prompts: pathlib.Path,
    tmp_path: pathlib.Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    names = {"prompts": prompts, "folder": tmp_path}
    try:
        status: object = main(["distill", *arguments.format(**names).split()])
    except SystemExit as stop:
        status = stop.code
    message = capsys.readouterr().err
    assert status == 2
    assert message.startswith(f"decodex distill: error: {complaint.format(**names)}")
    assert message.count("\n") == 1
    assert sorted(tmp_path.iterdir()) == [prompts]
