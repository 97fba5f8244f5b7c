#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`sherd train` from a Hugging Face folder gives transformers' losses, norms and weights: transformers_test.py FORK_SERVER"""
import json
import os
import pathlib
import sys
import tempfile

import torch

import family_folders as families
import llama_folder as given
import plain_llama

sys.path.append(str(pathlib.Path(__file__).parents[1]))
from fork_server import ForkServer  # noqa: E402

BOUND = 1e-5  # relative
WEIGHT_BOUND = 2e-3  # norm of the difference over the norm, per tensor
MOVED_BOUND = 2e-4  # difference between how far a tensor has moved, over that
STRATEGIES = ["no_shard", "optim", "optim_grads", "optim_grads_params"]
TWO_AXES = ["optim_grads_params/no_shard", "optim_grads_params/optim"]
ALL = os.environ.get("SHERD_TEST_ALL") == "1"


def runs_of(kind):
    """(ranks, strategy, micro-batches): all that there are, or every strategy and every number of ranks once or twice."""
    runs = [(1, "no_shard", 1)]  # alone all strategies are that
    runs += [(ranks, strategy, 1) for ranks in (2, 4) for strategy in STRATEGIES]
    runs += [(4, strategy, 1) for strategy in TWO_AXES] + [(2, "optim_grads_params", 2)]
    if kind in families.CONFIGS and not ALL:
        return [(1, "no_shard", 1), (2, "optim_grads_params", 2)]
    few = {"untied": [(1, "no_shard", 1), (2, "optim_grads", 1), (4, "optim_grads_params/no_shard", 1),
                      (2, "optim_grads_params", 2)],
           "tied": [(2, "no_shard", 1), (2, "optim", 1), (4, "optim_grads_params/optim", 1), (2, "optim_grads_params", 1)]}
    return runs if ALL else few[kind]


def run(sherd, folder, out, ranks, strategy, micro_batches):
    inner, _, outer = strategy.partition("/")
    settings = {
        "model.from": folder, "data.text": given.STORY, "data.seq": given.SEQ,
        "data.batch": given.SAMPLES // ranks // micro_batches, "data.micro_batches": micro_batches, "data.shuffle": "false",
        "shard.strategy": inner, "shard.outer": 2 if outer else 1, "shard.outer_strategy": outer or "no_shard",
        "optim.lr": given.RATE, "optim.betas": list(given.BETAS), "optim.eps": given.EPS, "optim.weight_decay": given.DECAY,
        "optim.max_norm": given.CLIP, "optim.schedule": "constant", "train.steps": given.STEPS, "train.out": out,
        "device.kind": "cpu", "train.recompute": "full" if micro_batches > 1 else "none"}
    arguments = [f"--set={key}={value}" for key, value in settings.items()]
    empty = pathlib.Path(out).with_suffix(".toml")
    empty.write_text("")
    done = sherd.run(["train", empty, "--ranks", ranks, *arguments], timeout=120)
    assert done.returncode == 0, (done.returncode, done.stderr)
    return [json.loads(line) for line in (pathlib.Path(out) / "metrics.jsonl").read_text().splitlines()]


def checkpoint(folder):
    """Its model, as Hugging Face reads it: by the index."""
    index = json.loads((folder / "model.safetensors.index.json").read_text())["weight_map"]
    result = {}
    for file in set(index.values()):
        data = (folder / file).read_bytes()
        size = int.from_bytes(data[:8], "little")
        for name, about in json.loads(data[8:8 + size]).items():
            if name != "__metadata__":
                assert index[name] == file and about["dtype"] == "F32", name
                begin, end = (8 + size + place for place in about["data_offsets"])
                result[name] = torch.frombuffer(bytearray(data[begin:end]), dtype=torch.float32).view(about["shape"])
    return result


def close(steps, expected, about):
    """How far apart losses and norms are."""
    worst = 0
    for got, wanted in zip(steps, expected, strict=True):
        for key in ("loss", "grad_norm"):
            difference = abs(got[key] - wanted[key]) / wanted[key]
            assert difference < BOUND, (about, got, wanted)
            worst = max(worst, difference)
    return worst


def check_families(sherd, place):
    """They have no counterpart in plain torch: of their weights the norms of the changes are compared."""
    reference = json.loads(pathlib.Path(__file__).with_name("families.json").read_text())
    worst, worst_moved = 0, 0
    for kind in families.CONFIGS:
        folder = f"{place}/{kind}"
        families.write(kind, folder)
        before = families.weights(kind)
        for number, (ranks, strategy, micro_batches) in enumerate(runs_of(kind)):
            out = f"{place}/{kind}-{number}"
            about = (kind, ranks, strategy, micro_batches)
            worst = max(worst, close(run(sherd, folder, out, ranks, strategy, micro_batches), reference[kind]["steps"], about))
            saved = checkpoint(pathlib.Path(out) / f"step-{given.STEPS}")
            assert saved.keys() == before.keys(), saved.keys() ^ before.keys()
            for name, wanted in reference[kind]["moved"].items():
                difference = abs((saved[name] - before[name]).norm().item() / wanted - 1)
                assert difference < MOVED_BOUND, (about, name, difference)
                worst_moved = max(worst_moved, difference)
    print(f"families: losses and norms at most {worst:.1e} apart, changes of weights {worst_moved:.1e}")


def main():
    reference = json.loads(pathlib.Path(__file__).with_name("reference.json").read_text())
    worst, worst_weight = 0, 0
    with ForkServer(sys.argv[1], dict(os.environ, OMP_NUM_THREADS="1")) as sherd, tempfile.TemporaryDirectory() as place:
        for kind in given.CONFIGS:
            folder = f"{place}/{kind}"
            given.write(kind, folder)
            plain, weights = plain_llama.train(kind)
            close(plain, reference[kind], "plain torch")  # so its weights are transformers', too
            for number, (ranks, strategy, micro_batches) in enumerate(runs_of(kind)):
                out = f"{place}/{kind}-{number}"
                steps = run(sherd, folder, out, ranks, strategy, micro_batches)
                assert [step["step"] for step in steps] == list(range(1, given.STEPS + 1)), steps
                worst = max(worst, close(steps, reference[kind], (kind, ranks, strategy, micro_batches)))
                saved = checkpoint(pathlib.Path(out) / f"step-{given.STEPS}")
                assert saved.keys() == weights.keys(), saved.keys() ^ weights.keys()
                for name, value in weights.items():
                    difference = ((saved[name] - value).norm() / value.norm()).item()
                    assert difference < WEIGHT_BOUND, (kind, ranks, strategy, name, difference)
                    worst_weight = max(worst_weight, difference)
        check_families(sherd, place)
    print(f"losses and norms at most {worst:.1e} apart, weights {worst_weight:.1e}")


main()
