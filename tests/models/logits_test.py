#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A Hugging Face folder gives transformers' logits, sharded or not, and is saved as it was: logits_test.py PROGRAM MPIRUN"""
import json
import pathlib
import struct
import subprocess
import sys
import tempfile

TRAIN = pathlib.Path(__file__).parents[1] / "train"
sys.path.insert(0, str(TRAIN))
import family_folders as families  # noqa: E402
import llama_folder as given  # noqa: E402

RUN_RANKS = TRAIN.parent / "ranks" / "run_ranks.sh"
BOUND = 1e-5


def tensors(folder):
    data = next(folder.glob("model*.safetensors")).read_bytes()
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8:8 + size])
    return {name: (about["dtype"], about["shape"], data[8 + size + about["data_offsets"][0]:8 + size + about["data_offsets"][1]])
            for name, about in header.items() if name != "__metadata__"}


def main():
    program, mpirun = sys.argv[1:]
    every = slice(0, 256)
    cases = {kind: (given.write, every, rows) for kind, rows in json.loads((TRAIN / "logits.json").read_text()).items()}
    reference = json.loads((TRAIN / "families.json").read_text())
    cases |= {kind: (families.write, families.COLUMNS, reference[kind]["logits"]) for kind in families.CONFIGS}
    assert cases.keys() == {*given.CONFIGS, *families.CONFIGS}
    worst = 0
    with tempfile.TemporaryDirectory() as place:
        for kind, (write, columns, expected) in cases.items():
            folder = pathlib.Path(place) / kind
            write(kind, folder)
            for ranks in (1, 3):
                copy = pathlib.Path(place) / f"{kind}-copy"
                subprocess.run([RUN_RANKS, mpirun, str(ranks), program, str(folder), str(copy), *map(str, given.LOGITS_OF)],
                               check=True, timeout=120)
                logits = [value for value, in struct.iter_unpack("<f", (copy / "logits").read_bytes())]
                assert len(logits) == len(given.LOGITS_OF) * 256, len(logits)
                for at, row in zip(given.LOGITS_AT, expected, strict=True):
                    mine = logits[at * 256:(at + 1) * 256][columns]
                    worst = max(worst, *(abs(a - b) for a, b in zip(mine, row, strict=True)))
                assert worst < BOUND, (kind, ranks, worst)
                assert tensors(copy) == tensors(folder), kind
                was, now = (json.loads((path / "config.json").read_text()) for path in (folder, copy))
                assert now == was, (was, now)
    print(f"logits at most {worst:.1e} apart")


main()
