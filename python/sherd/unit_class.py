# SPDX-License-Identifier: Apache-2.0
"""The class of a unit.

Note [The boundary of a unit]
A unit's class is replaced by one that derives from it and has a __call__ of its own, which gathers the parameters,
calls the module as before, and releases them. Hooks would not do: they run inside compiled code, and not after an
exception. Whatever the module's own call does (hooks, Module.compile(), activation checkpointing) is thus inside the
boundary.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

import torch

from . import _C
from .state import load_state_dict, sharded_state_dict


def unit_class(cls: type) -> type:
    """Returns the class of units made of modules of this class; see the note above."""
    found = cls.__dict__.get("_sherd_unit_class")
    if found is not None:
        return found

    members = {
        **_UNIT_METHODS,
        "__call__": boundary_around(cls.__call__),
        "__doc__": cls.__doc__,
        "__module__": cls.__module__,
        "__qualname__": cls.__qualname__,
        "_sherd_base": cls,
    }
    made = type(cls)(cls.__name__, (cls,), members)
    cls._sherd_unit_class = made  # type: ignore[attr-defined]
    return made


def boundary_around(method: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a unit's method with the boundary around it."""

    def __call__(self: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
        call = _C.enter(self.__dict__["_sherd"])
        try:
            dtype = call.input_dtype
            if dtype is not None:
                args, kwargs = cast(args, dtype), cast(kwargs, dtype)
            result = method(self, *args, **kwargs)
            _C.leave(call, result)
        except BaseException:
            _C.abandon(call)
            raise
        return result

    leave_uncompiled(__call__)
    return __call__


def leave_uncompiled(function: Any) -> None:
    """Lets torch.compile run a function as it is, and compile what it calls: torch.compiler.disable(recursive=False)
    without importing the compiler, which takes seconds."""
    dynamo = torch._C._dynamo.eval_frame
    strategy = dynamo._FrameExecStrategy(dynamo._FrameAction.SKIP, dynamo._FrameAction.DEFAULT)
    dynamo.set_code_exec_strategy(function.__code__, strategy)
    function._torchdynamo_disable = True


def cast(value: Any, dtype: torch.dtype) -> Any:
    """Returns the value with its floating-point tensors cast, also those in tuples, lists and dicts."""
    if isinstance(value, torch.Tensor):
        return value.to(dtype) if value.is_floating_point() else value
    if type(value) in (tuple, list):
        return type(value)(cast(item, dtype) for item in value)
    if type(value) is dict:
        return {key: cast(item, dtype) for key, item in value.items()}
    return value


def _refuse(module: torch.nn.Module, action: str, remedy: str) -> NoReturn:
    raise RuntimeError(f"[sherd] a sharded {type(module).__name__} can't be {action}: {remedy}")


def _deepcopy(self: torch.nn.Module, memo: object) -> NoReturn:
    _refuse(self, "copied", "copy it before fully_shard, or use sherd.full_state_dict")


def _reduce_ex(self: torch.nn.Module, protocol: object) -> NoReturn:
    _refuse(self, "pickled", "use sherd.save, sherd.full_state_dict or torch.distributed.checkpoint")


def _apply(self: torch.nn.Module, function: object, recurse: bool = True) -> NoReturn:
    _refuse(
        self, "moved or cast", "parameters are on the world's device; choose dtypes with fully_shard(precision=...)"
    )


def _register_parameter(self: torch.nn.Module, name: str, param: torch.nn.Parameter | None) -> None:
    _refuse(self, f"given a new parameter ('{name}')", "set parameters before fully_shard")


def _state_dict(self: torch.nn.Module, *args: Any, **kwargs: Any) -> dict[str, Any]:
    """As torch's, but a sharded parameter is a sherd.ShardedTensor with this rank's elements, for
    torch.distributed.checkpoint; sherd.full_state_dict has whole tensors."""
    return sharded_state_dict(type(self)._sherd_base.state_dict, self, *args, **kwargs)


def _load_state_dict(self: torch.nn.Module, state_dict: Any, strict: bool = True, assign: bool = False) -> Any:
    """As torch's: takes whole tensors, or those of state_dict(). For roots. Collective."""
    if assign:
        _refuse(self, "given other tensors (assign=True)", "load_state_dict copies values into its shards")
    return load_state_dict(self, state_dict, strict=strict)


_UNIT_METHODS = {
    "__deepcopy__": _deepcopy,
    "__reduce_ex__": _reduce_ex,
    "_apply": _apply,
    "register_parameter": _register_parameter,
    "state_dict": _state_dict,
    "load_state_dict": _load_state_dict,
}
