# SPDX-License-Identifier: Apache-2.0
"""Megatron-FSDP's interface on Sherd: fully_shard, fully_shard_model and fully_shard_optimizer with its arguments.

    from sherd.compat.megatron_fsdp import fully_shard
    model, optimizer = fully_shard(model, torch.optim.AdamW(model.parameters()), fsdp_unit_modules=[Layer])

The model stays the module that it was (there is no wrapper, so names of parameters have no prefix); model.module is the
model. Arguments that change nothing but how Megatron-FSDP communicates are accepted, because Sherd plans that:
overlap_grad_reduce, average_in_collective, disable_bucketing, fsdp_double_buffer, maxpool_double_buffer,
fsdp_db_use_persist_buf_on_alloc_fail, preproc_state_dict_for_dcp_ckpt, and the process groups. docs/from_fsdp2.md has
what is different."""

from __future__ import annotations

import importlib
import types
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import torch

from .. import _C
from .._C import Mesh, Precision
from ..diagnostics import watch
from ..initialising import initialise
from ..mirrors import sharded
from ..ranks import mesh as mesh_of_all_ranks
from ..ranks import world
from ..units import fully_shard as shard_unit
from .fsdp2 import become_fsdp_module
from .fsdp_module import FSDPModule
from .megatron_module import MegatronFSDP
from .meshes import mesh_of, number_of_ranks
from .model_state import UnitState, model_of
from .sharded_parameters import ShardedParameter, sharded_parameters


class ShardingStrategy(IntEnum):
    """What is sharded; the values of zero_dp_strategy and outer_dp_sharding_strategy, which may be names, too."""

    NO_SHARD = 0
    OPTIM = 1
    OPTIM_GRADS = 2
    OPTIM_GRADS_PARAMS = 3


@dataclass(frozen=True)
class MixedPrecisionPolicy:
    """The dtypes of main weights (None: the parameters'), main gradients (None: the parameters') and reductions (None:
    that of main gradients). The model computes in its parameters' dtype."""

    main_params_dtype: torch.dtype | None = torch.float32
    main_grads_dtype: torch.dtype | None = None
    grad_comm_dtype: torch.dtype | None = None


def fully_shard(
    module: torch.nn.Module, optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any
) -> tuple[Any, torch.optim.Optimizer]:
    """Shards a model and makes an optimizer over its parameters one over the sharded ones. Further arguments are those
    of fully_shard_model. Parameter groups keep their settings. Collective; blocks."""
    given = {id(one) for group in optimizer.param_groups for one in group["params"]}
    if optimizer.state:
        raise ValueError("[sherd.compat] the optimizer has state already: give a new one, and load its state later")
    model = fully_shard_model(module, *args, **kwargs)
    pieces = sharded_parameters(model)
    missing = [name for name, one in _plain_parameters(model) if one.requires_grad and id(one) not in given]
    if missing:
        raise ValueError(f"[sherd.compat] the optimizer lacks parameters of the model: {', '.join(missing[:8])}")
    groups = list(optimizer.param_groups)
    optimizer.param_groups.clear()
    for group in groups:
        optimizer.add_param_group({**group, "params": [pieces.get(id(one), one) for one in group["params"]]})
    return model, fully_shard_optimizer(optimizer)


def fully_shard_optimizer(
    optimizer: torch.optim.Optimizer, preproc_state_dict_for_dcp_ckpt: bool = True
) -> torch.optim.Optimizer:
    """Gives an optimizer over the parameters of a sharded model the further arguments that Megatron-FSDP's have. It
    works without as well."""
    if not any(isinstance(one, ShardedParameter) for group in optimizer.param_groups for one in group["params"]):
        raise ValueError("[sherd.compat] the optimizer has no parameter of a sharded model: use model.parameters()")

    def step(self: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> Any:
        for name in ("sync_grad_before_optimizer_step", "install_optimized_model_weights"):
            if not kwargs.pop(name, True):
                raise NotImplementedError(f"[sherd.compat] step({name}=False): a step of the optimizer includes it")
        return type(self).step(self, *args, **kwargs)

    def zero_grad(self: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> None:
        drops = kwargs.pop("zero_grad_buffer", True)
        type(self).zero_grad(self, *args, **kwargs)
        for model in _models_of(self) if drops else []:
            _C.drop_gradients(sharded(model))

    optimizer.step = types.MethodType(step, optimizer)  # type: ignore[method-assign]
    optimizer.zero_grad = types.MethodType(zero_grad, optimizer)  # type: ignore[method-assign]
    return optimizer


def _models_of(optimizer: torch.optim.Optimizer) -> list[torch.nn.Module]:
    parameters = [one for group in optimizer.param_groups for one in group["params"]]
    references = {one._sherd_model for one in parameters if hasattr(one, "_sherd_model")}
    return [model for reference in references if (model := reference()) is not None]


def _plain_parameters(model: torch.nn.Module) -> Iterator[tuple[str, torch.nn.Parameter]]:
    return type(model)._sherd_base.named_parameters(model)  # type: ignore[attr-defined]


def fully_shard_model(
    module: torch.nn.Module,
    device_mesh: Any = None,
    dp_shard_dim: str | None = None,
    dp_outer_dim: str | None = None,
    tp_dim: str | None = None,
    hybrid_fsdp_group: Any = None,
    hybrid_fsdp_expt_group: Any = None,
    expt_device_mesh: Any = None,
    fsdp_group_ag: Any = None,
    expt_fsdp_group_ag: Any = None,
    fsdp_unit_modules: Sequence[type[torch.nn.Module] | str] | None = None,
    zero_dp_strategy: str | int = 3,
    outer_dp_sharding_strategy: str | int = 0,
    device: torch.device | None = None,
    init_model_with_meta_device: bool = False,
    mixed_precision_policy: MixedPrecisionPolicy = MixedPrecisionPolicy(),
    overlap_grad_reduce: bool = True,
    overlap_param_gather: bool = True,
    sync_model_each_microbatch: bool = True,
    preproc_state_dict_for_dcp_ckpt: bool = True,
    report_nan_in_param_grad: bool = False,
    average_in_collective: bool = False,
    disable_bucketing: bool = False,
    calculate_per_token_loss: bool = False,
    keep_fp8_transpose_cache: bool = False,
    nccl_ub: bool = False,
    fsdp_double_buffer: bool = False,
    fsdp_db_use_persist_buf_on_alloc_fail: bool = False,
    disable_symmetric_registration: bool = False,
    enable_fine_grained_param_gather: bool = False,
    use_decoupled_grad: bool = False,
    cuda_graph_mode: bool = False,
    maxpool_double_buffer: bool = False,
) -> Any:
    """Makes the modules of the given classes units, and the whole model the root; in place. Returns the model.
    Collective; blocks.

    device_mesh, dp_shard_dim, dp_outer_dim: a DeviceMesh, and the names of the dimensions to shard over and, for HSDP
        and HFSDP, of the outer one. Default: all ranks in one. Another dimension must have one rank.
    fsdp_unit_modules: classes or their import paths ('package.module.Class').
    zero_dp_strategy, outer_dp_sharding_strategy: a ShardingStrategy, its number or name in lower case. The outer one is
        'no_shard' or, with 'optim_grads_params', 'optim', and counts where dp_outer_dim is given.
    init_model_with_meta_device: parameters on the meta device are given values by reset_parameters() of their modules.
    calculate_per_token_loss: gradients are summed over ranks, not averaged.
    sync_model_each_microbatch: False: the next backward is not the step's last; see set_model_auto_sync.
    """
    _refuse(
        {
            "expt_device_mesh": (expt_device_mesh, "give experts a mesh: sherd.fully_shard(rules=[sherd.Rule(...)])"),
            "hybrid_fsdp_expt_group": (hybrid_fsdp_expt_group, "see expt_device_mesh"),
            "keep_fp8_transpose_cache": (keep_fp8_transpose_cache, "modules of torch compute in 16 or 32 bits"),
            "enable_fine_grained_param_gather": (enable_fine_grained_param_gather, "name inner modules as units"),
            "use_decoupled_grad": (use_decoupled_grad, "gradients are in Parameter.grad; sherd.AdamW fuses the update"),
            "cuda_graph_mode": (cuda_graph_mode, "graphs of whole steps are there in C++ (StepGraph)"),
            "disable_symmetric_registration": (nccl_ub and disable_symmetric_registration, "nccl_ub is symmetric"),
        }
    )
    if device is not None and torch.device(device).type != world().device.type:
        raise ValueError(f"[sherd.compat] device is {device}, but the world's is {world().device}")
    mesh = _mesh_of(device_mesh, dp_shard_dim, dp_outer_dim, tp_dim)
    strategy = _strategy(zero_dp_strategy, outer_dp_sharding_strategy if mesh.has("dp_outer") else 0)
    ranks = number_of_ranks(mesh)
    classes = tuple(_class_of(one) for one in fsdp_unit_modules or ())
    inner = [one for one in _inner_first(module) if isinstance(one, classes) and one is not module]
    for unit in [*inner, module]:
        precision = _precision(unit, mixed_precision_policy)
        shard_unit(unit, mesh=mesh, strategy=strategy, precision=precision)
        state = UnitState(ranks, auto_reshard=False)
        state.divide_factor = 1.0 if calculate_per_token_loss else None
        state.symmetric = nccl_ub
        state.prefetch_depth = 1 if overlap_param_gather else 0
        become_fsdp_module(unit, state, MegatronFSDP if unit is module else FSDPModule)
    model_of(module)  # settings reach Sherd
    if init_model_with_meta_device:
        initialise(module, reset=_reset)
    if report_nan_in_param_grad:
        watch(module, before_reduction=True, exploding=0.0)
    if not sync_model_each_microbatch:
        module.set_model_auto_sync(False)
    return module


# ---- arguments ------------------------------------------------------------------------------------------------------


def _refuse(arguments: dict[str, tuple[Any, str]]) -> None:
    for name, (value, remedy) in arguments.items():
        if value:
            raise NotImplementedError(f"[sherd.compat] {name} is not there: {remedy}")


def _strategy(inner: str | int, outer: str | int) -> tuple[str, str]:
    names = []
    for argument, given in (("zero_dp_strategy", inner), ("outer_dp_sharding_strategy", outer)):
        known = {one.value: one.name.lower() for one in ShardingStrategy}
        name = known.get(given, given)  # type: ignore[call-overload]
        if name not in known.values():
            raise ValueError(f"[sherd.compat] {argument} is {given!r}: it must be one of {list(known.items())}")
        names.append(name)
    if names[1] not in ("no_shard", "optim") or (names[1] == "optim" and names[0] != "optim_grads_params"):
        raise ValueError(
            f"[sherd.compat] outer_dp_sharding_strategy is '{names[1]}' with zero_dp_strategy '{names[0]}': it must be "
            "'no_shard', or 'optim' with 'optim_grads_params'"
        )
    return names[0], names[1]


def _mesh_of(given: Any, shard_dim: str | None, outer_dim: str | None, tp_dim: str | None) -> Mesh:
    if given is None or isinstance(given, Mesh):
        return given or mesh_of_all_ranks()
    ranks = world()
    names = given.mesh_dim_names or ()
    if shard_dim is None and len(given.mesh.shape) > 1:
        raise ValueError(f"[sherd.compat] dp_shard_dim must name one of the device_mesh's dimensions {names}")
    if tp_dim is not None and tp_dim in names and given[tp_dim].size() > 1:
        raise NotImplementedError(
            f"[sherd.compat] the dimension '{tp_dim}' (tp_dim) has {given[tp_dim].size()} ranks: tensor parallelism in "
            "modules of torch is not there; sherd.Rule(cut=...) shards parameters that a rank has a part of"
        )
    inner = given if shard_dim is None else given[shard_dim]
    size = inner.size()
    first = ranks.rank - ranks.rank % size
    fits = inner.mesh.flatten().tolist() == list(range(first, first + size))
    if outer_dim is not None:
        fits = fits and given[outer_dim].mesh.flatten().tolist() == list(range(ranks.rank % size, ranks.size, size))
    elif size != ranks.size:
        fits = False
    if not fits:
        raise ValueError(
            f"[sherd.compat] the device_mesh has the ranks {given.mesh.tolist()} and the dimensions {names}: "
            f"'{shard_dim}' (dp_shard_dim) and '{outer_dim}' (dp_outer_dim) together must have all {ranks.size} ranks, "
            "and ranks along the first be neighbours"
        )
    return mesh_of(ranks.size // size, size)


def _class_of(given: type[torch.nn.Module] | str) -> type[torch.nn.Module]:
    if not isinstance(given, str):
        return given
    module, _, name = given.rpartition(".")
    return getattr(importlib.import_module(module), name)


def _inner_first(module: torch.nn.Module, seen: set[torch.nn.Module] | None = None) -> Iterator[torch.nn.Module]:
    seen = set() if seen is None else seen
    for child in module.children():
        if child not in seen:
            yield from _inner_first(child, seen)
    if module not in seen:
        seen.add(module)
        yield module


def _precision(unit: torch.nn.Module, policy: MixedPrecisionPolicy) -> Precision:
    dtypes = {one.dtype for one in unit.parameters() if one.requires_grad and one.is_floating_point()}
    gradient = policy.main_grads_dtype
    if gradient is None and len(dtypes) > 1:
        raise ValueError(
            f"[sherd.compat] parameters of {type(unit).__name__} have the dtypes {sorted(map(str, dtypes))}: set "
            "MixedPrecisionPolicy(main_grads_dtype=...)"
        )
    if gradient is None and dtypes:
        gradient = next(iter(dtypes))
    return Precision(main=policy.main_params_dtype, gradient=gradient, reduce=policy.grad_comm_dtype)


def _reset(module: torch.nn.Module) -> None:
    """Gives values to a module's own parameters."""
    reset = getattr(module, "reset_parameters", None) or getattr(module, "_reset_parameters", None)
    if reset is not None:
        reset()
