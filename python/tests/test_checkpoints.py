# SPDX-License-Identifier: Apache-2.0
"""Checkpoint folders."""

import pytest
import torch

import sherd
from parity import Net, sample, shard, square


def step(net, optimizer, number=0):
    square(net, sample(number, sherd.world().rank)).backward()
    optimizer.step()


def equal(one, other):
    one, other = sherd.full_state_dict(one), sherd.full_state_dict(other)
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def on_meta(**options):
    with torch.device("meta"):
        net = Net()
    return shard(net, **options)


@pytest.mark.parametrize("strategy", ["optim_grads_params", "optim"])
def test_training_continues_from_a_checkpoint_with_any_strategy(shared_folder, strategy):
    net = shard(Net())
    optimizer = sherd.AdamW(net)
    step(net, optimizer)
    folder = shared_folder + "/step-1"
    sherd.save(net, folder, optimizer=optimizer, numbers={"step": 1}, texts={"note.txt": "hello"})
    assert sherd.find_checkpoints(shared_folder) == [(1, folder)]
    sherd.verify_checkpoint(folder)
    assert "head.weight" in sherd.describe_checkpoint(folder)
    other = on_meta(strategy=strategy)
    other_optimizer = sherd.AdamW(other)
    assert sherd.load(other, folder, optimizer=other_optimizer)["step"] == 1
    for one, its in ((net, optimizer), (other, other_optimizer)):
        step(one, its, 5)
    assert equal(net, other)


def test_buffers_that_are_not_persistent_are_left_out(shared_folder):
    class Buffered(Net):
        def __init__(self):
            super().__init__()
            self.register_buffer("kept", torch.ones(3))
            self.register_buffer("scratch", torch.zeros(3), persistent=False)

    net = shard(Buffered())
    net.kept.fill_(5)
    sherd.save(net, shared_folder + "/saved")
    other = shard(Buffered())
    sherd.load(other, shared_folder + "/saved")
    assert other.kept.eq(5).all() and other.scratch.eq(0).all()
    assert "scratch" not in sherd.describe_checkpoint(shared_folder + "/saved")


def test_folders_of_safetensors_that_others_have_written(shared_folder, world):
    from safetensors.torch import save_file

    torch.manual_seed(4)
    state = {name: value.to(torch.bfloat16) for name, value in Net().state_dict().items()}
    if world.rank == 0:
        names = sorted(state)
        for number, part in enumerate((names[:5], names[5:])):
            save_file({name: state[name] for name in part}, f"{shared_folder}/model-{number}.safetensors")
    world.barrier()
    net = on_meta()
    sherd.load(net, shared_folder)
    loaded = sherd.full_state_dict(net)
    assert all(torch.equal(loaded[name], state[name].float()) for name in state)
    with pytest.raises(ValueError, match="no optimizer's state"):
        sherd.load(net, shared_folder, optimizer=sherd.AdamW(net))

    class More(Net):
        def __init__(self):
            super().__init__()
            self.more = torch.nn.Linear(1, 1)

    with pytest.raises(ValueError, match="no tensor 'more.weight'"):
        sherd.load(shard(More()), shared_folder)


def test_a_tied_parameter_may_be_stored_by_any_of_its_names(shared_folder, world):
    from safetensors.torch import save_file

    class Tied(Net):
        def __init__(self):
            super().__init__()
            self.blocks[2].up.weight = self.blocks[0].up.weight

    state = Tied().state_dict()
    del state["blocks.0.up.weight"]
    if world.rank == 0:
        save_file(state, shared_folder + "/model.safetensors")
    world.barrier()
    net = shard(Tied())
    sherd.load(net, shared_folder)
    loaded = sherd.full_state_dict(net)
    assert all(torch.equal(loaded[name], state[name]) for name in state)
    assert torch.equal(loaded["blocks.0.up.weight"], state["blocks.2.up.weight"])


def test_background_saves(shared_folder):
    net = shard(Net())
    optimizer = sherd.AdamW(net)
    step(net, optimizer)
    before = sherd.full_state_dict(net)
    saving = sherd.BackgroundSave()
    assert saving.reserve(net, optimizer) > 0
    saving.begin(net, shared_folder + "/step-1", optimizer=optimizer)
    assert saving.under_way
    for number in range(1, 4):
        square(net, sample(number, sherd.world().rank)).backward()
        saving.before_update()
        optimizer.step()
        saving.advance()
    saving.finish()
    assert not saving.under_way
    other = on_meta()
    sherd.load(other, shared_folder + "/step-1")
    loaded = sherd.full_state_dict(other)
    assert all(torch.equal(loaded[name], before[name]) for name in before)


def test_errors_name_the_folder_on_all_ranks(shared_folder):
    with pytest.raises(ValueError, match="no .*safetensors"):
        sherd.load(shard(Net()), shared_folder + "/nothing")
    with pytest.raises(TypeError, match="SGD"):
        net = shard(Net())
        sherd.save(net, shared_folder, optimizer=torch.optim.SGD(sherd.parameters(net), lr=1))
