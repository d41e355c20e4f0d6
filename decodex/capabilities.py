"""docs/capabilities.md: what goes together, found by trying it. decodex.server.capabilities writes the page, with a
section on HTTP.

Every cell and every error text comes from objects that are really made, as the engine makes them at admission;
tests/test_capabilities.py runs the same combinations.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import torch

from decodex.config import EngineConfig
from decodex.errors import DecodexError, RequestError
from decodex.grammar.constraint import KINDS
from decodex.heads import target_parts
from decodex.params import BESIDE_WHOLE_OUTPUT, SamplingParams
from decodex.processors import ProcessorSet
from decodex.speculative_config import WITH_WEIGHTS, SpeculativeConfig, is_replayable, speculation_of

__all__ = ["CONSTRAINTS", "EXAMPLES", "FORMS", "METHODS", "VERIFIERS", "capabilities_markdown", "refusals"]

VERIFIERS = ("coupled", "rejection", "block")
WHOLE_OUTPUT = [kind for kind in KINDS if kind != "structural_tag"]
STATIC: dict[str, Any] = {"tree": [2, 2]}
GROWN: dict[str, Any] = {"tree": {"num_children": 2, "num_expanded": 2, "max_nodes": 6}}

METHODS: dict[str, dict[str, Any]] = {
    "forced": {"method": "forced"},
    "prediction": {"method": "prediction"},
    "suffix": {"method": "suffix"},
    "ngram": {"method": "ngram", "prompt_lookup_min": 1},
    "cascade": {"cascade": ["forced", "prediction", "suffix", "ngram"]},
    **{name: {"method": name} for name in WITH_WEIGHTS},
    "cascade with a model": {"cascade": ["forced", "suffix", "eagle3"]},
}

# with the shapes of drafts that they make; `forced` and `ngram` draft chains whatever `tree` says
FORMS: dict[str, dict[str, Any]] = {
    f"{name}{shape}": {**method, **tree}
    for shape, tree in {"": {}, ", static tree": STATIC, ", grown tree": GROWN}.items()
    for name, method in METHODS.items()
    if not tree or name not in ("forced", "ngram")
}

CONSTRAINTS: dict[str, dict[str, Any]] = {
    "json": {"json": {"type": "array", "items": {"type": "boolean"}, "maxItems": 3}},
    "json_object": {"json_object": True},
    "regex": {"regex": "(ab|c){1,4}d?"},
    "choice": {"choice": ["ab", "abc", "c"]},
    "grammar": {"grammar": 'root ::= "(" root ")" | "x"'},
    "structural_tag": {
        "structural_tag": {
            "format": {
                "type": "triggered_tags",
                "triggers": ["(a"],
                "tags": [{"begin": "(ab)", "content": {"type": "regex", "pattern": "[cd]{1,3}"}, "end": "x"}],
            }
        }
    },
}


class _Pure:
    pure = True

    def __call__(self, token_ids: list[int], logits: torch.Tensor) -> torch.Tensor:
        return logits


def _stateful(token_ids: list[int], logits: torch.Tensor) -> torch.Tensor:
    return logits


# a value of every sampling parameter that is not its default
EXAMPLES: dict[str, Any] = {
    "n": 2, "seed": 1, "temperature": 0.7, "dynatemp_range": 0.5, "dynatemp_exponent": 2.0, "top_n_sigma": 1.5,
    "min_p": 0.05, "top_k": 40, "typical_p": 0.9, "epsilon_cutoff": 0.01, "eta_cutoff": 0.01, "top_p": 0.9,
    "xtc_probability": 0.5, "xtc_threshold": 0.2, "repetition_penalty": 1.1, "frequency_penalty": 0.5,
    "presence_penalty": 0.5, "penalty_last_n": 64, "dry_multiplier": 0.8, "dry_base": 2.0, "dry_allowed_length": 3,
    "dry_sequence_breakers": ["\n"], "logit_bias": {3: 1.0}, "allowed_token_ids": [1, 2, 3], "bad_words": ["word"],
    "no_repeat_ngram_size": 3, "min_tokens": 2, "max_thinking_tokens": 100, "logits_processors": [_Pure()],
    "structured_outputs": {"regex": "(ab)+"}, "speculative": {"num_speculative_tokens": 3}, "prediction": "text",
    "max_tokens": 8, "stop": ["end"], "stop_token_ids": [7], "include_stop_str_in_output": True, "ignore_eos": True,
    "repetition_stop": 4, "repetition_stop_span": 16, "repetition_stop_period": 8, "logprobs": 2,
    "prompt_logprobs": 2, "logprob_token_ids": [3], "logprobs_mode": "processed", "skip_special_tokens": False,
}  # fmt: skip

INTRO = """# What goes together

Written by `python -m decodex.server.capabilities docs/capabilities.md`, by making the objects that a request with these
values makes: change the code, not this page. tests/test_capabilities.py tries the combinations on a toy model.

The full product (parameter x proposer x verifier x grammar kind x streaming x `n` x `logprobs`) is not printed, because
nothing in the code looks at it. What can refuse a request looks at

- one value: its range, and whether the model's vocabulary has the token ([parameters.md](parameters.md));
- a proposer with the shape of its drafts, and a verifier: table 1;
- two parameters of the request: table 3;
- what the request asks of speculation, and what the engine has loaded: table 4.

So a request works if all of its pairs do. Streaming is no parameter: what is shown after each step follows the same
rules.
"""

PROPOSERS = """## 1. Proposers and verifiers

A draft is a chain where no tree is named; `forced` and `ngram` draft chains whatever `tree` says.
"""

PARAMETERS = """## 2. Sampling parameters

Each against every proposer that table 1 lets a verifier have, every grammar kind, `n` and `logprobs`. *Same tokens* and
*same distribution* mean: as without speculation. At temperature 0 they are one.
"""

REFUSED = """## 3. Pairs that are refused

Two more depend on the model's vocabulary: `allowed_token_ids` without the tokens of `</think>` beside
`max_thinking_tokens`, and a `max_tokens` that is too small for the constraint beside `finish_within_budget`.
"""

ENGINES = """## 4. An engine and its requests
"""

SPECULATION_OFF = """## 5. Where speculation is off

A request then runs as any other. It is off

- where the request says `speculative=False`, and, if it says nothing and brings no `prediction`, where the engine's
  `speculative_config` is None, or is auto and no head comes with the model; if the engine's is false, always;
- where a logits processor, the request's or the engine's, does not declare `pure = True`: it sees each emitted row once
  and in order, and `metrics.speculation_off` names it (`logits_processors[0] does not declare pure = True`).
"""

REPLAYABLE = """## 6. What is replayable

`replayable` is true where the same request and seed give the same tokens, whatever shares the batch. It is false for a
model whose rows depend on each other (products on a GPU, some architectures that run through transformers), and by
the verification that was asked for, also where a processor has then switched speculation off:
"""


def _admitted(values: Mapping[str, Any]) -> SpeculativeConfig | None:
    """The speculation of a request with these parameters, by an engine that has loaded the model of its method."""
    params = SamplingParams(**values)
    if ProcessorSet((), params.logits_processors or ()).stateful:
        return None
    wanted = params.speculative
    names = [wanted.get("method"), *wanted.get("cascade", ())] if isinstance(wanted, Mapping) else []
    loaded = [name for name in names if name in WITH_WEIGHTS]
    engine = SpeculativeConfig(method=loaded[0], model="loaded") if loaded else None
    return speculation_of(wanted, engine, params.prediction)


def _error_of(make: Callable[..., Any], *values: Any, **fields: Any) -> DecodexError | None:
    try:
        make(*values, **fields)
    except DecodexError as error:
        return error
    return None


def _cell(error: DecodexError | None) -> str:
    if error is None:
        return "works"
    return f"refused: `{error.field}`" if isinstance(error, RequestError) else "refused"


def _only(cells: set[str], what: object) -> str:
    """What all have in common: that there is but one is what makes the rules pairwise."""
    assert len(cells) == 1, f"{what}: {sorted(cells)}"
    return cells.pop()


def _proposers() -> list[str]:
    rows: dict[tuple[str, ...], list[str]] = {}
    for name, form in FORMS.items():
        cells = [
            _cell(_error_of(_admitted, {"speculative": {**form, "verification": verifier}})) for verifier in VERIFIERS
        ]
        method, _, shape = name.partition(", ")
        rows.setdefault((shape or "chain", *cells), []).append(method)
    return [_row(", ".join(map(_code, names)), *cells) for cells, names in rows.items()]


@functools.cache
def _taken(verifiers: tuple[str, ...]) -> list[dict[str, Any]]:
    """What a request may ask for with these verifiers."""
    asked = [{**form, "verification": verifier} for form in FORMS.values() for verifier in verifiers]
    return [wanted for wanted in asked if _error_of(_admitted, {"speculative": wanted}) is None]


def _speculated(values: Mapping[str, Any], verifiers: tuple[str, ...], fine: str) -> str:
    """What becomes of parameters under verifiers, by every proposer that these take."""
    cells = set()
    for wanted in _taken(verifiers):
        try:
            config = _admitted({**values, "speculative": {**wanted, **values.get("speculative", {})}})
        except RequestError as error:
            cells.add(_cell(error))
        else:
            cells.add("speculation is off" if config is None else fine)
    return _only(cells, (values, verifiers))


def _beside(values: Mapping[str, Any], others: Sequence[Mapping[str, Any]]) -> str:
    return _only({_cell(_error_of(SamplingParams, **{**other, **values})) for other in others}, values)


def _parameters() -> list[str]:
    whole = [{"structured_outputs": CONSTRAINTS[kind]} for kind in WHOLE_OUTPUT]
    tag = [{"structured_outputs": CONSTRAINTS["structural_tag"]}]
    rows = [(f"`{name}`", {name: value}) for name, value in EXAMPLES.items()]
    rows.append(("`logits_processors` without `pure = True`", {"logits_processors": [_stateful]}))
    return [
        _row(
            name,
            _speculated(values, ("coupled",), "same tokens"),
            _speculated(values, ("rejection", "block"), "same distribution"),
            _beside(values, whole),
            _beside(values, tag),
            _beside(values, [{"n": 3}, {"logprobs": 5}, {"n": 3, "logprobs": 5}]),
        )
        for name, values in rows
    ]


def refusals() -> dict[str, Callable[[], Any]]:
    """Pairs within a request that are refused, and what raises the error."""
    requests: dict[str, dict[str, Any]] = {}
    for name in BESIDE_WHOLE_OUTPUT:
        for kind in WHOLE_OUTPUT:
            requests[f"`{name}` x `{kind}`"] = {name: EXAMPLES[name], "structured_outputs": CONSTRAINTS[kind]}
    requests["`min_tokens` x `max_tokens`"] = {"min_tokens": 9, "max_tokens": 8}
    requests["two constraints"] = {"structured_outputs": {**CONSTRAINTS["regex"], **CONSTRAINTS["choice"]}}
    for kind in ("regex", "choice", "grammar"):
        requests[f"`whitespace` x `{kind}`"] = {"structured_outputs": {**CONSTRAINTS[kind], "whitespace": "compact"}}
    for title, wanted in {
        "`block` x a tree": {"method": "suffix", "verification": "block", **STATIC},
        "`rejection` x a grown tree of a model": {"method": "eagle3", "verification": "rejection", **GROWN},
        "two methods with weights": {"cascade": ["eagle3", "mtp"]},
        "`cascade` x another `method`": {"method": "ngram", "cascade": ["forced"]},
        "`prompt_lookup_min` x `prompt_lookup_max`": {"prompt_lookup_min": 5, "prompt_lookup_max": 4},
        "a request x `model`": {"method": "eagle3", "model": "another"},
        "a request x `suffix_corpus_mib`": {"method": "suffix", "suffix_corpus_mib": 4},
    }.items():
        requests[title] = {"speculative": wanted}
    return {title: functools.partial(SamplingParams, **values) for title, values in requests.items()}


def _engines() -> dict[str, Callable[[], Any]]:
    """What an engine refuses, and what it refuses of requests."""
    eagle3 = SpeculativeConfig(method="eagle3", model="head")
    model: Any = SimpleNamespace(name="gpt2")
    return {
        "a method with weights x no `model`": lambda: SpeculativeConfig(method="draft_model"),
        "a method without weights x `model`": lambda: SpeculativeConfig(method="suffix", model="head"),
        "`speculative_config` x `spec_method`": lambda: EngineConfig(speculative_config=True, spec_method="suffix"),
        "a head x a model that runs through transformers": lambda: target_parts(model, torch.device("cpu")),
        "`speculative` x an engine that has it off": lambda: speculation_of(True, False),
        "a request's method x an engine without a model": lambda: speculation_of({"method": "mtp"}, None),
        "a request's method x an engine with another model": lambda: speculation_of({"method": "mtp"}, eagle3),
    }


def _errors(made: Mapping[str, Callable[[], Any]]) -> list[str]:
    """Rows of pairs and texts; pairs whose texts differ in the second name alone share one."""
    rows: dict[tuple[str, str], tuple[list[str], str]] = {}
    for title, make in made.items():
        error = _error_of(make)
        assert error is not None, f"{title} is not refused"
        first, _, second = title.partition(" x ")
        text, name = str(error), second.strip("`")
        key = (first, text.replace(name, "") if name in WHOLE_OUTPUT else text)
        rows.setdefault(key, ([], text))[0].append(second)
    return [
        _row(first + (" x " if all(seconds) else "") + ", ".join(seconds), f"`{text}`")
        for (first, _), (seconds, text) in rows.items()
    ]


def _code(name: str) -> str:
    first, *others = name.split(" ")
    return " ".join((f"`{first}`", *others))


def _row(*cells: str) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _table(head: str, rows: Sequence[str]) -> str:
    columns = head.split("; ")
    return "\n".join([_row(*columns), "|" + "---|" * len(columns), *rows]) + "\n"


def capabilities_markdown() -> str:
    """The engine's part of the page."""
    replayable = [_row("none", str(is_replayable(None)).lower())]
    for verifier in VERIFIERS:
        config = SpeculativeConfig(verification=verifier)
        replayable.append(_row(f"`{verifier}`", str(is_replayable(config)).lower()))
    whole = ", ".join(f"`{kind}`" for kind in WHOLE_OUTPUT)
    beside = f"{whole}; `structural_tag`; `n` = 3, `logprobs` = 5"
    return "\n".join(
        (
            INTRO,
            PROPOSERS,
            _table("proposer; drafts; `coupled`; `rejection`; `block`", _proposers()),
            PARAMETERS,
            _table(f"parameter; `coupled`; `rejection`, `block`; {beside}", _parameters()),
            REFUSED,
            _table("pair; error", _errors(refusals())),
            ENGINES,
            _table("pair; error", _errors(_engines())),
            SPECULATION_OFF,
            REPLAYABLE,
            _table("verification; `replayable`", replayable),
        )
    )
