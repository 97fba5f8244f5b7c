# SPDX-License-Identifier: Apache-2.0
"""State dicts of sharded models: whole, or sharded for torch.distributed.checkpoint (DCP)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch.nn.modules.module import _EXTRA_STATE_KEY_SUFFIX, _IncompatibleKeys

from . import _C
from .agreement import on_all_ranks
from .buffers import check_values, recreate_buffers, set_values, whole_tensors
from .mirrors import check_unchanged, named_modules_for_sherd, named_parameters_for_sherd, sharded, unit_of
from .sharded_tensor import ShardedTensor, sharded_tensor


class _Entry(NamedTuple):
    shard: _C.Shard
    parameter: torch.nn.Parameter


def shards_by_parameter(model: torch.nn.Module) -> dict[int, _Entry]:
    """Returns this rank's part of each sharded parameter of a root, by the parameter's id."""
    parameters = named_parameters_for_sherd(model)
    entries = [_Entry(shard, parameters[shard.name]) for shard in _C.shards(sharded(model))]
    return {id(entry.parameter): entry for entry in entries}


def names_by_parameter(model: torch.nn.Module) -> dict[int, list[str]]:
    """Returns the names of each parameter, several for a tied one, by its id."""
    result: dict[int, list[str]] = {}
    for name, parameter in named_parameters_for_sherd(model).items():
        result.setdefault(id(parameter), []).append(name)
    return result


# ---- out of models --------------------------------------------------------------------------------------------------


def sharded_state_dict(plain: Callable[..., dict[str, Any]], unit: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
    """Returns the state dict of a unit; `plain` makes the one that torch would, whose parameters can't be read."""
    keep_vars = kwargs.pop("keep_vars", False)
    state = plain(unit, *args, keep_vars=True, **kwargs)  # then values are the parameters themselves
    shards: dict[int, _Entry] = {}
    for name, value in state.items():
        if not isinstance(value, torch.Tensor) or isinstance(value, ShardedTensor):
            continue
        root = unit_of(value)
        if root is None:
            state[name] = value if keep_vars else value.detach()
            continue
        if not shards:
            check_unchanged(root)
            shards = shards_by_parameter(root)
        shard = shards[id(value)].shard
        state[name] = sharded_tensor(shard, shard.main)
    return state


def full_state_dict(model: torch.nn.Module) -> dict[str, Any]:
    """Returns the state dict of a root with whole tensors (main weights), on every rank's device: takes the memory of
    the whole model. Has the keys that the model's state_dict() had before it was sharded. Collective; blocks."""
    mirror = sharded(model)
    check_unchanged(model)
    whole = dict(_C.full_parameters(mirror))
    entries = shards_by_parameter(model)
    by_parameter = {number: whole[entry.shard.name] for number, entry in entries.items()}
    state = type(model)._sherd_base.state_dict(model, keep_vars=True)  # type: ignore[attr-defined]
    for name, value in _parameters_of_state(model, state).items():
        if id(value) in by_parameter:
            state[name] = by_parameter[id(value)]
        elif isinstance(value, torch.Tensor):
            state[name] = value.detach()
    return state


def _parameters_of_state(model: torch.nn.Module, state: Mapping[str, Any]) -> dict[str, Any]:
    """Inner units have put ShardedTensors into the state dict: returns the parameters instead, and the rest of it."""
    parameters = named_parameters_for_sherd(model)
    clean = {_without_wrappers(name): name for name in state}
    found = {name: value for name, value in state.items() if not isinstance(value, ShardedTensor)}
    for name, parameter in parameters.items():
        if name in clean:
            found[clean[name]] = parameter
    return found


def _without_wrappers(name: str) -> str:
    return name.replace("_orig_mod.", "").replace("_checkpoint_wrapped_module.", "")


# ---- into models ----------------------------------------------------------------------------------------------------


def load_state_dict(model: torch.nn.Module, state: Mapping[str, Any], *, strict: bool = True) -> _IncompatibleKeys:
    """Loads a state dict of whole tensors or ShardedTensors into a root and publishes it. Collective; blocks."""
    mirror = sharded(model)
    check_unchanged(model)
    world = model.__dict__["_sherd_world"]
    loading = _Loading(model, state, _C.shards(mirror))  # the first use of a root is collective
    result = on_all_ranks(world, lambda: loading.check(strict))
    _C.load_from(mirror, set(), loading.read)
    on_all_ranks(world, loading.set_rest)
    return result


class _Loading:
    """A state dict on its way into a root."""

    def __init__(self, model: torch.nn.Module, state: Mapping[str, Any], shards: Sequence[_C.Shard]) -> None:
        self._model = model
        self._given = {_without_wrappers(name): value for name, value in state.items()}
        self._device = model.__dict__["_sherd_world"].device
        self._parameters = named_parameters_for_sherd(model)
        self._names = names_by_parameter(model)
        self._shards = {shard.name: shard for shard in shards}
        self._flat: dict[str, torch.Tensor] = {}

    def check(self, strict: bool) -> _IncompatibleKeys:
        """Raises if the state dict does not fit, before anything is changed."""
        own = {_without_wrappers(name): value for name, value in self._model.state_dict().items()}
        missing = [name for name in own if self._find(name) is None]
        unexpected = [name for name in self._given if name not in own]
        wrong = [text for name, value in own.items() if name in self._given and (text := self._mismatch(name, value))]
        if wrong or (strict and (missing or unexpected)):
            raise RuntimeError(
                f"[sherd] the state dict does not fit {type(self._model).__name__}: missing {missing}, unexpected "
                f"{unexpected}, wrong: {'; '.join(wrong) or 'none'}"
            )
        self._check_values()
        return _IncompatibleKeys(missing, unexpected)

    def _find(self, name: str) -> str | None:
        """Returns the name under which the state dict has something: for a tied parameter any of its names, as in the
        checkpoints of transformers."""
        names = self._names[id(self._parameters[name])] if name in self._parameters else [name]
        return next((one for one in names if one in self._given), None)

    def _mismatch(self, name: str, own: Any) -> str | None:
        value = self._given[name]
        if not isinstance(own, torch.Tensor) or name.endswith(_EXTRA_STATE_KEY_SUFFIX):
            return None
        if not isinstance(value, torch.Tensor):
            return f"'{name}' is a {type(value).__name__}"
        if hasattr(value, "full_tensor"):
            return f"'{name}' is a DTensor: call full_tensor() on it first"
        if value.shape != own.shape:
            return f"'{name}' has the shape {tuple(value.shape)}, but the model's is {tuple(own.shape)}"
        return f"'{name}' is on the meta device" if value.is_meta and not isinstance(value, ShardedTensor) else None

    def _check_values(self) -> None:
        """What the state dict lacks must have values already."""
        without = [name for name, one in self._shards.items() if not one.has_values and self._find(name) is None]
        if without:
            raise ValueError(
                f"[sherd] the state dict does not have {without}, which were built on the meta device and have no "
                "values: call sherd.initialise(model) first"
            )
        recreate_buffers(self._model, self._device)
        check_values(self._model, [name for name in whole_tensors(self._model) if self._find(name) is not None])

    def read(self, name: str, begin: int, count: int) -> torch.Tensor:
        """Returns elements of a sharded parameter."""
        found = self._find(name)
        if found is None:  # not strict: it keeps its values
            shard = self._shards[name]
            return sharded_tensor(shard, shard.main)._elements(begin, count).cpu()
        value = self._given[found]
        if isinstance(value, ShardedTensor):
            return value._elements(begin, count).cpu()
        if found not in self._flat:
            self._flat[found] = value.detach().reshape(-1)
        return self._flat[found][begin : begin + count].cpu()

    def set_rest(self) -> None:
        """Sets what is whole on every rank: buffers, ignored parameters and the extra state of modules."""
        kept = {_without_wrappers(name) for name in self._model.state_dict()}
        for name, tensor in whole_tensors(self._model).items():
            found = self._find(name)
            if found is not None and name in kept:
                set_values(tensor, self._given[found], self._device)
        for prefix, module in named_modules_for_sherd(self._model):
            name = prefix + _EXTRA_STATE_KEY_SUFFIX
            if name in self._given and name in kept:
                module.set_extra_state(self._given[name])
