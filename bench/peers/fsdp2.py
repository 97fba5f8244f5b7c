#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""PyTorch's FSDP2 on what `sherd bench` runs: Llama-3-8B, sequence 8192, one rank of a world of 8 that isn't there.

With the python that has torch: .venv/bin/python bench/peers/fsdp2.py --compile --out fsdp2.json"""
import statistics
import sys
import time

import torch
from torch import nn
from torch.distributed.fsdp import fully_shard

from decoder import Attention, FeedForward, norm_of, plain_attention, plain_feed_forward, plain_norm
from emulated_rank import (Workload, emulate_reductions, enter_world, gradient_norm, measure, options_of, parser_of,
                           synchronize, train, warm_up)

SHAPE = {"dim": 4096, "layers": 32, "heads": 32, "kv_heads": 8, "ffn": 14336, "vocab": 128256, "rope_theta": 5e5,
         "seq": 8192, "batch": 1}
QUICK = SHAPE | {"dim": 64, "layers": 2, "heads": 4, "kv_heads": 2, "ffn": 128, "vocab": 256, "seq": 64}
UNITS, WIDTH, BATCH = 128, 64, 1  # of --units small


class Layer(nn.Module):
    def __init__(self, shape, grouped):
        super().__init__()
        self.attention_norm, self.attention = norm_of(shape["dim"]), Attention(shape, grouped)
        self.feed_forward_norm, self.feed_forward = norm_of(shape["dim"]), FeedForward(shape["dim"], shape["ffn"])

    def forward(self, x, cosine, sine):
        x = x + self.attention(self.attention_norm(x), cosine, sine)
        return x + self.feed_forward(self.feed_forward_norm(x))

    def flops(self, seq):
        return self.attention.flops(seq) + self.feed_forward.flops(seq)


def plain_layer(layer, x, shape):
    x = x + plain_attention(layer.attention, plain_norm(layer.attention_norm, x), shape["rope_theta"])
    return x + plain_feed_forward(layer.feed_forward, plain_norm(layer.feed_forward_norm, x)), 0


# ---- fp8 ---------------------------------------------------------------------------------------
def in_fp8(model, device):
    """Computes the layers' products by torchao: scales of whole tensors, weights gathered in fp8."""
    try:
        from torchao.float8 import Float8LinearConfig, convert_to_float8_training
    except ImportError:
        sys.exit("--fp8 needs torchao: pip install torchao")
    config = Float8LinearConfig(enable_fsdp_float8_all_gather=True, emulate=device.type != "cuda")
    convert_to_float8_training(model, config=config, module_filter_fn=lambda _, name: name.startswith("layers."))


def find_scales(model):
    """Finds the scales of all weights at once, after each update."""
    from torchao.float8 import precompute_float8_dynamic_scale_for_fsdp
    precompute_float8_dynamic_scale_for_fsdp(model)


def run_llama(options, device):
    llama = Workload(SHAPE, QUICK, lambda shape, _, grouped: Layer(shape, grouped), plain_layer)
    if options.fp8:
        llama.convert, llama.after_update = lambda model: in_fp8(model, device), find_scales
    return train(llama, options, device)


# ---- small units -------------------------------------------------------------------------------
def run_small_units(options, device):
    """Steps per second (forward and backward) where the host's work for each unit is what takes the time."""
    mesh = enter_world(options.world, device)

    units = 8 if options.quick else UNITS

    def tower():
        stacks = (nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(4))) for _ in range(units))
        return nn.Sequential(*stacks).to(device)

    plain, sharded = tower(), tower()
    for stack in sharded:
        fully_shard(stack, mesh=mesh)
    fully_shard(sharded, mesh=mesh)
    emulate_reductions(sharded, options.world)
    x = torch.randn(BATCH, WIDTH, device=device)
    losses = []

    def step(model):
        loss = model(x).sum()
        loss.backward()
        losses[:] = [loss.detach()]

    def seconds_of(model):
        def one():
            model.zero_grad()
            step(model)

        warm_up(one, options.seconds_of_load, device)
        times = []
        for _ in range(options.steps):  # the device is waited for: the host's time is what counts
            synchronize(device)
            begin = time.perf_counter()
            one()
            synchronize(device)
            times.append(time.perf_counter() - begin)
        return statistics.median(times)

    alone, seconds = seconds_of(plain), seconds_of(sharded)
    return {"units": units, "seconds": seconds, "steps_per_second": 1 / seconds, "unsharded_steps_per_second": 1 / alone,
            "sharding_ms_per_unit": (seconds - alone) / units * 1e3, "loss": losses[0].item(),
            "gradient_norm": gradient_norm(sharded)}


def main():
    parser = parser_of(__doc__)
    parser.add_argument("--fp8", action="store_true", help="the layers' products in fp8, by torchao")
    parser.add_argument("--units", choices=["small"], help="small: 128 units of four 64x64 linears instead of the Llama")
    options = options_of(parser)
    run = run_small_units if options.units else run_llama
    measure(options, lambda device: run(options, device), fp8=options.fp8)


main()
