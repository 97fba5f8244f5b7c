#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Saved at 1 to 4 ranks under each strategy, loaded at each other: bit by bit the same: matrix_test.py PROGRAM MPIRUN"""
import pathlib
import subprocess
import sys
import tempfile

RUN_RANKS = pathlib.Path(__file__).parents[1] / "ranks" / "run_ranks.sh"


def main():
    program, mpirun = sys.argv[1:]
    with tempfile.TemporaryDirectory() as place:
        for what in ("save", "load"):
            for ranks in (1, 2, 3, 4):
                subprocess.run([RUN_RANKS, mpirun, str(ranks), program, what, place], check=True, timeout=250)
        saved = [path for path in pathlib.Path(place).iterdir() if path.is_dir() and path.suffix != ".again"]
        assert len(saved) == 6 * 4 + 2 * 2, saved


main()
