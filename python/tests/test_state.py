# SPDX-License-Identifier: Apache-2.0
"""State dicts and torch.distributed.checkpoint."""

import copy
import itertools

import pytest
import torch
import torch.distributed.checkpoint as dcp

import sherd
from parity import Net, sample, shard, square
from sherd.sharded_tensor import boxes_of


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


@pytest.mark.parametrize("other_strategy", ["optim_grads", "optim_grads_params"])
def test_dcp_restores_optimizers_of_torch(process_group, shared_folder, other_strategy):
    def make(strategy):
        net = shard(Net(), strategy=strategy)
        optimizer = torch.optim.AdamW(sherd.parameters(net), lr=1e-2)
        square(net, sample(0, sherd.world().rank)).backward()
        optimizer.step()
        return net, optimizer

    net, optimizer = make("optim_grads_params")
    state = optimizer.state_dict()
    assert state["param_groups"][0]["params"] == [name for name, _ in sherd.named_parameters(net)]
    assert state["state"]["head.weight"]["exp_avg"].shape == net.head.weight.shape
    dcp.save({"model": net.state_dict(), "optimizer": state}, checkpoint_id=shared_folder)
    torch.manual_seed(9)
    other, other_optimizer = make(other_strategy)
    square(other, sample(3, 0)).backward()
    other_optimizer.step()
    loaded = {"model": other.state_dict(), "optimizer": other_optimizer.state_dict()}
    dcp.load(loaded, checkpoint_id=shared_folder)
    other.load_state_dict(loaded["model"])
    other_optimizer.load_state_dict(loaded["optimizer"])
    for one, its in ((net, optimizer), (other, other_optimizer)):
        square(one, sample(5, sherd.world().rank)).backward()
        its.step()
    left, right = sherd.full_state_dict(net), sherd.full_state_dict(other)
    assert all(torch.equal(left[name], right[name]) for name in left)


def test_state_of_other_parameters_is_an_error():
    net = shard(Net())
    optimizer = torch.optim.SGD(sherd.parameters(net), lr=0.1, momentum=0.9)
    square(net, sample(0, 0)).backward()
    optimizer.step()
    state = optimizer.state_dict()
    state["param_groups"][0]["params"][0] = "another"
    with pytest.raises(ValueError, match="other parameters.*another"):
        optimizer.load_state_dict(state)
    state = optimizer.state_dict()
    state["state"]["head.weight"]["momentum_buffer"] = torch.zeros(3)
    with pytest.raises(ValueError, match=r"'momentum_buffer' of 'head.weight' has the shape \(3,\)"):
        optimizer.load_state_dict(state)
    with pytest.raises(RuntimeError, match="full_state_dict|sherd.save"):
        torch.save(optimizer.state_dict(), "/dev/null")


def test_dcp_restores_the_updates_that_a_parameter_has_missed(process_group, shared_folder, world):
    def run(net, optimizer, frozen, number):
        net.blocks[1].requires_grad_(not frozen)
        square(net, sample(number, world.rank)).backward()
        optimizer.step()

    net = shard(Net())
    optimizer = sherd.AdamW(net, lr=1e-2)
    for number, frozen in enumerate((False, True, True)):
        run(net, optimizer, frozen, number)
    net.blocks[1].requires_grad_(True)
    dcp.save({"model": net.state_dict(), "optimizer": optimizer.state_dict()}, checkpoint_id=shared_folder)
    other = shard(Net())
    other_optimizer = sherd.AdamW(other, lr=1e-2)
    state = {"model": other.state_dict(), "optimizer": other_optimizer.state_dict()}
    dcp.load(state, checkpoint_id=shared_folder)
    other.load_state_dict(state["model"])
    other_optimizer.load_state_dict(state["optimizer"])
    assert other_optimizer.state_dict()["state"]["blocks.1.up.weight"]["step"].item() == 1
    for one, its in ((net, optimizer), (other, other_optimizer)):
        run(one, its, False, 7)
    left, right = sherd.full_state_dict(net), sherd.full_state_dict(other)
    assert all(torch.equal(left[name], right[name]) for name in left)


def test_adamw_of_torch_and_of_sherd_take_each_others_state(process_group, shared_folder, world):
    from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict, set_optimizer_state_dict

    net = Net()
    plain = copy.deepcopy(net)
    shard(net)
    mine, its = sherd.AdamW(net, lr=1e-2), torch.optim.AdamW(plain.parameters(), lr=1e-2)
    for number in range(2):
        square(net, sample(number, 0)).backward()
        mine.step()
        its.zero_grad()
        square(plain, sample(number, 0)).backward()
        its.step()
    dcp.save(get_optimizer_state_dict(plain, its), checkpoint_id=shared_folder + "/torch")
    dcp.save(mine.state_dict(), checkpoint_id=shared_folder + "/sherd")
    # Sherd reads torch's.
    other = shard(copy.deepcopy(plain))
    optimizer = sherd.AdamW(other, lr=1e-2)
    state = optimizer.state_dict()
    del state["progress"]
    dcp.load(state, checkpoint_id=shared_folder + "/torch")
    optimizer.load_state_dict(state)
    # torch reads Sherd's.
    again = copy.deepcopy(plain)
    of_torch = torch.optim.AdamW(again.parameters(), lr=1e-2)
    state = get_optimizer_state_dict(again, of_torch)
    dcp.load(state, checkpoint_id=shared_folder + "/sherd")
    set_optimizer_state_dict(again, of_torch, state)
    for model, its_optimizer in ((net, mine), (plain, its), (other, optimizer), (again, of_torch)):
        its_optimizer.zero_grad()
        square(model, sample(7, 0)).backward()
        its_optimizer.step()
    expected = plain.state_dict()
    for state in (sherd.full_state_dict(net), sherd.full_state_dict(other), again.state_dict()):
        assert max((state[name] - value).abs().max().item() for name, value in expected.items()) < 1e-6


def test_get_and_set_model_state_dict(process_group, shared_folder):
    from torch.distributed.checkpoint.state_dict import get_model_state_dict, set_model_state_dict

    net, _ = trained()
    expected = sherd.full_state_dict(net)
    state = get_model_state_dict(net)
    assert all(isinstance(value, sherd.ShardedTensor) for value in state.values())
    dcp.save(state, checkpoint_id=shared_folder)
    other = shard(Net())
    state = get_model_state_dict(other)
    dcp.load(state, checkpoint_id=shared_folder)
    set_model_state_dict(other, state)
    loaded = sherd.full_state_dict(other)
    assert all(torch.equal(loaded[name], expected[name]) for name in expected)
    third = shard(Net())
    set_model_state_dict(third, expected)
    loaded = sherd.full_state_dict(third)
    assert all(torch.equal(loaded[name], expected[name]) for name in expected)
