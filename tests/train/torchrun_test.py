#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""CPU ranks that torchrun starts train as those of mpirun do, to the last digit of every loss: torchrun_test.py SHERD PYTHON [MPI]

Without MPI, only that they train. A rank that is killed ends the run, and the others name it.
"""
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import time

STORY = pathlib.Path(__file__).parents[2] / "examples" / "tiny.txt"
SHERD, PYTHON = sys.argv[1:3]
HAS_MPI = sys.argv[3:] == ["MPI"]
TORCHRUN = [PYTHON, "-m", "torch.distributed.run", "--no-python", "--nproc-per-node", "2"]


def configuration(place, name, steps):
    file = place / f"{name}.toml"
    file.write_text(f'[model]\ndim = 32\nlayers = 2\nheads = 2\n[data]\ntext = "{STORY}"\nseq = 32\n'
                    f'[train]\nsteps = {steps}\nout = "{place}/{name}"\n[device]\nkind = "cpu"\n')
    return str(file)


def losses(place, name):
    lines = (place / name / "metrics.jsonl").read_text().splitlines()
    return [(json.loads(line)["loss"], json.loads(line)["grad_norm"]) for line in lines]


def trains_alike(place):
    subprocess.run([*TORCHRUN, SHERD, "train", configuration(place, "tcp", 6)], check=True, timeout=120)
    assert len(losses(place, "tcp")) == 6
    if HAS_MPI:
        subprocess.run([SHERD, "train", configuration(place, "mpi", 6), "--ranks", "2"], check=True, timeout=120)
        assert losses(place, "tcp") == losses(place, "mpi"), (losses(place, "tcp"), losses(place, "mpi"))


def names_a_killed_rank(place):
    run = subprocess.Popen([*TORCHRUN, SHERD, "train", configuration(place, "killed", 100000)], text=True,
                           stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    text = ""
    for line in run.stdout:
        text += line
        if re.match(r"step +3/", line):
            break
    ranks = subprocess.run(["pgrep", "-P", str(run.pid)], text=True, capture_output=True).stdout.split()
    assert len(ranks) == 2, ranks
    second = [pid for pid in ranks if b"\0RANK=1\0" in b"\0" + pathlib.Path(f"/proc/{pid}/environ").read_bytes()]
    begin = time.monotonic()
    os.kill(int(second[0]), signal.SIGKILL)
    text += run.communicate(timeout=60)[0]
    assert run.returncode != 0, text
    assert time.monotonic() - begin < 60
    # torchrun may end the other rank before that could speak.
    assert "rank 1 is gone: its process has ended" in text or "Signal 9 (SIGKILL)" in text, text


def main():
    with tempfile.TemporaryDirectory() as place:
        place = pathlib.Path(place)
        trains_alike(place)
        names_a_killed_rank(place)


main()
