# SPDX-License-Identifier: Apache-2.0
"""Activation checkpointing inside and around units."""

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import sherd
from parity import Block, Net, sample, shard, square, trains_like_torch


@pytest.mark.parametrize("reentrant", [False, True])
def test_inside_a_unit(reentrant):
    class Inside(Block):
        def forward(self, x):
            def compute(y):
                return self.down(torch.nn.functional.gelu(self.up(y)))

            return x + checkpoint(compute, x, use_reentrant=reentrant)

    trains_like_torch(Net(Inside), lambda net, x: square(net, x.requires_grad_()))


@pytest.mark.parametrize("together", [1, 2])
def test_around_units(together):
    """One checkpoint around each unit, or around two."""

    class Around(Net):
        def forward(self, x):
            for first in range(0, len(self.blocks), together):

                def run(y, first=first):
                    for block in self.blocks[first : first + together]:
                        y = block(y)
                    return y

                if type(self) is Around:
                    x = run(x)
                else:
                    x = sherd.checkpoint(run, x)
            return self.head(x)

    trains_like_torch(Around(), micro_batches=2)


def test_around_units_with_torch():
    class Around(Net):
        def forward(self, x):
            for block in self.blocks:
                x = checkpoint(block, x, use_reentrant=False, context_fn=sherd.checkpoint_context)
            return self.head(x)

    net = Around()
    gathers = []
    trains_like_torch(net)
    gathers.append(sherd.program(net).traffic["all_gather"].calls)
    plain = trains_like_torch(Net())
    assert gathers == [sherd.program(plain).traffic["all_gather"].calls], "a recompute needs no further gather"


@pytest.mark.parametrize("reentrant", [False, True])
def test_around_units_without_the_context_is_an_error_with_the_remedy(reentrant):
    class Bare(Net):
        def forward(self, x):
            for block in self.blocks:
                x = checkpoint(block, x, use_reentrant=reentrant)
            return self.head(x)

    net = shard(Bare())
    with pytest.raises(RuntimeError, match="context_fn=sherd.checkpoint_context"):
        square(net, sample(0, 0).requires_grad_()).backward()
