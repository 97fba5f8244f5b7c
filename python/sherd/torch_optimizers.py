# SPDX-License-Identifier: Apache-2.0
"""What torch's own optimizers need over the pieces that sherd.parameters() returns: the parts of a step around theirs,
state dicts for all ranks, and errors for what pieces can't serve.

Note [Why torch's functions are replaced]
Sherd must see optimizers, clipping and loss scaling of torch that would be wrong over a sharded model without an error:
over its parameters, which have no gradients, or over pieces, of which each rank has others. The replacements do the
same as before for all other tensors.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from . import _C
from .mirrors import sharded, unit_of
from .optimizers import AdamW
from .sharded_tensor import sharded_tensor, take_elements
from .training import model_of

# Classes that look at a parameter's shape, norm or neighbours: over flat pieces they would compute something else.
_OF_WHOLE_TENSORS = frozenset(
    "Adafactor Adalomo CAME DistributedShampoo GaLoreAdamW KFAC LAMB LARS LBFGS Lamb Lars Lomo Muon NovoGrad SOAP "
    "Shampoo SparseAdam".split()
)


def pieces_of(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    """Returns those of an optimizer's tensors that are pieces of sharded parameters."""
    return [one for group in optimizer.param_groups for one in group["params"] if hasattr(one, "_sherd_model")]


def _flat_pieces_of(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    """Returns those that sherd.parameters() has returned."""
    return [one for one in pieces_of(optimizer) if hasattr(one, "_sherd_name")]


# ---- making them ----------------------------------------------------------------------------------------------------


_add_param_group = torch.optim.Optimizer.add_param_group


def _add_param_group_or_raise(self: torch.optim.Optimizer, param_group: dict[str, Any]) -> None:
    _add_param_group(self, param_group)
    if isinstance(self, AdamW):
        return
    try:
        _refuse_parameters(self)
        _take_pieces(self)
    except ValueError:
        self.param_groups.pop()
        raise


torch.optim.Optimizer.add_param_group = _add_param_group_or_raise  # type: ignore[method-assign]


def _refuse_parameters(optimizer: torch.optim.Optimizer) -> None:
    for group in optimizer.param_groups:
        if any(unit_of(one) is not None for one in group["params"]):
            raise ValueError(
                f"[sherd] {type(optimizer).__name__} is built over model.parameters() of a sharded model, which have "
                "no gradients: build it over sherd.parameters(model)"
            )


def _take_pieces(optimizer: torch.optim.Optimizer) -> None:
    if not _flat_pieces_of(optimizer):
        return
    whole = [cls.__name__ for cls in type(optimizer).__mro__ if cls.__name__ in _OF_WHOLE_TENSORS]
    if whole:
        raise ValueError(
            f"[sherd] {type(optimizer).__name__} looks at whole parameters, but sherd.parameters(model) has flat "
            "pieces of them: use sherd.AdamW, or an optimizer that looks at each element alone"
        )
    if not hasattr(optimizer, "_sherd_hooks"):
        optimizer._sherd_hooks = (
            optimizer.register_state_dict_post_hook(_shard_state),
            optimizer.register_load_state_dict_pre_hook(_unshard_state),
        )


# ---- their step -----------------------------------------------------------------------------------------------------


def _models_of(optimizer: torch.optim.Optimizer) -> list[torch.nn.Module]:
    """Returns the sharded models whose main weights the optimizer updates."""
    _refuse_parameters(optimizer)
    found = [model_of(piece) for piece in pieces_of(optimizer)]
    return list({id(model): model for model in found if model is not None}.values())


def _before_step(optimizer: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    if isinstance(optimizer, AdamW):
        return
    models = _models_of(optimizer)
    if models and (kwargs.get("closure") is not None or any(callable(one) for one in args[1:])):
        raise ValueError("[sherd] an optimizer of a sharded model takes no closure: call backward() before step()")
    for model in models:
        if model.__dict__["_sherd_loss"] == "per_token":
            raise ValueError("[sherd] the loss is per token, which optimizers of torch do not know: use sherd.AdamW")
        try:
            _C.leave_out_unused(sharded(model))
        except RuntimeError as error:
            raise RuntimeError(f"{error}. A model has one optimizer, whose step ends the step of the model") from None


def _after_step(optimizer: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    if not isinstance(optimizer, AdamW):
        for model in _models_of(optimizer):
            _C.publish(sharded(model))


register_optimizer_step_pre_hook(_before_step)
register_optimizer_step_post_hook(_after_step)


# ---- their state ----------------------------------------------------------------------------------------------------
# Each rank has the state of its pieces, by number: under equal keys on all ranks. So pieces get their names, and
# tensors of their shape become ShardedTensors.


def _shards_of(optimizer: torch.optim.Optimizer) -> dict[int, _C.Shard]:
    """Returns the shard of each piece, by the piece's id."""
    pieces = _flat_pieces_of(optimizer)
    models = _models_of(optimizer)
    if len(models) > 1:
        raise ValueError(
            f"[sherd] {type(optimizer).__name__} is over {len(models)} sharded models, whose parameters may have equal "
            "names: make one optimizer for each, to save and load their state"
        )
    if not models:
        raise RuntimeError(f"[sherd] the model of this {type(optimizer).__name__} is gone: keep it")
    shards = {shard.name: shard for shard in _C.shards(sharded(models[0]))}
    return {id(piece): shards[piece._sherd_name] for piece in pieces}  # type: ignore[attr-defined]


def _shard_state(optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> dict[str, Any]:
    shards = _shards_of(optimizer)
    names: dict[Any, tuple[Any, torch.Tensor]] = {}
    groups = []
    for given, group in zip(state["param_groups"], optimizer.param_groups, strict=True):
        for number, one in zip(given["params"], group["params"], strict=True):
            names[number] = (shards[id(one)].name if id(one) in shards else number, one)
        groups.append({**given, "params": [names[number][0] for number in given["params"]]})

    def sharded_entry(name: Any, piece: torch.Tensor, key: str, value: Any) -> Any:
        if id(piece) not in shards or not isinstance(value, torch.Tensor) or value.dim() == 0:
            return value
        if value.shape != piece.shape:
            raise ValueError(
                f"[sherd] {type(optimizer).__name__} has '{key}' of the shape {tuple(value.shape)} for '{name}', of "
                f"which this rank has {piece.numel()} elements: it does not look at each element alone"
            )
        return sharded_tensor(shards[id(piece)], value)

    entries = {}
    for number, values in state["state"].items():
        name, piece = names[number]
        entries[name] = {key: sharded_entry(name, piece, key, value) for key, value in values.items()}
    return {**state, "state": entries, "param_groups": groups}


def _unshard_state(optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> dict[str, Any]:
    shards = _shards_of(optimizer)
    if len(state["param_groups"]) != len(optimizer.param_groups):
        return state  # torch raises
    shard_of: dict[Any, _C.Shard] = {}
    groups = []
    for given, group in zip(state["param_groups"], optimizer.param_groups, strict=True):
        own = [shards[id(one)].name if id(one) in shards else None for one in group["params"]]
        ids = list(given["params"])
        if any(isinstance(one, str) for one in ids):  # else they are in this order
            if sorted(filter(None, own)) != sorted(one for one in ids if isinstance(one, str)):
                raise ValueError(f"[sherd] the state of {type(optimizer).__name__} is of other parameters: {ids}")
            rest = iter([one for one in ids if not isinstance(one, str)])
            ids = [next(rest) if name is None else name for name in own]
        shard_of |= {number: shards[id(one)] for number, one in zip(ids, group["params"]) if id(one) in shards}
        groups.append({**given, "params": ids})
    entries = {
        number: {
            key: take_elements(value, shard_of[number], f"'{key}' of '{shard_of[number].name}'")
            if isinstance(value, torch.Tensor) and value.dim() > 0 and number in shard_of
            else value
            for key, value in values.items()
        }
        for number, values in state["state"].items()
    }
    return {**state, "state": entries, "param_groups": groups}
