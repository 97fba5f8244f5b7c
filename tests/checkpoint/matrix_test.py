#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Saved at 1 to 4 ranks under each strategy, loaded at each other number of ranks under two (with
SHERD_TEST_ALL=1 under each): bit by bit the same: matrix_test.py PROGRAM MPIRUN"""
import os
import pathlib
import subprocess
import sys
import tempfile

RUN_RANKS = pathlib.Path(__file__).parents[1] / "ranks" / "run_ranks.sh"
MEMORY = "/dev/shm"  # hundreds of checkpoints are synced: a busy disk would be what is tested
LIMIT = 250  # seconds; more than the program gives an operation


def main():
    program, mpirun = sys.argv[1:]
    load = "load_all" if os.environ.get("SHERD_TEST_ALL") == "1" else "load"
    with tempfile.TemporaryDirectory(dir=MEMORY if os.access(MEMORY, os.W_OK) else None) as place:
        for what in ("save", load):
            for ranks in (1, 2, 3, 4):
                subprocess.run([RUN_RANKS, mpirun, str(ranks), program, what, place], check=True, timeout=LIMIT)
        saved = [path for path in pathlib.Path(place).iterdir() if path.is_dir() and path.suffix != ".again"]
        assert len(saved) == 6 * 4 + 2 * 2, saved


main()
