#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A signal, and those that follow it within moments, end a run after its step, with everything written: signals_test.py SHERD FORK_SERVER"""
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile

sys.path.append(str(pathlib.Path(__file__).parents[1]))
from fork_server import ForkServer  # noqa: E402

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


def stops_cleanly(sherd, server, which, ranks):
    with tempfile.TemporaryDirectory() as place:
        place = pathlib.Path(place)
        process = start(sherd, place, ranks)
        # Held up, so that all arrive before it can stop.
        os.kill(process.pid, signal.SIGSTOP)
        for one in which:
            process.send_signal(one)
        os.kill(process.pid, signal.SIGCONT)
        rest, _ = process.communicate(timeout=60)
        assert process.returncode == 0, (process.returncode, rest)
        steps = [json.loads(line)["step"] for line in (place / "out/metrics.jsonl").read_text().splitlines()]
        assert steps == list(range(1, len(steps) + 1)), steps
        assert f"stopped by a signal after step {steps[-1]}" in rest, rest
        saved = place / f"out/step-{steps[-1]}"
        server.run(["checkpoint", "verify", saved]).check_returncode()
        assert json.loads((saved / "state.json").read_text())["step"] == steps[-1]
        assert (place / "out/report.html").read_text().endswith("</html>\n")


def main():
    with ForkServer(sys.argv[2]) as server:
        for ranks in (1, 3):
            for which in ([signal.SIGINT], [signal.SIGUSR1], [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1]):
                stops_cleanly(sys.argv[1], server, which, ranks)


main()
