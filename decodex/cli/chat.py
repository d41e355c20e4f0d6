"""`decodex chat`: a conversation in the terminal. Ctrl-C stops the answer, not the program."""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from decodex.cli.flags import Parser, one_line
from decodex.cli.generate import refuse_logprobs
from decodex.cli.loading import add_engine_flags, add_sampling_flags, load_llm, sampling_params
from decodex.errors import DecodexError, RequestError
from decodex.params import SamplingParams

if TYPE_CHECKING:
    from decodex.llm import LLM

__all__ = ["build_parser", "interrupt_flag", "run"]

DEFAULTS = {"max_tokens": None}
HELP = "/reset starts a new conversation, /quit or Ctrl-D leaves, Ctrl-C stops an answer."
Message = dict[str, str]


def build_parser() -> Parser:
    """The options of the command."""
    parser = Parser(prog="decodex chat", description="Talk to the model in the terminal. " + HELP)
    parser.add_argument("--system", metavar="TEXT", help="a system message that opens every conversation")
    add_sampling_flags(parser, DEFAULTS)
    add_engine_flags(parser, beside_sampling=True)
    return parser


def run(argv: Sequence[str]) -> int:
    """Read lines until /quit or the end of input and answer each."""
    arguments = build_parser().parse_exactly(argv)
    params = sampling_params(arguments, DEFAULTS)
    if params.n != 1:
        raise RequestError("n", params.n, "1 in a chat")
    refuse_logprobs(params, "None in a chat, which shows no log-probabilities")
    llm = load_llm(arguments)
    opening: list[Message] = [{"role": "system", "content": arguments.system}] if arguments.system else []
    print(HELP)
    messages = list(opening)
    while True:
        line = read_line()
        if line is None or line == "/quit":
            return 0
        if line == "/reset":
            messages = list(opening)
            print("(new conversation)")
        elif line.startswith("/"):
            print(f"unknown command {line.split()[0]}. {HELP}")
        elif line:
            messages = answer(llm, [*messages, {"role": "user", "content": line}], params)


def read_line() -> str | None:
    """The next line without surrounding space, "" for Ctrl-C at the prompt, None at the end of input."""
    try:
        return input("> ").strip()
    except EOFError:
        print()
        return None
    except KeyboardInterrupt:
        print(f"\n{HELP}")
        return ""


def answer(llm: LLM, messages: list[Message], params: SamplingParams) -> list[Message]:
    """Stream the answer to `messages`; the conversation with it, or without the question that failed."""
    try:
        text = stream_answer(llm, messages, params)
    except DecodexError as error:
        print(f"error: {one_line(error)}; /reset starts anew", file=sys.stderr)
        return messages[:-1]
    return [*messages, {"role": "assistant", "content": text}]


def stream_answer(llm: LLM, messages: list[Message], params: SamplingParams) -> str:
    """Print the answer as it grows and return it, or as much of it as there was when Ctrl-C came."""
    shown = ""
    with interrupt_flag() as interrupted, contextlib.closing(llm.stream_chat(messages, params)) as outputs:
        for output in outputs:
            text = output.outputs[0].text
            print(text[len(shown) :], end="", flush=True)
            shown = text
            if interrupted.is_set():
                print(" (stopped)", end="")
                break
    print()
    return shown


@contextlib.contextmanager
def interrupt_flag() -> Iterator[threading.Event]:
    """Ctrl-C sets the event instead of raising in the middle of an engine step; a second one raises."""
    event = threading.Event()

    def note(number: int, frame: object) -> None:
        if event.is_set():
            raise KeyboardInterrupt
        event.set()

    before = signal.signal(signal.SIGINT, note)
    try:
        yield event
    finally:
        signal.signal(signal.SIGINT, before)
