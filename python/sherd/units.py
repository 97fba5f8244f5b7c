# SPDX-License-Identifier: Apache-2.0
"""fully_shard: makes a torch.nn.Module a unit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from . import _C
from ._C import Cut, Granule, Mesh, Placement, Precision
from .mirrors import announced_mirror, mark_parameters, mirror_of
from .ranks import to_mesh
from .unit_class import unit_class

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp import MixedPrecisionPolicy

    Strategy = str | tuple[str, str] | Placement
    PrecisionLike = str | Precision | MixedPrecisionPolicy
    MeshLike = Mesh | DeviceMesh

Module = TypeVar("Module", bound=torch.nn.Module)


@dataclass(frozen=True)
class Rule:
    """Options for the parameters of a unit whose names match a pattern; '*' matches any text, dots included. Options
    that are not given are the unit's. For each option, the last matching rule that sets it wins."""

    match: str
    mesh: MeshLike | None = None
    axes: tuple[str, str] | None = None
    strategy: Strategy | None = None
    granule: Granule | None = None
    precision: PrecisionLike | None = None
    cut: Cut | None = None

    def _for_sherd(self) -> _C.ParameterRule:
        rule = _C.ParameterRule(self.match)
        rule.mesh = None if self.mesh is None else to_mesh(self.mesh)
        rule.placement = None if self.strategy is None else _placement(self.strategy)
        rule.granule = self.granule
        rule.precision = None if self.precision is None else _precision(self.precision)
        rule.cut = self.cut
        if self.axes is not None:
            rule.set_axes(*self.axes)
        return rule


def fully_shard(
    module: Module,
    *,
    mesh: MeshLike | None = None,
    axes: tuple[str, str] | None = None,
    strategy: Strategy = "optim_grads_params",
    precision: PrecisionLike | None = None,
    keep_gathered: bool = False,
    prefetch: Sequence[torch.nn.Module] = (),
    backward_prefetch: Sequence[torch.nn.Module] = (),
    ignored: Sequence[str] = (),
    rules: Sequence[Rule] = (),
    prefetch_depth: int | None = None,
    loss: str | None = None,
    memory: str | None = None,
    symmetric: bool | None = None,
    budget: int | None = None,
) -> Module:
    """Makes a module a unit of fully sharded training, in place, and returns it: its parameters, except those of units
    inside it, are gathered just before the module is called and released just after, and their gradients are reduced.
    Shard inner modules first and the whole model, the root, last. Call units as modules (`layer(x)`), not by forward().

    All ranks take the first rank's values; parameters and buffers move to the world's device. Parameters may be on the
    meta device: then use sherd.load or sherd.initialise. One that is to be trained must require gradients now; it may
    be frozen later. Collective; blocks.

    mesh: the ranks to shard over, a torch DeviceMesh or a sherd.Mesh; default: all, along one axis.
    axes: names of the inner and the outer data-parallel axis ('' for none); default: 'dp', and 'dp_outer' if there.
    strategy: what is sharded: 'no_shard', 'optim' (ZeRO-1), 'optim_grads' (ZeRO-2), 'optim_grads_params' (ZeRO-3); a
        pair for the inner and the outer axis (HSDP: ('optim_grads_params', 'no_shard'), HFSDP: (…, 'optim')); or a
        sherd.Placement.
    precision: a recipe such as 'bf16_o2' (see sherd.Precision.recipes()), a sherd.Precision, or FSDP2's
        MixedPrecisionPolicy; default: each parameter's own dtype.
    keep_gathered: keeps the parameters from the forward to the backward (reshard_after_forward=False).
    prefetch, backward_prefetch: units to gather when this one begins its forward or backward; they may be sharded
        later.
    ignored: patterns of parameters that are left alone.
    rules: exceptions for some parameters.

    These are for the root only, and hold for the whole model:
    prefetch_depth: number of units gathered ahead (default 1).
    loss: 'mean' (over ranks, sum over micro-batches; the default), 'sum' or 'per_token'.
    memory: 'planned' (one arena, the default) or 'eager' (torch's allocator).
    symmetric: registers the arena with NCCL.
    budget: limit in bytes for weights, gradients and arena; the first use raises if it is exceeded.
    """
    _check_parameters(module)
    over = to_mesh(mesh)
    mirror = mirror_of(module, {})
    _C.fully_shard(
        mirror,
        mesh=over,
        axes=axes,
        placement=_placement(strategy),
        precision=_precision(precision),
        keep_gathered=keep_gathered,
        prefetch=[announced_mirror(unit) for unit in prefetch],
        backward_prefetch=[announced_mirror(unit) for unit in backward_prefetch],
        ignored=list(ignored),
        rules=[rule._for_sherd() for rule in rules],
        root=_root_options(prefetch_depth, loss, memory, symmetric, budget),
    )
    module.__dict__["_sherd"] = mirror
    module.__dict__["_sherd_loss"] = loss or "mean"
    module.__dict__["_sherd_world"] = over.world
    object.__setattr__(module, "__class__", unit_class(type(module)))
    mark_parameters(module, ignored)
    return module


def _check_parameters(module: torch.nn.Module) -> None:
    for name, parameter in module.named_parameters():
        if isinstance(parameter, torch.nn.parameter.UninitializedTensorMixin):
            raise ValueError(
                f"[sherd] parameter '{name}' has no shape yet: run the lazy module once before fully_shard"
            )
        if is_traceable_wrapper_subclass(parameter):
            raise ValueError(
                f"[sherd] parameter '{name}' is a {type(parameter).__name__}: only plain tensors can be sharded"
            )


# ---- options --------------------------------------------------------------------------------------------------------


def _placement(strategy: Strategy) -> Placement:
    if isinstance(strategy, Placement):
        return strategy
    return Placement(strategy) if isinstance(strategy, str) else Placement(*strategy)


def _precision(given: PrecisionLike | None) -> Precision:
    if given is None:
        return Precision()
    if isinstance(given, str):
        return Precision.recipe(given)
    if isinstance(given, Precision):
        return given
    if not hasattr(given, "param_dtype"):
        raise TypeError(
            f"[sherd] precision is a {type(given).__name__}: give the name of a recipe, a sherd.Precision or a "
            "MixedPrecisionPolicy"
        )
    if given.output_dtype is not None:
        raise ValueError(
            f"[sherd] the MixedPrecisionPolicy has output_dtype {given.output_dtype}, which Sherd does not know: cast "
            "the result yourself"
        )
    return Precision(compute=given.param_dtype, reduce=given.reduce_dtype, cast_inputs=given.cast_forward_inputs)


def _root_options(
    prefetch_depth: int | None, loss: str | None, memory: str | None, symmetric: bool | None, budget: int | None
) -> _C.RootOptions | None:
    if all(option is None for option in (prefetch_depth, loss, memory, symmetric, budget)):
        return None
    return _C.RootOptions(
        prefetch_depth=1 if prefetch_depth is None else prefetch_depth,
        loss=loss or "mean",
        memory=memory or "planned",
        symmetric=bool(symmetric),
        budget=budget or 0,
    )
