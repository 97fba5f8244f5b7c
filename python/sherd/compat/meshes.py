# SPDX-License-Identifier: Apache-2.0
"""Meshes of all ranks, as the interfaces of other systems need them."""

from __future__ import annotations

import atexit

from .._C import Mesh, World
from ..ranks import mesh, world

_hybrid: dict[tuple[int, int], tuple[World, Mesh]] = {}
atexit.register(_hybrid.clear)  # before sherd closes the world


def mesh_of(outer: int, inner: int) -> Mesh:
    """Returns the mesh of all ranks with groups of `inner` neighbours, the same each time; with one group it has no
    outer axis."""
    if outer == 1:
        return mesh()
    ranks = world()
    known = _hybrid.get((outer, inner))
    if known is None or known[0] is not ranks:  # plans have worlds of their own
        known = _hybrid[outer, inner] = (ranks, Mesh(ranks, [("dp_outer", outer), ("dp", inner)]))
    return known[1]


def number_of_ranks(mesh: Mesh) -> int:
    """Returns the number of data-parallel ranks."""
    return mesh.axis_size("dp") * (mesh.axis_size("dp_outer") if mesh.has("dp_outer") else 1)
