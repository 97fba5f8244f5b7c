# SPDX-License-Identifier: Apache-2.0
"""The world of all ranks, and meshes over it: Sherd's own and torch's DeviceMesh."""

from __future__ import annotations

import atexit
import contextlib
import gc
import os
import weakref
from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch

from ._C import Mesh, World, WorldOptions

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

_world: World | None = None
_default_mesh: Mesh | None = None
_meshes: weakref.WeakKeyDictionary[DeviceMesh, Mesh] = weakref.WeakKeyDictionary()

# Names that torch's examples use for the dimensions of a DeviceMesh, and those of Sherd's axes.
_AXES = {
    "dp": "dp",
    "dp_shard": "dp",
    "shard": "dp",
    "fsdp": "dp",
    "dp_outer": "dp_outer",
    "dp_replicate": "dp_outer",
    "replicate": "dp_outer",
}


def world() -> World:
    """Returns all ranks: those of torch.distributed if it is initialised, else those that the launcher started (mpirun,
    torchrun, srun; without one, this process alone). The first call is collective and blocks."""
    global _world
    if _world is None:
        _world = _find_world(WorldOptions())
    return _world


def open_world(
    options: WorldOptions | None = None, *, group: torch.distributed.ProcessGroup | None = None
) -> World:
    """Opens the world with options, and returns it: world() does so without. Call it before anything else of Sherd.
    Collective; blocks.

    options: timeouts, the backend, the network interface.
    group: the process group of torch.distributed whose ranks it has; default: as world().
    """
    global _world
    if _world is not None:
        raise RuntimeError("[sherd] the world is open already: call sherd.open_world before anything else of Sherd")
    options = options or WorldOptions()
    _world = _find_world(options) if group is None else World.over(group, options)
    return _world


def _find_world(options: WorldOptions) -> World:
    dist = torch.distributed
    if not (dist.is_available() and dist.is_initialized()):
        return World.from_environment(options)
    if not _launcher_has_mpi() or (torch.cuda.is_available() and "nccl" in dist.get_backend_config()):
        return World.over(dist.group.WORLD, options)
    found = World.from_environment(options)
    if (found.rank, found.size) != (dist.get_rank(), dist.get_world_size()):
        raise RuntimeError(
            f"[sherd] this is rank {dist.get_rank()} of {dist.get_world_size()} in torch.distributed, but rank "
            f"{found.rank} of {found.size} for {found.launcher}: start all ranks with one launcher"
        )
    return found


def _launcher_has_mpi() -> bool:
    """As Sherd finds out for from_environment(): the innermost launcher counts."""
    return "TORCHELASTIC_RUN_ID" not in os.environ and any(
        name in os.environ for name in ("OMPI_COMM_WORLD_SIZE", "PMIX_RANK", "PMI_RANK")
    )


def mesh(**axes: int) -> Mesh:
    """Returns a mesh of all ranks with these axes and their sizes, the last varying fastest:
    `sherd.mesh(dp_outer=2, dp=4)`. Without axes: one axis `dp`, the same mesh each time. Collective; blocks."""
    global _default_mesh
    if axes:
        return Mesh(world(), list(axes.items()))
    if _default_mesh is None:
        ranks = world()
        _default_mesh = Mesh(ranks, [("dp", ranks.size)])
    return _default_mesh


def to_mesh(given: Mesh | DeviceMesh | None) -> Mesh:
    """Returns Sherd's mesh for a mesh of either kind, or the default one. Collective for a DeviceMesh seen first."""
    if given is None:
        return mesh()
    if isinstance(given, Mesh):
        return given
    if given not in _meshes:
        _meshes[given] = _mesh_like(given)
    return _meshes[given]


def _mesh_like(given: DeviceMesh) -> Mesh:
    sizes = list(given.mesh.shape)
    names = given.mesh_dim_names or ("dp",) if len(sizes) == 1 else given.mesh_dim_names or ("dp_outer", "dp")
    unknown = [name for name in names if name not in _AXES]
    if unknown or len(sizes) > 2:
        raise ValueError(
            f"[sherd] the DeviceMesh has the dimensions {tuple(names)}: it must have one or two data-parallel ones, "
            f"named {', '.join(_AXES)}; take mesh[...] of a mesh with more, or make a sherd.Mesh with the option axes"
        )
    ranks = world()
    if given.mesh.flatten().tolist() != list(range(ranks.size)):
        raise ValueError(
            f"[sherd] the DeviceMesh has the ranks {given.mesh.tolist()}: it must have all {ranks.size} ranks of the "
            "world in their order"
        )
    return Mesh(ranks, [(_AXES[name], size) for name, size in zip(names, sizes, strict=True)])


@contextlib.contextmanager
def world_for_plan(planned: World, axes: list[tuple[str, int]]) -> Iterator[None]:
    """A scope in which world() and the meshes are those of a plan."""
    global _world, _default_mesh, _meshes
    before = _world, _default_mesh, _meshes
    _world, _default_mesh, _meshes = planned, Mesh(planned, axes), weakref.WeakKeyDictionary()
    try:
        yield
    finally:
        _world, _default_mesh, _meshes = before


@atexit.register
def _leave() -> None:
    """Tells the other ranks that this one leaves. Without it mpirun would report a crash."""
    global _world, _default_mesh
    gc.collect()  # models in cycles
    _meshes.clear()
    _world = _default_mesh = None
    World.close()
