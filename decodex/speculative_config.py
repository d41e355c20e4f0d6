"""SpeculativeConfig: which tokens are guessed, how guesses are verified. The same class for an engine and a request.

Keys are those of vLLM's speculative config where both have them, plus `tree`, `verification`, `cascade`, `control`.
"""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

from decodex.checks import Flag, Int, Number, OneOf, TokenIds
from decodex.definition import Refusal, check_int, definition, option, options_of, run_checks
from decodex.errors import RequestError
from decodex.spec.eagle3 import LayerIds
from decodex.spec.proposer import ProposerOptions, TreeShape

__all__ = [
    "AUTO",
    "FIELD",
    "METHODS",
    "WITH_WEIGHTS",
    "EngineSpeculation",
    "HeadQuantization",
    "Prediction",
    "Speculative",
    "SpeculativeConfig",
    "read_config",
    "speculation_of",
]

FIELD = "speculative"
AUTO = "auto"  # of an engine: the head that comes with its model
WITHOUT_WEIGHTS = ("forced", "prediction", "suffix", "ngram")
WITH_WEIGHTS = ("draft_model", "eagle", "eagle3", "mtp")
MAY_COME_WITH_THE_MODEL = ("eagle3", "mtp")
HeadQuantization = Literal["auto", "none", "int8"]
METHODS = (*WITHOUT_WEIGHTS, *WITH_WEIGHTS, "cascade")
DEFAULT_CASCADE = ("forced", "prediction", "suffix")
# how deep a draft goes at most: what costs nothing may guess far, control cuts what does not pay
DEFAULT_DEPTH = {"forced": 32, "prediction": 32, "suffix": 16, "ngram": 8, "cascade": 32}
DEFAULT_DEPTH_WITH_WEIGHTS = 4
MAX_DEPTH = 128
MAX_TREE_NODES = 128
_GROWN = ("num_children", "num_expanded", "max_nodes")


class ModelName:
    """A model's name; the checkpoint is looked for when the engine is loaded."""

    expected = "a model name, a Hugging Face id or a path"
    off = (None,)

    def __call__(self, field: str, value: Any) -> str | None:
        if value is not None and (not isinstance(value, str) or not value):
            raise RequestError(field, value, self.expected)
        return value


class Tree:
    """The shape of drafts that branch."""

    expected = "None (chains), a list of widths by depth, or num_children, num_expanded and max_nodes"
    off = (None,)

    def __call__(self, field: str, value: Any) -> TreeShape | None:
        if value is None or isinstance(value, TreeShape):
            return value
        if isinstance(value, Mapping):
            unknown = [key for key in value if key not in _GROWN]
            if unknown:
                raise RequestError(f"{field}.{unknown[0]}", value[unknown[0]], f"one of {', '.join(_GROWN)}")
            sizes: dict[str, Any] = {
                key: check_int(f"{field}.{key}", size, 1, MAX_TREE_NODES) for key, size in value.items()
            }
            return TreeShape(**sizes)
        if isinstance(value, (str, bytes)) or not isinstance(value, Sequence) or not value:
            raise RequestError(field, value, self.expected)
        widths = tuple(check_int(f"{field}[{i}]", width, 1, 16) for i, width in enumerate(value))
        nodes, level = 0, 1
        for width in widths:
            level *= width
            nodes += level
        if nodes > MAX_TREE_NODES:
            raise RequestError(field, list(value), f"at most {MAX_TREE_NODES} nodes", f"these widths make {nodes}")
        return TreeShape(widths=widths, max_nodes=nodes)


class Cascade:
    """Methods in the order in which they are asked."""

    expected = f"a list of {', '.join(METHODS[:-1])}"
    off = (None,)

    def __call__(self, field: str, value: Any) -> tuple[str, ...] | None:
        if value is None:
            return None
        if isinstance(value, (str, bytes)) or not isinstance(value, Sequence) or not value:
            raise RequestError(field, value, self.expected)
        for index, name in enumerate(value):
            if name not in METHODS[:-1] or name in value[:index]:
                raise RequestError(f"{field}[{index}]", name, f"one of {', '.join(METHODS[:-1])}, each once")
        if sum(name in WITH_WEIGHTS for name in value) > 1:
            raise RequestError(field, value, f"at most one of {', '.join(WITH_WEIGHTS)}")
        return tuple(value)


@definition
class SpeculativeConfig:
    """What is guessed and how it is verified. Raises `RequestError` naming the field."""

    method: str = option(default="cascade", help="who guesses", choices=METHODS, check=OneOf(METHODS))
    model: str | None = option(
        default=None,
        help="the draft model or head (draft_model, eagle, eagle3, mtp); eagle3 and mtp may come with the model",
        check=ModelName(),
    )
    num_speculative_tokens: int | None = option(
        default=None, help="deepest draft; default by method", check=Int(1, MAX_DEPTH)
    )
    prompt_lookup_max: int = option(
        default=4, help="longest n-gram that is looked up (ngram)", check=Int(1, 32, optional=False)
    )
    prompt_lookup_min: int = option(
        default=2, help="shortest n-gram that is looked up (ngram)", check=Int(1, 32, optional=False)
    )
    cascade: Any = option(default=None, help=f"methods in order; default {', '.join(DEFAULT_CASCADE)}", check=Cascade())
    tree: Any = option(default=None, help="shape of drafts that branch; default: chains", check=Tree())
    verification: str = option(
        default="coupled",
        help="coupled keeps every token as it is without speculation; rejection and block keep their distribution",
        choices=("coupled", "rejection", "block"),
        check=OneOf(("coupled", "rejection", "block")),
    )
    control: bool = option(default=True, help="draft as much as pays, and nothing where nothing pays", check=Flag())
    suffix_corpus_mib: float = option(
        default=0.0,
        help="memory for earlier outputs that the suffix method looks into; 0: each request's own text only",
        check=Number(0.0, 65536.0, optional=False),
    )
    layer_ids: LayerIds = option(
        default="auto",
        help="what eagle_aux_hidden_state_layer_ids of an EAGLE-3 head count: outputs of layers, or inputs (one more), "
        "auto is inputs at the top level of a speculators checkpoint, outputs elsewhere",
        choices=("auto", "output", "input"),
        check=OneOf(("auto", "output", "input")),
    )
    quantization: HeadQuantization = option(
        default="auto",
        help="how the weights of a head (eagle, eagle3, mtp) are held: int8 by output channel, none is as published, "
        "auto is int8 on a CPU, where a draft is cheaper by it. What is guessed may change, the target's own law never",
        choices=("auto", "none", "int8"),
        check=OneOf(("auto", "none", "int8")),
    )

    refused: ClassVar[dict[str, Refusal]] = {
        "disable_by_batch_size": Refusal("control=True drafts as much as pays at every batch size"),
        "speculative_disable_by_batch_size": Refusal("control=True drafts as much as pays at every batch size"),
        "draft_tensor_parallel_size": Refusal("heads and draft models run beside the target", (None, 1)),
        "acceptance_method": Refusal("it is called verification: coupled, rejection or block"),
        "rejection_sample_method": Refusal("it is called verification: coupled, rejection or block"),
    }

    def __post_init__(self) -> None:
        run_checks(self)
        if self.prompt_lookup_min > self.prompt_lookup_max:
            bound = f"at most prompt_lookup_max ({self.prompt_lookup_max})"
            raise RequestError("prompt_lookup_min", self.prompt_lookup_min, bound)
        if self.cascade is not None and self.method != "cascade":
            raise RequestError("cascade", self.cascade, f"to be absent beside method={self.method!r}")
        if self.verification == "block" and self.tree is not None:
            raise RequestError("tree", self.tree, "to be absent beside verification='block'", "it verifies chains")
        is_grown = self.tree is not None and not self.tree.widths
        if self.verification != "coupled" and self.with_weights is not None and is_grown:
            hint = "a grown tree looks at the tokens that were drawn, which would change the distribution"
            raise RequestError("tree", self.tree, "widths by depth beside verification='rejection'", hint)
        if self.with_weights not in (None, *MAY_COME_WITH_THE_MODEL) and self.model is None:
            raise RequestError("model", None, f"the checkpoint of the {self.with_weights}")
        if self.with_weights is None and self.model is not None:
            named = f"one of {', '.join(WITH_WEIGHTS)} as the method beside it"
            raise RequestError("model", self.model, named)
        if self.quantization != "auto" and self.with_weights in (None, "draft_model"):
            raise RequestError("quantization", self.quantization, "'auto' without a head (eagle, eagle3, mtp)")

    @functools.cached_property
    def methods(self) -> tuple[str, ...]:
        """The methods that are asked, in order."""
        return (self.cascade or DEFAULT_CASCADE) if self.method == "cascade" else (self.method,)

    @functools.cached_property
    def with_weights(self) -> str | None:
        """The method among them that has a model of its own."""
        return next((name for name in self.methods if name in WITH_WEIGHTS), None)

    @functools.cached_property
    def max_depth(self) -> int:
        """Of a draft, in tokens."""
        return self.num_speculative_tokens or DEFAULT_DEPTH.get(self.method, DEFAULT_DEPTH_WITH_WEIGHTS)

    @functools.cached_property
    def max_model_depth(self) -> int:
        """Of a draft of the method with weights, which pays for each level."""
        return self.num_speculative_tokens or DEFAULT_DEPTH_WITH_WEIGHTS

    @functools.cached_property
    def max_nodes(self) -> int:
        """Of a draft."""
        return self.max_depth if self.tree is None else self.tree.max_nodes

    @functools.cached_property
    def options(self) -> ProposerOptions:
        """What proposers see of it."""
        return ProposerOptions(
            num_speculative_tokens=self.max_depth,
            prompt_lookup_max=self.prompt_lookup_max,
            prompt_lookup_min=self.prompt_lookup_min,
            tree=self.tree,
            suffix_corpus=self.suffix_corpus_mib > 0,
        )


def _from_text(field: str, value: Any) -> Any:
    """A value that may have been given as JSON text."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except ValueError as error:
        raise RequestError(field, value, "true, false or a JSON object", str(error)) from None


def read_config(field: str, value: Any) -> SpeculativeConfig:
    """A config from a mapping or JSON text; errors name `field`."""
    if isinstance(value, SpeculativeConfig):
        return value
    value = _from_text(field, value)
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise RequestError(field, value, "a mapping of SpeculativeConfig's fields")
    try:
        return SpeculativeConfig(**value)
    except RequestError as error:
        raise RequestError(f"{field}.{error.field}", error.got, error.expected, error.hint) from None


class Speculative:
    """A request's own speculation: a mapping is checked here and laid over the engine's config at admission."""

    expected = "false, true, or a mapping of the fields below"
    off = (None,)

    def __call__(self, field: str, value: Any) -> Any:
        value = _from_text(field, value)
        if value is None or isinstance(value, (bool, SpeculativeConfig)):
            return value
        wanted = dict(value) if isinstance(value, Mapping) else value
        if isinstance(wanted, dict) and "model" in wanted:
            hint = "an engine loads the model of its own speculative_config; requests name the method"
            raise RequestError(f"{field}.model", wanted["model"], "to be absent in a request", hint)
        if isinstance(wanted, dict) and wanted.get("suffix_corpus_mib"):
            bound = "to be absent in a request"
            raise RequestError(f"{field}.suffix_corpus_mib", wanted["suffix_corpus_mib"], bound, "it is the engine's")
        _with_model(field, wanted, "given by the engine")
        return wanted


class EngineSpeculation:
    """An engine's speculation: "auto", None, false or a config."""

    expected = '"auto", None, false, true, or a mapping of the fields below'
    off = (None,)

    def __call__(self, field: str, value: Any) -> SpeculativeConfig | bool | str | None:
        if value == AUTO:
            return AUTO
        value = _from_text(field, value)
        if value is None or value is False:
            return value
        return SpeculativeConfig() if value is True else read_config(field, value)


class Prediction:
    """What an output is expected to be."""

    expected = "text or token ids"
    off = (None, "", ())

    def __call__(self, field: str, value: Any) -> str | tuple[int, ...] | None:
        if isinstance(value, Mapping) and value.get("type") == "content":  # OpenAI's spelling
            value = value.get("content")
        if isinstance(value, str):
            try:
                value.encode()
            except UnicodeEncodeError:
                raise RequestError(field, value, "text without lone surrogates") from None
        elif value is not None and (isinstance(value, (bytes, Mapping)) or not isinstance(value, Sequence)):
            raise RequestError(field, value, "text or a list of token ids")
        return (value or None) if value is None or isinstance(value, str) else TokenIds(absent=None)(field, value)


def _with_model(field: str, wanted: Any, model: str | None) -> SpeculativeConfig:
    """The config of a request's mapping, whose model is the engine's."""
    if not isinstance(wanted, Mapping):
        raise RequestError(field, wanted, "false, true, or a mapping of SpeculativeConfig's fields")
    cascade = wanted.get("cascade")
    names = [wanted.get("method"), *(cascade if isinstance(cascade, (list, tuple)) else ())]
    has_weights = any(name in WITH_WEIGHTS for name in names)
    return read_config(field, {**wanted, "model": model} if has_weights else wanted)


CUSTOM = SpeculativeConfig(num_speculative_tokens=MAX_DEPTH, control=False)  # of an engine with a proposer of one's own


def is_replayable(config: SpeculativeConfig | None) -> bool:
    """Whether the tokens are what they are without speculation."""
    return config is None or config.verification == "coupled"


def speculation_of(
    wanted: Any, engine: SpeculativeConfig | bool | None, prediction: Any = None
) -> SpeculativeConfig | None:
    """What a request gets: `wanted` (SamplingParams.speculative) over the engine's config; None: no speculation.

    A prediction asks for speculation by itself. Raises RequestError where the request asks for what the engine has not
    loaded, or has switched off.
    """
    if wanted is False or (wanted is None and engine is False):
        return None  # a prediction is a hint, and no promise of speed
    if wanted is None and engine is None and prediction is None:
        return None
    config = _laid_over(wanted, engine)
    if prediction is None or "prediction" in config.methods:
        return config
    methods = [name for name in config.methods if name != "forced"]
    cascade = (*(["forced"] if "forced" in config.methods else []), "prediction", *methods)
    return dataclasses.replace(config, method="cascade", cascade=cascade)


def _laid_over(wanted: Any, engine: SpeculativeConfig | bool | None) -> SpeculativeConfig:
    """A request's wish over the engine's config."""
    if engine is False:
        raise RequestError(FIELD, wanted, "None or false", "the engine has speculation switched off")
    base = engine if isinstance(engine, SpeculativeConfig) else None
    if wanted is None or wanted is True:
        return base or SpeculativeConfig()
    if isinstance(wanted, SpeculativeConfig):
        config = wanted
    elif base is not None and "method" not in wanted and "cascade" not in wanted:
        kept = {field.name: getattr(base, field.name) for field in options_of(SpeculativeConfig)}
        config = read_config(FIELD, {**kept, **wanted})
    else:
        config = _with_model(FIELD, wanted, "none" if base is None else base.model)
    loaded = None if base is None else base.with_weights
    if config.with_weights not in (None, loaded):
        hint = f"the engine has loaded {loaded}" if loaded else "the engine's speculative_config has no model"
        raise RequestError(f"{FIELD}.method", config.with_weights, "a method whose model is loaded", hint)
    return config
