"""Draft heads that come with decodex, and the speculation that `speculative_config="auto"` means with them."""

from __future__ import annotations

import dataclasses
import logging
from pathlib import Path

from decodex.config import EngineConfig
from decodex.models.interface import CausalLM
from decodex.models.source import read_json
from decodex.speculative_config import AUTO, SpeculativeConfig

__all__ = ["HEADS", "shipped_head", "with_speculation"]

_log = logging.getLogger(__name__)

HEADS = Path(__file__).resolve().parent / "spec" / "heads"  # MODEL/METHOD/{config.json,model.safetensors}
METHOD = "eagle3"
BEFORE = ("forced", "prediction", "suffix")  # what costs nothing is asked first


def shipped_head(weights_digest: str, folder: Path = HEADS) -> Path | None:
    """The folder of the head for a model with these weights, or None."""
    for path in sorted(folder.glob(f"*/{METHOD}/config.json")):
        if read_json(path).get("target_weights_digest") == weights_digest:
            return path.parent
    return None


def with_speculation(config: EngineConfig, model: CausalLM, folder: Path = HEADS) -> EngineConfig:
    """The config with `speculative_config="auto"` decided: the model's shipped head behind what costs nothing, or for a
    model without one no speculation unless a request asks for it."""
    if config.speculative_config != AUTO:
        return config
    head = shipped_head(model.weights_digest, folder)
    found = None if head is None else SpeculativeConfig(cascade=(*BEFORE, METHOD), model=str(head))
    _log.info("speculative_config=auto: %s", "no head comes with this model" if head is None else head.name)
    return dataclasses.replace(config, speculative_config=found)
