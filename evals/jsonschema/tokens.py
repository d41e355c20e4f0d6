"""A sample of the schemas in tokens of the demo model, through decodex's own compiler and matchers.

    .venv/bin/python evals/jsonschema/tokens.py     # adds "in_tokens" to evals/results/jsonschema.json

The byte-level verdicts of run.py must hold for texts in the model's own tokens too. Every token is checked against the
mask of its position before it is accepted, and the mask must have the end exactly where the text may end.
"""

from __future__ import annotations

import argparse
import json
import pathlib
from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np

from decodex.features.vocabulary import Vocabulary
from decodex.grammar.compiler import GrammarCompiler
from decodex.grammar.constraint import Constraint
from decodex.grammar.errors import ConstraintError
from decodex.grammar.vocabulary import GrammarVocabulary
from decodex.models.source import resolve_model
from decodex.tokenizer import Tokenizer

if TYPE_CHECKING:
    from evals.jsonschema import data
else:
    import data

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
RESULTS = ROOT / "evals" / "results" / "jsonschema.json"


def vocabulary_of(model: str) -> GrammarVocabulary:
    """The model's vocabulary as the grammar room wants it."""
    tokenizer = Tokenizer.load(resolve_model(model))
    known = Vocabulary(tokenizer, tokenizer.vocab_size)

    def encode(text: str) -> list[int]:
        return list(tokenizer.encode(text, add_special_tokens=False))

    return GrammarVocabulary(known.token_bytes("text").tokens, tokenizer.special_ids, known.eos_token_ids, encode)


def accepts(grammar: Any, vocabulary: GrammarVocabulary, text: str) -> bool:
    """Whether the text is a member, token by token; AssertionError where mask and matcher disagree."""
    matcher = grammar.matcher()
    row = np.zeros(vocabulary.num_words, dtype=np.int32)
    ends = sorted(vocabulary.eos_token_ids)
    for token in [*vocabulary.encode(text), None]:
        is_masked = matcher.fill(row)
        legal = (row.view(np.uint32)[np.array([*ends, token or 0]) // 32] >> (np.array([*ends, token or 0]) % 32)) & 1
        assert is_masked
        assert all(bool(bit) == matcher.is_accepting for bit in legal[:-1]), text
        if token is None:
            break
        is_legal = matcher.accept(token)
        assert is_legal == bool(legal[-1]), (text, token)
        if not is_legal:
            return False
    return bool(matcher.is_accepting)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=pathlib.Path, default=ROOT.parent / "shared" / "data")
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--every", type=int, default=40)
    args = parser.parse_args()
    vocabulary = vocabulary_of(args.model)
    compiler = GrammarCompiler(vocabulary)
    counts, wrong = Counter[str](), []
    for split in data.SPLITS:
        for case in data.bench_cases(args.data, split, args.every):
            counts["schemas"] += 1
            try:
                grammar = compiler.compile(Constraint("json", json.dumps(case.schema)))
            except ConstraintError:
                counts["refused"] += 1
                continue
            texts = [(form, is_valid) for forms, is_valid in case.texts for form in forms[:1]]
            for text, is_valid in [*texts, *((text, False) for text in case.mutants)]:
                counts["texts"] += 1
                if accepts(grammar, vocabulary, text) != is_valid:
                    counts["wrong"] += 1
                    wrong.append(f"{case.name}: {'rejects' if is_valid else 'accepts'} {text[:200]}")
    compiler.close()
    report = json.loads(RESULTS.read_text())
    report["in_tokens"] = {"model": args.model, **counts, "wrong_texts": wrong}
    RESULTS.write_text(json.dumps(report, indent=1, ensure_ascii=False) + "\n")
    print(dict(counts), *wrong, sep="\n")


if __name__ == "__main__":
    main()
