"""JSON schemas: what each library gets right, and what decodex makes of them, over two data sets.

    .venv/bin/python evals/jsonschema/run.py                      # writes evals/results/jsonschema.json
    .venv/bin/python evals/jsonschema/run.py --check [--every 7]  # fails where a verdict of `auto` flipped

Every schema gets one letter per backend: `=` compiled and every instance judged right, `r` refused, `t` refused by
time, `A` some invalid instance accepted, `R` some valid instance rejected in the one JSON form, `B` both, `M` all given
instances judged right but one of their invalid mutants accepted (mutate.py). The letters
of each split are one string in the results, in the order of the data.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import re
import sys
import time
from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from decodex.cli.machine import machine_facts, version_facts

if TYPE_CHECKING:
    from evals.jsonschema import data, worker
else:  # this folder is on the path of a script; the root must not be
    import data
    import worker

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
RESULTS = ROOT / "evals" / "results" / "jsonschema.json"
LIBRARIES = ("llguidance", "xgrammar", "outlines")
SUITE = "suite"
MAX_LISTED = 12


def judged(cases: Iterable[data.Case], backend: str, judge: worker.Worker | None) -> dict[str, Any]:
    """Letters, what is wrong, and the reasons of refusals of one backend over some cases."""
    letters: list[str] = []
    wrong: dict[str, Any] = {}
    reasons, relabelled = Counter[str](), 0
    for case in cases:
        letter, detail = judge.verdict(backend, case) if judge else worker.verdict_of(backend, case)
        letters.append(letter)
        relabelled += case.relabelled
        if letter in "ARBM" and (backend == "auto" or len(wrong) < MAX_LISTED):
            wrong[case.name] = f"{letter}: {detail}"
        elif letter != worker.RIGHT:
            reasons[re.sub(r"'.*?'|\".*?\"|[0-9]+", "_", detail)[:100]] += 1
    return {"letters": "".join(letters), "wrong": wrong, "refused": dict(reasons.most_common(MAX_LISTED)),
            "relabelled": relabelled}  # fmt: skip


def summary(letters: str) -> dict[str, int]:
    """Counts of one string of letters."""
    return {
        "schemas": len(letters),
        "right": letters.count("=") + letters.count("M"),
        "right_with_mutants": letters.count("="),
        "refused": letters.count("r") + letters.count("t"),
        "wrong_accept": letters.count("A") + letters.count("B"),
        "wrong_reject": letters.count("R") + letters.count("B"),
    }


def totals(results: dict[str, Any]) -> dict[str, Any]:
    """Over all splits, without Synthesized, and over the splits that the table was not built on."""
    groups = {
        "all": data.SPLITS,
        "without_synthesized": tuple(s for s in data.SPLITS if s != "Synthesized"),
        "not_built_on": tuple(s for s in data.SPLITS if s not in data.BUILD),
    }
    found: dict[str, Any] = {}
    for name, splits in groups.items():
        counts = {
            backend: summary("".join(results[split][backend]["letters"] for split in splits))
            for backend in results[splits[0]]
        }
        accepted = counts["auto"]["schemas"] - counts["auto"]["refused"]
        ratios = {
            f"accepted_over_best_{kind}": round(
                accepted / max(1, *(counts[b][kind] for b in LIBRARIES if b in counts), 1), 4
            )
            for kind in ("right", "right_with_mutants")
        }
        found[name] = {**counts, **ratios}
    return found


def run(args: argparse.Namespace) -> None:
    """Judge everything, decodex first, and write the results after each backend."""
    report: dict[str, Any] = json.loads(args.out.read_text()) if args.add else {"splits": {}}
    cases = {split: list(cases_of(args, split)) for split in (*data.SPLITS, SUITE)}
    for backend in args.backends.split(","):
        for split in (*data.SPLITS, SUITE):
            start = time.perf_counter()
            judge = None if backend == "auto" else worker.Worker(args.seconds)  # a library may run for ever
            found = judged(cases[split], backend, judge)
            if judge:
                judge.close()
            report["splits"].setdefault(split, {})[backend] = found
            print(split, backend, summary(found["letters"]), f"{time.perf_counter() - start:.0f} s", flush=True)
        write(report, args.out)
    print(json.dumps({"totals": report["totals"], "suite": report["suite"]}, indent=1))


def write(report: dict[str, Any], out: pathlib.Path) -> None:
    """The results so far, with their totals first."""
    splits = report.pop("splits")
    report.update(
        machine=machine_facts(),
        versions=version_facts(),
        built_on=list(data.BUILD),
        totals=totals(splits),
        suite={backend: summary(found["letters"]) for backend, found in splits[SUITE].items()},
    )
    report["splits"] = splits
    out.write_text(json.dumps(report, indent=1, ensure_ascii=False) + "\n")


def cases_of(args: argparse.Namespace, split: str) -> Iterable[data.Case]:
    """The cases of a split or of the suite."""
    return data.suite_cases(args.data) if split == SUITE else data.bench_cases(args.data, split, args.every)


def check(args: argparse.Namespace) -> None:
    """Exit 1 where `auto` judges another way than the committed results say."""
    known = json.loads(args.out.read_text())["splits"]
    flips = []
    for split in (*data.SPLITS, SUITE):
        every = 1 if split == SUITE else args.every
        for case, letter in zip(cases_of(args, split), known[split]["auto"]["letters"][::every], strict=True):
            now, detail = worker.verdict_of("auto", case)
            if now != letter:
                flips.append(f"{case.name}: {letter} became {now} {detail}")
    print("\n".join(flips) or "no verdict flipped")
    sys.exit(1 if flips else 0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=pathlib.Path, default=ROOT.parent / "shared" / "data")
    parser.add_argument("--out", type=pathlib.Path, default=RESULTS)
    parser.add_argument("--every", type=int, default=1, help="judge each n-th schema of a split")
    parser.add_argument("--seconds", type=float, default=10.0, help="for one schema on one library")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--backends", default=",".join(("auto", *LIBRARIES)), help="which to judge, with commas")
    parser.add_argument("--add", action="store_true", help="keep the other backends' committed results")
    args = parser.parse_args()
    if not args.data.exists():
        sys.exit(f"the data sets are not at {args.data}")
    check(args) if args.check else run(args)


if __name__ == "__main__":
    main()
