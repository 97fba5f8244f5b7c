#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`sherd train` from a Hugging Face folder gives transformers' losses and norms: transformers_test.py SHERD"""
import json
import os
import pathlib
import subprocess
import sys
import tempfile

import llama_folder as given

BOUND = 1e-5  # relative
STRATEGIES = ["no_shard", "optim", "optim_grads", "optim_grads_params"]
TWO_AXES = ["optim_grads_params/no_shard", "optim_grads_params/optim"]


def run(sherd, folder, out, ranks, strategy, micro_batches):
    inner, _, outer = strategy.partition("/")
    settings = {
        "model.from": folder, "data.text": given.STORY, "data.seq": given.SEQ,
        "data.batch": given.SAMPLES // ranks // micro_batches, "data.micro_batches": micro_batches, "data.shuffle": "false",
        "shard.strategy": inner, "shard.outer": 2 if outer else 1, "shard.outer_strategy": outer or "no_shard",
        "optim.lr": given.RATE, "optim.betas": list(given.BETAS), "optim.eps": given.EPS, "optim.weight_decay": given.DECAY,
        "optim.clip": given.CLIP, "optim.schedule": "constant", "train.steps": given.STEPS, "train.out": out,
        "device.kind": "cpu", "train.recompute": "full" if micro_batches > 1 else "none"}
    arguments = [f"--set={key}={value}" for key, value in settings.items()]
    empty = pathlib.Path(out).with_suffix(".toml")
    empty.write_text("")
    subprocess.run([sherd, "train", str(empty), "--ranks", str(ranks), *arguments], check=True, timeout=120,
                   stdout=subprocess.DEVNULL, env=dict(os.environ, OMP_NUM_THREADS="1"))
    return [json.loads(line) for line in (pathlib.Path(out) / "metrics.jsonl").read_text().splitlines()]


def main():
    reference = json.loads(pathlib.Path(__file__).with_name("reference.json").read_text())
    worst = 0
    with tempfile.TemporaryDirectory() as place:
        for kind in given.CONFIGS:
            folder = f"{place}/{kind}"
            given.write(kind, folder)
            runs = [(ranks, strategy, 1) for ranks in (1, 2, 4) for strategy in STRATEGIES]
            runs += [(4, strategy, 1) for strategy in TWO_AXES] + [(2, "optim_grads_params", 2)]
            for ranks, strategy, micro_batches in runs:
                steps = run(sys.argv[1], folder, f"{place}/out", ranks, strategy, micro_batches)
                assert [step["step"] for step in steps] == list(range(1, given.STEPS + 1)), steps
                for got, expected in zip(steps, reference[kind], strict=True):
                    for key in ("loss", "grad_norm"):
                        difference = abs(got[key] - expected[key]) / expected[key]
                        assert difference < BOUND, (kind, ranks, strategy, micro_batches, got, expected)
                        worst = max(worst, difference)
    print(f"at most {worst:.1e} apart")


main()
