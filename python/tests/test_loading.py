# SPDX-License-Identifier: Apache-2.0
"""What loading does to the tensors that are whole on every rank, and to what the source does not have."""

import json

import pytest
import torch

import sherd
from parity import DIM, Net, sample, shard, square


class Tables(Net):
    """Has a buffer that checkpoints have, and one that they don't."""

    def __init__(self):
        super().__init__()
        self.register_buffer("kept", torch.arange(3.0))
        self.register_buffer("scratch", torch.full((3,), 7.0), persistent=False)


class Rotary(torch.nn.Module):
    """Made from its config alone, as those of transformers are."""

    def __init__(self, config, device=None):
        super().__init__()
        self.config = config
        self.register_buffer("frequencies", config["base"] ** torch.arange(4.0, device=device), persistent=False)
        self.alias = self.frequencies


class WithRotary(Net):
    def __init__(self):
        super().__init__()
        self.rotary = Rotary({"base": 2.0})


class WithState(Net):
    """Has extra state, which is no tensor."""

    def __init__(self):
        super().__init__()
        self.blocks[0].up = Counting(DIM, 2 * DIM)


class Counting(torch.nn.Linear):
    count = 0

    def get_extra_state(self):
        return {"count": self.count}

    def set_extra_state(self, state):
        self.count = state["count"]


def on_meta(make):
    with torch.device("meta"):
        return make()


def write_safetensors(folder, state, name="model"):
    from safetensors.torch import save_file

    if sherd.world().rank == 0:
        save_file({key: value.contiguous() for key, value in state.items()}, f"{folder}/{name}.safetensors")
    sherd.world().barrier()


# ---- buffers --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("source", ["state_dict", "safetensors", "sherd"])
def test_no_buffer_is_left_without_values(source, shared_folder):
    state = Tables().state_dict()
    if source == "safetensors":
        write_safetensors(shared_folder, state)
    if source == "sherd":
        sherd.save(shard(Tables()), shared_folder + "/saved")

    def load(net):
        if source == "state_dict":
            return net.load_state_dict(state)
        return sherd.load(net, shared_folder + ("/saved" if source == "sherd" else ""))

    with pytest.raises(ValueError, match=r"'scratch'.*sherd\.meta_parameters\(\)"):
        load(shard(on_meta(Tables)))
    with sherd.meta_parameters():
        net = Tables()
    net.kept.fill_(0)
    load(shard(net))
    assert net.kept.tolist() == [0, 1, 2] and net.scratch.eq(7).all()


@pytest.mark.parametrize("source", ["state_dict", "safetensors", "initialise"])
def test_buffers_that_the_config_determines_are_made_again(source, shared_folder):
    state = WithRotary().state_dict()
    write_safetensors(shared_folder, state)
    net = shard(on_meta(WithRotary))
    before = torch.get_rng_state()
    if source == "state_dict":
        net.load_state_dict(state)
    elif source == "safetensors":
        sherd.load(net, shared_folder)
    else:
        sherd.initialise(net)
    assert net.rotary.frequencies.tolist() == [1, 2, 4, 8] and net.rotary.alias is net.rotary.frequencies
    assert source == "initialise" or torch.equal(torch.get_rng_state(), before)


def test_buffers_of_wrapped_modules_are_loaded(shared_folder):
    def wrapped():
        net = Tables()
        net.blocks[0].register_buffer("inside", torch.zeros(2))
        net.blocks[0].register_buffer("hidden", torch.zeros(2), persistent=False)
        return net

    net = wrapped()
    net.blocks[0].inside.fill_(3)
    write_safetensors(shared_folder, net.state_dict())
    other = wrapped()
    other.blocks[0] = torch.compile(other.blocks[0], backend="eager")
    sherd.fully_shard(other.blocks[0]._orig_mod)
    sherd.fully_shard(other)
    sherd.load(other, shared_folder)
    assert other.blocks[0]._orig_mod.inside.eq(3).all()


# ---- ignored parameters ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("source", ["state_dict", "safetensors", "sherd"])
def test_ignored_parameters_are_loaded(source, shared_folder):
    torch.manual_seed(5)
    given = Net()
    write_safetensors(shared_folder, given.state_dict())
    net = sherd.fully_shard(Net(), ignored=["head.*"])
    if source == "state_dict":
        net.load_state_dict(given.state_dict())
    elif source == "safetensors":
        sherd.load(net, shared_folder)
    else:
        sherd.save(sherd.fully_shard(given, ignored=["head.*"]), shared_folder + "/saved")
        sherd.load(net, shared_folder + "/saved")
    assert torch.equal(net.head.weight, given.head.weight) and torch.equal(net.head.bias, given.head.bias)
    assert net.head.weight.requires_grad


def test_ignored_parameters_that_do_not_fit_are_an_error(shared_folder):
    state = Net().state_dict()
    write_safetensors(shared_folder, {**state, "head.bias": torch.zeros(DIM + 1)})
    net = sherd.fully_shard(Net(), ignored=["head.*"])
    with pytest.raises(ValueError, match=r"'head.bias' has the shape \[17\]"):
        sherd.load(net, shared_folder)
    del state["head.bias"]
    with pytest.raises(RuntimeError, match=r"missing \['head.bias'\]"):
        net.load_state_dict(state)


# ---- what a state dict lacks ----------------------------------------------------------------------------------------


def test_parameters_without_values_are_not_left_out():
    state = Net().state_dict()
    del state["blocks.1.up.weight"]
    net = shard(on_meta(Net))
    with pytest.raises(ValueError, match=r"'blocks.1.up.weight'.*sherd\.initialise"):
        net.load_state_dict(state, strict=False)
    with pytest.raises(RuntimeError, match="no values"):
        net(sample(0, 0))
    sherd.initialise(net, seed=1)
    before = sherd.full_state_dict(net)["blocks.1.up.weight"]
    assert net.load_state_dict(state, strict=False).missing_keys == ["blocks.1.up.weight"]
    after = sherd.full_state_dict(net)
    assert torch.equal(after["blocks.1.up.weight"], before) and torch.equal(after["head.bias"], state["head.bias"])


def test_extra_state_is_restored():
    net = WithState()
    net.blocks[0].up.count = 5
    plain = net.state_dict()
    state = sherd.full_state_dict(shard(net))
    assert list(state) == list(plain) and state["blocks.0.up._extra_state"] == {"count": 5}
    for given in (state, net.state_dict()):
        other = shard(WithState())
        other.load_state_dict(given)
        assert other.blocks[0].up.count == 5
    del state["blocks.0.up._extra_state"]
    with pytest.raises(RuntimeError, match="missing.*blocks.0.up._extra_state"):
        shard(WithState()).load_state_dict(state)


# ---- folders --------------------------------------------------------------------------------------------------------


def test_the_index_of_a_folder_says_what_its_files_are(shared_folder, world):
    state = Net().state_dict()
    write_safetensors(shared_folder, {"weights.of.another.name": torch.zeros(1)}, "consolidated")
    write_safetensors(shared_folder, state, "part-1")
    if world.rank == 0:
        with open(shared_folder + "/model.safetensors.index.json", "w") as index:
            json.dump({"weight_map": dict.fromkeys(state, "part-1.safetensors")}, index)
    world.barrier()
    net = shard(on_meta(Net))
    sherd.load(net, shared_folder)
    assert all(torch.equal(value, state[name]) for name, value in sherd.full_state_dict(net).items())


def test_one_tensor_in_two_files_is_an_error(shared_folder):
    for name in ("one", "two"):
        write_safetensors(shared_folder, {"head.bias": torch.zeros(DIM)}, name)
    with pytest.raises(ValueError, match="'head.bias' is in .*one.safetensors and in .*two.safetensors"):
        sherd.load(shard(Net()), shared_folder)


@pytest.mark.ranks(2)
def test_a_folder_that_only_some_ranks_see_is_an_error_on_all(shared_folder, world):
    write_safetensors(shared_folder, Net().state_dict())
    net = shard(Net())
    folder = shared_folder if world.rank == 0 else shared_folder + "/elsewhere"
    words = r"no \*.safetensors" if world.rank else "rank 1 has failed: .* has no"
    with pytest.raises((ValueError, RuntimeError), match=words):
        sherd.load(net, folder)
    square(net, sample(0, world.rank)).backward()  # it is as before
    sherd.AdamW(net).step()
    sherd.save(net, shared_folder + "/saved")
    folder = shared_folder + "/saved" if world.rank == 0 else shared_folder
    with pytest.raises((ValueError, RuntimeError)):  # not one in a collective of one loader, one in another's
        sherd.load(net, folder)
