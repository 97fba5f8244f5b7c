# SPDX-License-Identifier: Apache-2.0
"""Parameters of sharded models as loops written for FSDP2 expect them."""

from __future__ import annotations

import weakref
from typing import Any, NoReturn

import torch

from .. import _C
from ..mirrors import named_parameters_for_sherd, sharded


class ShardedParameter(torch.Tensor):
    """A parameter of a sharded model, in parameters(). It has this rank's elements, flat, and operations of torch see
    those; shape, ndim and numel() are those of the whole, as of FSDP2's DTensors. requires_grad is the module's
    parameter's."""

    __torch_function__ = torch._C._disabled_torch_function_impl
    _is_param = True  # isinstance(…, torch.nn.Parameter)

    _sherd_shape: torch.Size
    _sherd_counted: bool
    _sherd_model: weakref.ref[torch.nn.Module]
    _sherd_parameter: weakref.ref[torch.nn.Parameter]

    @property
    def shape(self) -> torch.Size:  # type: ignore[override]
        return self._sherd_shape

    @property
    def ndim(self) -> int:  # type: ignore[override]
        return len(self._sherd_shape)

    def size(self, dim: int | None = None) -> Any:  # type: ignore[override]
        return self._sherd_shape if dim is None else self._sherd_shape[dim]

    def dim(self) -> int:
        return len(self._sherd_shape)

    ndimension = dim

    def numel(self) -> int:
        return self._sherd_shape.numel()

    nelement = numel

    def __len__(self) -> int:
        return self._sherd_shape[0]

    def __repr__(self, *, tensor_contents: object = None) -> str:
        here = torch.Tensor.numel(self)
        return f"ShardedParameter({tuple(self._sherd_shape)}, {self.dtype}, {here} elements here)"

    def to_local(self) -> torch.Tensor:
        """Returns this rank's elements, flat; a view."""
        return self.as_subclass(torch.Tensor)

    def full_tensor(self) -> NoReturn:
        """Raises: whole tensors are in sherd.full_state_dict(model)."""
        raise NotImplementedError(
            "[sherd.compat] full_tensor() of one parameter: sherd.full_state_dict(model) returns all of them, and "
            "unit.unshard() shows those of a unit in its module"
        )

    @property
    def requires_grad(self) -> bool:  # type: ignore[override]
        parameter = self._sherd_parameter()
        return parameter is not None and parameter.requires_grad

    @requires_grad.setter
    def requires_grad(self, value: bool) -> None:
        parameter = self._sherd_parameter()
        if parameter is not None:
            parameter.requires_grad = value

    def requires_grad_(self, requires_grad: bool = True) -> ShardedParameter:
        self.requires_grad = requires_grad
        return self

    @property
    def grad(self) -> torch.Tensor | None:  # type: ignore[override]
        gradient = _plain_grad.__get__(self)
        if gradient is not None and type(gradient) is torch.Tensor:
            gradient.__class__ = ShardedGradient
            gradient._sherd_counted = self._sherd_counted
        return gradient

    @grad.setter
    def grad(self, value: torch.Tensor | None) -> None:
        _plain_grad.__set__(self, value)

    @grad.deleter
    def grad(self) -> None:
        _plain_grad.__set__(self, None)


_plain_grad: Any = torch.Tensor.grad


class ShardedGradient(torch.Tensor):
    """The gradient of a ShardedParameter: this rank's elements, flat."""

    __torch_function__ = torch._C._disabled_torch_function_impl
    _sherd_counted: bool

    def to_local(self) -> torch.Tensor:
        """Returns this rank's elements, flat; a view."""
        return self.as_subclass(torch.Tensor)


class GradientNorm(torch.Tensor):
    """A norm over all ranks, which is the same on each."""

    __torch_function__ = torch._C._disabled_torch_function_impl

    def full_tensor(self) -> torch.Tensor:
        """Returns itself as a plain tensor."""
        return self.as_subclass(torch.Tensor)


def sharded_parameters(root: torch.nn.Module) -> dict[int, ShardedParameter]:
    """Returns this rank's part of each parameter of a root, by the id of the module's parameter."""
    result = {}
    parameters = named_parameters_for_sherd(root)
    for shard in _C.shards(sharded(root)):
        piece, parameter = shard.main, parameters[shard.name]
        if type(piece) is torch.Tensor:
            piece.__class__ = ShardedParameter
        piece._sherd_shape = torch.Size(shard.shape)
        piece._sherd_counted = shard.counted
        piece._sherd_parameter = weakref.ref(parameter)
        if shard.trainable:
            piece._sherd_model = weakref.ref(root)  # what steps of optimizers look for
        result[id(parameter)] = piece
    return result
