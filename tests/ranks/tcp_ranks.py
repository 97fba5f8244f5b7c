#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs a program on ranks of this machine, with the variables that torchrun sets, in a moment instead of seconds.

tcp_ranks.py RANKS PROGRAM [ARGUMENTS]

Marks their output as mpirun does. Unlike mpirun and torchrun it leaves the other ranks alone when one ends: they must
find out themselves. Returns 0 if all ranks do.
"""
import os
import signal
import socket
import subprocess
import sys
import threading

output = threading.Lock()


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def copy_marked(stream, mark, to):
    for line in stream:
        with output:
            to.buffer.write(mark + line)
            to.flush()


def start(rank, ranks, port, command):
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={
        **os.environ, "RANK": str(rank), "WORLD_SIZE": str(ranks), "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(ranks),
        "MASTER_ADDR": "localhost", "MASTER_PORT": str(port)})
    pumps = [threading.Thread(target=copy_marked, args=(stream, f"[1,{rank}]<{name}>:".encode(), to))
             for stream, name, to in ((process.stdout, "stdout", sys.stdout), (process.stderr, "stderr", sys.stderr))]
    for pump in pumps:
        pump.start()
    return process, pumps


def main():
    ranks, command = int(sys.argv[1]), sys.argv[2:]
    port = free_port()
    started = [start(rank, ranks, port, command) for rank in range(ranks)]
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, _: [process.send_signal(number) for process, _ in started])
    codes = [process.wait() for process, _ in started]
    for _, pumps in started:
        for pump in pumps:
            pump.join()
    for rank, code in enumerate(codes):
        if code != 0:
            print(f"rank {rank} exited with {code}", file=sys.stderr)
    return 1 if any(codes) else 0


if __name__ == "__main__":
    sys.exit(main())
