"""Files made wrong in hundreds of ways: each is refused in one sentence, or is right; soon, and in little memory."""

import os
import sys
import time

import fuzz_worker
import pytest
from fuzz_kinds import KINDS, Job, make_mutant
from fuzz_worker import fuzz, make_jobs

MUTANTS = 300


@pytest.mark.parametrize("kind", KINDS)
def test_a_wrong_file_is_refused_in_one_sentence(kind):
    tally = fuzz(kind, range(MUTANTS))
    assert tally.mutants == MUTANTS and not tally.problems, tally.problems[:5]
    assert tally.codes[2] > MUTANTS / 2, "most mutants of a file are wrong"


def _says(text, code=2):
    print(text, file=sys.stderr)
    return code


WRONG = {
    "an exception": (lambda folder: {}["x"], "KeyError"),
    "a way out": (lambda folder: sys.exit(2), "SystemExit"),
    "a crash": (lambda folder: os._exit(7), "ended by 7"),
    "another code": (lambda folder: 3, "exit code 3"),
    "no message": (lambda folder: 2, "not one message"),
    "two messages": (lambda folder: _says("hyperparallel: a\nhyperparallel: b"), "not one message"),
    "a traceback": (lambda folder: _says("hyperparallel: a\nTraceback (most recent call last)"), "a traceback"),
    "a long message": (lambda folder: _says("hyperparallel: " + "x" * 5000), "a message of 5016 characters"),
    "much memory": (lambda folder: len(b"x" * 60_000_000) * 0, " MB"),
    "more than there is": (lambda folder: len(bytearray(10**12)), "MemoryError"),
    "a long time": (lambda folder: time.sleep(0.3) or 0, "0.3 s"),
    "no end": (lambda folder: time.sleep(60), "ended by -9"),
    "a change that is believed": (lambda folder: 0, "a changed file was believed"),
}


@pytest.mark.parametrize(("command", "said"), WRONG.values(), ids=WRONG)
def test_the_test_sees_what_goes_wrong(monkeypatch, command, said):
    monkeypatch.setattr(fuzz_worker, "SECONDS", 0.25)
    monkeypatch.setattr(fuzz_worker, "MEGABYTES", 50.0)
    jobs = [Job({"a.json": b'{"a": 1, "sha256": ""}'}, ("a.json",), command, sealed=True)]
    monkeypatch.setattr(fuzz_worker, "make_jobs", lambda kind, folder: jobs)
    seeds = [seed for seed in range(100) if not make_mutant(jobs, "x", seed).resealed]
    tally = fuzz("x", seeds[:1])
    assert said in tally.problems[0][1]


def test_a_seed_makes_the_same_file_again(tmp_path):
    jobs = make_jobs("device", tmp_path / "right")
    files = [[make_mutant(jobs, "device", seed).content for seed in range(50)] for _ in range(2)]
    assert files[0] == files[1] and len(set(files[0])) > 40
