"""Structural tags as a Lark grammar for llguidance: free text is a lexeme that ends at the first marker."""

from __future__ import annotations

import json
import re

from decodex.grammar.backends.llguidance import json_with_options
from decodex.grammar.ebnf import Rules
from decodex.grammar.errors import ConstraintError
from decodex.grammar.forms import Json, WholeText
from decodex.grammar.json_lark import JsonPrinter
from decodex.grammar.lark import LarkPrinter
from decodex.grammar.pattern import Text, concat, to_rust
from decodex.grammar.tags import AnyText, Const, Either, Item, Separated, Sequence, Tag, Triggered
from decodex.grammar.vocabulary import GrammarVocabulary

__all__ = ["print_tags"]

_FREE = r"(.|\n)*"


def print_tags(item: Item, vocabulary: GrammarVocabulary) -> tuple[str, frozenset[int]]:
    """The grammar, and the special tokens that are legal in it because it names them."""
    printer = _Printer(vocabulary)
    start = printer.item(item, is_last=True)
    lines = [f"start: {start}", *printer.rules, f"FREE: /{_FREE}/", ""]
    return "\n".join(lines), frozenset(printer.markers)


class _Printer:
    """Prints items to right-hand sides; what needs a name becomes a rule."""

    def __init__(self, vocabulary: GrammarVocabulary) -> None:
        self._vocabulary = vocabulary
        self._ids = {vocabulary.tokens[i].decode("utf-8", "replace"): i for i in sorted(vocabulary.special_ids)}
        spellings = sorted((s for s in self._ids if s), key=len, reverse=True)
        self._special = re.compile("|".join(map(re.escape, spellings)) or r"(?!)")
        self.markers: set[int] = set()
        self.rules: list[str] = []

    def item(self, item: Item, is_last: bool = False) -> str:
        """One item. is_last: nothing follows it, so free text may go on to the end."""
        if isinstance(item, Const):
            return self._text(item.text)
        if isinstance(item, AnyText):
            if not is_last:
                raise ConstraintError("free text needs a marker after it: put it into a tag with an end")
            return "FREE"
        if isinstance(item, Tag):
            return self._tag(item, is_last)
        if isinstance(item, Sequence):
            last = len(item.items) - 1
            return " ".join(self.item(one, is_last and index == last) for index, one in enumerate(item.items))
        if isinstance(item, Either):
            return self._rule(" | ".join(self.item(one, is_last) for one in item.items))
        if isinstance(item, Triggered):
            return self._triggered(item, is_last)
        if isinstance(item, Separated):
            return self._separated(item)
        return self._content(item)

    def _content(self, item: Json | WholeText | Rules) -> str:
        if isinstance(item, Json) and item.is_beyond:
            numbers = JsonPrinter(item.schema, item.whitespace, prefix=f"j{len(self.rules)}_")
            self.rules += numbers.rules
            return numbers.start
        if isinstance(item, Json):
            return self._rule(f"%json {json.dumps(json_with_options(item.schema, item.whitespace))}")
        if isinstance(item, WholeText):
            return self._terminal(f"/{to_rust(item.pattern)}/")
        printer = LarkPrinter([name for name, _ in item.rules], prefix=f"g{len(self.rules)}")
        start = printer.names["root"]
        self.rules += [f"{printer.names[name]}: {printer.print(pattern)}" for name, pattern in item.rules]
        self.rules += [f"{name}: /{regex}/" for regex, name in printer.terminals.items()]
        return start

    def _tag(self, tag: Tag, is_last: bool, skip: int = 0) -> str:
        """skip: characters of the beginning that were read already."""
        begin = self._text(tag.begin[skip:])
        pieces = self._pieces(tag.end)
        if isinstance(tag.content, WholeText | AnyText) and pieces and isinstance(pieces[0], str):
            # the first end that fits: one lexeme, or the content would swallow it
            pattern = to_rust(tag.content.pattern) if isinstance(tag.content, WholeText) else _FREE
            end = to_rust(concat([Text(pieces[0])]))
            body = self._rule(f"/{pattern}{end}/", lazy=True)
            rest = " ".join(self._piece(piece) for piece in pieces[1:])
            return f"{begin} {body} {rest}".strip()
        if isinstance(tag.content, AnyText) and pieces:
            return f"{begin} FREE {self._text(tag.end)}".strip()  # up to a special token
        return f"{begin} {self.item(tag.content, is_last and not pieces)} {self._text(tag.end)}".strip()

    def _triggered(self, item: Triggered, is_last: bool) -> str:
        if not is_last and not (item.at_least_one and item.stop_after_first):
            raise ConstraintError("triggered tags can only be the last part, for free text follows them")
        tags = []
        for trigger in item.triggers:
            pieces = self._pieces(trigger)
            if len(pieces) > 1:
                raise ConstraintError(f"the trigger {trigger!r} mixes text and special tokens")
            if isinstance(pieces[0], int):
                head = f"FREE {self._piece(pieces[0])}"
            else:
                head = self._rule(f"FREE {json.dumps(trigger, ensure_ascii=False)}", lazy=True)
            bodies = [self._tag(tag, False, len(trigger)) for tag in item.tags if tag.begin.startswith(trigger)]
            tags.append(f"{head} {self._rule(' | '.join(bodies))}")
        one = self._rule(" | ".join(tags))
        if item.stop_after_first:
            return one if item.at_least_one else self._rule(f"{one} | FREE")
        return f"{one}{'+' if item.at_least_one else '*'} FREE"

    def _separated(self, item: Separated) -> str:
        one = self._rule(" | ".join(self._tag(tag, False) for tag in item.tags))
        many = one if item.stop_after_first else f"{one} ({self._text(item.separator)} {one})*"
        return self._rule(many if item.at_least_one else f'({many}) | ""')

    def _text(self, text: str) -> str:
        return " ".join(self._piece(piece) for piece in self._pieces(text))

    def _pieces(self, text: str) -> list[str | int]:
        """Text and special tokens in turn."""
        pieces: list[str | int] = []
        at = 0
        for match in self._special.finditer(text):
            pieces += [text[at : match.start()], self._ids[match.group()]]
            at = match.end()
        return [piece for piece in (*pieces, text[at:]) if piece != ""]

    def _piece(self, piece: str | int) -> str:
        if isinstance(piece, str):
            return json.dumps(piece, ensure_ascii=False)
        if piece in self._vocabulary.eos_token_ids:
            spelling = self._vocabulary.tokens[piece].decode("utf-8", "replace")
            raise ConstraintError(f"{spelling!r} ends the output and can't be a marker")
        self.markers.add(piece)
        return f"<[{piece}]>"

    def _rule(self, body: str, lazy: bool = False) -> str:
        name = f"t{len(self.rules)}"
        self.rules.append(f"{name}{'[lazy]' if lazy else ''}: {body}")
        return name

    def _terminal(self, regex: str) -> str:
        name = f"X{len(self.rules)}"
        self.rules.append(f"{name}: {regex}")
        return name
