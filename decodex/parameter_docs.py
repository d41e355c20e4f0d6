"""docs/parameters.md, written from the definition of SamplingParams: `python -m decodex.parameter_docs FILE`."""

from __future__ import annotations

import html
import pathlib
import sys
from typing import Any

from decodex.definition import options_of
from decodex.params import SamplingParams
from decodex.speculative_config import SpeculativeConfig
from decodex.structured_outputs import StructuredOutputsParams

__all__ = ["parameters_markdown"]

INTRO = """# Parameters

Written by `python -m decodex.parameter_docs docs/parameters.md` from `decodex/params.py` and
`decodex/structured_outputs.py`: change them there.

Every parameter is a function of the row: of the committed tokens, the draft tokens before it, the seed and the
position. Batch mates, speculation, chunking and preemption change nothing. The steps are those of the row pipeline
(docs/architecture.md) and run in the order of this page. p is the softmax over the tokens that are left at that point,
H its entropy; ties go to the lower token id; at least one token survives every truncation.

*Off* lists the values that are the same as leaving the parameter out. A value outside the range is refused with the
parameter's name when the parameters are made; a token id outside the vocabulary, or a text that the tokenizer can't be
searched for, when the request is admitted. A row that masks leave without a token ends its request with an error that
names the masks.
"""

STEPS = {
    "2 masks": "Step 2: masks",
    "3 penalties": "Step 3: penalties",
    "4 processors": "Step 4: custom logits processors",
    "5 grammar": "Step 5: structured output",
    "6 temperature": "Step 6: temperature",
    "7 truncation": "Step 7: truncation, in this order",
    "8 draw": "Step 8: the draw",
    "speculation": "Speculation",
    "end": "Where the output ends",
    "output": "What is returned",
}

DEFINITIONS: dict[str, type] = {"5 grammar": StructuredOutputsParams, "speculation": SpeculativeConfig}

NOTES = {
    "2 masks": """`bad_words` is a substring rule over the bytes of the output: case counts, "ass" also bans "class",
and it holds across tokens and for every tokenization. What the prompt contains is not looked at, and text that special
tokens add only counts when `skip_special_tokens` is off. It needs a byte-level or byte-fallback vocabulary.

`max_thinking_tokens` counts output tokens between `<think>` and `</think>` (a block may be opened by the prompt; all
blocks share the budget) and forces the end marker as this tokenizer spells it. The end of sequence stays possible
inside a block until then.""",
    "3 penalties": """Repetition first, then frequency, then presence, then DRY. Draft tokens before a row count like
output. DRY's lengths are over prompt + output, whatever `penalty_last_n`.""",
    "4 processors": """An object with `apply(logits [R, V], rows)`, a transformers `LogitsProcessor` or a function
`f(token_ids, logits [V])`; the engine's own (`EngineConfig.logits_processors`) come first. `pure = True` declares a
pure function of the row. Any other gets a copy for each choice and switches speculation off for its request
(`metrics.speculation_off`). An exception, a wrong shape or NaN is that request's error.""",
    "5 grammar": """One of the fields below; [structured_outputs.md](structured_outputs.md) has the kinds and what each
backend honours. Special tokens and the vocabulary beyond the tokenizer are masked in constrained rows, and the end of
sequence is possible exactly where the text is complete. All kinds but `structural_tag` describe the whole output:
`stop`, `stop_token_ids`, `include_stop_str_in_output`, `repetition_stop` and `max_thinking_tokens` are refused beside
them. An output that nothing but its end can follow ends with "stop", whatever `min_tokens` and `ignore_eos` say.""",
    "speculation": """Tokens are guessed and verified, several in a step; [speculation.md](speculation.md) has the
methods. Under `coupled` verification the output is what it is without, bit for bit; under `rejection` and `block` it
has the same distribution, and the answer says `replayable: false`. A prediction asks for speculation by itself.""",
    "8 draw": """A draw needs no state, so the same request and seed give the same tokens.""",
    "output": """`logprobs` and `prompt_logprobs` in a JSON answer show -inf as -9999.0. A request with
`prompt_logprobs` reads no prefix cache. `logprob_token_ids` without `logprobs` is `logprobs = 0`.""",
}


def parameters_markdown() -> str:
    """The page."""
    parts = [INTRO]
    for step, title in STEPS.items():
        fields = [field for field in options_of(SamplingParams) if field.metadata["step"] == step]
        parts.append(f"## {title}\n")
        if step in NOTES:
            parts.append(f"{NOTES[step]}\n")
        parts.append("| parameter | what it does | range | default | off |\n|---|---|---|---|---|")
        parts[-1] += "".join(f"\n{_line(field)}" for field in fields) + "\n"
        if step in DEFINITIONS:
            parts.append("| field of it | what it does | range | default | off |\n|---|---|---|---|---|")
            parts[-1] += "".join(f"\n{_line(field)}" for field in options_of(DEFINITIONS[step])) + "\n"
    parts.append("## Refused by name\n")
    reasons: dict[str, list[str]] = {}
    for name, refusal in (SamplingParams.refused or {}).items():
        reasons.setdefault(refusal.reason, []).append(f"`{name}`")
    parts.append("\n".join(f"- {', '.join(names)}: {reason}." for reason, names in reasons.items()) + "\n")
    return "\n".join(parts)


def _line(field: Any) -> str:
    check, formula = field.metadata["check"], field.metadata["formula"]
    what = html.escape(field.metadata["help"], False) + (f"<br>{html.escape(formula, False)}" if formula else "")
    off = ", ".join(_code(value) for value in check.off)
    cells = (f"`{field.name}`", what, check.expected, _code(field.default), off)
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _code(value: Any) -> str:
    return f"`{value!r}`"


if __name__ == "__main__":
    pathlib.Path(sys.argv[1]).write_text(parameters_markdown(), encoding="utf-8")
