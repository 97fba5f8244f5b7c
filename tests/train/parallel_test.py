#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Losses do not depend on which ranks share sequences and experts: parallel_test.py SHERD"""
import json
import os
import pathlib
import subprocess
import sys
import tempfile

STORY = pathlib.Path(__file__).parents[2] / "examples" / "tiny.txt"
ALL = os.environ.get("SHERD_TEST_ALL") == "1"
RANKS, STEPS, MIDDLE = 4, 6, 3
SAMPLES = 8  # of a step, on all ranks together
SEQ = 32
BOUND = 1e-5
MODELS = {
    "llama": {"model.dim": 32, "model.layers": 2, "model.heads": 4, "model.ffn": 48},
    "moe": {"model.kind": "moe", "model.dim": 32, "model.layers": 2, "model.heads": 4, "model.kv_heads": 2, "model.experts": 4,
            "model.expert_ffn": 24, "model.shared_ffn": 16},
    "hybrid": {"model.kind": "hybrid", "model.pattern": "M*E-", "model.dim": 32, "model.layers": 4, "model.heads": 4, "model.ffn": 48,
               "model.experts": 4, "model.expert_ffn": 24, "model.ssm_head_dim": 16, "model.ssm_groups": 2, "model.ssm_chunk": 8},
}
# Each pair of a model, an axis and one of the other settings is in one of them.
RUNS = [
    ("llama", dict(cp=2, tp=2), {"train.loss": "per_token"}),
    ("llama", dict(tp=2), {"shard.outer": 2, "shard.outer_strategy": "optim", "data.micro_batches": 2}),
    ("moe", dict(tp=2, ep=4), {"train.recompute": "full"}),
    ("moe", dict(cp=2, ep=2), {"shard.strategy": "optim_grads", "train.loss": "per_token"}),
    ("hybrid", dict(cp=2, tp=2, ep=2), {"data.micro_batches": 2}),
]
MORE = [
    ("llama", dict(cp=4), {"shard.strategy": "no_shard"}),
    ("llama", dict(tp=4), {"train.recompute": "selective"}),
    ("llama", dict(cp=2), {"shard.outer": 2, "shard.strategy": "optim", "train.recompute": "full"}),
    ("moe", dict(ep=2), {"shard.outer": 2, "shard.expert_strategy": "no_shard"}),
    ("moe", dict(cp=2, tp=2, ep=4), {"data.micro_batches": 2, "shard.prefetch": 2}),
    ("hybrid", dict(tp=2), {"train.loss": "per_token", "shard.strategy": "optim_grads"}),
    ("hybrid", dict(ep=4), {"train.recompute": "selective"}),
    ("hybrid", dict(cp=4, ep=2), {"shard.keep_gathered": 2}),
]


class Runs:
    def __init__(self, sherd, place):
        self.sherd, self.place = sherd, pathlib.Path(place)
        (self.place / "empty.toml").write_text("")
        # The second step of the three in a pass over the data is short: not all ranks have samples.
        text = STORY.read_bytes()[:SEQ * (2 * SAMPLES + 3) + 1]
        (self.place / "text.txt").write_bytes(text)
        (self.place / "validation.txt").write_bytes(STORY.read_bytes()[5000:5000 + 5 * SEQ + 1])

    def train(self, out, model, axes=None, settings=None, ranks=RANKS, steps=STEPS, resume=None):
        """Runs it and returns its metrics by step."""
        axes, settings = axes or {}, settings or {}
        groups = ranks // (axes.get("cp", 1) * axes.get("tp", 1))
        batch = SAMPLES // groups // settings.get("data.micro_batches", 1)
        every = {"data.text": self.place / "text.txt", "data.validation": self.place / "validation.txt", "data.seq": SEQ,
                 "data.batch": batch, "optim.lr": 1e-3, "optim.max_norm": 1.0, "optim.schedule": "constant", "train.steps": steps,
                 "train.out": self.place / out, "train.save_every": MIDDLE, "device.kind": "cpu", **MODELS[model],
                 **{f"parallel.{axis}": size for axis, size in axes.items()}, **settings}
        if resume:
            every["train.resume"] = self.place / resume
        words = [f"--set={key}={value}" for key, value in every.items()]
        done = subprocess.run([self.sherd, "train", self.place / "empty.toml", "--ranks", str(ranks), *words], capture_output=True,
                              text=True, timeout=120, env=dict(os.environ, OMP_NUM_THREADS="1"))
        assert done.returncode == 0, (out, axes, settings, done.stdout, done.stderr)
        lines = (self.place / out / "metrics.jsonl").read_text().splitlines()
        return {step["step"]: step for step in map(json.loads, lines)}


def expect_same(one, other, steps, about):
    for step in steps:
        for key in ("loss", "grad_norm", "val_loss"):
            assert (key in one[step]) == (key in other[step]), (about, key, one[step], other[step])
            if key in one[step]:
                a, b = one[step][key], other[step][key]
                assert abs(a / b - 1) < BOUND, (about, key, one[step], other[step])


def main():
    sherd = sys.argv[1]
    with tempfile.TemporaryDirectory() as place:
        runs = Runs(sherd, place)
        whole = {}
        for number, (model, axes, settings) in enumerate(RUNS + MORE if ALL else RUNS):
            if model not in whole:
                whole[model] = runs.train(f"alone-{model}", model, ranks=1)
                assert "val_loss" in whole[model][STEPS], whole[model]
            shared = runs.train(f"run-{number}", model, axes, settings)
            expect_same(shared, whole[model], range(1, STEPS + 1), (model, axes, settings))
            # All memory is as planned, and a step has as many tokens as without.
            for step in shared.values():
                if "ep" not in axes:  # experts have as many rows as the router sends them
                    assert step["peak_bytes"] >= step["planned_bytes"] > 0, (model, axes, step)
            print(f"{model} {axes} {settings}: losses, norms and validation as on one rank")
        # A checkpoint of one combination goes on with another, and on one rank.
        ways = [(0, dict(tp=4)), (2, dict(cp=2, ep=2)), (4, dict(ep=4)), (4, None)]
        for number, axes in ways if ALL else ways[:3:2]:
            model = RUNS[number][0]
            further = runs.train(f"from-{number}-{axes}", model, axes, ranks=RANKS if axes else 1,
                                 resume=f"run-{number}/step-{MIDDLE}")
            expect_same(further, whole[model], range(MIDDLE + 1, STEPS + 1), (RUNS[number], axes))
            print(f"{model} of {RUNS[number][1]} goes on with {axes}")


main()
