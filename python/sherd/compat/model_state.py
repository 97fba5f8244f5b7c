# SPDX-License-Identifier: Apache-2.0
"""What units sharded with sherd.compat know of themselves and their model.

Note [When FSDP2's settings take effect]
FSDP2 finds out at its first forward which module is the root, and takes settings of a module until then and after. So
does this: settings of units reach Sherd at the model's first use (prepare()), later ones at once, between steps.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from dataclasses import dataclass, field

import torch

from .. import _C
from ..mirrors import sharded, unit_of
from .sharded_parameters import ShardedParameter, sharded_parameters


@dataclass
class ModelState:
    """What all units of a model share, from its first use on."""

    root: weakref.ref[torch.nn.Module]
    next_backward: str = "unknown"
    depth: int = 0  # of the calls of units that are under way
    awaits_backward_after: int | None = None  # backwards of the step that were done at the last forward
    pieces: dict[int, ShardedParameter] = field(default_factory=dict)


@dataclass
class UnitState:
    """The settings of one unit."""

    data_parallel_ranks: int
    auto_reshard: bool  # reshard_after_forward is None: the root keeps its parameters, other units do not
    output_dtype: torch.dtype | None = None
    kept_as_root: bool = False
    divide_factor: float | None = None
    symmetric: bool = False
    prefetch_depth: int = 1
    model: ModelState | None = None


def state_of(unit: torch.nn.Module) -> UnitState:
    state = unit.__dict__.get("_sherd_fsdp")
    if state is None:
        raise ValueError(
            f"[sherd.compat] {type(unit).__name__} was not sharded with sherd.compat: shard all modules of a model "
            "with the same fully_shard, the whole model last"
        )
    return state


def units_of(module: torch.nn.Module) -> list[torch.nn.Module]:
    """Returns the units of a module, itself included."""
    return [one for one in module.modules() if "_sherd_fsdp" in one.__dict__]


def model_of(unit: torch.nn.Module) -> ModelState:
    """Returns what the unit shares with its model. At the model's first use it makes the outermost unit around this one
    the root."""
    known = state_of(unit).model
    if known is not None and known.root() is not None:
        return known
    outermost = next((found for one in _own_parameters(unit) if (found := unit_of(one)) is not None), unit)
    return prepare(outermost)


def _own_parameters(unit: torch.nn.Module) -> Iterator[torch.nn.Parameter]:
    for _, parameter in type(unit)._sherd_base.named_parameters(unit):  # type: ignore[attr-defined]
        yield parameter


def prepare(root: torch.nn.Module) -> ModelState:
    """Makes a unit the root of those inside it; see the note above."""
    model = ModelState(weakref.ref(root))
    units = units_of(root)
    for unit in units:
        state = state_of(unit)
        is_root = unit is root
        if state.auto_reshard and is_root != state.kept_as_root:
            _C.change_options(sharded(unit), keep_gathered=is_root)
            state.kept_as_root = is_root
        state.model = model
    loss = _loss_of(units, root)
    symmetric = any(state_of(unit).symmetric for unit in units)
    depth = state_of(root).prefetch_depth
    if loss != "mean" or symmetric or depth != 1:
        options = _C.RootOptions(prefetch_depth=depth, loss=loss, memory="planned", symmetric=symmetric, budget=0)
        _C.change_options(sharded(root), root=options)
    root.__dict__["_sherd_loss"] = loss
    return model


def _loss_of(units: list[torch.nn.Module], root: torch.nn.Module) -> str:
    factors = {float(factor) for unit in units if (factor := divide_factor_of(unit)) is not None}
    ranks = state_of(root).data_parallel_ranks
    if factors <= {float(ranks)}:
        return "mean"
    if factors == {1.0}:
        return "sum"
    raise ValueError(
        f"[sherd.compat] the gradients of {type(root).__name__} are to be divided by {sorted(factors)}: Sherd divides "
        f"those of all units by {ranks} (the number of ranks) or by 1. Give all units one of these with "
        "set_gradient_divide_factor, and scale the loss for another"
    )


def divide_factor_of(unit: torch.nn.Module) -> float | None:
    """The number that the unit's gradients are divided by; None for a unit without parameters."""
    state = state_of(unit)
    if next(_own_parameters(unit), None) is None:
        return None
    return float(state.data_parallel_ranks) if state.divide_factor is None else state.divide_factor


def before_root(root: torch.nn.Module, model: ModelState) -> None:
    """Before a forward that trains: tells Sherd what is known of its backward."""
    mirror = sharded(root)
    done, planned = _C.count_backwards(mirror)
    if done and done == planned and _gradients_were_dropped(model):
        _C.drop_gradients(mirror)
        done = 0
    _C.expect_backward(mirror, model.next_backward)
    model.awaits_backward_after = done


def _gradients_were_dropped(model: ModelState) -> bool:
    """Whether the gradients of a step were set to None, as by zero_grad() without an update."""
    pieces = [piece for piece in pieces_of(model).values() if hasattr(piece, "_sherd_model") and piece.requires_grad]
    dropped = [piece.grad is None for piece in pieces]
    if any(dropped) and not all(dropped):
        raise RuntimeError(
            "[sherd.compat] some gradients of the step were set to None, and others were not: drop all of them "
            "(optimizer.zero_grad()) or none before another backward"
        )
    return all(dropped)


def pieces_of_model(unit: torch.nn.Module) -> dict[int, ShardedParameter]:
    """Returns this rank's parts of the parameters of a unit's model, by the ids of the module's. The model's first use
    is collective."""
    return pieces_of(model_of(unit))


def pieces_of(model: ModelState) -> dict[int, ShardedParameter]:
    root = model.root()
    if not model.pieces and root is not None:
        model.pieces = sharded_parameters(root)
    return model.pieces
