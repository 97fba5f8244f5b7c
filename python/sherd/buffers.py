# SPDX-License-Identifier: Apache-2.0
"""Buffers on the meta device, and parameters that Sherd was told to ignore: tensors that are whole on every rank."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection

import torch

from . import _C
from .mirrors import named_buffers_for_sherd, named_modules_for_sherd, named_parameters_for_sherd


def whole_tensors(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Returns the buffers, and the ignored parameters by all of their names."""
    ignored = {
        name: parameter
        for name, parameter in named_parameters_for_sherd(model).items()
        if hasattr(parameter, "_sherd_ignored")
    }
    return named_buffers_for_sherd(model) | ignored


@torch.no_grad()
def set_values(tensor: torch.Tensor, values: torch.Tensor, device: torch.device) -> None:
    """Copies values to a tensor, which is moved to the device if it is on the meta device."""
    if tensor.is_meta:
        _C.allocate(tensor, device)
    tensor.copy_(values)


def recreate_buffers(model: torch.nn.Module, device: torch.device) -> None:
    """Gives values to the buffers on the meta device that no checkpoint has, if their module can be built again: one
    of transformers, made from nothing but its `config`, such as a rotary embedding."""
    for _, module in named_modules_for_sherd(model):
        empty = {
            name: buffer
            for name, buffer in module._buffers.items()
            if buffer is not None and buffer.is_meta and name in module._non_persistent_buffers_set
        }
        if not empty:
            continue
        made = _built_again(module)
        for name, buffer in empty.items():
            values = None if made is None else made._buffers.get(name)
            if values is not None and (values.shape, values.dtype) == (buffer.shape, buffer.dtype):
                set_values(buffer, values, device)


def _built_again(module: torch.nn.Module) -> torch.nn.Module | None:
    cls = getattr(type(module), "_sherd_base", type(module))
    arguments = list(inspect.signature(cls.__init__).parameters)[1:]
    if "config" not in arguments or not {"config", "device"}.issuperset(arguments) or not hasattr(module, "config"):
        return None  # how it was built is not known
    with torch.random.fork_rng(devices=[]), torch.device("cpu"), meta_parameters():
        return cls(config=module.config)


def check_values(model: torch.nn.Module, given: Collection[str] = ()) -> None:
    """Raises if a buffer or an ignored parameter has no values, unless its name is given."""
    tensors = whole_tensors(model)
    filled = {id(tensor) for name, tensor in tensors.items() if name in given}
    without = [name for name, tensor in tensors.items() if tensor.is_meta and id(tensor) not in filled]
    if without:
        raise ValueError(
            f"[sherd] nothing gives values to {without}, which are on the meta device and not in the checkpoint: build "
            "the model under sherd.meta_parameters() in place of torch.device('meta'), so that buffers have values"
        )


class meta_parameters:
    """A scope in which modules are built with their parameters on the meta device, without memory, and their buffers
    with values, such as the tables of rotary embeddings, which checkpoints do not have. Shard the model, then call
    load() or initialise(). For one thread at a time; a module that is built needs the memory of one parameter."""

    def __enter__(self) -> None:
        self._plain = torch.nn.Module.register_parameter
        torch.nn.Module.register_parameter = _registering(self._plain)  # type: ignore[method-assign]

    def __exit__(self, *_: object) -> None:
        torch.nn.Module.register_parameter = self._plain  # type: ignore[method-assign]


def _registering(plain: Callable[..., None]) -> Callable[..., None]:
    known = torch.utils.weak.WeakIdKeyDictionary()  # of a parameter that several modules share: the one on meta

    def register(module: torch.nn.Module, name: str, param: torch.nn.Parameter | None) -> None:
        if param is not None and not param.is_meta:
            if param not in known:
                known[param] = torch.nn.Parameter(param.to("meta"), requires_grad=param.requires_grad)
                known[param].__dict__.update(param.__dict__)
            param = known[param]
        plain(module, name, param)

    return register
