#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""PyTorch's FSDP2 on what `sherd bench --only hybrid` runs: Nemotron-H-8B's layers, sequence 8192, one rank of a world of
8 that isn't there. The scan of Mamba-2 is mamba_ssm's; its convolution is causal_conv1d's if that is installed.

With the python that has torch: .venv/bin/python bench/peers/fsdp2_hybrid.py --compile --mamba-ssm DIR --out hybrid.json

"""
import math
import pathlib
import sys

import torch
import torch.nn.functional as F
from torch import nn

from decoder import (Attention, FeedForward, norm_of, plain_attention, plain_feed_forward, plain_norm, plain_swiglu,
                     product_flops)
from emulated_rank import Workload, measure, options_of, parser_of, train
from mamba_scan import (GET_MAMBA_SSM, installed_convolution, mamba_ssm_scan, plain_scan, torch_convolution,
                        torch_scan)

SHAPE = {"dim": 4096, "layers": 52, "pattern": "M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M-",
         "heads": 32, "kv_heads": 8, "ffn": 14336, "state": 128, "head_dim": 64, "groups": 8, "chunk": 128,
         "vocab": 131072, "rope_theta": 5e5, "seq": 8192, "batch": 1}
QUICK = SHAPE | {"dim": 64, "layers": 2, "pattern": "M*", "heads": 4, "kv_heads": 2, "ffn": 128, "state": 8, "head_dim": 16,
                 "groups": 1, "chunk": 16, "vocab": 256, "seq": 64}
SMOKE = {"layers": 3, "pattern": "M-*", "groups": 2, "seq": 40, "batch": 2}
EXPAND, WIDTH = 2, 4  # inner width by dim; positions of the convolution


class Mamba(nn.Module):
    """A Mamba-2 mixer: a projection, a short convolution, a scan, a gated norm and a projection."""

    def __init__(self, shape, convolution, scan):
        super().__init__()
        dim, inner = shape["dim"], EXPAND * shape["dim"]
        heads, channels = inner // shape["head_dim"], inner + 2 * shape["groups"] * shape["state"]
        self.sizes, self.convolution, self.scan = [inner, channels, heads], convolution, scan
        self.groups, self.state, self.chunk = shape["groups"], shape["state"], shape["chunk"]
        self.input, self.output = nn.Linear(dim, sum(self.sizes), bias=False), nn.Linear(inner, dim, bias=False)
        self.filter, self.filter_bias = nn.Parameter(torch.empty(channels, WIDTH)), nn.Parameter(torch.empty(channels))
        self.decay_log, self.step_bias, self.through = (nn.Parameter(torch.empty(heads)) for _ in range(3))
        self.norm = norm_of(inner)

    def forward(self, x):
        gate, channels, step = self.input(x).split(self.sizes, -1)
        channels = self.convolution(channels, self.filter, self.filter_bias)
        y = self.scan(channels, step, -self.decay_log.float().exp(), self.through.float(), self.step_bias.float(),
                      self.groups, self.state, self.chunk)
        return self.output(self.norm(y * F.silu(gate)))

    def flops(self, seq):
        inner, channels, heads = self.sizes
        width = inner // heads
        within = product_flops(min(self.chunk, seq), self.state + width) / 2  # causal
        across = 2 * product_flops(width, self.state)
        return (product_flops(self.input.in_features, sum(self.sizes)) + product_flops(inner, self.output.out_features)
                + product_flops(channels, WIDTH) + heads * (within + across))


# A Mamba-2 begins with decays of 1 to 16 and steps of about 0.001 to 0.1, as Sherd's.
INITIAL = {"decay_log": lambda values: values.uniform_(0, math.log(16)),
           "step_bias": lambda values: values.uniform_(math.log(1e-3), math.log(1e-1)),
           "filter": lambda values: values.uniform_(-WIDTH**-0.5, WIDTH**-0.5),
           "filter_bias": lambda values: values.zero_()}


class Layer(nn.Module):
    def __init__(self, dim, mixer):
        super().__init__()
        self.norm, self.mixer = norm_of(dim), mixer
        self.rotated = isinstance(mixer, Attention)

    def forward(self, x, cosine, sine):
        y = self.norm(x)
        return x + (self.mixer(y, cosine, sine) if self.rotated else self.mixer(y))

    def flops(self, seq):
        return self.mixer.flops(seq)


def layers_with(convolution, scan):
    """Returns a function that makes layers, by a letter each: M Mamba-2, * attention, - feed-forward."""
    def make_layer(shape, number, grouped):
        letter = shape["pattern"][number % len(shape["pattern"])]
        kinds = {"M": lambda: Mamba(shape, convolution, scan), "*": lambda: Attention(shape, grouped),
                 "-": lambda: FeedForward(shape["dim"], shape["ffn"])}
        return Layer(shape["dim"], kinds[letter]())
    return make_layer


# ---- the same in plain steps -------------------------------------------------------------------
def plain_mamba(mamba, x):
    gate, channels, step = mamba.input(x).split(mamba.sizes, -1)
    channels = F.conv1d(channels.mT, mamba.filter[:, None], mamba.filter_bias, padding=WIDTH - 1,
                        groups=channels.size(-1))[..., :x.size(1)].mT
    channels = channels * channels.sigmoid()
    y = plain_scan(channels, step, -mamba.decay_log.exp(), mamba.through, mamba.step_bias, mamba.groups, mamba.state)
    return mamba.output(plain_norm(mamba.norm, plain_swiglu(gate, y)))


def plain_layer(layer, x, shape):
    y = plain_norm(layer.norm, x)
    if isinstance(layer.mixer, Mamba):
        return x + plain_mamba(layer.mixer, y), 0
    if isinstance(layer.mixer, Attention):
        return x + plain_attention(layer.mixer, y, shape["rope_theta"]), 0
    return x + plain_feed_forward(layer.mixer, y), 0


def main():
    parser = parser_of(__doc__ + GET_MAMBA_SSM)
    parser.add_argument("--mamba-ssm", type=pathlib.Path, metavar="DIR",
                        help="folder with mamba_ssm's source, see above; used on a GPU. Without it --quick and --smoke scan "
                             "with torch's operations")
    options = options_of(parser)
    if not options.mamba_ssm and not options.quick:
        sys.exit(f"[peers] --mamba-ssm is missing: give the folder with mamba_ssm's source, or --quick.\n{GET_MAMBA_SSM}")
    mamba_ssm = mamba_ssm_scan(options.mamba_ssm) if options.mamba_ssm else None

    def run(device):
        convolution, scan, used = torch_convolution, torch_scan, {"convolution": "torch", "scan": "torch"}
        if device.type == "cuda" and mamba_ssm:
            scan, used["scan"] = mamba_ssm, options.mamba_ssm.resolve().name
        if device.type == "cuda" and (installed := installed_convolution()):
            convolution, used["convolution"] = installed, "causal_conv1d"
        hybrid = Workload(SHAPE, QUICK, layers_with(convolution, scan), plain_layer, smoke=SMOKE, initial=INITIAL)
        return used | train(hybrid, options, device)

    measure(options, run)


main()
