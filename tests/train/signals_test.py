#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A signal ends a run after its step, with everything written; a second one ends it at once: signals_test.py SHERD"""
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time

STORY = pathlib.Path(__file__).parents[2] / "examples" / "tiny.txt"


def start(sherd, place, ranks):
    (place / "run.toml").write_text(
        f'[model]\ndim = 32\nlayers = 2\nheads = 2\n[data]\ntext = "{STORY}"\nseq = 32\n'
        f'[train]\nsteps = 1000000\nout = "{place}/out"\n[device]\nkind = "cpu"\nranks = {ranks}\n')
    process = subprocess.Popen([sherd, "train", str(place / "run.toml")], stdout=subprocess.PIPE, text=True,
                               env=dict(os.environ, OMP_NUM_THREADS="1"))
    for line in process.stdout:
        if line.startswith("step") and "/1000000" in line and int(line.split("/")[0].split()[1]) >= 5:
            return process
    raise AssertionError("the run ended by itself")


def stops_cleanly(sherd, which, ranks):
    with tempfile.TemporaryDirectory() as place:
        place = pathlib.Path(place)
        process = start(sherd, place, ranks)
        process.send_signal(which)
        rest, _ = process.communicate(timeout=60)
        assert process.returncode == 0, (process.returncode, rest)
        steps = [json.loads(line)["step"] for line in (place / "out/metrics.jsonl").read_text().splitlines()]
        assert steps == list(range(1, len(steps) + 1)), steps
        assert f"stopped by a signal after step {steps[-1]}" in rest, rest
        saved = place / f"out/step-{steps[-1]}"
        subprocess.run([sherd, "checkpoint", "verify", str(saved)], check=True, timeout=60, stdout=subprocess.DEVNULL)
        assert json.loads((saved / "state.json").read_text())["step"] == steps[-1]
        assert (place / "out/report.html").read_text().endswith("</html>\n")


def ends_at_once(sherd, ranks):
    with tempfile.TemporaryDirectory() as place:
        process = start(sherd, pathlib.Path(place), ranks)
        os.kill(process.pid, signal.SIGSTOP)  # both arrive before it can stop
        process.send_signal(signal.SIGTERM)
        process.send_signal(signal.SIGINT)
        begin = time.monotonic()
        os.kill(process.pid, signal.SIGCONT)
        process.communicate(timeout=60)
        assert process.returncode != 0
        assert time.monotonic() - begin < 20


def main():
    for ranks in (1, 3):
        for which in (signal.SIGINT, signal.SIGTERM):
            stops_cleanly(sys.argv[1], which, ranks)
        ends_at_once(sys.argv[1], ranks)


main()
