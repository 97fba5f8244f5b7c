#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""TensorBoard reads from the event files what metrics.jsonl says: tensorboard_test.py SHERD"""
import json
import os
import pathlib
import struct
import subprocess
import sys
import tempfile
import time

try:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
except ImportError as error:
    sys.exit(f"{error}: the test reads with tensorboard itself; ./sherd test installs it into .venv")

STORY = pathlib.Path(__file__).parents[2] / "examples" / "tiny.txt"
TAGS = {"loss": "train/loss", "grad_norm": "train/grad_norm", "lr": "train/lr", "step_seconds": "speed/step_seconds",
        "tokens_per_second": "speed/tokens_per_second", "tflops": "speed/tflops",
        "planned_bytes": "memory/planned_bytes", "peak_bytes": "memory/peak_bytes", "val_loss": "validation/loss"}


def run(sherd, place, steps, tensorboard="true"):
    """A run in the same folder each time; its steps as metrics.jsonl has them."""
    (place / "run.toml").write_text(
        f'[model]\ndim = 32\nlayers = 1\nheads = 2\n[data]\ntext = "{STORY}"\nvalidation = "{STORY}"\nseq = 32\n'
        f'[train]\nsteps = {steps}\nout = "{place}/out"\nvalidate_every = 3\nresume = "none"\n'
        f'[device]\nkind = "cpu"\nranks = 2\n')
    subprocess.run([sherd, "train", str(place / "run.toml"), "--set", f"train.tensorboard={tensorboard}"], check=True,
                   timeout=120, stdout=subprocess.DEVNULL, env=dict(os.environ, OMP_NUM_THREADS="1"))
    return [json.loads(line) for line in (place / "out/metrics.jsonl").read_text().splitlines()]


def event_files(place):
    return sorted((place / "out").glob("*tfevents*"))


def as_float(value):
    return struct.unpack("f", struct.pack("f", value))[0]


def same(place, steps, begin):
    """Every value of every step, and no other."""
    read = EventAccumulator(str(place / "out")).Reload()
    assert read.file_version == 2, read.file_version
    assert set(read.Tags()["scalars"]) == set(TAGS.values()), read.Tags()
    compared = 0
    for key, tag in TAGS.items():
        got = [(event.step, event.value) for event in read.Scalars(tag)]
        expected = [(step["step"], as_float(step[key])) for step in steps if key in step]
        assert got == expected, (tag, got, expected)
        times = [event.wall_time for event in read.Scalars(tag)]
        assert times == sorted(times) and begin <= times[0] and times[-1] <= time.time(), (tag, begin, times)
        compared += len(got)
    return compared


def main():
    with tempfile.TemporaryDirectory() as place:
        place = pathlib.Path(place)
        run(sys.argv[1], place, 2, tensorboard="false")
        assert not event_files(place), event_files(place)
        begin = time.time()
        steps = run(sys.argv[1], place, 8)
        assert len(event_files(place)) == 1, event_files(place)  # of the first rank alone
        compared = same(place, steps, begin)
        assert compared == 8 * 8 + 3, compared  # validated twice, and after the last step
        # A second run in the folder takes the place of the first, also where that went further. The next second,
        # since the order of the files is that of their names.
        time.sleep(1.1)
        begin = time.time()
        steps = run(sys.argv[1], place, 5)
        assert len(event_files(place)) == 2, event_files(place)
        compared += same(place, steps, begin)
        # A file that is damaged must not pass: else nothing above says much.
        damaged = bytearray(event_files(place)[-1].read_bytes())
        damaged[-6] ^= 1
        event_files(place)[-1].write_bytes(damaged)
        try:
            same(place, steps, begin)
        except AssertionError:
            print(f"{compared} values are the same")
        else:
            sys.exit("a damaged event was taken for whole")


main()
