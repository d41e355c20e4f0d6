"""The independent check: its verdicts, and a process that never outlives, blocks or survives its owner."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time

import psutil
import pytest

from decodex.grammar.check import CheckUnavailable, IndependentCheck
from decodex.grammar.constraint import Constraint

SCHEMA = '{"type": "object", "properties": {"a": {"type": "integer", "maximum": 3}}, "additionalProperties": false}'


@pytest.fixture(scope="module")
def check():
    made = IndependentCheck(timeout=20.0)
    yield made
    made.close()


def verdict(check, kind, constraint, text):
    return check.submit(Constraint(kind, constraint), text).result(timeout=60)


@pytest.mark.parametrize(
    ("kind", "constraint", "right", "wrong"),
    [
        ("choice", '["a", "bc", ""]', ["a", "bc", ""], ["b", " a", "a\n"]),
        ("regex", r"\d+", ["0", "12"], ["", "1a", "1\n", "١"]),
        ("regex", "^a$|b", ["a", "b"], ["a\n", "ab"]),
        ("grammar", 'root ::= "a" root "b" | ""', ["", "ab", "aabb"], ["a", "ba", "aab", "abc"]),
        ("grammar", 'root ::= root root | "x" | ""', ["", "x", "xxxx"], ["xy", "y"]),
        ("grammar", "root ::= e (op e){0,2}\ne ::= [0-9]+ | [(] root [)]\nop ::= [+*]", ["1", "12+(3*4)*5", "((7))"],
         ["", "1+", "1+2+3+4", "(1", "1)"]),
        ("grammar", 'root ::= ([a-c]{2,3} "é"?)* [^a-z]', ["!", "abé!", "abcabé\n"], ["a!", "abéé!", "abcd", ""]),
        ("json_object", "", ["{}", '{"a": [1, null]}'], ["[]", "3", "", "{", '{"a": NaN}', "{} x"]),
        ("json", SCHEMA, ["{}", '{"a": 3}', '{"a":3.0}'], ['{"a": 4}', '{"b": 1}', '{"a": "1"}', '{"a": 1.5}', "["]),
        ("json", '{"multipleOf": 0.01}', ["0.07", "1.1", "19.99", "3"], ["0.075", "1e-3"]),
        ("json", '{"type": "integer"}', ["1", "-0", "1.0", "9007199254740993"], ["1.1", "true", '"1"']),
        ("json", '{"type": "number", "exclusiveMinimum": 0}',
         ["1e-99999999999999999999999", "1e99999999999999999999999"],
         ["0e99999999999999999999999", "-1e-99999999999999999999999", "0.0"]),
        ("json", '{"const": 9007199254740993}', ["9007199254740993"], ["9007199254740992"]),
        ("json", '{"type": "integer", "minimum": 0}', ["1" * 5000, "9" * 20_000],
         ["-" + "1" * 5000, "1" * 5000 + ".5"]),
        ("json", '{"format": "date-time"}', ['"2024-02-29T00:00:00Z"', "3"], ['"2023-02-29T00:00:00Z"', '"junk"']),
        ("json", '{"format": "time"}', ['"23:59:60Z"', '"01:29:60.5+01:30"', '"15:59:60-08:00"'],
         ['"22:59:60Z"', '"23:58:60z"', '"23:59:61Z"', '"23:59:60"', '"24:59:60+01:00"', '"23:59:60+24:00"']),
        ("json", '{"format": "date-time"}', ['"2016-12-31T23:59:60Z"'], ['"2016-02-30T23:59:60Z"', '"23:59:60Z"']),
        ("json", '{"format": "iri"}', ['"http://x/é"', '"http://x/😀"', '"x:?􀀀"'], ['"x y"', '"x:􀀀"', '"x:󠀁"']),
        ("json", '{"pattern": "^a$"}', ['"a"', "3"], ['"a\\n"', '"b"']),
        ("json", r'{"pattern": "^\\d$"}', ['"3"'], ['"٣"']),
        ("json", r'{"pattern": "^\\p{L}+$"}', ['"é"'], ['"3"']),
        ("json", '{"patternProperties": {"^x": {"type": "null"}}}', ['{"x": null, "a": 1}'], ['{"xy": 1}']),
        (
            "json",
            '{"patternProperties": {"^x": {}}, "properties": {"a": {}}, "additionalProperties": {"type": "null"}}',
            ['{"x1": 1, "a": 1, "b": null}'],
            ['{"b": 1}'],
        ),
        ("json", '{"items": [{"type": "null"}], "additionalItems": false}', ["[null]"], ["[1]", "[null, null]"]),
        ("json", '{"$schema": "http://json-schema.org/draft-04/schema#", "maximum": 3, "exclusiveMaximum": true}',
         ["2"], ["3"]),
        ("json", '{"$ref": "#/$defs/a", "$defs": {"a": {"enum": [[1], {"b": false}]}}}', ["[1]", '{"b": false}'],
         ["[true]", '{"b": 0}']),
    ],
)  # fmt: skip
def test_verdicts(check, kind, constraint, right, wrong):
    for text in right:
        assert verdict(check, kind, constraint, text) is None, text
    for text in wrong:
        assert isinstance(verdict(check, kind, constraint, text), str), text


def test_what_can_not_be_judged_is_unavailable_and_no_remote_schema_is_fetched(check):
    for constraint, text in (
        ('{"$ref": "http://localhost:1/x.json"}', "1"),
        ('{"pattern": "("}', '"a"'),
        ("{}", "[" * 100_000),
        ('{"multipleOf": 3}', "1e999999999"),
    ):
        with pytest.raises(CheckUnavailable):
            verdict(check, "json", constraint, text)
    assert verdict(check, "json", SCHEMA, "{}") is None


def test_a_pattern_that_never_ends_is_killed_and_the_next_text_is_judged():
    check = IndependentCheck(timeout=1.0)
    try:
        slow = check.submit(Constraint("json", '{"pattern": "^(a+)+$"}'), '"' + "a" * 60 + '!"')
        behind = check.submit(Constraint("choice", '["a"]'), "a")
        start = time.monotonic()
        with pytest.raises(CheckUnavailable, match=r"no answer within 1 s"):
            slow.result(timeout=60)
        assert behind.result(timeout=60) is None
        assert time.monotonic() - start < 30
    finally:
        check.close()


def test_nothing_starts_before_it_is_needed_and_everything_ends_with_the_owner():
    before = {child.pid for child in psutil.Process().children()}
    check = IndependentCheck()
    assert {child.pid for child in psutil.Process().children()} == before
    assert verdict(check, "choice", '["a"]', "a") is None
    process, thread = check._worker._process, check._worker._thread
    del check
    thread.join(timeout=10)
    assert not thread.is_alive()
    assert process.wait(timeout=10) is not None


def test_closing_leaves_no_verdict_open():
    check = IndependentCheck(timeout=60.0)
    verdicts = [check.submit(Constraint("json", '{"pattern": "^(a+)+$"}'), '"' + "a" * 60 + '!"') for _ in range(3)]
    time.sleep(0.5)
    check.close()
    for each in verdicts:
        with pytest.raises(CheckUnavailable):
            each.result(timeout=10)
    check.close()


def test_many_threads(check):
    faults = []

    def ask(number):
        for i in range(20):
            text = str(number * 100 + i)
            if verdict(check, "json", f'{{"const": {text}}}', text) is not None:
                faults.append(text)

    threads = [threading.Thread(target=ask, args=(n,)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert faults == []


SCRIPT = """
import os, sys, time
from decodex.grammar.check import IndependentCheck
from decodex.grammar.constraint import Constraint
assert "torch" not in sys.modules
check = IndependentCheck()
start = time.monotonic()
assert check.submit(Constraint("choice", '["a"]'), "a").result(60) is None
print(check._worker._process.pid, flush=True)
how = sys.argv[1]
if how == "wait":
    time.sleep(600)
if how == "fork":
    child = os.fork()
    if child == 0:
        assert check.submit(Constraint("choice", '["a"]'), "b").result(60) == "it is none of the choices"
        sys.exit(0)  # with all its exit handlers: the parent's process must not notice
    assert os.waitpid(child, 0)[1] == 0
    assert check.submit(Constraint("choice", '["a"]'), "b").result(60) == "it is none of the choices"
    os.kill(check._worker._process.pid, 0)
if how == "fork and wait":
    if os.fork() == 0:
        time.sleep(30)  # holds the connection open
        os._exit(0)
    time.sleep(600)
if how == "os._exit":
    os._exit(0)
"""


def gone(pid, seconds=10.0):
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
            return True
        time.sleep(0.05)
    return False


@pytest.mark.parametrize("how", ["exit", "os._exit", "fork", "kill", "interrupt", "fork and kill"])
def test_no_process_is_left_behind(how):
    argument = {"kill": "wait", "interrupt": "wait", "fork and kill": "fork and wait"}.get(how, how)
    with subprocess.Popen(
        [sys.executable, "-c", SCRIPT, argument], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            pid = int(process.stdout.readline())
            time.sleep(0.3)  # it sleeps by now: an interrupt inside of a callback would be lost there
            if how.endswith("kill"):
                process.kill()
            elif how == "interrupt":
                process.send_signal(signal.SIGINT)
            code = process.wait(timeout=60)
            assert code == 0 or how in ("kill", "interrupt", "fork and kill"), process.stderr.read()
            assert gone(pid)
        finally:
            process.kill()
            for child in psutil.process_iter(["ppid", "cmdline"]):
                if child.info["cmdline"] == [sys.executable, "-c", SCRIPT, argument] and child.info["ppid"] == 1:
                    os.kill(child.pid, signal.SIGKILL)  # the fork that holds the connection
