# SPDX-License-Identifier: Apache-2.0
"""Plans for worlds that do not exist: what a rank of a model needs and sends."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch

from . import _C
from ._C import GroupReport, Network, World
from .mirrors import sharded
from .pages import page_of_plan
from .programs import Program
from .ranks import world_for_plan


class Plan:
    """What one rank of a world needs for a step. Activations, and what torch itself allocates, are not in it."""

    def __init__(self, model: torch.nn.Module, ranks: int, network: Network | None) -> None:
        mirror = sharded(model)
        self.ranks = ranks  #: number of ranks
        self.program = Program(_C.program(mirror))  #: the step as data: its bytes and traffic
        self.groups: list[GroupReport] = _C.groups(mirror)  #: sizes of the groups of all units
        #: elements that the optimizer updates on this rank: AdamW has two moments for each
        self.trained_elements = sum(piece.numel() for _, piece in _C.named_parameters(mirror))
        #: seconds of a step's collectives one after another; None without a network
        self.collective_seconds = None if network is None else self.program.collective_seconds(network)
        self._groups_text = _C.groups_text(mirror)

    def adamw_bytes(self, states: torch.dtype = torch.float32) -> int:
        """Returns the bytes of sherd.AdamW's moments on this rank, without padding."""
        return 2 * self.trained_elements * states.itemsize

    def _repr_html_(self) -> str:
        """What notebooks show."""
        return page_of_plan(self)

    def __str__(self) -> str:
        need, lines = self.program.bytes, [f"one rank of {self.ranks}", ""]
        for name in ("model_weights", "main_weights", "main_gradients", "arena"):
            lines.append(f"{name.replace('_', ' '):16} {getattr(need, name) / 2**20:12.1f} MiB")
        lines.append(f"{'moments (fp32)':16} {self.adamw_bytes() / 2**20:12.1f} MiB")
        for kind, traffic in self.program.traffic.items():
            lines.append(f"{kind:16} {traffic.calls:6} a step, {traffic.bytes / 2**20:.1f} MiB")
        if self.collective_seconds is not None:
            lines.append(f"{'collectives':16} {self.collective_seconds * 1e3:12.2f} ms one after another")
        return "\n".join([*lines, "", self._groups_text])


def plan(
    build_model: Callable[[], torch.nn.Module],
    *,
    world: int | Mapping[str, int],
    network: Network | None = None,
    rank: int = 0,
) -> Plan:
    """Plans a rank of a world of any size on this machine, without memory or devices: calls `build_model`, which builds
    a model, shards it with fully_shard and returns it, on the meta device and with this world's mesh as the default.

    world: number of ranks, or the sizes of the mesh's axes: {'dp_outer': 4, 'dp': 8}.
    network: a description (sherd.Network), for the time of collectives.

    print(sherd.plan(build_model, world=64))
    """
    axes = [("dp", world)] if isinstance(world, int) else list(world.items())
    ranks = 1
    for _, size in axes:
        ranks *= size
    emulated = World.emulated(rank=rank, size=ranks, device=torch.device("meta"))
    with world_for_plan(emulated, axes):
        with torch.device("meta"):
            model = build_model()
        return Plan(model, ranks, network)
