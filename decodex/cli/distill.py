"""`decodex distill`: prompts in, the model's own answers out, as training data for draft heads."""

from __future__ import annotations

import pathlib
from collections.abc import Sequence

from decodex.cli.chat import interrupt_flag
from decodex.cli.flags import Parser, as_scalar
from decodex.cli.loading import add_engine_flags, load_llm
from decodex.definition import check_int
from decodex.distill import TEMPERATURES, AnswerPlan, Distilled, distill, read_answered, read_questions
from decodex.errors import RequestError

__all__ = ["build_parser", "run"]


def shares(text: str) -> tuple[tuple[float, float], ...]:
    """Temperatures with their shares from a flag."""
    pairs = [item.partition(":") for item in text.split(",")]
    return tuple((number(temperature), number(share) if colon else 1.0) for temperature, colon, share in pairs)


def number(text: str) -> float:
    """One number of a flag."""
    return float(as_scalar(text, (float,)))


def build_parser() -> Parser:
    """The options of the command."""
    parser = Parser(prog="decodex distill", description="Let the model answer prompts: training data for its heads.")
    parser.add_argument(
        "prompts", nargs="+", type=pathlib.Path, metavar="PROMPTS", help="JSONL, plain or .gz: id, prompt or messages"
    )
    help = "JSONL of answers; one that is there is continued"
    parser.add_argument("--out", type=pathlib.Path, required=True, metavar="FILE", help=help)
    parser.add_argument(
        "--temperatures",
        type=shares,
        default=",".join(f"{temperature:g}:{share:g}" for temperature, share in TEMPERATURES),
        metavar="T:SHARE,...",
        help="temperatures and how much of the answers each has",
    )
    parser.add_argument("--max-tokens", type=int, default=256, metavar="N", help="most tokens of an answer")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="seeds and temperatures are derived from it")
    parser.add_argument("--limit", type=int, metavar="N", help="only the first N prompts")
    help = "leave out prompts that are answered in this file; may be repeated"
    parser.add_argument("--skip-ids-in", type=pathlib.Path, action="append", default=[], metavar="FILE", help=help)
    add_engine_flags(parser, beside_sampling=True)
    return parser


def run(argv: Sequence[str]) -> int:
    """Answer what is not answered yet; 1 if nothing could be."""
    arguments = build_parser().parse_exactly(argv)
    if arguments.limit is not None:
        check_int("--limit", arguments.limit, 1)
    check_out(arguments.out)
    plan = AnswerPlan(arguments.temperatures, arguments.max_tokens, arguments.seed)
    skip = {question_id for path in arguments.skip_ids_in for question_id in read_answered(path)}
    questions = read_questions(arguments.prompts, skip, arguments.limit)
    llm = load_llm(arguments)
    with interrupt_flag() as interrupted:
        result = distill(llm, questions, arguments.out, plan, progress=True, should_stop=interrupted.is_set)
    print(summary(result))
    if interrupted.is_set():
        raise KeyboardInterrupt
    return 1 if result.num_skipped and not result.num_answers + result.num_found else 0


def check_out(out: pathlib.Path) -> None:
    """Refuse an output that could not be continued, before the model is loaded."""
    if out.suffix == ".gz":
        raise RequestError("--out", str(out), "a plain file, which can be continued", "pack it when it is complete")
    if not out.absolute().parent.is_dir():
        raise RequestError("--out", str(out), "a file in a folder that exists")


def summary(result: Distilled) -> str:
    """One line."""
    rate = result.num_tokens / result.seconds if result.seconds else 0.0
    return (
        f"{result.num_answers} answers, {result.num_tokens} tokens, {rate:.0f} tokens/s; "
        f"{result.num_found} answers were there, {result.num_skipped} prompts skipped"
    )
