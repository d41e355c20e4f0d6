"""The commands over a toy engine: what they print, how Ctrl-C and refusals end."""

from __future__ import annotations

import json
import math
import os
import pathlib
import signal
from collections.abc import Iterator

import pytest
from fakes import make_engine

from decodex.cli import bench, chat, generate, main
from decodex.cli.generate import plain_logprobs
from decodex.llm import LLM
from decodex.outputs import Logprob, RequestOutput
from decodex.params import SamplingParams


@pytest.fixture
def llm(monkeypatch: pytest.MonkeyPatch) -> LLM:
    made = LLM.from_engine(make_engine(max_num_seqs=4, max_model_len=64))
    for command in (generate, chat, bench):
        monkeypatch.setattr(command, "load_llm", lambda arguments: made)
    return made


def type_lines(monkeypatch: pytest.MonkeyPatch, *lines: str) -> None:
    waiting = iter(lines)
    monkeypatch.setattr("builtins.input", lambda prompt: next(waiting))


def test_generate_prints_one_json_object_for_each_prompt(llm: LLM, capsys: pytest.CaptureFixture[str]) -> None:
    status = main(["generate", "ab", "c", "--json", "--seed", "5", "--n", "2", "--max-tokens", "4", "--ignore-eos"])
    answers = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    params = SamplingParams(seed=5, n=2, max_tokens=4, ignore_eos=True)
    expected = llm.generate(["ab", "c"], params)
    assert status == 0
    for answer, output in zip(answers, expected, strict=True):
        assert answer["prompt_token_ids"] == output.prompt_token_ids
        assert [c["token_ids"] for c in answer["outputs"]] == [c.token_ids for c in output.outputs]
        assert [c["seed"] for c in answer["outputs"]] == [c.seed for c in output.outputs]
        assert answer["error"] is None


def test_generate_under_a_constraint(llm: LLM, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", "ab", "--choice", "bed", "--choice", "ceded", "--max-tokens", "9", "--json"]) == 0
    [answer] = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    [choice] = answer["outputs"]
    assert choice["text"] in ("bed", "ceded")
    assert (choice["finish_reason"], choice["check"], choice["parsed"]) == ("stop", "passed", None)
    assert main(["generate", "ab", "--regex", "(?=a)b", "--max-tokens", "9"]) == 2
    assert "error: structured_outputs.regex" in capsys.readouterr().err


def test_generate_reports_a_refused_prompt_and_prints_the_other(llm: LLM, capsys: pytest.CaptureFixture[str]) -> None:
    status = main(["generate", "ab", "a" * 70, "--seed", "5", "--max-tokens", "4", "--ignore-eos"])
    captured = capsys.readouterr()
    [expected] = llm.generate("ab", SamplingParams(seed=5, max_tokens=4, ignore_eos=True))
    assert status == 2
    assert captured.out == expected.outputs[0].text + "\n"
    assert captured.err.startswith("decodex generate: error: prompt")
    assert captured.err.count("\n") == 1


def test_chat_remembers_until_reset(
    llm: LLM, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    heard: list[str] = []
    template = llm.tokenizer.apply_chat_template

    def listen(messages: list[dict[str, str]], **_: object) -> list[int]:
        heard.append("|".join(message["content"] for message in messages))
        return list(template(messages))

    monkeypatch.setattr(llm.tokenizer, "apply_chat_template", listen)
    type_lines(monkeypatch, "ab", "cd", "/reset", "", "/nonsense", "ef", "/quit")
    assert main(["chat", "--seed", "3", "--max-tokens", "3", "--ignore-eos", "--system", "aa"]) == 0
    assert heard[0] == "aa|ab"
    assert heard[1].startswith("aa|ab|")
    assert heard[1].endswith("|cd")
    assert heard[1].split("|")[2] in capsys.readouterr().out
    assert heard[2] == "aa|ef"


def test_chat_survives_a_message_that_is_too_long(
    llm: LLM, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    type_lines(monkeypatch, "a" * 100, "b", "/quit")
    assert main(["chat", "--seed", "3", "--max-tokens", "3"]) == 0
    assert "error: prompt" in capsys.readouterr().err


def test_ctrl_c_stops_the_answer_and_not_the_program(
    llm: LLM, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The signal must not land inside an engine step: the next answer would come from a broken state."""
    plain = llm.stream_chat

    def interrupted(messages: list[dict[str, str]], params: SamplingParams) -> Iterator[RequestOutput]:
        for number, output in enumerate(plain(messages, params)):
            if number == 2:
                os.kill(os.getpid(), signal.SIGINT)
            yield output

    monkeypatch.setattr(llm, "stream_chat", interrupted)
    type_lines(monkeypatch, "ab", "/quit")
    before = signal.getsignal(signal.SIGINT)
    assert main(["chat", "--seed", "3", "--max-tokens", "40", "--ignore-eos"]) == 0
    assert " (stopped)" in capsys.readouterr().out
    assert signal.getsignal(signal.SIGINT) is before
    assert not llm.engine.has_work
    [again] = llm.generate("ab", SamplingParams(seed=3, max_tokens=4, ignore_eos=True))
    assert len(again.outputs[0].token_ids) == 4


def test_bench_writes_machine_versions_and_cells(llm: LLM, tmp_path: pathlib.Path) -> None:
    out = tmp_path / "bench.json"
    options = ["--batch-sizes", "1,3", "--prompt-lens", "5", "--output-lens", "4", "--sampling", "greedy,top_p"]
    assert main(["bench", *options, "--rounds", "1", "--json", str(out)]) == 0
    facts = json.loads(out.read_text(encoding="utf-8"))
    assert facts["machine"]["cores"] >= 1
    assert {"python", "decodex", "torch"} <= set(facts["versions"])
    assert [(cell["sampling"], cell["batch"]) for cell in facts["cells"]] == [
        ("greedy", 1),
        ("greedy", 3),
        ("top_p", 1),
        ("top_p", 3),
    ]
    assert all(cell["tokens_per_second"] > 0 for cell in facts["cells"])


def test_log_probabilities_are_json_values() -> None:
    rows = [None, {3: Logprob(-math.inf, 2, "c"), 1: Logprob(-0.5, 1, "a")}]
    assert plain_logprobs(rows) == [
        None,
        {
            "3": {"logprob": -9999.0, "rank": 2, "decoded_token": "c"},
            "1": {"logprob": -0.5, "rank": 1, "decoded_token": "a"},
        },
    ]
    assert plain_logprobs(None) is None
