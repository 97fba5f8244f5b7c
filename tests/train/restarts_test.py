#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""When a rank dies, a run starts again from its newest checkpoint, and ends as if nothing had been: restarts_test.py SHERD [PYTHON]

With PYTHON, whose torch has torchrun, under torchrun's own restarts, too.
"""
import json
import os
import pathlib
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

STORY = pathlib.Path(__file__).parents[2] / "examples" / "tiny.txt"
ALL = os.environ.get("SHERD_TEST_ALL") == "1"
SHERD = sys.argv[1]
STEPS, SAMPLES, EVERY = 40, 4, 3
ENVIRONMENT = dict(os.environ, OMP_NUM_THREADS="1")


def settings(place, out, ranks, **more):
    values = {"data.text": STORY, "data.seq": 32, "data.batch": 1, "data.micro_batches": SAMPLES // ranks, "model.dim": 32,
              "model.layers": 2, "model.heads": 2, "optim.lr": 3e-3, "optim.max_norm": 1.0, "train.steps": STEPS,
              "train.out": f"{place}/{out}", "train.save_every": EVERY, "train.keep": 2, "device.kind": "cpu",
              "device.operation_limit": 10, **{key.replace("__", "."): value for key, value in more.items()}}
    return [f"--set={key}={value}" for key, value in values.items()]


def command(place, out, ranks, *words, **more):
    return [SHERD, "train", f"{place}/empty.toml", "--ranks", str(ranks), *words, *settings(place, out, ranks, **more)]


def metrics(place, out):
    return [json.loads(line) for line in pathlib.Path(f"{place}/{out}/metrics.jsonl").read_text().splitlines()]


def ranks_below(pid):
    """The processes of the ranks that a process has started, itself or through mpirun."""
    below = []
    for child in subprocess.run(["pgrep", "-P", str(pid)], capture_output=True, text=True).stdout.split():
        try:
            variables = pathlib.Path(f"/proc/{child}/environ").read_bytes()
        except OSError:
            continue
        if re.search(rb"(^|\0)(OMPI_COMM_WORLD_RANK|RANK)=", variables):
            below.append(int(child))
        below += ranks_below(child)
    return below


class Run:
    """A run that is watched line by line, and something done to it on the way."""

    def __init__(self, words):
        self.process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=ENVIRONMENT)
        self.text = ""

    def until(self, pattern):
        for line in self.process.stdout:
            self.text += line
            if re.search(pattern, line):
                return
        raise AssertionError(f"no line with {pattern}:\n{self.text}")

    def until_step(self, step):
        self.until(rf"^step +{step}/")

    def strike(self, which=signal.SIGKILL):
        """One of the ranks, at any moment of the next steps."""
        time.sleep(random.uniform(0, 0.05))
        found = ranks_below(self.process.pid)
        assert found, self.text
        os.kill(random.choice(found), which)

    def end(self, code=0):
        self.text += self.process.communicate(timeout=120)[0]
        assert self.process.returncode == code, (self.process.returncode, self.text)
        return self.text


def same(place, out, expected, tolerance=0):
    got = metrics(place, out)
    assert [step["step"] for step in got] == list(range(1, STEPS + 1)), [step["step"] for step in got]
    for key in ("loss", "grad_norm", "lr"):
        for a, b in zip(got, expected, strict=True):
            assert abs(a[key] - b[key]) <= tolerance * b[key], (out, key, a, b)


def a_killed_rank_does_not_end_the_run(place, expected):
    for number in range(3 if ALL else 1):
        run = Run(command(place, f"killed{number}", 2, "--restarts", "2"))
        run.until_step(random.randint(EVERY + 1, STEPS // 2))
        run.strike()
        text = run.end()
        assert "starting 2 ranks again from the newest checkpoint (restart 1 of 2)" in text, text
        assert "continuing from" in text and "restart 2" not in text, text
        same(place, f"killed{number}", expected)


def fewer_ranks_go_on_with_the_same_samples(place, expected):
    run = Run(command(place, "fewer", 4, "--restarts", "2", "--min-ranks", "2"))
    run.until_step(EVERY + 2)
    run.strike()
    text = run.end()
    assert "starting 2 ranks again" in text, text  # not 3: a step has 4 samples
    assert "data.micro_batches = 2, was 1" in text, text
    same(place, "fewer", expected, 1e-4)


def a_hang_ends_within_the_limit(place, expected):
    run = Run(command(place, "hung", 2, "--restarts", "1", device__operation_limit=3))
    run.until_step(EVERY + 1)
    begin = time.monotonic()
    run.strike(signal.SIGSTOP)
    run.until(r"starting 2 ranks again")
    assert time.monotonic() - begin < 15, run.text
    run.end()
    same(place, "hung", expected)


def a_dead_launcher_is_started_again_when_its_ranks_have_ended(place, expected):
    run = Run(command(place, "launcher", 2, "--restarts", "1"))
    run.until_step(EVERY + 1)
    mpirun = subprocess.run(["pgrep", "-P", str(run.process.pid)], capture_output=True, text=True).stdout.split()
    os.kill(int(mpirun[0]), signal.SIGKILL)
    text = run.end()
    assert "starting 2 ranks again" in text and "is in use" not in text, text
    same(place, "launcher", expected)


def a_snapshot_loses_few_steps(place, expected):
    keys = {"train__save_every": 0, "train__snapshot_every": 2}
    for save in ("foreground", "background"):
        out = f"snapshots-{save}"
        run = Run(command(place, out, 2, "--restarts", "1", train__save=save, **keys))
        run.until_step(random.randint(9, STEPS // 2))
        run.strike()
        begin = time.monotonic()
        run.until(r"continuing from /dev/shm/")
        run.until(r"^step ")
        print(f"from kill to the next step with a snapshot: {time.monotonic() - begin:.1f} s", flush=True)
        run.end()
        same(place, out, expected)
        before, after = ([int(step) for step in re.findall(r"^step +(\d+)/", part, re.M)]
                         for part in run.text.split("continuing from"))
        assert before[-1] + 1 - after[0] <= 2 + (save == "background"), (before, after)  # steps that were made again
        memory = pathlib.Path("/dev/shm") / (place / out / "snapshots.txt").read_text().strip()
        assert not memory.exists(), list(memory.iterdir())
    # What a run has left whose results were removed is of no use to the next one.
    run = Run(command(place, "left", 2, train__steps=100000, **keys))
    run.until_step(6)
    run.strike()
    run.end(128 + signal.SIGKILL)
    left = pathlib.Path("/dev/shm") / (place / "left/snapshots.txt").read_text().strip()
    assert any(left.iterdir())
    damaged = max(left.glob("step-*"), key=lambda path: int(path.name[5:]))
    weights = next(damaged.glob("model-*.safetensors"))
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)
    text = Run(command(place, "left", 2, train__steps=100000, **keys)).end(2)
    assert "damaged" in text and f"remove {damaged}" in text, text
    shutil.rmtree(place / "left")
    assert "continuing from" not in Run(command(place, "left", 2, **keys)).end()
    shutil.rmtree(left)


def what_would_not_help_is_not_tried(place):
    for code, words, more, said in (
            (3, ["--restarts", "2"], {"optim__lr": 1e30}, "is not finite"),
            (2, ["--restarts", "2"], {"data__text": place / "none.txt"}, "none.txt"),
            (2, ["--restarts", "2", "--min-ranks", "3"], {}, "--min-ranks 3: the run has 2 ranks"),
            (2, ["--min-ranks", "1"], {}, "give --restarts as well"),
            (2, ["--restarts", "1"], {"train__resume": "none"}, "remove the key")):
        text = Run(command(place, "refused", 2, *words, **more)).end(code)
        assert said in text and "again from" not in text, (said, text)
    text = Run([*command(place, "refused", 4, "--restarts", "1", "--min-ranks", "3")]).end(2)
    assert "--min-ranks 3: with 3 of 4 ranks, no number of micro-batches" in text, text


def a_stop_signal_ends_it(place):
    run = Run(command(place, "stopped", 2, "--restarts", "2", train__steps=100000))
    run.until_step(3)
    run.process.send_signal(signal.SIGUSR1)
    text = run.end()
    assert "stopped by a signal" in text and "again from" not in text, text


def the_last_restart_fails_with_the_run(place):
    run = Run(command(place, "twice", 2, "--restarts", "1", train__steps=100000))
    run.until_step(4)
    run.strike()
    run.until(r"continuing from")
    run.until(r"^step ")
    run.strike()
    text = run.end(128 + signal.SIGKILL)
    assert "started again 1 times (--restarts): that was the last" in text, text


def torchrun_restarts_the_ranks_itself(place, python, expected):
    torchrun = [python, "-m", "torch.distributed.run", "--no-python", "--nproc-per-node", "2", "--max-restarts", "1"]
    run = Run([*torchrun, SHERD, "train", f"{place}/empty.toml", *settings(place, "torchrun", 2)])
    run.until_step(EVERY + 1)
    run.strike()
    assert "continuing from" in run.end()
    same(place, "torchrun", expected)
    refused = Run([*torchrun, SHERD, "train", f"{place}/empty.toml", "--restarts", "1", *settings(place, "refused", 2)])
    refused.process.wait(120)
    assert "torchrun with --max-restarts" in refused.process.stdout.read()


def ranks_end_with_torchrun(place, python):
    torchrun = [python, "-m", "torch.distributed.run", "--no-python", "--nproc-per-node", "2"]
    run = Run([*torchrun, SHERD, "train", f"{place}/empty.toml", *settings(place, "orphans", 2, train__steps=100000)])
    run.until_step(3)
    ranks = ranks_below(run.process.pid)
    assert len(ranks) == 2, ranks
    run.process.kill()
    end = time.monotonic() + 30
    while any(pathlib.Path(f"/proc/{rank}").exists() for rank in ranks):
        assert time.monotonic() < end, "the ranks live on"
        time.sleep(0.1)
    text = run.process.stdout.read()
    assert "stopped by a signal after step" in text, text
    last = metrics(place, "orphans")[-1]["step"]
    assert (pathlib.Path(f"{place}/orphans/step-{last}/state.json")).exists(), "nothing was saved"


def main():
    seed = int(os.environ.get("SHERD_TEST_SEED", random.randrange(10**6)))
    random.seed(seed)
    print(f"SHERD_TEST_SEED={seed}", flush=True)
    with tempfile.TemporaryDirectory() as place:
        place = pathlib.Path(place)
        (place / "empty.toml").write_text("")
        subprocess.run(command(place, "whole", 2), check=True, stdout=subprocess.DEVNULL, env=ENVIRONMENT)
        expected = metrics(place, "whole")
        if len(sys.argv) > 2:
            torchrun_restarts_the_ranks_itself(place, sys.argv[2], expected)
            ranks_end_with_torchrun(place, sys.argv[2])
            return
        a_killed_rank_does_not_end_the_run(place, expected)
        if not ALL:
            return
        fewer_ranks_go_on_with_the_same_samples(place, expected)
        a_snapshot_loses_few_steps(place, expected)
        a_hang_ends_within_the_limit(place, expected)
        a_dead_launcher_is_started_again_when_its_ranks_have_ended(place, expected)
        what_would_not_help_is_not_tried(place)
        a_stop_signal_ends_it(place)
        the_last_restart_fails_with_the_run(place)


main()
