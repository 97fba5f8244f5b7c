# SPDX-License-Identifier: Apache-2.0
"""State dicts and torch.distributed.checkpoint."""

import itertools

import pytest
import torch
import torch.distributed.checkpoint as dcp

import sherd
from parity import Net, sample, shard, square
from sherd.state import boxes_of


def trained(**options):
    net = shard(Net(), **options)
    optimizer = sherd.AdamW(net, lr=1e-2)
    square(net, sample(0, sherd.world().rank)).backward()
    optimizer.step()
    return net, optimizer


def test_boxes_have_the_elements_in_order():
    for shape in [(), (5,), (3, 4), (2, 3, 4), (4, 1, 3)]:
        whole = torch.arange(torch.Size(shape).numel()).reshape(shape)
        for begin, end in itertools.combinations(range(whole.numel() + 1), 2):
            found = []
            for offsets, sizes in boxes_of(shape, begin, end):
                box = whole[tuple(slice(o, o + s) for o, s in zip(offsets, sizes, strict=True))]
                found += box.reshape(-1).tolist()
            assert found == list(range(begin, end)), (shape, begin, end)


@pytest.mark.parametrize("strategy", ["optim_grads", "optim_grads_params"])
def test_full_state_dict_is_that_of_a_plain_model(strategy):
    net, _ = trained(strategy=strategy)
    state = sherd.full_state_dict(net)
    plain = Net()
    assert list(state) == list(plain.state_dict())
    plain.load_state_dict(state)
    assert torch.allclose(net(sample(1, 0)), plain(sample(1, 0)), atol=1e-6)
    other = shard(Net())
    other.load_state_dict(state)
    assert all(torch.equal(value, state[name]) for name, value in sherd.full_state_dict(other).items())


def test_load_state_dict_gives_values_to_models_on_the_meta_device():
    state = Net().state_dict()
    with torch.device("meta"):
        net = Net()
    shard(net).load_state_dict(state)
    assert all(torch.equal(value, state[name]) for name, value in sherd.full_state_dict(net).items())
    square(net, sample(0, 0)).backward()


def test_load_state_dict_names_what_does_not_fit():
    net, state = shard(Net()), Net().state_dict()
    del state["head.bias"]
    state["other"] = torch.zeros(1)
    state["head.weight"] = torch.zeros(2, 2)
    with pytest.raises(RuntimeError, match="missing.*head.bias.*unexpected.*other.*head.weight.*shape"):
        net.load_state_dict(state)


def test_tied_weights_and_buffers_are_in_state_dicts():
    class Tied(Net):
        def __init__(self):
            super().__init__()
            self.blocks[2].up.weight = self.blocks[0].up.weight
            self.register_buffer("table", torch.arange(3.0))
            self.register_buffer("scratch", torch.zeros(3), persistent=False)

    plain = Tied()
    net = shard(Tied())
    state = sherd.full_state_dict(net)
    assert list(state) == list(plain.state_dict())
    assert torch.equal(state["blocks.2.up.weight"], state["blocks.0.up.weight"])
    state["table"] = torch.ones(3)
    net.load_state_dict(state)
    assert net.table.eq(1).all()
    assert list(net.state_dict()) == list(plain.state_dict())


def test_sharded_tensors_say_what_to_do_instead():
    net, _ = trained()
    piece = net.state_dict()["head.weight"]
    assert isinstance(piece, sherd.ShardedTensor) and piece.shape == net.head.weight.shape
    with pytest.raises(NotImplementedError, match="full_state_dict"):
        piece + 1
    with pytest.raises(RuntimeError, match="full_state_dict"):
        torch.save(net.state_dict(), "/dev/null")


def test_dcp_restores_model_and_optimizer(process_group, shared_folder):
    net, optimizer = trained()
    dcp.save({"model": net.state_dict(), "optimizer": optimizer.state_dict()}, checkpoint_id=shared_folder)
    other = shard(Net(), strategy="optim_grads")
    other_optimizer = sherd.AdamW(other, lr=1.0)
    state = {"model": other.state_dict(), "optimizer": other_optimizer.state_dict()}
    dcp.load(state, checkpoint_id=shared_folder)
    other.load_state_dict(state["model"])
    other_optimizer.load_state_dict(state["optimizer"])
    for one, its in ((net, optimizer), (other, other_optimizer)):
        square(one, sample(5, sherd.world().rank)).backward()
        its.step()
    left, right = sherd.full_state_dict(net), sherd.full_state_dict(other)
    assert all(torch.equal(left[name], right[name]) for name in left)


def test_plain_torch_and_fsdp2_read_it_and_the_other_way_round(process_group, shared_folder, world):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    net, _ = trained()
    full = sherd.full_state_dict(net)
    dcp.save(net.state_dict(), checkpoint_id=shared_folder)
    plain = Net().state_dict()
    dcp.load(plain, checkpoint_id=shared_folder)
    assert all(torch.equal(plain[name], full[name]) for name in full)
    other, mesh = Net(), init_device_mesh("cpu", (world.size,))
    for block in other.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(other, mesh=mesh)
    state = other.state_dict()
    dcp.load(state, checkpoint_id=shared_folder)
    assert all(torch.equal(value.full_tensor(), full[name]) for name, value in state.items())
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.add_(1)
    dcp.save(other.state_dict(), checkpoint_id=shared_folder + "/fsdp2")
    state = net.state_dict()
    dcp.load(state, checkpoint_id=shared_folder + "/fsdp2")
    net.load_state_dict(state)
    again = sherd.full_state_dict(net)
    assert all(torch.equal(again[name], full[name] + 1) for name in full)
