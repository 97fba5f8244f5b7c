#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Two hosts of two ranks train as one host of four does, to the last digit: hosts_test.py SHERD MPIRUN PYTHON"""
import os
import pathlib
import subprocess
import sys
import tempfile

import hosts
import training

ALL = os.environ.get("SHERD_TEST_ALL") == "1"
SHERD, MPIRUN, PYTHON = sys.argv[1:4]
HSDP = {"shard__outer": 2}


def on_one_host(place, out, **keys):
    subprocess.run([*map(str, training.words(SHERD, place, out, **keys)), "--ranks", "4"], check=True, stdout=subprocess.DEVNULL)
    return training.results(place, out)


def main():
    hosts.exit_if_impossible()
    with tempfile.TemporaryDirectory() as place, hosts.Hosts(2, rate="1gbit") as two:
        place = pathlib.Path(place)
        expected = on_one_host(place, "one", **HSDP)
        assert len(expected) == 8

        def check(out, commands, same):
            text = training.run(commands)
            assert "4 CPU ranks" in text, text
            assert training.results(place, out) == same, (out, training.results(place, out), same)

        check("mpi", [two.mpirun(MPIRUN, 2, training.words(SHERD, place, "mpi", **HSDP, device__interface="eth0"))], expected)
        if not ALL:
            return
        check("tcp", two.by_hand(2, training.words(SHERD, place, "tcp", **HSDP, device__interface="eth0")), expected)
        check("torchrun", two.torchrun(PYTHON, 2, training.words(SHERD, place, "torchrun", **HSDP)), expected)
        zero3 = on_one_host(place, "one3")
        check("mpi3", [two.mpirun(MPIRUN, 2, training.words(SHERD, place, "mpi3"))], zero3)
        two.set_rate("200mbit")
        check("tcp3", two.by_hand(2, training.words(SHERD, place, "tcp3")), zero3)
        wrong = training.Started(two.by_hand(2, training.words(SHERD, place, "wrong", device__interface="eth7")))
        assert set(wrong.end(60).values()) != {0} and "no network interface 'eth7'" in wrong.text(), wrong.text()


main()
