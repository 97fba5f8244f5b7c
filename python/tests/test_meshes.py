# SPDX-License-Identifier: Apache-2.0
"""Worlds and meshes, Sherd's and torch's."""

import pytest
import torch

import sherd
from parity import Net, shard, trains_like_torch


def test_the_world(world):
    assert 0 <= world.rank < world.size and world.device == torch.device("cpu")
    assert world.launcher in ("alone", "mpirun", "torchrun")
    ranks = torch.tensor([float(world.rank)])
    world.all_reduce(ranks)
    assert ranks.item() == sum(range(world.size))


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
