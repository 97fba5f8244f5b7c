#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Seconds per step of a small Llama on CPU ranks, by `sherd train` and by PyTorch's FSDP2 (gloo), by turns.

With the python that has torch: .venv/bin/python bench/small_llama.py [SHERD] [RANKS …]"""
import json
import os
import pathlib
import random
import statistics
import struct
import subprocess
import sys
import tempfile

SHAPE = {"dim": 256, "layers": 8, "heads": 8, "kv_heads": 4, "ffn": 688, "vocab": 4096, "seq": 256, "batch": 1, "steps": 25}
WARM = 5  # steps that do not count
TURNS = 3


def threads(ranks):
    return str(max(1, (os.cpu_count() or 1) // ranks))


def fsdp2(ranks, place):
    out = f"{place}/seconds.json"
    subprocess.run([sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={ranks}", "--master-port=29571",
                    str(pathlib.Path(__file__).with_name("fsdp2_llama.py")), out, json.dumps(SHAPE)],
                   check=True, env=dict(os.environ, OMP_NUM_THREADS=threads(ranks)), stderr=subprocess.DEVNULL)
    return json.loads(pathlib.Path(out).read_text())


def sherd(program, ranks, place):
    tokens = [random.randrange(SHAPE["vocab"]) for _ in range(ranks * SHAPE["seq"] * SHAPE["batch"] * SHAPE["steps"] + 1)]
    pathlib.Path(f"{place}/tokens.bin").write_bytes(struct.pack(f"<{len(tokens)}H", *tokens))
    settings = {f"model.{key}": SHAPE[key] for key in ("dim", "layers", "heads", "kv_heads", "ffn", "vocab")}
    settings |= {"data.tokens": f"{place}/tokens.bin", "data.seq": SHAPE["seq"], "data.batch": SHAPE["batch"],
                 "train.steps": SHAPE["steps"], "train.out": f"{place}/out", "device.kind": "cpu"}
    pathlib.Path(f"{place}/empty.toml").write_text("")
    subprocess.run([program, "train", f"{place}/empty.toml", "--ranks", str(ranks), *(f"--set={k}={v}" for k, v in settings.items())],
                   check=True, stdout=subprocess.DEVNULL)
    lines = pathlib.Path(f"{place}/out/metrics.jsonl").read_text().splitlines()
    return [json.loads(line)["step_seconds"] for line in lines]


def main():
    program = sys.argv[1] if len(sys.argv) > 1 else str(pathlib.Path(__file__).parents[1] / "build/release/bin/sherd")
    for ranks in [int(word) for word in sys.argv[2:]] or [2, 4]:
        ours, theirs = [], []
        with tempfile.TemporaryDirectory() as place:
            for _ in range(TURNS):  # by turns: what else the machine does meets both
                theirs += fsdp2(ranks, place)[WARM:]
                ours += sherd(program, ranks, place)[WARM:]
        a, b = statistics.median(ours), statistics.median(theirs)
        print(f"{ranks} ranks: sherd {a:.3f} s a step, FSDP2 {b:.3f} s: {a / b:.2f}", flush=True)


main()
