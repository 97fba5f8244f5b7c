# SPDX-License-Identifier: Apache-2.0
"""FSDP2's interface on Sherd: what torch.distributed.fsdp has for fully_shard, by the same names.

    from sherd.compat.fsdp2 import fully_shard, MixedPrecisionPolicy
    for layer in model.layers:
        fully_shard(layer, mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32))
    fully_shard(model, mp_policy=…)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    for batch in batches:
        model(batch).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

docs/from_fsdp2.md has what is different. Everything of `sherd` works on these models as well (sherd.AdamW, sherd.save,
sherd.program)."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import torch
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, OffloadPolicy

from . import torch_functions  # noqa: F401  (replaces functions of torch)
from .._C import Mesh, Precision
from ..mirrors import named_parameters_for_sherd
from ..ranks import mesh as mesh_of_all_ranks
from ..ranks import world
from ..unit_class import boundary_around
from ..units import fully_shard as shard_unit
from .fsdp_module import FSDPModule, UnshardHandle, run_forward
from .meshes import mesh_of, number_of_ranks
from .model_state import UnitState
from .sharded_parameters import ShardedParameter

__all__ = [
    "CPUOffloadPolicy",
    "FSDPModule",
    "MixedPrecisionPolicy",
    "OffloadPolicy",
    "ShardedParameter",
    "UnshardHandle",
    "fully_shard",
    "register_fsdp_forward_method",
    "share_comm_ctx",
]

Modules = TypeVar("Modules", torch.nn.Module, list[torch.nn.Module])


def fully_shard(
    module: Modules,
    *,
    mesh: Any = None,
    reshard_after_forward: bool | int | None = None,
    shard_placement_fn: Callable[[torch.nn.Parameter], Any] | None = None,
    mp_policy: MixedPrecisionPolicy = MixedPrecisionPolicy(),
    offload_policy: OffloadPolicy = OffloadPolicy(),
    ignored_params: Iterable[torch.nn.Parameter] | None = None,
) -> Modules:
    """Makes a module a unit, in place, and returns it: torch.distributed.fsdp.fully_shard on Sherd. Inner modules
    first, the whole model last. A list makes each of its modules a unit. Collective; blocks.

    mesh: a DeviceMesh of all ranks with one dimension (shard) or two (replicate, shard), or a sherd.Mesh.
    reshard_after_forward: False keeps the parameters gathered until the backward; None: True but for the root. Numbers
        raise.
    shard_placement_fn: may return None or Shard(0), which mean the same: Sherd cuts parameters anywhere.
    mp_policy: as in FSDP2, gradients are reduced in param_dtype where reduce_dtype is not given.
    offload_policy: CPUOffloadPolicy raises.
    ignored_params: parameters that stay whole on every rank, and whose gradients are not reduced.
    """
    keep_gathered = _keep_gathered(reshard_after_forward)
    if type(offload_policy) is not OffloadPolicy:
        raise NotImplementedError(
            f"[sherd.compat] offload_policy is a {type(offload_policy).__name__}: Sherd does not offload; 'optim' or "
            "bf16 states of sherd.AdamW, more ranks or activation checkpointing save memory"
        )
    modules = module if isinstance(module, list) else [module]
    for one in modules:
        _check_module(one)
        _check_placements(one, shard_placement_fn)
    own_mesh = _mesh_of(mesh)
    for one in modules:
        shard_unit(
            one,
            mesh=own_mesh,
            strategy="optim_grads_params",
            precision=_precision(mp_policy),
            keep_gathered=keep_gathered,
            ignored=_names_of(one, ignored_params),
        )
        become_fsdp_module(
            one, UnitState(number_of_ranks(own_mesh), reshard_after_forward is None, mp_policy.output_dtype)
        )
    return module


def become_fsdp_module(unit: torch.nn.Module, state: UnitState, kind: type[FSDPModule] = FSDPModule) -> None:
    """Gives a unit the class of FSDP modules."""
    unit.__dict__["_sherd_fsdp"] = state
    plain = type(unit)
    key = "_sherd_" + kind.__name__
    made = plain.__dict__.get(key)
    if made is None:
        members = {"__doc__": plain.__doc__, "__module__": plain.__module__, "__qualname__": plain.__qualname__}
        made = type(plain)(plain.__name__, (kind, plain), members)
        setattr(plain, key, made)
    object.__setattr__(unit, "__class__", made)


def register_fsdp_forward_method(module: torch.nn.Module, method_name: str) -> None:
    """Makes another method of a unit a forward: its parameters are gathered for it, and its results bring gradients. No
    effect for other modules."""
    if not isinstance(module, FSDPModule):
        return
    method = getattr(type(module)._sherd_base, method_name, None)  # type: ignore[attr-defined]
    if method is None:
        raise ValueError(f"[sherd.compat] {type(module).__name__} has no method {method_name}")
    within = boundary_around(method)
    reference = weakref.ref(module)  # an attribute that holds its own module would be a cycle

    def forward_method(*args: Any, **kwargs: Any) -> Any:
        unit = reference()
        return run_forward(unit, lambda *a, **k: within(unit, *a, **k), args, kwargs)

    setattr(module, method_name, forward_method)


def share_comm_ctx(modules: list[torch.nn.Module]) -> None:
    """Does nothing: each model's communication streams are Sherd's."""
    for module in modules:
        if not isinstance(module, FSDPModule):
            raise ValueError(f"[sherd.compat] share_comm_ctx: {type(module).__name__} is no FSDPModule")


# ---- arguments ------------------------------------------------------------------------------------------------------


def _keep_gathered(reshard_after_forward: bool | int | None) -> bool:
    if reshard_after_forward is not None and not isinstance(reshard_after_forward, bool):
        raise NotImplementedError(
            f"[sherd.compat] reshard_after_forward is {reshard_after_forward!r}: Sherd keeps parameters whole or "
            "releases them, give True or False (with ranks on several machines: HSDP, a mesh of two dimensions)"
        )
    return reshard_after_forward is False


def _check_module(module: torch.nn.Module) -> None:
    if isinstance(module, (torch.nn.ModuleList, torch.nn.ModuleDict)):
        raise ValueError(
            f"[sherd.compat] a {type(module).__name__} can't be sharded, because it is never called: shard its modules"
        )


def _check_placements(module: torch.nn.Module, choose: Callable[[torch.nn.Parameter], Any] | None) -> None:
    if choose is None:
        return
    for name, parameter in module.named_parameters():
        placement = choose(parameter)
        if placement is not None and getattr(placement, "dim", None) != 0:
            raise NotImplementedError(
                f"[sherd.compat] shard_placement_fn returns {placement} for '{name}': Sherd cuts flat parameters, "
                "whatever their dims are; leave it out (sherd.Rule(granule=...) keeps rows or blocks together)"
            )


def _mesh_of(given: Any) -> Mesh:
    """Returns Sherd's mesh; FSDP2 knows the dimensions of a DeviceMesh by their position."""
    if given is None or isinstance(given, Mesh):
        return given or mesh_of_all_ranks()
    sizes, ranks = list(given.mesh.shape), world()
    if len(sizes) > 2 or given.mesh.flatten().tolist() != list(range(ranks.size)):
        raise ValueError(
            f"[sherd.compat] the DeviceMesh has the ranks {given.mesh.tolist()}: it must have one dimension (shard) or "
            f"two (replicate, shard), and all {ranks.size} ranks in their order"
        )
    return mesh_of(1 if len(sizes) == 1 else sizes[0], sizes[-1])


def _precision(policy: MixedPrecisionPolicy) -> Precision:
    reduce = policy.param_dtype if policy.reduce_dtype is None else policy.reduce_dtype
    return Precision(compute=policy.param_dtype, reduce=reduce, cast_inputs=policy.cast_forward_inputs)


def _names_of(module: torch.nn.Module, ignored: Iterable[torch.nn.Parameter] | None) -> list[str]:
    """Returns the names of ignored parameters that the module has."""
    chosen = {id(parameter) for parameter in ignored or ()}
    return [name for name, parameter in named_parameters_for_sherd(module).items() if id(parameter) in chosen]
