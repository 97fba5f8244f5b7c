#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Times of Mamba-2's scan at the shape of a layer of Nemotron-H-8B, sequence 8192: Sherd's kernels (bench/fused_ops) and
mamba_ssm's Triton scan, one after the other on one GPU.

With the python that has torch, after `./sherd build fused_ops`:
.venv/bin/python bench/mamba_scan_speed.py --mamba-ssm DIR [--fused-ops build/release/bin/fused_ops] [--seconds-of-load 5]
bench/peers/fsdp2_hybrid.py --help says how to get mamba_ssm. --device cpu tries it out, with torch's operations in the place
of mamba_ssm's."""
import argparse
import pathlib
import statistics
import subprocess
import sys
import time

import torch

sys.path.append(str(pathlib.Path(__file__).with_name("peers")))
from mamba_scan import mamba_ssm_scan, torch_scan  # noqa: E402

POSITIONS, INNER, HEAD_DIM, GROUPS, STATE, CHUNK = 8192, 8192, 64, 8, 128, 128
SETS = 4  # of tensors that take turns, so that none waits in the L2 cache
SHOWN = ("copy", "scan of states")


def time_of(run, synchronize, load):
    """Seconds of one run: the median of nine rounds of twenty, after some seconds of load."""
    begin = time.monotonic()
    while time.monotonic() - begin < load:
        for i in range(20):
            run(i % SETS)
        synchronize()
    rounds = []
    for _ in range(9):
        synchronize()
        begin = time.perf_counter()
        for i in range(20):
            run(i % SETS)
        synchronize()
        rounds.append((time.perf_counter() - begin) / 20)
    return statistics.median(rounds)


def measure(scan, device, positions, inner, load):
    heads, keys = inner // HEAD_DIM, GROUPS * STATE
    dtype = torch.bfloat16
    sets = [[torch.randn(1, positions, width, device=device, dtype=dtype).requires_grad_() for width in (inner + 2 * keys, heads)]
            for _ in range(SETS)]
    decay = -torch.rand(heads, device=device)
    through, step_bias = (torch.randn(heads, device=device) for _ in range(2))
    for one in (decay, through, step_bias):
        one.requires_grad_()
    gradient = torch.randn(1, positions, inner, device=device, dtype=dtype)
    synchronize = torch.cuda.synchronize if device == "cuda" else lambda: None

    def forward(i):
        channels, step = sets[i]
        return scan(channels, step, decay, through, step_bias, GROUPS, STATE, CHUNK)

    def plain(i):
        with torch.no_grad():
            forward(i)

    def both(i):
        for one in (*sets[i], decay, through, step_bias):
            one.grad = None
        forward(i).backward(gradient)

    alone = time_of(plain, synchronize, load)
    return alone, time_of(both, synchronize, load) - alone


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mamba-ssm", type=pathlib.Path, help="folder with mamba_ssm's source")
    parser.add_argument("--fused-ops", type=pathlib.Path, default="build/release/bin/fused_ops")
    parser.add_argument("--seconds-of-load", type=float, default=5)
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    options = parser.parse_args()
    if options.device == "cuda" and not options.mamba_ssm:
        parser.error("--mamba-ssm DIR is needed on a GPU; bench/peers/fsdp2_hybrid.py --help says how to get it")
    load = options.seconds_of_load
    if options.fused_ops.is_file():
        done = subprocess.run([options.fused_ops, str(load), options.device, "mamba"], check=True, capture_output=True, text=True)
        for line in done.stdout.splitlines():
            if line.startswith(SHOWN):
                print(f"Sherd: {line}")
    else:
        print(f"{options.fused_ops} is not there (./sherd build fused_ops): mamba_ssm alone is measured", file=sys.stderr)
    if options.device == "cuda":
        scan, name, shape = mamba_ssm_scan(options.mamba_ssm), "mamba_ssm", (POSITIONS, INNER)
    else:
        scan, name, shape = torch_scan, "torch", (64, 512)
    forward, backward = measure(scan, options.device, *shape, load)
    print(f"{name}: scan{forward * 1e6:32.1f} us\n{name}: scan, backward{backward * 1e6:22.1f} us")


main()
