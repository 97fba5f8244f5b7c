# SPDX-License-Identifier: Apache-2.0
"""A rank that raises, is killed, leaves or never arrives ends the others, with its number and an exit code."""

import os
import pathlib
import re
import signal
import subprocess
import sys
import time

import pytest

ROOT = pathlib.Path(__file__).parents[2]
PROGRAM = pathlib.Path(__file__).with_name("failing_rank.py")
LIMIT = 60.0  # of a loaded machine; it takes seconds


def run(launcher, how, ranks=2):
    """Returns the exit code, what all ranks have printed, and the seconds."""
    mpirun = pathlib.Path(sys.executable).with_name("mpirun")
    if launcher == "mpi" and not mpirun.exists():
        pytest.skip("this build is without MPI")
    runner = [ROOT / "tests/ranks/run_ranks.sh", mpirun if launcher == "mpi" else "tcp", str(ranks)]
    began = time.monotonic()
    done = subprocess.run(
        [*map(str, runner), sys.executable, str(PROGRAM), how],
        capture_output=True,
        text=True,
        timeout=LIMIT,
        env={name: value for name, value in os.environ.items() if not name.startswith(("OMPI", "PMIX", "RANK"))},
    )
    return done.returncode, done.stdout + done.stderr, time.monotonic() - began


def text_of(rank, text):
    """What a rank has printed: mpirun marks pieces of it."""
    pieces = re.split(r"(\[1,\d+\])<\w+>:", text)
    return "".join(piece for mark, piece in zip(pieces[1::2], pieces[2::2], strict=True) if mark == f"[1,{rank}]")


@pytest.mark.alone
@pytest.mark.all
@pytest.mark.parametrize("how", ["raise", "kill", "leave", "absent"])
@pytest.mark.parametrize("launcher", ["mpi", "tcp"])
def test_the_others_end_too(launcher, how):
    code, text, seconds = run(launcher, how)
    print(f"{launcher}, {how}: {seconds:.1f} s, exit code {code}")
    assert code != 0, text
    first = text_of(0, text)
    if how == "kill" and launcher == "mpi":  # mpirun ends the others itself
        assert code == 128 + signal.SIGKILL and "rank 1" in text, (code, text)
        return
    assert "[comm" in first or "[shard" in first, text
    assert "rank 1" in first or "ranks 1" in first, text
    assert "trained" not in first, text
    if how == "raise":
        assert "KeyError: 'the data of rank 1'" in text_of(1, text), text
        assert launcher == "mpi" or {"rank 0 exited with 1", "rank 1 exited with 1"} <= set(text.splitlines()), text


@pytest.mark.alone
@pytest.mark.all
@pytest.mark.parametrize("launcher", ["mpi", "tcp"])
def test_nothing_fails_without_a_failure(launcher):
    code, text, _ = run(launcher, "nothing")
    assert code == 0 and text.count("trained") == 2, text
