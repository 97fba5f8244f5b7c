#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Killed at any moment, again and again, a run goes on as if nothing had been: resume_test.py SHERD [KILLS]"""
import json
import os
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time

STORY = pathlib.Path(__file__).parents[2] / "examples" / "tiny.txt"
ALL = os.environ.get("SHERD_TEST_ALL") == "1"
STEPS, SAMPLES = 90 if ALL else 45, 4  # samples of a step, on all ranks together
KEPT = [f"step-{STEPS - 3}", f"step-{STEPS}"]


def command(sherd, place, out, ranks, save="foreground"):
    settings = {"data.text": STORY, "data.seq": 32, "data.batch": SAMPLES // ranks, "model.dim": 32, "model.layers": 2,
                "model.heads": 2, "optim.lr": 3e-3, "optim.max_norm": 1.0, "train.steps": STEPS, "train.out": f"{place}/{out}",
                "train.save_every": 3, "train.keep": 2, "train.save": save, "device.kind": "cpu"}
    return [sherd, "train", f"{place}/empty.toml", "--ranks", str(ranks), *(f"--set={k}={v}" for k, v in settings.items())]


def metrics(place, out):
    return [json.loads(line) for line in pathlib.Path(f"{place}/{out}/metrics.jsonl").read_text().splitlines()]


def kill(process):
    """The launcher and all ranks, with no chance to do anything."""
    for line in subprocess.run(["pgrep", "-s", str(process.pid)], capture_output=True, text=True).stdout.split():
        try:
            os.kill(int(line), signal.SIGKILL)
        except ProcessLookupError:
            pass
    process.wait()


def main():
    sherd, kills = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 6 if ALL else 3
    random.seed(5)
    environment = dict(os.environ, OMP_NUM_THREADS="1")
    with tempfile.TemporaryDirectory() as place:
        pathlib.Path(f"{place}/empty.toml").write_text("")
        subprocess.run(command(sherd, place, "whole", 2), check=True, stdout=subprocess.DEVNULL, env=environment)
        expected = metrics(place, "whole")
        for worlds, save in (((2,), "foreground"), ((1, 2, 4), "background")):
            out = f"killed{len(worlds)}"
            resumed = set()
            for _ in range(kills):
                with subprocess.Popen(command(sherd, place, out, random.choice(worlds), save), stdout=subprocess.PIPE, text=True,
                                      stderr=subprocess.DEVNULL, env=environment, start_new_session=True) as process:
                    left = random.randint(1, 2 * STEPS // kills)  # steps, then at any moment of the next ones
                    for line in process.stdout:
                        if line.startswith("continuing from"):
                            resumed.add(line)
                        left -= line.startswith("step")
                        if left <= 0:
                            break
                    time.sleep(random.uniform(0, 0.05))
                    kill(process)
            subprocess.run(command(sherd, place, out, random.choice(worlds), save), check=True, stdout=subprocess.DEVNULL,
                           env=environment)
            got = metrics(place, out)
            assert [step["step"] for step in got] == list(range(1, STEPS + 1)), [step["step"] for step in got]
            assert resumed, "no run came far enough to be resumed"
            for key in ("loss", "grad_norm", "lr"):
                for a, b in zip(got, expected, strict=True):
                    same = a[key] == b[key] if len(worlds) == 1 else abs(a[key] / b[key] - 1) < 1e-4
                    assert same, (worlds, key, a, b)
            kept = sorted(path.name for path in pathlib.Path(f"{place}/{out}").glob("step-*"))
            assert kept == KEPT, kept
            # Killed before it removed what is old, a run that has nothing left to do removes it.
            shutil.copytree(f"{place}/{out}/{KEPT[0]}", f"{place}/{out}/step-{STEPS - 6}")
            subprocess.run(command(sherd, place, out, 2, save), check=True, stdout=subprocess.DEVNULL, env=environment)
            kept = sorted(path.name for path in pathlib.Path(f"{place}/{out}").glob("step-*"))
            assert kept == KEPT, kept
            print(f"{kills} kills at {worlds} ranks: resumed from {sorted(line.split('/')[-1].strip() for line in resumed)}")


main()
