"""`decodex generate`: prompts in, answers out, as text or as one JSON object a line."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from decodex.cli.flags import Parser, one_line
from decodex.cli.loading import add_engine_flags, add_sampling_flags, load_llm, sampling_params
from decodex.errors import RequestError
from decodex.outputs import CompletionOutput, Logprob, RequestOutput
from decodex.params import SamplingParams

__all__ = ["as_json", "build_parser", "refuse_logprobs", "run"]

DEFAULTS = {"max_tokens": 256}
LOWEST_LOGPROB = -9999.0  # JSON has no infinity


def build_parser() -> Parser:
    """The options of the command."""
    parser = Parser(prog="decodex generate", description="Continue one or more prompts.")
    parser.add_argument("prompts", nargs="+", metavar="PROMPT", help="text to continue; several run as one batch")
    parser.add_argument("--chat", action="store_true", help="put each prompt into the model's chat template")
    parser.add_argument("--json", action="store_true", help="print one JSON object for each prompt")
    add_sampling_flags(parser, DEFAULTS)
    add_engine_flags(parser, beside_sampling=True)
    return parser


def run(argv: Sequence[str]) -> int:
    """Answer every prompt; one that fails is reported on its own and sets the exit status."""
    arguments = build_parser().parse_exactly(argv)
    params = sampling_params(arguments, DEFAULTS)
    if not arguments.json:
        refuse_logprobs(params, "--json, which shows them")
    llm = load_llm(arguments)
    if arguments.chat:
        conversations = [[{"role": "user", "content": prompt}] for prompt in arguments.prompts]
        outputs = llm.chat(conversations, params)
    else:
        outputs = llm.generate(arguments.prompts, params)
    for output in outputs:
        if arguments.json:
            print(json.dumps(as_json(output), ensure_ascii=False))
        else:
            show(output)
    return max((exit_status(output) for output in outputs), default=0)


def refuse_logprobs(params: SamplingParams, expected: str) -> None:
    """RequestError where log-probabilities are asked for that nothing would show."""
    for name in ("logprobs", "prompt_logprobs"):
        if getattr(params, name) is not None:
            raise RequestError(name, getattr(params, name), expected)


def show(output: RequestOutput) -> None:
    """Print the choices of one prompt, its error on stderr."""
    if output.error is not None:
        print(f"decodex generate: error: {one_line(output.error)}", file=sys.stderr)
        return
    for choice in output.outputs:
        if len(output.outputs) > 1:
            print(f"--- choice {choice.index}, seed {choice.seed}")
        print(choice.text)


def exit_status(output: RequestOutput) -> int:
    """0 for an answer, 2 for a request that could not be honoured, 1 for any other failure."""
    if output.error is None:
        return 0
    return 2 if isinstance(output.error, RequestError) else 1


def plain_logprobs(logprobs: Sequence[Mapping[int, Logprob] | None] | None) -> list[dict[str, Any] | None] | None:
    """Log-probabilities as JSON values: tokens are strings, -inf is -9999.0."""
    if logprobs is None:
        return None
    return [
        None
        if entries is None
        else {
            str(token): {**dataclasses.asdict(entry), "logprob": max(entry.logprob, LOWEST_LOGPROB)}
            for token, entry in entries.items()
        }
        for entries in logprobs
    ]


def _plain_choice(choice: CompletionOutput) -> dict[str, Any]:
    values = {**dataclasses.asdict(choice), "logprobs": plain_logprobs(choice.logprobs), "parsed": choice.parsed}
    del values["schema"]
    return values


def as_json(output: RequestOutput) -> dict[str, Any]:
    """A request's answer as plain JSON values; `error` is its text or null."""
    values = {f.name: getattr(output, f.name) for f in dataclasses.fields(output) if f.name != "error"}
    values["outputs"] = [_plain_choice(choice) for choice in output.outputs]
    values["prompt_logprobs"] = plain_logprobs(output.prompt_logprobs)
    values["metrics"] = dataclasses.asdict(output.metrics)
    return {**values, "error": None if output.error is None else one_line(output.error)}
