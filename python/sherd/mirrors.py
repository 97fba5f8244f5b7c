# SPDX-License-Identifier: Apache-2.0
"""How Sherd sees Python modules: as mirrors, C++ modules that have the same parameters and buffers."""

from __future__ import annotations

import re
import weakref
from collections.abc import Sequence

import torch

from . import _C


def sharded(module: torch.nn.Module) -> _C.Mirror:
    """Returns the mirror of a unit. Raises for other modules."""
    mirror = module.__dict__.get("_sherd")
    if mirror is None:
        raise ValueError(
            f"[sherd] {type(module).__name__} is not sharded: call sherd.fully_shard on it first, on the whole model "
            "last"
        )
    return mirror


def unit_of(parameter: torch.Tensor) -> torch.nn.Module | None:
    """Returns the outermost unit that has a parameter of a module, if it is sharded."""
    reference = getattr(parameter, "_sherd_unit", None)
    return None if reference is None else reference()


def mirror_of(module: torch.nn.Module, memo: dict[torch.nn.Module, _C.Mirror]) -> _C.Mirror:
    """Returns the mirror of a module, with those of the units inside it."""
    known = module.__dict__.get("_sherd") or memo.get(module)
    if known is not None:
        return known
    wrapped = _wrapped_by(module)
    if wrapped is not None:
        mirror = memo[module] = mirror_of(wrapped, memo)
        return mirror
    mirror = memo[module] = _C.Mirror(type(module).__name__, module)
    for name, parameter in module._parameters.items():
        if parameter is not None:
            mirror.add_parameter(name, parameter)
    for name, buffer in module._buffers.items():
        if buffer is not None:
            mirror.add_buffer(name, buffer)
    for name, child in module._modules.items():
        if child is not None:
            mirror.add_child(name, mirror_of(child, memo))
    return mirror


def _wrapped_by(module: torch.nn.Module) -> torch.nn.Module | None:
    """Returns the module inside one of torch's wrappers (torch.compile, checkpoint_wrapper). In names of parameters the
    wrapper does not appear, so that checkpoints do not depend on it."""
    for name in ("_orig_mod", "_checkpoint_wrapped_module"):
        if list(module._modules) == [name]:
            return module._modules[name]
    return None


def named_buffers_left_out(module: torch.nn.Module, prefix: str = "") -> list[str]:
    """Returns the names, as Sherd has them, of the buffers that are not persistent: checkpoints do not have them."""
    wrapped = _wrapped_by(module)
    if wrapped is not None:
        return named_buffers_left_out(wrapped, prefix)
    names = [prefix + name for name in module._non_persistent_buffers_set if module._buffers.get(name) is not None]
    for name, child in module._modules.items():
        if child is not None:
            names += named_buffers_left_out(child, prefix + name + ".")
    return names


def named_parameters_for_sherd(module: torch.nn.Module, prefix: str = "") -> dict[str, torch.nn.Parameter]:
    """Returns all parameters by the names that Sherd has for them; a tied one has several."""
    wrapped = _wrapped_by(module)
    if wrapped is not None:
        return named_parameters_for_sherd(wrapped, prefix)
    found = {prefix + name: parameter for name, parameter in module._parameters.items() if parameter is not None}
    for name, child in module._modules.items():
        if child is not None:
            found |= named_parameters_for_sherd(child, prefix + name + ".")
    return found


def mark_parameters(module: torch.nn.Module, ignored: Sequence[str]) -> None:
    """Notes on each parameter which unit has it, so that calls of torch that it can't serve are noticed."""
    patterns = [re.compile(".*".join(map(re.escape, pattern.split("*"))), re.DOTALL) for pattern in ignored]
    reference = weakref.ref(module)
    for name, parameter in named_parameters_for_sherd(module).items():
        if any(pattern.fullmatch(name) for pattern in patterns):
            parameter._sherd_ignored = True
        if not hasattr(parameter, "_sherd_ignored"):
            parameter._sherd_unit = reference
