"""The routing table: which features of the canonical form each library honours.

    .venv/bin/python evals/jsonschema/table.py          # writes grammar/schema/honoured.py

A library honours a feature when it judges every probe of it right, and no schema of the build splits is judged wrong
for which the feature is the most suspicious: while a wrongly judged schema has honoured features only, the feature
with the highest share of wrong schemas among its own is struck. The other splits only report (run.py).
"""

from __future__ import annotations

import argparse
import json
import pathlib
from collections import Counter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from evals.jsonschema import backends, data, forms, probes, worker
else:
    import backends
    import data
    import forms
    import probes
    import worker

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
TABLE = ROOT / "grammar" / "schema" / "honoured.py"
HEAD = '''"""The routing table: features that each backend honours. Written by evals/jsonschema/table.py; do not edit.

ORDER: the first backend that honours all features of a schema takes it.
"""

from __future__ import annotations

__all__ = ["HONOURED", "ORDER"]

ORDER = ("llguidance", "xgrammar", "outlines")

HONOURED: dict[str, frozenset[str]] = {
'''


def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object, or an error where a key is repeated."""
    if len(dict(pairs)) < len(pairs):
        raise ValueError("a key is repeated")
    return dict(pairs)


def is_member(text: str, schema: Any) -> bool | None:
    """Whether a text is a member; None: not in the one JSON form, so a backend may refuse it."""
    try:
        value = json.loads(text, object_pairs_hook=unique)
    except ValueError:
        return False
    in_ecma = json.loads(json.dumps(schema).replace("\\\\x{", "\\\\u{"))  # code points as ECMA-262 spells them
    if not forms.validator_of(in_ecma).is_valid(value):
        return False
    return True if json.dumps(value, ensure_ascii=False) == text and "\\u" not in text else None


def probe_faults(backend: str) -> dict[str, str]:
    """Features whose probes a library refuses or gets wrong, each with the first fault."""
    faults: dict[str, str] = {}
    for feature, cases in probes.PROBES.items():
        for schema, texts in cases:
            try:
                judge = backends.BACKENDS[backend](schema)
            except backends.Refused as refusal:
                faults.setdefault(feature, f"refused: {refusal}")
                continue
            for text in texts:
                expected = is_member(text, schema)
                if expected is not None and judge(text) != expected:
                    faults.setdefault(feature, f"{text} is {'rejected' if expected else 'accepted'} by {schema}")
    return faults


def struck(wrong: list[frozenset[str]], right: list[frozenset[str]], honoured: set[str]) -> list[tuple[str, int, int]]:
    """Features to strike until every wrongly judged schema has one that is not honoured."""
    totals = Counter(feature for features in right for feature in features)
    found = []
    while left := [features for features in wrong if features <= honoured]:
        counts = Counter(feature for features in left for feature in features)
        worst = max(counts, key=lambda feature: (counts[feature] / (counts[feature] + totals[feature]), feature))
        honoured.discard(worst)
        found.append((worst, counts[worst], totals[worst]))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=pathlib.Path, default=ROOT.parent / "shared" / "data")
    parser.add_argument("--every", type=int, default=1, help="take each n-th schema of a split")
    parser.add_argument("--seconds", type=float, default=10.0, help="for one schema on one library")
    args = parser.parse_args()
    prepared: list[tuple[data.Case, frozenset[str]]] = []
    for split in data.BUILD:
        for case in data.bench_cases(args.data, split, args.every):
            try:
                features = backends.canonical(case.schema).features
            except backends.Refused:
                continue
            prepared.append((case, features))
    seen = frozenset().union(*(features for _, features in prepared)) | frozenset(probes.PROBES)
    lines = []
    for backend in backends.BACKENDS:
        faults = probe_faults(backend)
        honoured = set(seen - faults.keys())
        judge = worker.Worker(args.seconds)
        right: list[frozenset[str]] = []
        wrong: list[frozenset[str]] = []
        for case, features in prepared:
            if features <= honoured:
                letter, _ = judge.verdict(f"prepared:{backend}", case)
                (right if letter == worker.RIGHT else wrong).append(features)
        judge.close()
        for feature, num_wrong, num_right in struck(wrong, right, honoured):
            print(f"{backend}: struck {feature} ({num_wrong} wrong, {num_right} right)")
        for feature, fault in sorted(faults.items()):
            print(f"{backend}: {feature}: {fault}"[:160])
        print(f"{backend}: {len(right)} right, {len(wrong)} not, {len(honoured)} features honoured", flush=True)
        names = "".join(f'            "{name}",\n' for name in sorted(honoured))
        lines.append(f'    "{backend}": frozenset(\n        {{\n{names}        }}\n    ),\n')
    TABLE.write_text(HEAD + "".join(lines) + "}\n")


if __name__ == "__main__":
    main()
