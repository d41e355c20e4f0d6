"""Trains a draft head for a model: captures what the model computes on its own answers, trains, writes a checkpoint."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from decodex.models.llama_config import LlamaConfig, rope_frequencies
from decodex.models.source import read_json
from decodex.spec.head_weights import HeadWeights, write_tensors
from decodex.spec.train.errors import TrainingError
from decodex.spec.train.head_module import HeadModule, new_weights
from decodex.spec.train.loop import Trainee, check_folder, train
from decodex.spec.train.recipe import Recipe
from decodex.spec.train.records import Record, read_records
from decodex.spec.train.states import Span, StateStore, capture
from decodex.spec.train.vocabulary import draft_vocabulary
from decodex.training_target import Precision, TrainingTarget

__all__ = ["HeadTraining", "Method", "train_head"]

Method = Literal["eagle3", "mtp"]

_log = logging.getLogger(__name__)
_BLOCK = 16
_CAPTURE_TOKENS = 512  # of one forward
_HELD_OUT_EVERY = 97  # records: of these, the first `held_out` are kept for evaluation


@dataclass(frozen=True)
class HeadTraining:
    """What is to be trained, on what, and where it goes."""

    model: str
    method: Method
    data: Sequence[Path]  # files of answers, see `read_records`
    out: Path
    recipe: Recipe
    init: Path | None = None  # a head of the same kind to start from
    held_out: Path | None = None  # answers to evaluate on; None: some of the data is kept back
    states: Path | None = None  # where hidden states are kept; None: in `out`
    resume: bool = False
    device: str = "auto"
    precision: Precision = "float32"  # of products, in capture and training

    def __post_init__(self) -> None:
        """Raises TrainingError naming a folder that is none."""
        for name in ("out", "states", "init"):
            path = getattr(self, name)
            if path is not None and path.exists() and not path.is_dir():
                raise TrainingError(f"{name}: got {str(path)!r}, expected a folder")


def train_head(
    job: HeadTraining, progress: Callable[[str, Mapping[str, Any]], None] = lambda phase, facts: None
) -> dict[str, Any]:
    """Train a head on a model's own answers and write it to the folder `job.out`; the report that is there too.

    `progress` gets the phase ("capture", "train") and its facts. TrainingError or ModelError name file, line or field.
    """
    check_folder(job.out, job.resume)
    recipe, out, method = job.recipe, job.out, job.method
    target = TrainingTarget.load(job.model, job.device, job.precision)
    config = head_config(target.files.config, method, target.taps, recipe)
    config["target_weights_digest"] = target.model.weights_digest
    known = None if job.init is None else _read_head(job.init, config)
    spans, kept = _spans(target, job)
    folder = job.states or out / "states"
    stores = (
        _capture(target, spans, folder / "data", progress),
        _capture(target, kept, folder / "held_out", progress),
    )
    answers = [span.token_ids[span.answer_start :] for span in spans]
    if known is None:
        vocabulary, coverage = draft_vocabulary(answers, recipe.draft_vocab_size, target.model.vocab_size)
    else:
        vocabulary, coverage = known.vocabulary, _coverage(known.vocabulary, answers)
        config["draft_vocab_size"] = len(vocabulary)
    ids = torch.tensor(vocabulary, device=target.device)
    layer, norm, output = target.weights()
    rows = output.to(target.device).index_select(0, ids).float()
    prefix = "midlayer." if method == "eagle3" else f"model.layers.{target.model.num_layers}."
    generator = torch.Generator().manual_seed(recipe.seed)
    shape = {**config, "num_taps": len(target.taps)}
    weights = known.weights if known else new_weights(method, shape, prefix, layer, (norm, rows.cpu()), generator)
    weights = {name: weight.to(target.device) for name, weight in weights.items()}
    inv_freq = rope_frequencies(LlamaConfig.read(target.files.config)).to(target.device)
    module = HeadModule(method, config, inv_freq, target.embedding(), prefix)
    trainee = Trainee(module, weights, rows, ids, "lm_head.weight" if method == "eagle3" else None)
    history = train(
        trainee,
        stores,
        recipe,
        out,
        resume=job.resume,
        precision=getattr(torch, job.precision),
        identity={
            "model": target.model.weights_digest,
            "init": None if job.init is None else str(job.init),
            "precision": job.precision,
        },
        progress=lambda entry: progress(
            "train", {**entry, "of": round(recipe.epochs * sum(s.num_rows for s in spans))}
        ),
    )
    write_head(out, method, config, weights, vocabulary, target.model.vocab_size)
    last = history[-1]
    report = {
        "method": method,
        "model": target.files.name,
        "recipe": {**asdict(recipe), "draft_vocab_size": len(vocabulary)},  # with `init` the known head's
        "sequences": len(spans),
        "answer_tokens": sum(map(len, answers)),
        "vocabulary_coverage": round(coverage, 4),
        **{name: last[name] for name in ("tokens", "seconds", "accuracy", "overlap", "tokens_per_step")},
    }
    (out / "report.json").write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    return report


def _coverage(vocabulary: Sequence[int], answers: Sequence[Sequence[int]]) -> float:
    wanted = set(vocabulary)
    return sum(token in wanted for answer in answers for token in answer) / sum(map(len, answers))


def head_config(target: Mapping[str, Any], method: Method, taps: tuple[int, ...], recipe: Recipe) -> dict[str, Any]:
    """The config.json of a head that is trained for a target with this one."""
    shape = LlamaConfig.read(target)
    config: dict[str, Any] = {
        "model_type": "llama",
        "hidden_act": "silu",
        "hidden_size": shape.hidden_size,
        "intermediate_size": recipe.intermediate_size or shape.intermediate_size,
        "num_attention_heads": shape.num_heads,
        "num_key_value_heads": shape.num_kv_heads,
        "head_dim": shape.head_dim,
        "rms_norm_eps": shape.rms_norm_eps,
        "max_position_embeddings": shape.max_position,
        "rope_theta": shape.rope["rope_theta"],
        "vocab_size": shape.vocab_size,
        "draft_vocab_size": recipe.draft_vocab_size,
        "tie_word_embeddings": False,
        "torch_dtype": "float16",
    }
    if shape.rope["rope_type"] != "default":
        config["rope_scaling"] = dict(shape.rope)
    if method == "eagle3":
        ids = {"eagle_aux_hidden_state_layer_ids": list(taps), "use_aux_hidden_state": True}
        return {"architectures": ["LlamaForCausalLMEagle3"], "num_hidden_layers": 1, **config, "eagle_config": ids}
    deepseek = {"num_hidden_layers": shape.num_layers, "num_nextn_predict_layers": 1}
    return {"architectures": list(target.get("architectures") or []), **deepseek, **config}


def write_head(
    folder: Path,
    method: Method,
    config: Mapping[str, Any],
    weights: Mapping[str, Tensor],
    vocabulary: Sequence[int],
    vocab_size: int,
) -> None:
    """model.safetensors (fp16) and config.json of a head; the draft vocabulary as `d2t` (target id - draft id)."""
    tensors = {name: weight.detach().half().cpu() for name, weight in weights.items()}
    ids = torch.tensor(vocabulary)
    offsets = ids - torch.arange(len(vocabulary))
    if method == "eagle3":
        tensors["d2t"] = offsets
        tensors["t2d"] = torch.zeros(vocab_size, dtype=torch.bool).index_fill_(0, ids, True)
    else:
        tensors[f"model.layers.{config['num_hidden_layers']}.shared_head.d2t"] = offsets
    folder.mkdir(parents=True, exist_ok=True)
    write_tensors(folder, tensors)
    (folder / "config.json").write_text(json.dumps(dict(config), indent=1) + "\n", encoding="utf-8")


@dataclass(frozen=True)
class _KnownHead:
    weights: dict[str, Tensor]
    vocabulary: list[int]


def _read_head(folder: Path, config: Mapping[str, Any]) -> _KnownHead:
    """A head that was written by `write_head`, to train further; TrainingError where it has another shape."""
    found = read_json(folder / "config.json")
    if found.get("target_weights_digest") != config["target_weights_digest"]:
        _log.warning("%s: a head to start from, trained for other weights or by others", folder)
    for field in ("hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "eagle_config"):
        if found.get(field) != config.get(field):
            raise TrainingError(f"{folder / 'config.json'}: {field} is {found.get(field)}, not {config.get(field)}")
    reader = HeadWeights.open(folder)
    tensors = {name: reader.take(name, reader.shape(name)) for name in reader}
    maps = [name for name in tensors if name.split(".")[-1] == "d2t"]
    if len(maps) != 1:
        raise TrainingError(f"{folder}: {len(maps)} tensors named d2t, expected one")
    offsets = tensors.pop(maps[0])
    tensors.pop("t2d", None)
    vocabulary = (offsets + torch.arange(len(offsets))).tolist()
    return _KnownHead({name: tensor.float() for name, tensor in tensors.items()}, vocabulary)


def _spans(target: TrainingTarget, job: HeadTraining) -> tuple[list[Span], list[Span]]:
    """What is trained on, and what it is evaluated on."""
    data, held_out, recipe = job.data, job.held_out, job.recipe
    limit = min(recipe.max_length, target.model.max_position)
    records = read_records(data, target.model.vocab_size)
    kept: list[Record] = read_records([held_out], target.model.vocab_size) if held_out else []
    if not held_out:
        every = max(2, min(_HELD_OUT_EVERY, len(records) // recipe.held_out))
        kept = records[::every][: recipe.held_out]
    chosen = {record.id for record in kept}
    spans = [span for r in records if r.id not in chosen and (span := Span.of(r, limit))]
    held = [span for r in kept if (span := Span.of(r, limit))]
    if not spans or not held:
        files = ", ".join(map(str, data))
        counts = f"{len(spans)} sequences to train on and {len(held)} to evaluate on, none is too few"
        raise TrainingError(f"{files}: {counts} ({len(records)} were read; those to evaluate on are not trained on)")
    return spans, held


def _capture(
    target: TrainingTarget,
    spans: Sequence[Span],
    folder: Path,
    progress: Callable[[str, Mapping[str, Any]], None],
) -> StateStore:
    done, total = 0, sum(len(span.token_ids) for span in spans)

    def count(tokens: int) -> None:
        nonlocal done
        done += tokens
        progress("capture", {"tokens": done, "of": total})

    identity = {"model": target.model.weights_digest, "layers": list(target.taps), "precision": target.precision}
    return capture(spans, target.capture, folder, identity, count)
