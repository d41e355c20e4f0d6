"""Draft heads that come with decodex, and what a `speculative_config` that names none means with them."""

from __future__ import annotations

import dataclasses
import logging
from pathlib import Path

from decodex.config import EngineConfig
from decodex.errors import RequestError
from decodex.models.interface import CausalLM
from decodex.models.source import read_json
from decodex.speculative_config import AUTO, SpeculativeConfig

__all__ = ["HEADS", "shipped_head", "with_speculation"]

_log = logging.getLogger(__name__)

HEADS = Path(__file__).resolve().parent / "spec" / "heads"  # MODEL/METHOD/{config.json,model.safetensors}
METHOD = "eagle3"
BEFORE = ("forced", "prediction", "suffix")  # what costs nothing is asked first


def shipped_head(weights_digest: str, method: str = METHOD, folder: Path = HEADS) -> Path | None:
    """The folder of the head for a model with these weights, or None."""
    for path in sorted(folder.glob(f"*/{method}/config.json")):
        if read_json(path).get("target_weights_digest") == weights_digest:
            return path.parent
    return None


def with_speculation(config: EngineConfig, model: CausalLM, checkpoint: Path, folder: Path = HEADS) -> EngineConfig:
    """The config with its head decided, where it names none. `checkpoint`: the folder of the model.

    `speculative_config="auto"` is the model's shipped head behind what costs nothing, or for a model without one no
    speculation unless a request asks for it. eagle3 and mtp without `model` are the shipped head too; an MTP module may
    also be in the model's own checkpoint. RequestError where there is none.
    """
    wanted = config.speculative_config
    if wanted == AUTO:
        head = shipped_head(model.weights_digest, folder=folder)
        found = None if head is None else SpeculativeConfig(cascade=(*BEFORE, METHOD), model=str(head))
        _log.info("speculative_config=auto: %s", "no head comes with this model" if head is None else head.name)
        return dataclasses.replace(config, speculative_config=found)
    if not isinstance(wanted, SpeculativeConfig) or wanted.with_weights is None or wanted.model is not None:
        return config
    head = shipped_head(model.weights_digest, wanted.with_weights, folder)
    if head is None and wanted.with_weights != "mtp":
        expected = f"the checkpoint of the {wanted.with_weights}"
        raise RequestError("speculative_config.model", None, expected, "no head comes with these weights")
    found = dataclasses.replace(wanted, model=str(head or checkpoint))
    return dataclasses.replace(config, speculative_config=found)
