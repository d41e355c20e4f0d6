"""Training of heads for tiny models: what is captured, written, continued and refused."""

from __future__ import annotations

import json
import os
import random
import signal
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from tiny_models import KINDS, V, save_tiny
from train_fakes import TARGET_CONFIG

from decodex.cli import main
from decodex.errors import ModelError
from decodex.head_training import HeadTraining, Method, head_config, train_head
from decodex.heads import _rope_frequencies, load_drafter
from decodex.models.llama_config import LlamaConfig, rope_frequencies
from decodex.models.loader import load_model
from decodex.models.source import resolve_model
from decodex.spec.train import loop
from decodex.spec.train.errors import TrainingError
from decodex.spec.train.recipe import Recipe
from decodex.spec.train.records import read_records
from decodex.spec.train.states import Span, StateStore
from decodex.training_target import Precision, TrainingTarget

METHODS = get_args(Method)
RECIPE = Recipe(draft_vocab_size=40, epochs=1, batch_tokens=120, depths=2, deepen_at=0.5, held_out=4, eval_every=150)
CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """See tests/spec/conftest.py."""
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(num_threads)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, int], Path]:
    """The folder of a model, made once."""
    made: dict[tuple[str, int], Path] = {}

    def get(kind: str, num_layers: int = 8) -> Path:
        key = kind, num_layers
        if key not in made:
            made[key] = save_tiny(tmp_path_factory.mktemp(kind), kind, num_layers)
        return made[key]

    return get


def write_answers(path: Path, count: int = 24, seed: int = 0) -> Path:
    source = random.Random(seed)
    with path.open("w") as file:
        for number in range(count):
            prompt = [source.randrange(V) for _ in range(source.randint(1, 6))]
            answer = [int(V * source.random() ** 2) for _ in range(source.randint(3, 25))]
            record = {"id": f"{seed}-{number}", "prompt_ids": prompt, "response_ids": answer, "temperature": 0.0}
            file.write(json.dumps(record) + "\n")
    return path


@pytest.fixture
def job(models: Any, tmp_path: Path) -> HeadTraining:
    data = write_answers(tmp_path / "answers.jsonl")
    return HeadTraining(str(models("llama")), "eagle3", [data], tmp_path / "out", RECIPE, device="cpu")


class Stop(Exception):
    """What interrupts."""


class Progress:
    """Keeps the facts of each phase, and raises at one of them."""

    def __init__(self, phase: str = "", call: int = 0) -> None:
        self.facts: dict[str, list[Mapping[str, Any]]] = {"capture": [], "train": []}
        self._stop = phase, call

    def __call__(self, phase: str, facts: Mapping[str, Any]) -> None:
        self.facts[phase].append(facts)
        if self._stop == (phase, len(self.facts[phase])):
            raise Stop


@pytest.mark.parametrize(("precision", "most"), [("float32", 2e-3), ("bfloat16", 0.08)])
@pytest.mark.parametrize("num_layers", [4, 8])
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_captured_is_what_transformers_computes(
    kind: str, num_layers: int, precision: Precision, most: float, models: Any
) -> None:
    """Several sequences in one forward, of any length; more than one forward takes."""
    folder = models(kind, num_layers)
    target = TrainingTarget.load(str(folder), "cpu", precision)
    assert target.taps == {4: (0, 2, 3), 8: (1, 3, 4)}[num_layers]
    source = random.Random(1)
    lengths = (5, 1, 17, 250, 250, 100, 33)
    spans = [Span(tuple(source.randrange(V) for _ in range(length)), 1, 0.0) for length in lengths]
    found = target.capture(spans)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    outputs: dict[int, torch.Tensor] = {}
    for index, layer in enumerate(theirs.model.layers):
        layer.register_forward_hook(lambda module, inputs, output, index=index: outputs.__setitem__(index, output))
    for span, captured in zip(spans, found, strict=True):
        with torch.no_grad():
            hidden = theirs.model(torch.tensor([span.token_ids]), use_cache=False).last_hidden_state
            logits = theirs.lm_head(hidden)[0]
        expected = torch.cat([*(outputs[tap] for tap in target.taps), hidden], dim=-1)[0]
        assert (captured.states - expected).norm() <= most * expected.norm()
        width = logits.std(dim=-1)
        assert ((captured.log_totals - logits.logsumexp(-1)) / width).square().mean() <= most**2
        highest = logits.gather(1, captured.top_ids[:, None])[:, 0]
        assert ((logits.max(dim=-1).values - highest) / width).square().mean() <= most**2


@pytest.mark.parametrize("is_tied", [True, False])
def test_the_targets_own_parts(is_tied: bool, tmp_path: Path) -> None:
    folder = save_tiny(tmp_path, "qwen3", tie_word_embeddings=is_tied)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    target = TrainingTarget.load(str(folder), "cpu", "float32")
    layer, norm, output = target.weights()
    assert torch.equal(output, theirs.lm_head.weight)
    assert torch.equal(norm, theirs.model.norm.weight)
    expected = theirs.model.layers[-1].state_dict()
    assert layer.keys() == expected.keys()
    assert all(torch.equal(layer[name], weight) for name, weight in expected.items())
    assert torch.equal(target.embedding(), theirs.model.embed_tokens.weight)


LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64}
ROPES: dict[str, dict[str, Any]] = {
    "default": {},
    "theta": {"rope_theta": 500.0},
    "linear": {"rope_theta": 500.0, "rope_scaling": {"type": "linear", "factor": 4.0}},
    "llama3": {"rope_theta": 500.0, "rope_scaling": {"rope_type": "llama3", **LLAMA3}},
    "parameters": {"rope_parameters": {"rope_type": "llama3", "rope_theta": 700.0, **LLAMA3}},
}


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("rope", ROPES)
def test_a_head_turns_as_its_target_does(rope: str, method: Method) -> None:
    config = {**TARGET_CONFIG, **ROPES[rope]}
    if "rope_theta" not in ROPES[rope]:
        del config["rope_theta"]
    made = head_config(config, method, (1, 2, 3), RECIPE)
    assert torch.equal(_rope_frequencies(made), rope_frequencies(LlamaConfig.read(config)))
    assert LlamaConfig.read(config).hidden_size == made["hidden_size"]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_head_is_written_with_its_report(kind: str, method: Method, models: Any, job: HeadTraining) -> None:
    progress = Progress()
    job = replace(job, model=str(models(kind)), method=method)
    report = train_head(job, progress)
    names = {"model.safetensors", "config.json", "report.json", "history.json", "checkpoint.pt", "states"}
    assert {path.name for path in job.out.iterdir()} == names
    modes = {(job.out / name).stat().st_mode for name in ("model.safetensors", "config.json")}
    assert len(modes) == 1, "who may read the one may read the other"
    assert json.loads((job.out / "report.json").read_text()) == report
    history = json.loads((job.out / "history.json").read_text())
    assert len(progress.facts["train"]) == len(history)
    assert {facts["of"] for facts in progress.facts["train"]} == {history[-1]["tokens"]}
    records = read_records(job.data, V)
    kept = records[::6]
    answers = [record.response_ids for record in records if record not in kept]
    assert (report["method"], report["sequences"]) == (method, 20)
    assert report["answer_tokens"] == sum(map(len, answers))
    assert report["tokens"] == report["answer_tokens"] - 20
    assert {name: report[name] for name in ("accuracy", "overlap", "tokens_per_step")} == {
        name: history[-1][name] for name in ("accuracy", "overlap", "tokens_per_step")
    }
    tokenizer: Any = SimpleNamespace(encode=lambda text: list(range(2, V)))
    target = load_model(resolve_model(job.model), device=CPU)
    proposer = load_drafter(method, str(job.out), target, tokenizer, CPU)
    token_map = proposer._head.token_map
    assert token_map is not None
    drafted = set(token_map.tolist())
    assert len(drafted) == 40
    covered = sum(token in drafted for answer in answers for token in answer)
    assert report["vocabulary_coverage"] == round(covered / report["answer_tokens"], 4)
    spared = sorted(answers_count(answers).items(), key=lambda item: (-item[1], item[0]))[40:]
    assert drafted.isdisjoint(token for token, _ in spared)


def answers_count(answers: list[tuple[int, ...]]) -> dict[int, int]:
    flat = [token for answer in answers for token in answer]
    return {token: flat.count(token) for token in flat}


@pytest.mark.parametrize(("phase", "call"), [("capture", 1), ("capture", 2), ("train", 1), ("train", 5)])
def test_an_interrupted_training_ends_with_the_same_head(phase: str, call: int, job: HeadTraining) -> None:
    train_head(job)
    other = replace(job, out=job.out.parent / "other")
    with pytest.raises(Stop):
        train_head(other, Progress(phase, call))
    assert not (other.out / "model.safetensors").exists()
    train_head(replace(other, resume=phase == "train"))
    whole, found = (load_file(each.out / "model.safetensors") for each in (job, other))
    assert whole.keys() == found.keys()
    assert all(torch.equal(found[name], tensor) for name, tensor in whole.items())


@pytest.mark.parametrize("call", [1, 4])
def test_ctrl_c_and_the_command_again(
    call: int, job: HeadTraining, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    train_head(job)
    plain, num_calls = loop.depth_losses, 0

    def interrupted(*arguments: Any) -> torch.Tensor:
        nonlocal num_calls
        num_calls += 1
        if num_calls == call:
            os.kill(os.getpid(), signal.SIGINT)
        return plain(*arguments)

    out = job.out.parent / "other"
    argv = f"train-head --method eagle3 --model {job.model} --data {job.data[0]} --out {out} --device cpu"
    argv += " --draft-vocab-size 40 --epochs 1 --batch-tokens 120 --depths 2 --num-held-out 4 --eval-every 150"
    with monkeypatch.context() as patched:
        patched.setattr(loop, "depth_losses", interrupted)
        assert main(argv.split()) == 130
    assert "other: the same command with --resume goes on\ninterrupted\n" in capsys.readouterr().err
    assert main(argv.split()) == 2
    assert "checkpoint.pt: is there already: go on from it (resume)" in capsys.readouterr().err
    assert main([*argv.split(), "--resume"]) == 0
    assert "% of the answers' tokens can be drafted, " in capsys.readouterr().out
    whole, found = (load_file(folder / "model.safetensors") for folder in (job.out, out))
    assert all(torch.equal(found[name], tensor) for name, tensor in whole.items())
    assert main([*argv.split(), "--resume"]) == 0  # nothing is left to do
    assert all(torch.equal(load_file(out / "model.safetensors")[name], tensor) for name, tensor in whole.items())


def test_trainings_may_share_their_states(job: HeadTraining, monkeypatch: pytest.MonkeyPatch) -> None:
    job = replace(job, states=job.out.parent / "states")
    train_head(job)
    asked: list[object] = []
    monkeypatch.setattr(TrainingTarget, "capture", lambda self, spans: asked.append(spans))
    again = replace(job, method="mtp", out=job.out.parent / "other", recipe=replace(RECIPE, learning_rate=1e-4))
    train_head(again)
    assert not asked
    assert not (again.out / "states").exists()
    data = write_answers(job.out.parent / "more.jsonl", seed=1)
    with pytest.raises(TrainingError, match=r"states.json: holds states of another model, precision, other layers or"):
        train_head(replace(again, data=[data], out=job.out.parent / "third"))


@pytest.mark.parametrize("method", METHODS)
def test_a_head_is_trained_further(method: Method, job: HeadTraining) -> None:
    """From its weights, with its vocabulary, on other data."""
    job = replace(job, method=method)
    train_head(job)
    data = write_answers(job.out.parent / "more.jsonl", seed=1)
    kept = write_answers(job.out.parent / "kept.jsonl", count=6, seed=2)
    recipe = replace(RECIPE, draft_vocab_size=30)  # of heads that start anew
    further = replace(job, data=[data], held_out=kept, init=job.out, out=job.out.parent / "further", recipe=recipe)
    progress = Progress()
    report = train_head(further, progress)
    assert (report["sequences"], report["recipe"]["draft_vocab_size"]) == (24, 40)  # of the head that it starts from
    first, second = (load_file(each.out / "model.safetensors") for each in (job, further))
    assert first.keys() == second.keys()
    assert json.loads((further.out / "config.json").read_text()) == json.loads((job.out / "config.json").read_text())
    for name, tensor in first.items():
        assert name.endswith("d2t") or name == "t2d" or not torch.equal(tensor, second[name])
        assert not name.endswith("d2t") or torch.equal(tensor, second[name])
    anew = replace(further, init=None, out=job.out.parent / "anew")
    other = Progress()
    train_head(anew, other)
    assert progress.facts["train"][0]["overlap"] != other.facts["train"][0]["overlap"]
    again = Progress()
    train_head(replace(job, held_out=kept, init=further.out, data=[data], out=job.out.parent / "again"), again)
    last, start = progress.facts["train"][-1]["overlap"], again.facts["train"][0]["overlap"]
    assert start == pytest.approx(last, abs=2e-3)  # float16 lies between


def test_held_out_answers_are_never_trained_on(job: HeadTraining) -> None:
    kept = job.out.parent / "kept.jsonl"
    lines = job.data[0].read_text().splitlines()
    kept.write_text("\n".join(lines[3:8]) + "\n")
    assert train_head(replace(job, held_out=kept))["sequences"] == 19
    records = read_records([kept], V)
    spans = [span for record in records if (span := Span.of(record, 1024))]
    assert len(list(StateStore(job.out / "states/held_out", spans))) == 5


def test_what_can_not_be_trained_on_is_named(job: HeadTraining, models: Any, tmp_path: Path) -> None:
    few = write_answers(tmp_path / "few.jsonl", count=1)
    with pytest.raises(TrainingError, match=r"few.jsonl: 0 sequences to train on and 1 to evaluate on"):
        train_head(replace(job, data=[few]))
    with pytest.raises(TrainingError, match="draft_vocab_size: got 65, the target has 64 tokens"):
        train_head(replace(job, recipe=replace(RECIPE, draft_vocab_size=65)))
    few.write_text('{"id": "a", "prompt_ids": [1], "response_ids": [64], "temperature": 0}\n')
    with pytest.raises(TrainingError, match=r"few.jsonl:1: field response_ids\[0\] is 64, expected a token id from 0"):
        train_head(replace(job, data=[few]))
    other = tmp_path / "other"
    other.mkdir()
    (other / "config.json").write_text(json.dumps({"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"]}))
    save_file({"x": torch.ones(1)}, other / "model.safetensors")
    with pytest.raises(ModelError, match="heads are trained for the Llama family, not for GPT2LMHeadModel"):
        train_head(replace(job, model=str(other)))


def test_a_head_of_other_weights_is_said_to_be_one(
    job: HeadTraining, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As a beginning, and where it can't be loaded; a beginning that is none is named before anything is captured."""
    train_head(job)
    path = job.out / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"target_weights_digest": "0" * 64}))
    further = replace(job, init=job.out, out=tmp_path / "further")
    train_head(further)
    assert f"{job.out}: a head to start from, trained for other weights or by others" in caplog.messages
    with pytest.raises(TrainingError, match="eagle_config"):
        train_head(replace(further, method="mtp", out=tmp_path / "mtp"))
    assert not (tmp_path / "mtp").exists()
    target: Any = load_model(resolve_model(job.model), device=CPU)
    with pytest.raises(ModelError, match=rf"^{job.out}: no multi-token.* \(trained for other weights than .*'s\)$"):
        load_drafter("mtp", str(job.out), target, SimpleNamespace(), CPU)  # type: ignore[arg-type]


def test_a_head_of_another_kind_is_no_beginning(job: HeadTraining, tmp_path: Path) -> None:
    train_head(job)
    further = replace(job, init=job.out, out=tmp_path / "further")
    with pytest.raises(TrainingError, match=r"config.json: eagle_config is {.*}, not None"):
        train_head(replace(further, method="mtp"))
    with pytest.raises(TrainingError, match=r"config.json: intermediate_size is 64, not 48"):
        train_head(replace(further, recipe=replace(RECIPE, intermediate_size=48)))
    tensors = load_file(job.out / "model.safetensors")
    del tensors["d2t"]
    save_file(tensors, job.out / "model.safetensors")
    with pytest.raises(TrainingError, match="0 tensors named d2t, expected one"):
        train_head(further)
