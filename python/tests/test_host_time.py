# SPDX-License-Identifier: Apache-2.0
"""What a unit costs the host, beside what torch itself takes."""

import time

import pytest
import torch

import sherd

UNITS = 64
STEPS = 30


class Near(torch.nn.Module):
    """A nearly empty unit."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(8))

    def forward(self, x):
        return x * self.weight


def seconds_of_unit(model):
    x, times = torch.ones(8), []
    for _ in range(STEPS):
        began = time.perf_counter()
        model(x).sum().backward()
        times.append(time.perf_counter() - began)
        for one in model.parameters():
            if type(model).__dict__.get("_sherd_base") is None:
                one.grad = None
        yield sorted(times)[len(times) // 2] / UNITS


@pytest.mark.alone
@pytest.mark.all
def test_the_host_time_of_a_unit():
    plain = torch.nn.Sequential(*(Near() for _ in range(UNITS)))
    net = torch.nn.Sequential(*(Near() for _ in range(UNITS)))
    for unit in net:
        sherd.fully_shard(unit)
    optimizer = sherd.AdamW(sherd.fully_shard(net))
    of_torch = of_sherd = 0.0
    for of_torch, of_sherd in zip(seconds_of_unit(plain), seconds_of_unit(net), strict=True):
        optimizer.step()
    print(f"host time of a unit, forward and backward: {of_sherd * 1e6:.0f} us, torch alone {of_torch * 1e6:.0f} us")
    assert of_sherd < 200e-6, "60 us on an idle machine"
