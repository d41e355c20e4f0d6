"""From prompts to a head that drafts, through the commands: distil, train, use."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_models import KINDS, V, save_tiny

from decodex import LLM, SamplingParams
from decodex.cli import main
from decodex.head_training import Method

ENGINE = {"kv_cache_gib": 0.01, "max_num_seqs": 8}
pytestmark = pytest.mark.slow


def make_prompts(count: int, seed: int) -> list[str]:
    source = random.Random(seed)
    return [" ".join(f"w{source.randrange(2, V)}" for _ in range(source.randint(2, 8))) for _ in range(count)]


def answers_of(model: Path, head: Path | None, method: str) -> tuple[list[list[int]], float]:
    """Tokens of greedy and sampled answers to new prompts, and the share of drafted tokens that was accepted."""
    config = {"method": method, "model": str(head), "num_speculative_tokens": 3, "control": False} if head else False
    llm = LLM(str(model), speculative_config=config, **ENGINE)
    params = [SamplingParams(temperature=i % 2 * 0.7, seed=i, max_tokens=40, ignore_eos=True) for i in range(24)]
    outputs = llm.generate(make_prompts(24, 1), params)
    found = [output.metrics.speculation for output in outputs]
    drafted = sum(each.num_drafted for each in found if each)
    accepted = sum(each.num_accepted for each in found if each)
    return [output.outputs[0].token_ids for output in outputs], accepted / max(drafted, 1)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """See tests/spec/conftest.py."""
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(num_threads)


@pytest.mark.parametrize("kind", KINDS)
def test_a_head_learns_its_model_and_changes_nothing(kind: str, tmp_path: Path) -> None:
    model = save_tiny(tmp_path / "model", kind, depth=0.02)
    prompts, data = tmp_path / "prompts.jsonl", tmp_path / "answers.jsonl"
    lines = [json.dumps({"id": f"p{i}", "prompt": prompt}) for i, prompt in enumerate(make_prompts(150, 0))]
    prompts.write_text("\n".join(lines))
    engine = "--kv-cache-gib 0.01 --max-num-seqs 16"
    argv = f"distill {prompts} --model {model} --out {data} --max-tokens 40 --temperatures 0:0.3,1:0.7 {engine}"
    assert main(argv.split()) == 0
    expected, _ = answers_of(model, None, "")
    for method in get_args(Method):
        check_head(model, data, method, tmp_path / method, expected)


def check_head(model: Path, data: Path, method: str, head: Path, expected: list[list[int]]) -> None:
    recipe = "--draft-vocab-size 60 --epochs 8 --batch-tokens 120 --depths 3 --learning-rate 5e-3 --clip 2"
    argv = f"train-head --method {method} --model {model} --data {data} --out {head} {recipe} --num-held-out 20"
    assert main(argv.split()) == 0
    report: dict[str, Any] = json.loads((head / "report.json").read_text())
    found, accepted = answers_of(model, head, method)
    assert found == expected
    random_head = head.parent / f"{method}-random"
    random_head.mkdir()
    (random_head / "config.json").write_bytes((head / "config.json").read_bytes())
    tensors = load_file(head / "model.safetensors")
    for tensor in tensors.values():
        if tensor.dim() == 2:
            tensor.copy_(torch.randn(tensor.shape) * tensor.shape[1] ** -0.5)
    save_file(tensors, random_head / "model.safetensors")
    found, by_chance = answers_of(model, random_head, method)
    assert found == expected
    print(method, report["accuracy"], report["tokens_per_step"], accepted, by_chance)
    assert accepted > 0.3
    assert accepted > 3 * by_chance
