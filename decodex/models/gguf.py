"""GGUF files become bf16 safetensors folders once; everything after that reads only safetensors."""

from __future__ import annotations

import hashlib
import logging
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from decodex.errors import ModelError
from decodex.models.cache_folder import build_folder, cache_dir

__all__ = ["CONVERTER_VERSION", "convert_gguf"]

CONVERTER_VERSION = 1  # part of the cache key: raise it when the conversion's result changes


def convert_gguf(path: Path) -> Path:
    """Folder in the cache with the model of the GGUF at `path`: bf16 weights, config, tokenizer, template.

    The key is the file's path, size and time of change. Raises ModelError naming the file when it is damaged.
    """
    if re.search(r"-\d{5}-of-\d{5}\.gguf$", path.name):
        raise ModelError(f"{path}: a GGUF split into several files; merge them (llama-gguf-split --merge)")
    stat = path.stat()
    identity = f"{path.resolve()}|{stat.st_size}|{stat.st_mtime_ns}|{CONVERTER_VERSION}"
    target = cache_dir() / "converted" / f"{path.stem}-{hashlib.sha256(identity.encode()).hexdigest()[:16]}"
    if target.is_dir():
        return target
    num_weights = _check_gguf(path)
    print(f"converting {path.name} to bf16 safetensors (once)", file=sys.stderr)
    return build_folder(target, 2 * num_weights + (64 << 20), lambda folder: _convert(path, folder))


def _check_gguf(path: Path) -> int:
    """Number of weights in the file; refuse one that is damaged or shorter than its header says."""
    from gguf import GGUFReader

    try:
        with path.open("rb") as file:
            if file.read(4) != b"GGUF":
                raise ModelError(f"{path}: not a GGUF file (its first bytes are not 'GGUF')")
        reader = GGUFReader(str(path))
        end = max((int(t.data_offset) + int(t.n_bytes) for t in reader.tensors), default=0)
        num_weights = sum(int(t.n_elements) for t in reader.tensors)
    except ModelError:
        raise
    except Exception as error:  # the reader raises whatever the broken bytes lead to
        raise ModelError(f"{path}: truncated or corrupt GGUF ({type(error).__name__}: {error})") from error
    if end > path.stat().st_size:
        raise ModelError(f"{path}: truncated GGUF, {path.stat().st_size} bytes where its header needs {end}")
    if num_weights == 0:
        raise ModelError(f"{path}: the GGUF holds no tensors")
    return num_weights


def _convert(path: Path, folder: Path) -> None:
    import torch
    from safetensors.torch import save_file
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, GenerationConfig
    from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

    with _quiet_transformers():
        try:
            config = AutoConfig.from_pretrained(str(path.parent), gguf_file=path.name)
            tokenizer = AutoTokenizer.from_pretrained(str(path.parent), gguf_file=path.name)
            with torch.device("meta"):
                skeleton = AutoModelForCausalLM.from_config(config)  # type: ignore[no-untyped-call]
            load: Any = load_gguf_checkpoint
            tensors = load(str(path), return_tensors=True, model_to_load=skeleton)["tensors"]
        except Exception as error:  # an architecture or a quantization that the converter doesn't know
            reason = f"{type(error).__name__}: {error}"
            raise ModelError(f"{path}: this GGUF can't be converted ({reason})") from error
    tied = "lm_head.weight" not in tensors
    missing = sorted(skeleton.state_dict().keys() - tensors.keys() - ({"lm_head.weight"} if tied else set()))
    if missing:
        raise ModelError(f"{path}: this GGUF can't be converted (no tensor for {missing[0]})")
    config.tie_word_embeddings = tied
    config.architectures = [type(skeleton).__name__]
    config.dtype = "bfloat16"
    weights = {name: tensors.pop(name).to(torch.bfloat16).contiguous() for name in sorted(tensors)}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    config.save_pretrained(str(folder))
    ids = {"bos_token_id": tokenizer.bos_token_id, "eos_token_id": tokenizer.eos_token_id}
    GenerationConfig.from_dict(ids).save_pretrained(str(folder))
    tokenizer.save_pretrained(str(folder))


@contextmanager
def _quiet_transformers() -> Iterator[None]:
    logger = logging.getLogger("transformers")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)
