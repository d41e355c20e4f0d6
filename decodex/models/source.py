"""From a name to model files on this disk: demo model, Hugging Face id, local folder, or GGUF."""

from __future__ import annotations

import contextlib
import difflib
import json
import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from decodex.errors import ModelError
from decodex.models.demo import DEMO_MODELS, fetch_demo_gguf
from decodex.models.gguf import convert_gguf

__all__ = ["ModelFiles", "read_json", "resolve_model"]

_HUB_DUPLICATES = ["*/*.safetensors", "consolidated*"]  # the same weights in other layouts
_HUB_PATTERNS = ["*.json", "*.safetensors", "*.model", "*.jinja", "*.txt", "*.tiktoken"]


@dataclass(frozen=True)
class ModelFiles:
    """A folder with config.json, every safetensors shard, and the tokenizer's files."""

    name: str  # what the user asked for
    path: Path
    config: dict[str, Any]
    shards: tuple[Path, ...]
    generation_config: dict[str, Any] = field(default_factory=dict)

    @property
    def architecture(self) -> str:
        """The class name that config.json gives, e.g. `LlamaForCausalLM`."""
        names = self.config.get("architectures") or []
        return str(names[0]) if names else f"(no architecture, model_type {self.config.get('model_type')!r})"


def resolve_model(name_or_path: str) -> ModelFiles:
    """Find (and where needed fetch and convert) a model.

    `name_or_path`: a demo name, a local folder or .gguf file, or a Hugging Face id `org/name`
    (`org/name:file.gguf` for one GGUF of a repository). ModelError names the missing or damaged file.
    """
    name = str(name_or_path)
    if name.lower() in DEMO_MODELS:
        gguf = fetch_demo_gguf(DEMO_MODELS[name.lower()])
        return _read_folder(name.lower(), convert_gguf(gguf))
    path = Path(name).expanduser()
    if path.is_dir():
        return _read_folder(name, _folder_or_gguf(path))
    if path.is_file():
        if path.suffix.lower() != ".gguf":
            raise ModelError(f"{path}: expected a model folder or a .gguf file")
        return _read_folder(name, convert_gguf(path))
    if not re.fullmatch(r"[\w.-]+(/[\w.-]+)?(:[\w./-]+\.gguf)?", name) or name.startswith("."):
        raise ModelError(f"model {name!r}: no such file or folder{_suggest(path)}")
    if "/" not in name and difflib.get_close_matches(name.lower(), DEMO_MODELS, n=1, cutoff=0.6):
        raise ModelError(f"model {name!r} is not known{_suggest(path)}")
    return _from_hub(name, path)


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in a file; ModelError naming the file when it can't be read."""
    try:
        value = json.loads(path.read_text("utf-8"))
    except FileNotFoundError as error:
        raise ModelError(f"{path}: file is missing") from error
    except (OSError, ValueError) as error:
        raise ModelError(f"{path}: can't be read as JSON ({error})") from error
    if not isinstance(value, dict):
        raise ModelError(f"{path}: expected a JSON object, got {type(value).__name__}")
    return value


def _folder_or_gguf(folder: Path) -> Path:
    if (folder / "config.json").exists():
        return folder
    ggufs = sorted(folder.glob("*.gguf"))
    if len(ggufs) == 1:
        return convert_gguf(ggufs[0])
    if ggufs:
        names = ", ".join(g.name for g in ggufs)
        raise ModelError(f"{folder}: holds {len(ggufs)} GGUF files; name one of {names}")
    raise ModelError(f"{folder}: no config.json and no .gguf file in this folder")


def _read_folder(name: str, folder: Path) -> ModelFiles:
    config = read_json(folder / "config.json")
    optional = folder / "generation_config.json"
    generation = read_json(optional) if optional.exists() else {}
    return ModelFiles(name, folder, config, _find_shards(folder), generation)


def _find_shards(folder: Path) -> tuple[Path, ...]:
    index = folder / "model.safetensors.index.json"
    if index.exists():
        weight_map = read_json(index).get("weight_map")
        if not isinstance(weight_map, dict):
            raise ModelError(f"{index}: field weight_map is missing")
        shards = [folder / str(shard) for shard in sorted(set(weight_map.values()))]
        missing = [shard.name for shard in shards if not shard.is_file()]
        if missing:
            count = f"{len(missing)} of {len(shards)} shards missing"
            raise ModelError(f"{folder / missing[0]}: shard named by {index.name} is missing ({count})")
        return tuple(shards)
    if (folder / "model.safetensors").is_file():
        return (folder / "model.safetensors",)
    found = sorted(folder.glob("*.safetensors"))
    if len(found) > 1 or any(re.search(r"-\d{5}-of-\d{5}", shard.name) for shard in found):
        raise ModelError(f"{index}: file is missing, and {found[0].name} is one of several shards")
    if found:
        return (found[0],)
    hint = ""
    if list(folder.glob("pytorch_model*.bin")):
        hint = "; pytorch_model.bin files are not read (unsafe pickle): save the model as safetensors"
    raise ModelError(f"{folder}: no model.safetensors in this folder{hint}")


def _from_hub(name: str, path: Path) -> ModelFiles:
    from huggingface_hub import hf_hub_download, snapshot_download
    from huggingface_hub.constants import HF_HUB_OFFLINE

    repo, _, gguf = name.partition(":")
    offline = HF_HUB_OFFLINE or os.environ.get("HF_HUB_OFFLINE", "").upper() in {"1", "ON", "YES", "TRUE"}
    try:
        if gguf:
            file = Path(hf_hub_download(repo, gguf, local_files_only=offline))
            return _read_folder(name, convert_gguf(file))
        folder = Path(
            snapshot_download(
                repo, allow_patterns=_HUB_PATTERNS, ignore_patterns=_HUB_DUPLICATES, local_files_only=offline
            )
        )
    except ModelError:
        raise
    except Exception as error:  # the client raises many kinds: no network, no such repository, gated, disk
        if offline:
            reason = "HF_HUB_OFFLINE is set and the model is not in the local Hugging Face cache"
        else:
            first = str(error).strip().splitlines()
            reason = f"{type(error).__name__}: {first[0] if first else 'no reason given'}"
        text = f"model {name!r} is no local file and can't be had from the hub ({reason}){_suggest(path)}"
        raise ModelError(text) from error
    return _read_folder(name, _folder_or_gguf(folder))


def _suggest(path: Path) -> str:
    """`; did you mean ...` from demo names and the neighbours of a path that doesn't exist."""
    known = list(DEMO_MODELS)
    parent = path.parent
    neighbours: list[str] = []
    with contextlib.suppress(OSError):
        neighbours = [p.name for p in parent.iterdir() if p.is_dir() or p.suffix == ".gguf"]
    close = [str(parent / n) for n in difflib.get_close_matches(path.name, neighbours, n=2, cutoff=0.6)]
    close += difflib.get_close_matches(path.name.lower(), known, n=1, cutoff=0.6)
    if close:
        return "; did you mean " + " or ".join(repr(c) for c in close) + "?"
    return f"; the demo model is {known[0]!r}"
