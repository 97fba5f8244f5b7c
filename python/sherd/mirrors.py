# SPDX-License-Identifier: Apache-2.0
"""How Sherd sees Python modules: as mirrors, C++ modules that have the same parameters and buffers."""

from __future__ import annotations

import re
import weakref
from collections.abc import Iterator, Sequence

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


# ---- making them ----------------------------------------------------------------------------------------------------


def mirror_of(module: torch.nn.Module, memo: dict[torch.nn.Module, _C.Mirror]) -> _C.Mirror:
    """Returns the mirror of a module, with those of the units inside it."""
    known = module.__dict__.get("_sherd") or memo.get(module)
    if known is not None:
        return known
    wrapped = _wrapped_by(module)
    if wrapped is not None:
        mirror = memo[module] = mirror_of(wrapped, memo)
        return mirror
    mirror = memo[module] = module.__dict__.pop("_sherd_announced", None) or _empty_mirror(module)
    for name, parameter in module._parameters.items():
        if parameter is not None:
            mirror.add_parameter(name, parameter)
    for name, buffer in _own_buffers(module):
        mirror.add_buffer(name, buffer)
    for name, child in module._modules.items():
        if child is not None:
            mirror.add_child(name, mirror_of(child, memo))
    return mirror


def announced_mirror(module: torch.nn.Module) -> _C.Mirror:
    """Returns the mirror that a module will have when it is sharded, still empty, or the one that it has."""
    known = module.__dict__.get("_sherd")
    if known is not None:
        return known
    wrapped = _wrapped_by(module)
    if wrapped is not None:
        return announced_mirror(wrapped)
    if "_sherd_announced" not in module.__dict__:
        module.__dict__["_sherd_announced"] = _empty_mirror(module)
    return module.__dict__["_sherd_announced"]


def _empty_mirror(module: torch.nn.Module) -> _C.Mirror:
    return _C.Mirror(type(module).__name__, module)


def _own_buffers(module: torch.nn.Module) -> list[tuple[str, torch.Tensor]]:
    return [(name, buffer) for name, buffer in module._buffers.items() if buffer is not None]


def _wrapped_by(module: torch.nn.Module) -> torch.nn.Module | None:
    """Returns the module inside one of torch's wrappers (torch.compile, checkpoint_wrapper). In names of parameters the
    wrapper does not appear, so that checkpoints do not depend on it."""
    for name in ("_orig_mod", "_checkpoint_wrapped_module"):
        if list(module._modules) == [name]:
            return module._modules[name]
    return None


# ---- names, as Sherd has them: without wrappers ---------------------------------------------------------------------


def named_modules_for_sherd(module: torch.nn.Module, prefix: str = "") -> Iterator[tuple[str, torch.nn.Module]]:
    """Yields all modules, with the text that the names in them begin with; one that is there twice has two."""
    wrapped = _wrapped_by(module)
    if wrapped is not None:
        yield from named_modules_for_sherd(wrapped, prefix)
        return
    yield prefix, module
    for name, child in module._modules.items():
        if child is not None:
            yield from named_modules_for_sherd(child, prefix + name + ".")


def named_parameters_for_sherd(module: torch.nn.Module) -> dict[str, torch.nn.Parameter]:
    """Returns all parameters; a tied one has several names."""
    return {
        prefix + name: parameter
        for prefix, one in named_modules_for_sherd(module)
        for name, parameter in one._parameters.items()
        if parameter is not None
    }


def named_buffers_for_sherd(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Returns all buffers."""
    return {
        prefix + name: buffer
        for prefix, one in named_modules_for_sherd(module)
        for name, buffer in _own_buffers(one)
    }


def named_buffers_left_out(module: torch.nn.Module) -> set[str]:
    """Returns the names of the buffers that are not persistent: checkpoints do not have them."""
    return {
        prefix + name
        for prefix, one in named_modules_for_sherd(module)
        for name, _ in _own_buffers(one)
        if name in one._non_persistent_buffers_set
    }


def mark_parameters(module: torch.nn.Module, ignored: Sequence[str]) -> None:
    """Notes on each parameter which unit has it, so that calls of torch that it can't serve are noticed."""
    patterns = [re.compile(".*".join(map(re.escape, pattern.split("*"))), re.DOTALL) for pattern in ignored]
    reference = weakref.ref(module)
    for name, parameter in named_parameters_for_sherd(module).items():
        if any(pattern.fullmatch(name) for pattern in patterns):
            parameter._sherd_ignored = True
        if not hasattr(parameter, "_sherd_ignored"):
            parameter._sherd_unit = reference


# ---- noticing changes -----------------------------------------------------------------------------------------------


def check_unchanged(model: torch.nn.Module) -> None:
    """Raises if the model has other parameters, or other buffers that checkpoints have, than when it was sharded: Sherd
    would not gather, update or save them."""
    changes: list[str] = []
    _compare(model, sharded(model), "", changes)
    if changes:
        more = f" and {len(changes) - 8} more" if len(changes) > 8 else ""
        raise RuntimeError(
            f"[sherd] {type(model).__name__} has changed since it was sharded: {', '.join(changes[:8])}{more}; replace "
            "modules, add parameters and tie weights before fully_shard, and write to buffers in place (copy_)"
        )


def _compare(module: torch.nn.Module, mirror: _C.Mirror, prefix: str, changes: list[str]) -> None:
    wrapped = _wrapped_by(module)
    if wrapped is not None:
        return _compare(wrapped, mirror, prefix, changes)
    left_out = module._non_persistent_buffers_set
    for what, now, before in (
        ("parameter", module._parameters, dict(mirror.parameters())),
        ("buffer", module._buffers, dict(mirror.buffers())),
    ):
        for name in dict.fromkeys([*before, *now]):
            one, known = now.get(name), before.get(name)
            if one is not known and not (what == "buffer" and name in left_out):
                change = "is new" if known is None else "is gone" if one is None else "is another one"
                changes.append(f"{what} '{prefix}{name}' {change}")
    _compare_children(module, dict(mirror.children()), prefix, changes)


def _compare_children(
    module: torch.nn.Module, children: dict[str, _C.Mirror], prefix: str, changes: list[str]
) -> None:
    for name, child in module._modules.items():
        if child is None:
            continue
        known = children.pop(name, None)
        if known is not None:
            _compare(child, known, f"{prefix}{name}.", changes)
        elif named_parameters_for_sherd(child) or named_buffers_for_sherd(child).keys() - named_buffers_left_out(child):
            changes.append(f"module '{prefix}{name}' is new")
    changes += [f"module '{prefix}{name}' is gone" for name, known in children.items() if _has_parameters(known)]


def _has_parameters(mirror: _C.Mirror) -> bool:
    return bool(mirror.parameters()) or any(_has_parameters(child) for _, child in mirror.children())
