# SPDX-License-Identifier: Apache-2.0
"""Models that are dropped leave nothing behind."""

import ctypes
import gc
import weakref

import pytest
import torch

import sherd
from parity import Net, sample, shard, square

M_MMAP_THRESHOLD = -3  # of malloc.h


def train_and_drop():
    net = shard(Net())
    optimizer = sherd.AdamW(net)
    of_torch = torch.optim.SGD(sherd.parameters(net), lr=0.1)
    for step in (optimizer, of_torch):
        square(net, sample(0, 0)).backward()
        step.step()
    net.state_dict()
    return weakref.ref(net), [weakref.ref(block) for block in net.blocks], weakref.ref(sherd.parameters(net)[0])


def resident_bytes():
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * 4096


def test_models_are_collected():
    net, blocks, piece = train_and_drop()
    gc.collect()
    assert net() is None and all(block() is None for block in blocks) and piece() is None


def test_memory_stays_flat_over_many_models():
    class Large(Net):
        def __init__(self):
            super().__init__(layers=1)
            self.large = torch.nn.Linear(2048, 2048)  # 16 MiB

        def forward(self, x):
            return super().forward(x) + self.large.weight.mean()

    def run(count):
        for _ in range(count):
            net = shard(Large())
            optimizer = sherd.AdamW(net)
            square(net, sample(0, 0)).backward()
            optimizer.step()
        del net, optimizer
        gc.collect()
        return resident_bytes()

    # Large blocks go back to the system at once: otherwise the heap grows and shrinks by tens of MiB.
    ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, 1 << 16)
    before = run(3)
    assert run(10) - before < 8 << 20, "one parameter of each model would be 160 MiB"


@pytest.mark.all
def test_memory_stays_flat_over_a_thousand_models():
    def run(count):
        for _ in range(count):
            train_and_drop()
        gc.collect()
        return resident_bytes()

    first, second = run(200), run(800)
    print(f"resident memory after 200 and 1,000 models: {first / 2**20:.1f} and {second / 2**20:.1f} MiB")
    assert second - first < 8 << 20, "10 KiB of each model would be 8 MiB"


def test_an_optimizer_outlives_its_model():
    net = shard(Net())
    pieces = sherd.parameters(net)
    del net
    gc.collect()
    torch.optim.SGD(pieces, lr=0.1).step()
