# SPDX-License-Identifier: Apache-2.0
"""Modules that change after they were sharded, and modules that are built in unusual ways."""

import pytest
import torch

import sherd
from parity import DIM, Block, Net, sample, shard, square, trains_like_torch


class Lora(torch.nn.Module):
    def __init__(self, base):
        super().__init__()
        self.base = base
        self.low = torch.nn.Linear(base.in_features, 2, bias=False)
        self.high = torch.nn.Linear(2, base.out_features, bias=False)

    def forward(self, x):
        return self.base(x) + self.high(self.low(x))


def use_lora(net):
    net.blocks[0].up = Lora(net.blocks[0].up)


def tie(net):
    net.blocks[1].up.weight = net.blocks[0].up.weight


def add_module(net):
    net.blocks[0].more = torch.nn.Linear(1, 1)


def remove_module(net):
    del net.blocks[2]


def add_parameter(net):
    net.blocks[0].up.extra = torch.nn.Parameter(torch.zeros(1))


CHANGES = {
    use_lora: "'blocks.0.up.weight' is gone.*'blocks.0.up.base' is new",
    tie: "'blocks.1.up.weight' is another one",
    add_module: "'blocks.0.more' is new",
    remove_module: "'blocks.2' is gone",
    add_parameter: "'blocks.0.up.extra' is new",
}


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_other_parameters_than_were_sharded_are_an_error(change, shared_folder):
    net = shard(Net())
    optimizer = sherd.AdamW(net)
    change(net)
    for use in (
        lambda: sherd.AdamW(net),
        lambda: sherd.named_parameters(net),
        lambda: sherd.save(net, shared_folder + "/saved", optimizer=optimizer),
        lambda: sherd.full_state_dict(net),
        lambda: net.state_dict(),
        lambda: net.load_state_dict(Net().state_dict()),
    ):
        with pytest.raises(RuntimeError, match=f"changed since it was sharded.*{CHANGES[change]}.*before fully_shard"):
            use()


def test_modules_without_parameters_may_change():
    net = shard(Net())
    net.blocks[0].extra = torch.nn.Dropout()
    net.blocks[1] = torch.compile(net.blocks[1], backend="eager")
    sherd.AdamW(net)
    assert set(sherd.full_state_dict(net)) == {
        name.replace("blocks.1.", "blocks.1._orig_mod.") for name in Net().state_dict()
    }


def test_buffers_that_are_replaced_are_an_error(shared_folder):
    class Buffered(Net):
        def __init__(self):
            super().__init__()
            self.blocks[0].register_buffer("table", torch.zeros(3))
            self.blocks[0].register_buffer("scratch", torch.zeros(3), persistent=False)

    net = shard(Buffered())
    net.blocks[0].scratch = torch.ones(4)
    sherd.save(net, shared_folder + "/saved")
    net.blocks[0].table = torch.ones(3)
    with pytest.raises(RuntimeError, match=r"buffer 'blocks.0.table' is another one.*in place \(copy_\)"):
        sherd.save(net, shared_folder + "/saved")


def test_modules_that_share_a_parameter_share_it_under_meta_parameters():
    class Sharing(Net):
        def __init__(self):
            super().__init__()
            weight = torch.nn.Parameter(torch.zeros(2 * DIM, DIM))
            weight.decays = False
            for block in self.blocks[:2]:
                block.up.weight = weight

    with sherd.meta_parameters():
        net = Sharing()
    assert net.blocks[0].up.weight is net.blocks[1].up.weight and net.blocks[0].up.weight.is_meta
    assert net.blocks[0].up.weight.decays is False
    assert len(list(net.parameters())) == len(list(Sharing().parameters()))


def test_units_to_prefetch_may_be_sharded_later():
    def announce(net):
        for block, following in zip(net.blocks, net.blocks[1:], strict=False):
            sherd.fully_shard(block, prefetch=[following])
        sherd.fully_shard(net.blocks[-1])

    class Prefetching(Net):
        pass

    net = Prefetching()
    announce(net)
    sherd.fully_shard(net)
    text = str(sherd.program(net))
    forward = [line for line in text.splitlines() if "gather" in line and "blocks." in line]
    assert forward, text
    square(net, sample(0, sherd.world().rank)).backward()
    sherd.AdamW(net).step()
    other = Net()
    sherd.fully_shard(other.blocks[0], prefetch=[other.blocks[1]])
    sherd.fully_shard(other)
    with pytest.raises((ValueError, RuntimeError), match="no unit of this model: shard it first"):
        sherd.program(other)


def test_a_mesh_of_torch_that_a_plan_has_seen_is_not_the_plans(process_group, world):
    from torch.distributed.device_mesh import init_device_mesh

    mesh = init_device_mesh("cpu", (world.size,), mesh_dim_names=("dp",))

    def build():
        return sherd.fully_shard(Net(), mesh=mesh)

    sherd.plan(build, world=world.size)
    trains_like_torch(Net(), mesh=mesh, steps=2)


class Autocasting(Block):
    pass


def test_autocast_around_a_model_keeps_no_old_weights():
    net = shard(Net(Autocasting))
    optimizer = sherd.AdamW(net, lr=0.5)
    x = sample(0, 0)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.is_autocast_cache_enabled()
        before = net(x)
        before.float().square().mean().backward()
        optimizer.step()
        inside = net(x)
        assert torch.is_autocast_cache_enabled()
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(inside, net(x)) and not torch.equal(inside, before)


def test_autocast_around_a_model_is_that_of_torch():
    def loss(net, x):
        with torch.autocast("cpu", torch.bfloat16, cache_enabled=False):
            return net(x).float().square().mean()

    trains_like_torch(Net(), loss, tolerance=2e-2)
