# SPDX-License-Identifier: Apache-2.0
"""Small models, and the comparison of their training with torch alone."""

import copy

import torch

import sherd

DIM = 16


class Block(torch.nn.Module):
    def __init__(self, dim=DIM):
        super().__init__()
        self.up = torch.nn.Linear(dim, 2 * dim)
        self.down = torch.nn.Linear(2 * dim, dim)

    def forward(self, x):
        return x + self.down(torch.nn.functional.gelu(self.up(x)))


class Net(torch.nn.Module):
    def __init__(self, make=Block, layers=3):
        super().__init__()
        self.blocks = torch.nn.ModuleList(make() for _ in range(layers))
        self.head = torch.nn.Linear(DIM, DIM)

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def shard(net, **options):
    """Shards the blocks and then the whole."""
    for block in net.blocks:
        sherd.fully_shard(block, **options)
    return sherd.fully_shard(net, **options)


def sample(step, rank):
    return torch.randn(4, DIM, generator=torch.Generator().manual_seed(100 * step + rank))


def square(net, x):
    return net(x).square().mean()


def largest_difference(model, reference):
    """Of the sharded model's weights from those of a plain one."""
    full = sherd.full_state_dict(model)
    return max((full[name] - value).abs().max().item() for name, value in reference.state_dict().items())


def trains_like_torch(
    net, loss=square, *, prepare=None, steps=4, micro_batches=1, make_optimizer=None, tolerance=1e-6, **options
):
    """Trains the sharded model on all ranks and a plain copy on the samples of all ranks; asserts that losses and
    weights are the same. Returns the sharded model."""
    world = sherd.world()
    reference = copy.deepcopy(net)
    plain = (make_optimizer or torch.optim.AdamW)(reference.parameters(), lr=1e-2)
    if prepare:
        prepare(net)
    shard(net, **options)
    if make_optimizer:
        optimizer = make_optimizer(sherd.parameters(net), lr=1e-2)
    else:
        optimizer = sherd.AdamW(net, lr=1e-2)
    sherd.micro_batches(net, micro_batches)
    for step in range(steps):
        plain.zero_grad()
        for micro_batch in range(micro_batches):
            number = 10 * step + micro_batch
            expected = [loss(reference, sample(number, rank)) for rank in range(world.size)]
            (sum(expected) / world.size).backward()
            mine = loss(net, sample(number, world.rank))
            mine.backward()
            assert abs(mine.item() - expected[world.rank].item()) < tolerance
        plain.step()
        optimizer.step()
    assert largest_difference(net, reference) < tolerance
    return net
