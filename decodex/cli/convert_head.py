"""`decodex convert-head`: an EAGLE-3 head from one public layout into the other."""

from __future__ import annotations

import pathlib
from collections.abc import Sequence

from decodex.cli.flags import Parser
from decodex.errors import ModelError

__all__ = ["build_parser", "run"]


def build_parser() -> Parser:
    """The options of the command."""
    parser = Parser(prog="decodex convert-head", description="Write an EAGLE-3 head in another public layout.")
    parser.add_argument("source", type=pathlib.Path, metavar="IN", help="folder of the head")
    parser.add_argument("out", type=pathlib.Path, metavar="OUT", help="folder to write, new or empty")
    help = "eagle3: midlayer.*, eagle_config; speculators: layers.0.*, transformer_layer_config"
    parser.add_argument("--layout", choices=("eagle3", "speculators"), required=True, help=help)
    help = "Hugging Face id of the model that it drafts for, written into the speculators layout"
    parser.add_argument("--target", metavar="NAME", help=help)
    return parser


def run(argv: Sequence[str]) -> int:
    """Convert, and say what was written."""
    arguments = build_parser().parse_exactly(argv)
    from decodex.spec.head_weights import HeadError
    from decodex.spec.train.layouts import convert_head

    try:
        convert_head(arguments.source, arguments.out, arguments.layout, target=arguments.target)
    except HeadError as error:
        raise ModelError(str(error)) from error
    print(f"{arguments.out}: the head in the layout {arguments.layout}")
    return 0
