"""docs/capabilities.md: what goes together, found by trying it: `python -m decodex.capabilities FILE`.

Every cell and every error text comes from objects that are really made, as the engine makes them at admission;
tests/test_capabilities.py runs the same combinations.
"""

from __future__ import annotations

import html
import pathlib
import sys
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import torch

from decodex.errors import DecodexError, RequestError
from decodex.grammar.constraint import KINDS
from decodex.heads import target_parts
from decodex.params import BESIDE_WHOLE_OUTPUT, SamplingParams
from decodex.processors import ProcessorSet
from decodex.speculative_config import WITH_WEIGHTS, SpeculativeConfig, is_replayable, speculation_of

__all__ = ["CONSTRAINTS", "EXAMPLES", "FORMS", "VERIFIERS", "capabilities_markdown", "refusals", "with_verifier"]

VERIFIERS = ("coupled", "rejection", "block")
STATIC = {"tree": [2, 2]}
GROWN = {"tree": {"num_children": 2, "num_expanded": 2, "max_nodes": 6}}

# proposers, with the shapes of drafts that they make; `forced` and `ngram` draft chains whatever `tree` says
FORMS: dict[str, dict[str, Any]] = {
    "forced": {"method": "forced"},
    "prediction": {"method": "prediction"},
    "prediction, static tree": {"method": "prediction", **STATIC},
    "prediction, grown tree": {"method": "prediction", **GROWN},
    "suffix": {"method": "suffix"},
    "suffix, static tree": {"method": "suffix", **STATIC},
    "suffix, grown tree": {"method": "suffix", **GROWN},
    "ngram": {"method": "ngram", "prompt_lookup_min": 1},
    "cascade": {"cascade": ["forced", "prediction", "suffix", "ngram"]},
    "cascade, static tree": {"cascade": ["forced", "prediction", "suffix", "ngram"], **STATIC},
    "cascade, grown tree": {"cascade": ["forced", "prediction", "suffix", "ngram"], **GROWN},
} | {
    f"{method}{shape}": {"method": method, **tree}
    for method in WITH_WEIGHTS
    for shape, tree in (("", {}), (", static tree", STATIC), (", grown tree", GROWN))
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

Written by `python -m decodex.capabilities docs/capabilities.md`, by making the objects that a request with these values
makes: change the code, not this page. tests/test_capabilities.py tries the combinations on a toy model.

The full product (parameter x proposer x verifier x grammar kind x streaming x `n` x `logprobs`) is not printed because
nothing in the code looks at it. What can refuse a request looks at

- one value (its range, and whether the model's vocabulary has the token: [parameters.md](parameters.md)),
- two parameters of the request: table 3,
- a proposer with the shape of its drafts, and a verifier: table 1,
- what the request asks of speculation, and what the engine has loaded: table 4.

So a request works if all of its pairs do. Streaming is no parameter: each step's answer is shown, under the same rules.
"""

SPECULATION_OFF = """Speculation is off for a request, which then runs as any other,

- where it says `speculative=False`, or says nothing and the engine's `speculative_config` is false or absent;
- where a logits processor, the request's or the engine's, does not declare `pure = True`: `metrics.speculation_off`
  says which one. It sees each emitted row once and in order.

A proposer that drafts nothing (`forced` without a constraint, `prediction` without a prediction) costs nothing.
"""


def with_verifier(form: Mapping[str, Any], verifier: str) -> dict[str, Any]:
    """A request's `speculative`."""
    return {**form, "verification": verifier}


def _admitted(values: Mapping[str, Any]) -> SpeculativeConfig | None:
    """The speculation of a request with these parameters, by an engine that has loaded the model of its method."""
    params = SamplingParams(**values)
    if ProcessorSet((), params.logits_processors or ()).stateful:
        return None
    wanted = params.speculative
    method = wanted.get("method") if isinstance(wanted, Mapping) else None
    engine = SpeculativeConfig(method=method, model="loaded") if method in WITH_WEIGHTS else None
    return speculation_of(wanted, engine, params.prediction)


def _error_of(make: Callable[[], Any]) -> DecodexError | None:
    try:
        make()
    except DecodexError as error:
        return error
    return None


def _refused(error: DecodexError | None) -> str:
    return f"refused: `{error.field}`" if isinstance(error, RequestError) else "refused"


def _proposers() -> list[str]:
    rows: dict[tuple[str, ...], list[str]] = {}
    for name, form in FORMS.items():
        errors = [_error_of(lambda f=form, v=v: _admitted({"speculative": with_verifier(f, v)})) for v in VERIFIERS]  # type: ignore[misc]
        rows.setdefault(tuple("works" if e is None else _refused(e) for e in errors), []).append(name)
    return [_row(", ".join(f"`{n.split(',')[0]}`{n[len(n.split(',')[0]) :]}" for n in names), *cells)
            for cells, names in rows.items()]  # fmt: skip


def _speculated(values: Mapping[str, Any], verifiers: tuple[str, ...], kept: str) -> str:
    """What becomes of parameters under verifiers, by every proposer that they take."""
    found = set()
    for form in FORMS.values():
        for verifier in verifiers:
            alone = with_verifier(form, verifier)
            if _error_of(lambda a=alone: _admitted({"speculative": a})) is not None:  # type: ignore[misc]
                continue
            own = values.get("speculative", {})
            try:
                is_on = _admitted({**values, "speculative": {**alone, **own}}) is not None
            except RequestError as error:
                found.add(_refused(error))
            else:
                found.add(kept if is_on else "speculation is off")
    assert len(found) == 1, f"the proposers differ: {values}, {verifiers}: {sorted(found)}"
    return found.pop()


def _beside(values: Mapping[str, Any], others: list[dict[str, Any]]) -> str:
    found = {
        _refused(e) if (e := _error_of(lambda o=o: SamplingParams(**{**o, **values}))) else "works" for o in others
    }  # type: ignore[misc]
    assert len(found) == 1, f"these differ: {values}: {sorted(found)}"
    return found.pop()


def _parameters() -> list[str]:
    rows = []
    whole = [{"structured_outputs": value} for kind, value in CONSTRAINTS.items() if kind != "structural_tag"]
    tag = [{"structured_outputs": CONSTRAINTS["structural_tag"]}]
    for label, values in _examples():
        cells = [
            _speculated(values, ("coupled",), "same tokens"),
            _speculated(values, ("rejection", "block"), "same distribution"),
            _beside(values, whole),
            _beside(values, tag),
            _beside(values, [{"n": 3}, {"logprobs": 5}, {"n": 3, "logprobs": 5}]),
        ]
        rows.append(_row(label, *cells))
    return rows


def _examples() -> list[tuple[str, dict[str, Any]]]:
    rows = [(f"`{name}`", {name: value}) for name, value in EXAMPLES.items()]
    at = list(EXAMPLES).index("logits_processors")
    rows[at] = (f"{rows[at][0]}, `pure = True`", rows[at][1])
    rows.insert(at + 1, ("`logits_processors`, others", {"logits_processors": [_stateful]}))
    return rows


def refusals() -> dict[str, Callable[[], Any]]:
    """Pairs within a request that are refused, and what raises the error."""
    made: dict[str, Callable[[], Any]] = {}
    for name in BESIDE_WHOLE_OUTPUT:
        for kind in KINDS:
            if kind != "structural_tag":
                values = {name: EXAMPLES[name], "structured_outputs": CONSTRAINTS[kind]}
                made[f"`{name}` x `{kind}`"] = lambda v=values: SamplingParams(**v)  # type: ignore[misc]
    made["`min_tokens` x `max_tokens`"] = lambda: SamplingParams(min_tokens=9, max_tokens=8)
    made["two constraints"] = lambda: SamplingParams(
        structured_outputs={**CONSTRAINTS["regex"], **CONSTRAINTS["choice"]}
    )
    for kind in ("regex", "choice", "grammar"):
        spaced = {**CONSTRAINTS[kind], "whitespace": "compact"}
        made[f"`whitespace` x `{kind}`"] = lambda s=spaced: SamplingParams(structured_outputs=s)  # type: ignore[misc]
    for title, wanted in {
        "`block` x a tree": {"method": "suffix", "verification": "block", **STATIC},
        "`rejection` x a grown tree of a method with weights":
            {"method": "eagle3", "verification": "rejection", **GROWN},
        "`block` x a grown tree of a method with weights": {"method": "eagle3", "verification": "block", **GROWN},
        "two methods with weights": {"cascade": ["eagle3", "mtp"]},
        "`cascade` x another `method`": {"method": "ngram", "cascade": ["forced"]},
        "`prompt_lookup_min` x `prompt_lookup_max`": {"prompt_lookup_min": 5, "prompt_lookup_max": 4},
        "a request x `model`": {"method": "eagle3", "model": "another"},
        "a request x `suffix_corpus_mib`": {"method": "suffix", "suffix_corpus_mib": 4},
    }.items():  # fmt: skip
        made[title] = lambda w=wanted: SamplingParams(speculative=w)  # type: ignore[misc]
    return made


def _engines() -> dict[str, Callable[[], Any]]:
    """What an engine refuses, and what it refuses of requests."""
    eagle3 = SpeculativeConfig(method="eagle3", model="head")
    model: Any = SimpleNamespace(name="gpt2")
    return {
        "an engine's method with weights x no `model`": lambda: SpeculativeConfig(method="eagle3"),
        "an engine's method without weights x `model`": lambda: SpeculativeConfig(method="suffix", model="head"),
        "`speculative` x an engine with `speculative_config` false": lambda: speculation_of(True, False),
        "a method with weights x an engine without a model": lambda: speculation_of({"method": "mtp"}, None),
        "a method with weights x an engine with another": lambda: speculation_of({"method": "mtp"}, eagle3),
        "a head x a model that runs through transformers": lambda: target_parts(model, torch.device("cpu")),
    }


def _errors(made: Mapping[str, Callable[[], Any]]) -> list[str]:
    """Rows of pairs and texts; whole-output kinds whose texts differ in the kind alone share one."""
    rows: dict[str, list[str]] = {}
    for title, make in made.items():
        error = _error_of(make)
        assert error is not None, f"{title} is not refused"
        kind = title.rsplit("`", 2)[-2] if " x `" in title and title.rsplit("`", 2)[-2] in KINDS else None
        text = str(error) if kind is None else str(error).replace(f"structured_outputs.{kind};", "KIND;")
        rows.setdefault(text, []).append(title)
    out = []
    for text, titles in rows.items():
        first, others = titles[0], [title.rsplit(" x ", 1)[-1] for title in titles[1:]]
        kind = titles[0].rsplit("`", 2)[-2] if "KIND;" in text else ""
        shown = text.replace("KIND;", f"structured_outputs.{kind};")
        out.append(_row(", ".join([first, *others]), f"`{shown}`"))
    return out


def _replayable() -> list[str]:
    rows = []
    for verifier in VERIFIERS:
        config = SpeculativeConfig(verification=verifier)
        rows.append(_row(f"`{verifier}`", str(is_replayable(config)).lower()))
    return [_row("no speculation", str(is_replayable(None)).lower()), *rows]


def _row(*cells: str) -> str:
    return "| " + " | ".join(html.escape(cell, False).replace("|", "\\|").replace("\n", "\\n") for cell in cells) + " |"


def _table(head: tuple[str, ...], rows: list[str]) -> str:
    return "\n".join(["| " + " | ".join(head) + " |", "|" + "---|" * len(head), *rows]) + "\n"


def capabilities_markdown() -> str:
    """The page."""
    parts = [
        INTRO,
        "## 1. Proposers and verifiers\n",
        "Drafts are chains where no tree is named; `forced` and `ngram` draft chains whatever `tree` says.\n",
        _table(("proposer", *(f"`{verifier}`" for verifier in VERIFIERS)), _proposers()),
        "## 2. Sampling parameters\n",
        "Each against every proposer that table 1 lets a verifier have, every grammar kind, `n` and `logprobs`. *Same "
        "tokens* and *same distribution*: as without speculation. At temperature 0 these are one.\n",
        _table(
            (
                "parameter",
                "`coupled`",
                "`rejection`, `block`",
                "`json`, `json_object`, `regex`, `choice`, `grammar`",
                "`structural_tag`",
                "`n` = 3, `logprobs` = 5",
            ),
            _parameters(),
        ),
        "## 3. Pairs that are refused\n",
        _table(("pair", "error"), _errors(refusals())),
        "## 4. A request and its engine\n",
        _table(("pair", "error"), _errors(_engines())),
        "## 5. Where speculation is off\n",
        SPECULATION_OFF,
        "## 6. What is replayable\n",
        "`replayable` is true where the same request and seed give the same tokens whatever shares the batch. It is "
        "false for a model whose rows depend on each other (products on a GPU, some architectures through "
        "transformers), and by verification:\n",
        _table(("verification", "`replayable`"), _replayable()),
    ]
    return "\n".join(parts)


if __name__ == "__main__":
    pathlib.Path(sys.argv[1]).write_text(capabilities_markdown(), encoding="utf-8")
