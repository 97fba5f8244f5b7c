#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A small Llama learns in fp8 as in bf16, for 500 steps on two CPU ranks: fp8_long_test.py SHERD"""
import json
import os
import pathlib
import subprocess
import sys
import tempfile

STORY = pathlib.Path(__file__).parents[2] / "examples" / "tiny.txt"
RECIPES = ("fp8", "fp8_wgrad16", "fp8_block", "mxfp8")
RANKS, STEPS, LAST = 2, 500, 100
BOUND = 0.01  # relative difference of the means of the last losses
SETTINGS = {"data.text": STORY, "data.seq": 32, "data.batch": 2, "train.steps": STEPS, "train.save_every": STEPS, "device.kind": "cpu",
            "model.dim": 128, "model.ffn": 256, "model.layers": 2, "model.heads": 2, "optim.lr": 1e-3}


def losses_of(place, recipe, **settings):
    out = place / "-".join([recipe, *map(str, settings.values())])
    (place / "empty.toml").write_text("")
    every = {**SETTINGS, "train.out": out, "precision.recipe": recipe, **{key.replace("__", "."): value for key, value in settings.items()}}
    done = subprocess.run([sys.argv[1], "train", place / "empty.toml", "--ranks", str(RANKS), *(f"--set={key}={value}" for key, value in every.items())],
                          capture_output=True, text=True, timeout=300, env=dict(os.environ, OMP_NUM_THREADS="1"))
    assert done.returncode == 0, (recipe, done.stderr)
    steps = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    losses = [step["loss"] for step in steps if "loss" in step]
    assert len(losses) == STEPS, (recipe, len(losses))
    return losses


def main():
    with tempfile.TemporaryDirectory() as place:
        place = pathlib.Path(place)
        wide = losses_of(place, "bf16_o2")
        wanted = sum(wide[-LAST:]) / LAST
        assert wanted < 0.8 * sum(wide[:10]) / 10, ("it learns nothing", wide[0], wanted)
        for recipe in RECIPES:
            losses = losses_of(place, recipe)
            assert losses != wide, (recipe, "nothing was in fp8")
            mean = sum(losses[-LAST:]) / LAST
            print(f"{recipe}: mean of the last {LAST} losses {mean:.4f}, bf16_o2 {wanted:.4f}, {100 * (mean / wanted - 1):+.2f} %")
            assert abs(mean / wanted - 1) < BOUND, (recipe, mean, wanted)
            other = losses_of(place, recipe, shard__strategy="optim")
            assert other == losses, (recipe, "strategies have the same bits")


main()
