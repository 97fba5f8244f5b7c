#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A run names a rank that is slower than the others, and one whose weights are damaged: slow_and_damaged_ranks_test.py SHERD"""
import json
import os
import pathlib
import re
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import time

SHERD = sys.argv[1]
STORY = pathlib.Path(__file__).parents[2] / "examples" / "tiny.txt"
ENVIRONMENT = dict(os.environ, OMP_NUM_THREADS="1")


def start(place, ranks, **changes):
    settings = {"data.text": STORY, "train.steps": 1_000_000, "train.out": "out", "device.kind": "cpu",
                "train.save_every": 0, **{key.replace("__", "."): value for key, value in changes.items()}}
    (place / "empty.toml").write_text("")
    return subprocess.Popen([SHERD, "train", "empty.toml", "--ranks", str(ranks), *(f"--set={key}={value}" for key, value in settings.items())],
                            cwd=place, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=ENVIRONMENT)


def read_until(process, pattern, most_lines=100_000):
    text = ""
    for _ in range(most_lines):
        line = process.stdout.readline()
        assert line, text
        text += line
        if re.search(pattern, line):
            return text
    raise AssertionError(text)


def pid_of(place, rank):
    """From the header of the flight recorder's file."""
    return struct.unpack_from("<q", (place / f"out/flight/rank-{rank}.ring").read_bytes(), 56)[0]


class Slowdown:
    """Takes `share` of a process's time away, in pieces of a few milliseconds, as a slower machine would."""

    def __init__(self, pid, share, period=0.03):
        self.pid, self.share, self.period, self.over = pid, share, period, threading.Event()
        self.thread = threading.Thread(target=self.run)
        self.thread.start()

    def run(self):
        while not self.over.is_set():
            os.kill(self.pid, signal.SIGSTOP)
            time.sleep(self.period * self.share)
            os.kill(self.pid, signal.SIGCONT)
            time.sleep(self.period * (1 - self.share))

    def end(self):
        self.over.set()
        self.thread.join()


def a_rank_slowed_by_30_percent_is_named_within_20_steps(place):
    process = start(place, 2, model__dim=128, model__layers=4, model__heads=4, data__seq=128, data__batch=2)
    text = read_until(process, r"^step +15/")
    assert "stays behind" not in text, text  # of equal ranks on equal cores
    slow = Slowdown(pid_of(place, 1), 0.3 / 1.3)
    try:
        lines = read_until(process, r"stays behind|^step +60/").splitlines()
    finally:
        slow.end()
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
    named = re.search(r"rank 1 on host (\S+) stays behind: in the last 10 steps it computed [\d.]+ ms a step, the fastest rank", lines[-1])
    assert named and named[1] == os.uname().nodename, lines
    first = int(re.match(r"step +(\d+)", next(line for line in lines if line.startswith("step")))[1])
    steps = sum(line.startswith("step") for line in lines)
    print(f"named after {steps} steps, from step {first} on")
    assert steps <= 20, lines
    metrics = [json.loads(line) for line in (place / "out/metrics.jsonl").read_text().splitlines()]
    slowed = metrics[first + 1:first + steps]
    assert sum(one["slowest_rank"] == 1 for one in slowed) > 0.7 * len(slowed), slowed
    for one in metrics:
        assert 0 <= one["spread_seconds"] <= one["slowest_seconds"] <= one["step_seconds"] * 1.5, one
    report = (place / "out/report.html").read_text()
    assert "was the slowest in" in report and "Computing time of a rank, ms" in report


def damage(pid, pattern):
    """Flips a bit wherever a process's memory has these bytes; returns at how many places."""
    found = 0
    with open(f"/proc/{pid}/mem", "r+b", buffering=0) as memory:
        for line in pathlib.Path(f"/proc/{pid}/maps").read_text().splitlines():
            words = line.split()
            if not words[1].startswith("rw") or (len(words) > 5 and words[5].startswith(("/dev", "[v"))):
                continue
            begin, end = (int(part, 16) for part in words[0].split("-"))
            try:
                memory.seek(begin)
                data = memory.read(end - begin)
            except OSError:
                continue
            at = data.find(pattern)
            while at >= 0:
                memory.seek(begin + at)
                memory.write(bytes([pattern[0] ^ 1]))
                found += 1
                at = data.find(pattern, at + len(pattern))
    return found


def weights_of(folder, name):
    """The first bytes of a tensor of the checkpoint."""
    for file in folder.glob("model-*.safetensors"):
        data = file.read_bytes()
        length = struct.unpack_from("<q", data)[0]
        header = json.loads(data[8:8 + length])
        if name in header:
            begin = 8 + length + header[name]["data_offsets"][0]
            return data[begin:begin + 64]
    raise AssertionError(f"{folder} has no {name}")


def a_flipped_bit_is_named_with_parameter_rank_and_host(place):
    # With so small a learning rate the weights stay as they are, and a run of one step tells what they are.
    settings = {"model__dim": 32, "model__layers": 1, "model__heads": 2, "data__seq": 16, "shard__strategy": "no_shard",
                "precision__recipe": "fp32", "optim__lr": 1e-30}
    first = start(place, 1, **settings, train__steps=1, train__out="first", train__export_dtype="fp32")
    text = first.communicate(timeout=60)[0]
    assert first.returncode == 0, text
    process = start(place, 3, **settings, train__verify_replicas=2)
    text = read_until(process, r"^step +4/")
    assert damage(pid_of(place, 1), weights_of(place / "first/step-1", "model.layers.0.mlp.down_proj.weight")) > 0
    text += process.communicate(timeout=60)[0]
    assert process.returncode != 0, text
    assert re.search(r"\[train\] train.verify_replicas in step \d+: the main weight of parameter '\S*down.weight' on rank 1 is not "
                     r"that of ranks 0, 2, which agree \(rank 1 runs on host \S+\)", text), text
    assert re.search(r"The replicas were equal up to step \d+: start again", text), text


def main():
    for test in (a_rank_slowed_by_30_percent_is_named_within_20_steps, a_flipped_bit_is_named_with_parameter_rank_and_host):
        if sys.argv[2:] and test.__name__ not in sys.argv[2:]:
            continue
        with tempfile.TemporaryDirectory() as place:
            begin = time.monotonic()
            test(pathlib.Path(place))
            print(f"{test.__name__}: {time.monotonic() - begin:.1f} s", flush=True)


main()
