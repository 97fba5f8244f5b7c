# SPDX-License-Identifier: Apache-2.0
"""Worlds and meshes, Sherd's and torch's."""

import pytest
import torch

import sherd
from parity import Net, shard, trains_like_torch
from sherd import ranks


def test_the_world(world):
    assert 0 <= world.rank < world.size and world.device == torch.device("cpu")
    assert world.launcher in ("alone", "mpirun", "torchrun")
    ranks = torch.tensor([float(world.rank)])
    world.all_reduce(ranks)
    assert ranks.item() == sum(range(world.size))


def test_a_world_over_a_process_group(process_group, world):
    over = sherd.World.over(process_group, sherd.WorldOptions(operation_timeout=60.0))
    assert (over.rank, over.size, over.backend, over.launcher) == (world.rank, world.size, "tcp", "caller")
    trains_like_torch(Net(), mesh=sherd.Mesh(over, [("dp", over.size)]), steps=2)


def test_the_world_that_is_found(process_group, world):
    found = ranks._find_world(sherd.WorldOptions(operation_timeout=60.0))
    assert (found.rank, found.size) == (world.rank, world.size)
    assert found.launcher == ("mpirun" if world.launcher == "mpirun" else "caller")
    with pytest.raises(RuntimeError, match="open already"):
        sherd.open_world()


@pytest.mark.ranks(2)
def test_options_of_worlds(process_group):
    with pytest.raises(ValueError, match="backend is 'gloo'; it must be one of 'mpi', 'nccl', 'tcp'"):
        sherd.WorldOptions(backend="gloo")
    with pytest.raises(RuntimeError, match="no network interface 'no-such-interface'"):
        options = sherd.WorldOptions(backend="tcp", device=torch.device("cpu"), interface="no-such-interface")
        sherd.World.over(process_group, options)


def test_meshes_of_torch(process_group, world):
    from torch.distributed.device_mesh import init_device_mesh

    mesh = init_device_mesh("cpu", (world.size,), mesh_dim_names=("dp",))
    trains_like_torch(Net(), mesh=mesh)
    trains_like_torch(Net(), mesh=init_device_mesh("cpu", (world.size,)))


@pytest.mark.ranks(2)
@pytest.mark.parametrize("outer", ["no_shard", "optim"])
def test_meshes_of_torch_with_two_dimensions(process_group, world, outer):
    from torch.distributed.device_mesh import init_device_mesh

    mesh = init_device_mesh("cpu", (2, world.size // 2), mesh_dim_names=("dp_replicate", "dp_shard"))
    trains_like_torch(Net(), mesh=mesh, strategy=("optim_grads_params", outer))


def test_meshes_with_other_names(world):
    mesh = sherd.Mesh(world, [("ranks", world.size)])
    trains_like_torch(Net(), mesh=mesh, axes=("ranks", ""), steps=2)
    assert mesh.axes == [("ranks", world.size)] and mesh.coordinate("ranks") == world.rank


def test_a_mesh_without_the_axis_is_a_value_error(world):
    with pytest.raises(ValueError, match="dp"):
        shard(Net(), mesh=sherd.Mesh(world, [("ranks", world.size)]))
