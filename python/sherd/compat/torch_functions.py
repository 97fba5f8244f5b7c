# SPDX-License-Identifier: Apache-2.0
"""torch's functions on models of sherd.compat: gradient norms are those over all ranks, and optimizers get this rank's
parts of parameters. For all other tensors they do what they did."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.nn.utils
import torch.optim.optimizer as torch_optimizer

from ..mirrors import unit_of
from ..ranks import world
from .model_state import pieces_of_model
from .sharded_parameters import GradientNorm, ShardedGradient, ShardedParameter

# torch's optimizers that look at each element alone: this rank's elements are all that they need.
_BY_ELEMENT = ("Adadelta", "Adagrad", "Adam", "Adamax", "AdamW", "ASGD", "NAdam", "RAdam", "RMSprop", "Rprop", "SGD")

# ---- gradient norms -------------------------------------------------------------------------------------------------


def _replace(function: Any, make: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    """Replaces a function inside torch's wrapper around it: other modules may have imported that already."""
    cell = function.__closure__[0]
    cell.cell_contents = make(cell.cell_contents)


def _are_sharded(tensors: list[torch.Tensor]) -> bool:
    """Whether tensors are of this interface. Raises for a mixture."""
    found = [isinstance(one, (ShardedGradient, ShardedParameter)) for one in tensors]
    if any(found) and not all(found):
        raise ValueError(
            "[sherd.compat] a gradient norm over parameters of a sharded model and others (ignored_params?), which are "
            "not reduced over ranks: clip the two separately"
        )
    return any(found)


def _as_list(tensors: torch.Tensor | Iterable[torch.Tensor]) -> list[torch.Tensor]:
    return [_piece_of(one) for one in ([tensors] if isinstance(tensors, torch.Tensor) else tensors)]


def _piece_of(tensor: torch.Tensor) -> torch.Tensor:
    """Returns this rank's part for a parameter of a module inside a unit, whose own parameters() torch has made."""
    unit = unit_of(tensor)
    return tensor if unit is None or "_sherd_fsdp" not in unit.__dict__ else pieces_of_model(unit)[id(tensor)]


def _clip_grad_norm_(plain: Callable[..., Any]) -> Callable[..., Any]:
    def clip_grad_norm_(
        parameters: Any,
        max_norm: float,
        norm_type: float = 2.0,
        error_if_nonfinite: bool = False,
        foreach: bool | None = None,
    ) -> torch.Tensor:
        parameters = _as_list(parameters)
        if not _are_sharded(parameters):
            return plain(parameters, max_norm, norm_type, error_if_nonfinite, foreach)
        norm = _norm([one.grad for one in parameters if one.grad is not None], norm_type, error_if_nonfinite)
        _scale(parameters, max_norm, norm)
        return norm

    return clip_grad_norm_


def _get_total_norm(plain: Callable[..., Any]) -> Callable[..., Any]:
    def get_total_norm(
        tensors: Any, norm_type: float = 2.0, error_if_nonfinite: bool = False, foreach: bool | None = None
    ) -> torch.Tensor:
        tensors = _as_list(tensors)
        if not _are_sharded(tensors):
            return plain(tensors, norm_type, error_if_nonfinite, foreach)
        return _norm(tensors, norm_type, error_if_nonfinite)

    return get_total_norm


def _clip_grads_with_norm_(plain: Callable[..., Any]) -> Callable[..., Any]:
    def clip_grads_with_norm_(
        parameters: Any, max_norm: float, total_norm: torch.Tensor, foreach: bool | None = None
    ) -> None:
        parameters = _as_list(parameters)
        if not _are_sharded(parameters):
            return plain(parameters, max_norm, total_norm, foreach)
        if not isinstance(total_norm, GradientNorm) and world().size > 1:
            raise ValueError(
                "[sherd.compat] the norm to clip sharded gradients with is not a result of "
                "torch.nn.utils.get_total_norm(gradients), so it may be this rank's only: pass that, or call "
                "torch.nn.utils.clip_grad_norm_"
            )
        _scale(parameters, max_norm, total_norm)

    return clip_grads_with_norm_


@torch.no_grad()
def _norm(gradients: list[torch.Tensor], norm_type: float, error_if_nonfinite: bool) -> torch.Tensor:
    """Returns the norm over all ranks. Collective."""
    norm_type = float(norm_type)
    if not norm_type > 0:
        raise ValueError(f"[sherd.compat] norm_type is {norm_type}: it must be above 0, or inf")
    if not gradients:
        raise ValueError(
            "[sherd.compat] there are no gradients to clip: call it between the step's last backward and the update"
        )
    device, largest = gradients[0].device, norm_type == float("inf")
    # Each element counts once: with HSDP other ranks hold the same ones.
    counted = [one for one in gradients if one._sherd_counted and torch.Tensor.numel(one) > 0]
    total = torch.zeros(1, device=device, dtype=torch.float64)
    if counted:
        norms = torch.stack([norm.to(device) for norm in torch._foreach_norm(counted, norm_type)]).double()
        total[0] = norms.max() if largest else norms.pow(norm_type).sum()
    world().all_reduce(total, "max" if largest else "sum")
    norm = (total if largest else total.pow(1 / norm_type))[0].to(torch.float32)
    if error_if_nonfinite and not norm.isfinite():
        raise RuntimeError(f"[sherd.compat] the norm of the gradients is {norm.item()}, and error_if_nonfinite is set")
    norm.__class__ = GradientNorm
    return norm


@torch.no_grad()
def _scale(parameters: list[torch.Tensor], max_norm: float, norm: torch.Tensor) -> None:
    gradients = [one.grad for one in parameters if one.grad is not None]
    if gradients:
        factor = (float(max_norm) / (norm.as_subclass(torch.Tensor) + 1e-6)).clamp(max=1.0)
        torch._foreach_mul_(gradients, factor.to(gradients[0].device))


_replace(torch.nn.utils.clip_grad_norm_, _clip_grad_norm_)
_replace(torch.nn.utils.get_total_norm, _get_total_norm)
_replace(torch.nn.utils.clip_grads_with_norm_, _clip_grads_with_norm_)

# ---- optimizers -----------------------------------------------------------------------------------------------------

_add_plain_group = torch.optim.Optimizer.add_param_group


def _add_param_group(self: torch.optim.Optimizer, param_group: dict[str, Any]) -> None:
    params = param_group["params"]
    if isinstance(params, Iterable) and not isinstance(params, (torch.Tensor, set)):
        params = [(one[0], _piece_of(one[1])) if isinstance(one, tuple) else _piece_of(one) for one in params]
        param_group = {**param_group, "params": params}
    _add_plain_group(self, param_group)
    try:
        _check(self)
    except ValueError:
        self.param_groups.pop()
        raise


def _check(optimizer: torch.optim.Optimizer) -> None:
    kind = type(optimizer)
    if not kind.__module__.startswith("torch.optim") or kind.__name__ in _BY_ELEMENT:
        return
    if any(isinstance(one, ShardedParameter) for group in optimizer.param_groups for one in group["params"]):
        raise ValueError(
            f"[sherd.compat] torch.optim.{kind.__name__} needs whole parameters, and here each rank has elements of "
            f"them: use one of {', '.join(_BY_ELEMENT)}, or sherd.AdamW"
        )


torch.optim.Optimizer.add_param_group = _add_param_group  # type: ignore[method-assign]
# Lets optimizers take their fast path by default, as for plain tensors.
if ShardedParameter not in getattr(torch_optimizer, "_foreach_supported_types", [ShardedParameter]):
    torch_optimizer._foreach_supported_types.append(ShardedParameter)
