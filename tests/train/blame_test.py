#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What `sherd blame` says of runs of three ranks in which one is killed, stopped or asked, or does something else:
blame_test.py RUN_RANKS LAUNCHER SHERD OTHER_UNITS_PROGRAM FORK_SERVER [TEST…]

LAUNCHER: mpirun, or `tcp` for ranks without MPI.
"""
import json
import os
import pathlib
import re
import signal
import struct
import subprocess
import sys
import tempfile
import time

sys.path.append(str(pathlib.Path(__file__).parents[1]))
from fork_server import ForkServer  # noqa: E402

RUN_RANKS, LAUNCHER, SHERD, OTHER_UNITS = sys.argv[1:5]
STORY = pathlib.Path(__file__).parents[2] / "examples" / "tiny.txt"
ENVIRONMENT = dict(os.environ, OMP_NUM_THREADS="1")
SERVER = ForkServer(sys.argv[5], ENVIRONMENT)
OVER_TCP = LAUNCHER == "tcp"


def blame(place, *arguments, code=None):
    done = SERVER.run(["blame", str(place), *arguments], cwd=place)
    assert code is None or done.returncode == code, (done.returncode, done.stdout, done.stderr)
    return done.stdout + done.stderr


class Run:
    """A training of three ranks that goes on until it is ended."""

    def __init__(self, place, steps=1_000_000, **changes):
        self.out = place / "out"
        settings = {"data.text": STORY, "data.seq": 16, "model.dim": 16, "model.layers": 2, "model.heads": 2,
                    "train.steps": steps, "train.out": "out", "train.save_every": 0, "device.kind": "cpu",
                    **{key.replace("__", "."): value for key, value in changes.items()}}
        (place / "empty.toml").write_text("")
        self.process = subprocess.Popen(
            [RUN_RANKS, LAUNCHER, "3", SHERD, "train", "empty.toml", *(f"--set={key}={value}" for key, value in settings.items())],
            cwd=place, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=ENVIRONMENT)
        self.text = ""

    def await_step(self, step):
        while not re.search(rf"step +{step}/", self.text):
            line = self.process.stdout.readline()
            assert line, self.text
            self.text += line

    def pid(self, rank):
        """From the recorder's header."""
        return struct.unpack_from("<q", (self.out / f"flight/rank-{rank}.ring").read_bytes(), 56)[0]

    def finish(self):
        self.text += self.process.communicate(timeout=90)[0]
        return self.process.returncode


def a_healthy_run_blames_nobody(place):
    run = Run(place, steps=6)
    assert run.finish() == 0, run.text
    text = blame(run.out, "--trace", str(place / "trace.json"), code=0)
    assert "All 3 ranks on 1 host ended well after step 6." in text, text
    events = json.loads((place / "trace.json").read_text())["traceEvents"]
    names = [event["args"]["name"] for event in events if event["name"] == "process_name"]
    assert len(names) == 3 and names[1].startswith("rank 1 ("), names
    for process in (1, 2, 3):
        shown = {event["name"] for event in events if event["ph"] == "X" and event["pid"] == process}
        assert {"step 6", "gather layer0", "wait layer1"} <= shown, shown
        assert any(name.startswith("reduce_scatter ") for name in shown), shown
    # Another process of the run keeps what this one has recorded.
    run = Run(place, steps=8)
    assert run.finish() == 0, run.text
    assert "after step 8." in blame(run.out, code=0) and "after step 6." in blame(run.out / "flight/before", code=0)


def a_killed_rank_is_named(place):
    run = Run(place)
    run.await_step(3)
    os.kill(run.pid(1), signal.SIGKILL)
    assert run.finish() != 0, run.text
    text = blame(run.out, code=1)
    assert re.search(r"Rank 1 \(host \S+\) gave no sign of life after .*: its process \d+ is gone.*; it was in step \d+", text), text
    assert text.count("gave no sign of life") == 1, text
    # Over mpi the launcher ends the others.
    assert ("rank 1 is gone" if OVER_TCP else "asked ranks 0 and 2 to end") in text, text


def a_stopped_rank_is_named(place):
    run = Run(place, device__operation_limit=2)
    run.await_step(3)
    pid = run.pid(1)
    os.kill(pid, signal.SIGSTOP)
    # While it hangs, a signal to the others shows it as well, and the run goes on.
    time.sleep(0.5)
    os.kill(run.pid(0), signal.SIGUSR2)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and "time limit" not in (text := blame(run.out)):
        time.sleep(0.3)
    assert re.search(r"Rank 1 \(host \S+\) gave no sign of life after .*: its process \d+ is stopped", text), text
    assert re.search(r"at the operation's time limit: .*no word from ranks? .*1", text), text
    try:
        os.kill(pid, signal.SIGCONT)
    except ProcessLookupError:
        assert not OVER_TCP  # mpirun has ended it
    assert run.finish() != 0, run.text


def a_rank_that_runs_other_units_is_named(place):
    done = subprocess.run([RUN_RANKS, LAUNCHER, "3", OTHER_UNITS, "."], cwd=place, timeout=90, capture_output=True,
                          text=True, env=ENVIRONMENT)
    assert done.returncode != 0, done.stdout
    text = blame(place, code=1)
    assert re.search(r"Rank 1 \(host \S+\) called unit 'third' as number 2 of a forward in step 3, where ranks 0 and 2 "
                     r"called 'first'", text), (text, done.stderr)
    assert "The first error was that of rank" in text, text


def a_request_by_signal_leaves_the_run_alone(place):
    run = Run(place, steps=400)
    run.await_step(3)
    for rank in range(3):
        os.kill(run.pid(rank), signal.SIGUSR2)
    assert run.finish() == 0, run.text
    assert "after step 400." in blame(run.out, code=0)
    for rank in range(3):
        asked = struct.unpack_from("<q", (run.out / f"flight/rank-{rank}.ring").read_bytes(), ASKED)[0]
        assert asked > 0, rank


# Where the header has the moment of SIGUSR2: behind magic, version, entry size, nine numbers, host, backend and four.
ASKED = 8 + 4 + 4 + 9 * 8 + 64 + 16 + 4 * 8


def the_recorder_can_be_switched_off(place):
    run = Run(place, steps=2, train__flight_recorder=0)
    assert run.finish() == 0, run.text
    assert not (run.out / "flight").exists()
    assert "has no files rank-<number>.ring" in blame(run.out, code=2)


def main():
    tests = [a_healthy_run_blames_nobody, a_killed_rank_is_named, a_stopped_rank_is_named,
             a_rank_that_runs_other_units_is_named, a_request_by_signal_leaves_the_run_alone, the_recorder_can_be_switched_off]
    for test in tests:
        if sys.argv[6:] and test.__name__ not in sys.argv[6:]:
            continue
        with tempfile.TemporaryDirectory() as place:
            begin = time.monotonic()
            test(pathlib.Path(place))
            print(f"{test.__name__}: {time.monotonic() - begin:.1f} s", flush=True)


main()
