#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Faults at random moments of a run on two hosts: it ends everywhere within the limit, and loses nothing.

faults_test.py SHERD MPIRUN PYTHON [TIMES [FAULT…]]: by default once, three times in a run of all tests
"""
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

import hosts
import training

SHERD = sys.argv[1]
TIMES = int(sys.argv[4]) if len(sys.argv) > 4 else 3 if os.environ.get("SHERD_TEST_ALL") == "1" else 1
LIMIT = 10  # seconds: device.operation_limit
MARGIN = 10  # to say so and to end, on a busy machine
STEPS = 60
RANKS = 4


class Case:
    """One run that is disturbed."""

    def __init__(self, two, place, out, disk, expected):
        self.two, self.place, self.out, self.disk, self.expected = two, place, out, disk, expected

    def words(self, **more):
        keys = {"train__steps": STEPS, "train__save_every": 5, "train__keep": 2, "device__operation_limit": LIMIT,
                "device__interface": "eth0", **more}
        return training.words(SHERD, self.place, self.out, **keys)

    def start(self, commands):
        """A run that has come to any step but the last ones."""
        started = training.Started(commands)
        started.until(f"step {random.randint(6, STEPS // 2):2}/{STEPS}")
        time.sleep(random.uniform(0, 0.05))
        self.struck = time.monotonic()
        return started

    def check_ended(self, started, but=()):
        codes = started.end(LIMIT + MARGIN, but)
        return codes, time.monotonic() - self.struck

    def goes_on(self):
        """Started again, it ends as if nothing had been."""
        text = training.run(self.two.by_hand(2, self.words(), port=random.randint(20000, 30000)))
        assert "continuing from" in text, text
        self.same()

    def same(self):
        got = training.results(self.place, self.out)
        assert got == self.expected, [pair for pair in zip(got, self.expected) if pair[0] != pair[1]] or len(got)

    def by_hand(self):
        return self.start(self.two.by_hand(2, self.words(), port=random.randint(20000, 30000)))

    def process_of(self, rank):
        return self.two.ranks(rank // 2)[rank]


def a_killed_rank(case):
    rank = random.randrange(RANKS)
    started = case.by_hand()
    os.kill(case.process_of(rank), signal.SIGKILL)
    codes, seconds = case.check_ended(started)
    assert all(code != 0 for code in codes.values()), codes
    assert f"rank {rank} is gone" in started.text(), started.text()
    case.goes_on()
    return seconds


def a_stopped_rank(case):
    rank = random.randrange(RANKS)
    started = case.by_hand()
    stopped = case.process_of(rank)
    os.kill(stopped, signal.SIGSTOP)
    try:
        codes, seconds = case.check_ended(started, but={rank})
        assert all(code != 0 for code in codes.values()), codes
        assert f"rank {rank} does not answer" in started.text(), started.text()
    finally:
        os.kill(stopped, signal.SIGKILL)
    started.end(10)
    case.goes_on()
    return seconds


def a_link_that_goes_down(case):
    started = case.by_hand()
    case.two.set_link(1, "down")
    try:
        codes, seconds = case.check_ended(started)
    finally:
        case.two.set_link(1, "up")
    assert all(code != 0 for code in codes.values()), codes
    # Each side misses ranks of the other; which of them depends on where the collective was.
    assert re.search("rank [23] does not answer", started.texts[0] + started.texts[1]), started.text()
    assert re.search("rank [01] does not answer", started.texts[2] + started.texts[3]), started.text()
    case.goes_on()
    return seconds


def a_full_disk_during_a_save(case):
    ballast = case.disk / "ballast"
    words = case.words()
    started = case.start(case.two.by_hand(2, words, port=random.randint(20000, 30000)))
    free = shutil.disk_usage(case.disk).free
    with open(ballast, "wb") as file:
        try:
            file.write(bytes(max(0, free - 4096)))
        except OSError:
            pass
    try:
        started.until("checkpoint not saved", 30)
    finally:
        ballast.unlink()
    codes, seconds = case.check_ended(started)
    assert not any(codes.values()), (codes, started.text())
    return seconds


def a_host_that_never_arrives(case):
    case.struck = time.monotonic()
    started = training.Started(case.two.by_hand(2, case.words(device__start_limit=5), port=random.randint(20000, 30000))[:2])
    codes, seconds = case.check_ended(started)
    assert all(code != 0 for code in codes.values()), codes
    assert all("ranks 2, 3 have not arrived" in text for text in started.texts), started.text()
    return seconds


FAULTS = (a_killed_rank, a_stopped_rank, a_link_that_goes_down, a_full_disk_during_a_save, a_host_that_never_arrives)


def main():
    hosts.exit_if_impossible()
    seed = int(os.environ.get("SHERD_TEST_SEED", random.randrange(10**6)))
    random.seed(seed)
    print(f"SHERD_TEST_SEED={seed}", flush=True)
    chosen = [fault for fault in FAULTS if not sys.argv[5:] or fault.__name__ in sys.argv[5:]]
    with tempfile.TemporaryDirectory() as place:
        place = pathlib.Path(place)
        disk = place / "disk"
        disk.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", disk], check=True)  # before the hosts: they see it, too
        try:
            with hosts.Hosts(2, rate="1gbit") as two:
                whole = Case(two, place, "whole", disk, None)
                training.run(two.by_hand(2, whole.words()))
                expected = training.results(place, "whole")
                assert len(expected) == STEPS
                for fault in chosen:
                    seconds = []
                    for number in range(TIMES):
                        out = f"disk/{fault.__name__}{number}"
                        case = Case(two, place, out, disk, expected)
                        seconds.append(fault(case))
                        shutil.rmtree(place / out, ignore_errors=True)
                    print(f"{fault.__name__}: {TIMES} times; ended after {', '.join(f'{s:.1f}' for s in seconds)} s", flush=True)
        finally:
            subprocess.run(["umount", disk], check=True)


main()
