#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The job script and the commands of docs/machines.md under a real Slurm: slurm_test.py SHERD [LOG]

Four CPU ranks on two nodes: srun; a rank that is killed, after which the job is queued again and goes on; a time limit
that saves. LOG gets what the jobs wrote.
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

import cluster

ROOT = pathlib.Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "examples" / "slurm.sbatch"
SHERD = pathlib.Path(sys.argv[1]).resolve()
STEPS = 200
JOB = ["--nodes=2", "--ntasks-per-node=2", "--gpus-per-node=0", "--time=5"]
SAID = []


def words(place, out, **more):
    values = {"data.text": ROOT / "examples/tiny.txt", "data.seq": 32, "model.dim": 32, "model.layers": 2, "model.heads": 2,
              "optim.max_norm": 1.0, "train.steps": STEPS, "train.save_every": 10, "train.keep": 2, "train.out": place / out,
              "device.kind": "cpu", "device.operation_limit": 10, **{key.replace("__", "."): value for key, value in more.items()}}
    return [place / "empty.toml", *(f"--set={key}={value}" for key, value in values.items())]


def results(place, out):
    lines = [json.loads(line) for line in (place / out / "metrics.jsonl").read_text().splitlines()]
    return [(line["step"], line["loss"], line["grad_norm"]) for line in lines]


def is_telling(line):
    """Not most of the steps, nor what c10d says of every connection."""
    step = re.match(r"step +(\d+)/", line)
    return not line.startswith("[W") and (not step or int(step[1]) == 1 or int(step[1]) % 50 == 0)


def until(fine, seconds, text):
    end = time.monotonic() + seconds
    while not fine():
        assert time.monotonic() < end, text()
        time.sleep(0.05)


class Job:
    def __init__(self, slurm, place, name, options, arguments):
        self.slurm, self.log = slurm, place / f"{name}.log"
        self.number = slurm("sbatch", "--parsable", *JOB, *options, f"--output={self.log}", SCRIPT, *arguments).strip()

    def text(self):
        return self.log.read_text() if self.log.exists() else ""

    def until_text(self, pattern, seconds=60):
        until(lambda: re.search(pattern, self.text(), re.M), seconds,
              lambda: f"no '{pattern}' in {self.text()}\n{self.slurm('squeue')}\n{self.slurm.logs()}")

    def until_state(self, wanted, seconds=60):
        until(lambda: self.slurm.state(self.number)[0] == wanted, seconds, lambda: f"{self.slurm.state(self.number)}\n{self.text()}")

    def keep(self, title):
        SAID.append(f"==== {title}\n{self.text()}")


def ranks():
    return subprocess.run(["pgrep", "-x", "sherd"], capture_output=True, text=True).stdout.split()


def srun_starts_ranks(slurm, place, expected):
    said = slurm("srun", *JOB[:3], "--ntasks=4", SHERD, "train", *words(place, "srun"))
    assert "4 CPU ranks" in said, said
    assert results(place, "srun") == expected


def a_killed_rank_queues_the_job_again(slurm, place, expected):
    job = Job(slurm, place, "killed", [], words(place, "killed"))
    job.until_text(rf"^step +{STEPS // 4}/")
    os.kill(int(ranks()[2]), signal.SIGKILL)
    job.until_text("queued again .error.")
    job.until_state("COMPLETED", 120)
    assert slurm.state(job.number)[1] == 1 and "continuing from" in job.text(), job.text()
    assert results(place, "killed") == expected
    job.keep("a rank is killed: the job is queued again and goes on")


def a_time_limit_saves(slurm, place):
    """The limit is a minute; Slurm looks for those that are up now and then, so the signal comes in that minute."""
    job = Job(slurm, place, "limit", ["--time=1", "--signal=B:USR1@30"], words(place, "limit", train__steps=10**6))
    job.until_text("queued again .time.", 100)
    stopped = int(re.findall(r"stopped by a signal after step (\d+)", job.text())[-1])
    assert (place / f"limit/step-{stopped}/state.json").exists()
    job.until_text(rf"continuing from .*/step-{stopped}$", 60)
    slurm("scancel", job.number)
    until(lambda: not ranks(), 60, job.text)
    job.keep("the time is up: the ranks save, and the job is queued again")


def a_refusal_ends_the_job(slurm, place):
    job = Job(slurm, place, "refused", [], words(place, "refused", train__on_bad_step="never"))
    job.until_state("FAILED")
    assert slurm.state(job.number)[1] == 0 and "train.on_bad_step" in job.text(), job.text()


def main():
    cluster.enter()
    os.environ.update(SHERD=str(SHERD), OMP_NUM_THREADS="1")
    with tempfile.TemporaryDirectory() as folder:
        place = pathlib.Path(folder)
        (place / "empty.toml").write_text("")
        subprocess.run([SHERD, "train", *map(str, words(place, "expected")), "--ranks", "4"], check=True, stdout=subprocess.DEVNULL)
        expected = results(place, "expected")
        (place / "slurm").mkdir()
        with cluster.Cluster(place / "slurm", 2) as slurm:
            srun_starts_ranks(slurm, place, expected)
            a_refusal_ends_the_job(slurm, place)
            a_killed_rank_queues_the_job_again(slurm, place, expected)
            a_time_limit_saves(slurm, place)
        if sys.argv[2:]:
            text = "\n".join(SAID).replace(str(place) + "/", "").replace(str(ROOT) + "/", "")
            pathlib.Path(sys.argv[2]).write_text("".join(filter(is_telling, text.splitlines(keepends=True))))
    print("slurm: all passed")


main()
