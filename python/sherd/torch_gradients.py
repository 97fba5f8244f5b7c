# SPDX-License-Identifier: Apache-2.0
"""torch's clipping and loss scaling, which raise for sharded models; see Note [Why torch's functions are replaced]."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NoReturn

import torch
import torch.nn.utils.clip_grad as torch_clipping

from .mirrors import unit_of
from .optimizers import AdamW
from .torch_optimizers import pieces_of
from .training import addresses_of_main_gradients

# ---- clipping -------------------------------------------------------------------------------------------------------


def _refuse(function: str, what: str) -> NoReturn:
    raise ValueError(
        f"[sherd] torch.nn.utils.{function} {what}: use sherd.AdamW(max_norm=...), or "
        "sherd.clip_grad_norm_(model, max_norm) before an optimizer of torch"
    )


def _checking_parameters(plain: Callable[..., Any], pieces_are_right: bool) -> Callable[..., Any]:
    name = plain.__name__.removeprefix("_")

    def checked(parameters: torch.Tensor | Iterable[torch.Tensor], *args: Any, **kwargs: Any) -> Any:
        parameters = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
        if any(unit_of(one) is not None for one in parameters):
            _refuse(name, "is called with model.parameters() of a sharded model, which have no gradients")
        if not pieces_are_right and any(hasattr(one, "_sherd_model") for one in parameters):
            _refuse(name, "sees this rank's gradients only")
        return plain(parameters, *args, **kwargs)

    return checked


def _checking_gradients(plain: Callable[..., Any]) -> Callable[..., Any]:
    def checked(tensors: torch.Tensor | Iterable[torch.Tensor], *args: Any, **kwargs: Any) -> Any:
        tensors = [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)
        addresses = addresses_of_main_gradients()
        plain_ones = (one for one in tensors if type(one) is torch.Tensor and one.layout is torch.strided)
        if addresses and any(one.data_ptr() in addresses for one in plain_ones):
            _refuse("get_total_norm", "sees this rank's gradients only")
        return plain(tensors, *args, **kwargs)

    return checked


def _replace(function: Callable[..., Any], checking: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    """Replaces a function inside torch's wrapper around it: other modules may have imported that already."""
    cell = function.__closure__[0]  # type: ignore[attr-defined]
    cell.cell_contents = checking(cell.cell_contents)


_replace(torch_clipping.clip_grad_norm_, lambda plain: _checking_parameters(plain, pieces_are_right=False))
_replace(torch_clipping._clip_grads_with_norm_, lambda plain: _checking_parameters(plain, pieces_are_right=False))
_replace(torch_clipping.clip_grad_value_, lambda plain: _checking_parameters(plain, pieces_are_right=True))
_replace(torch_clipping._get_total_norm, _checking_gradients)

# ---- loss scaling ---------------------------------------------------------------------------------------------------
# GradScaler looks for infinities in this rank's gradients: ranks would skip steps each on their own.


def _refuse_scaled(scaler: torch.amp.GradScaler, optimizer: torch.optim.Optimizer) -> None:
    if scaler.is_enabled() and (isinstance(optimizer, AdamW) or pieces_of(optimizer)):
        raise ValueError(
            f"[sherd] torch's GradScaler does not work with {type(optimizer).__name__} over a sharded model, because "
            "it sees this rank's gradients only: use sherd.AdamW(scaling=sherd.LossScaling()), or bf16"
        )


_scaler_step = torch.amp.GradScaler.step
_scaler_unscale = torch.amp.GradScaler._unscale_grads_


def _step_or_raise(self: torch.amp.GradScaler, optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> Any:
    _refuse_scaled(self, optimizer)
    return _scaler_step(self, optimizer, *args, **kwargs)


def _unscale_or_raise(self: torch.amp.GradScaler, optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> Any:
    _refuse_scaled(self, optimizer)
    return _scaler_unscale(self, optimizer, *args, **kwargs)


torch.amp.GradScaler.step = _step_or_raise  # type: ignore[method-assign]
torch.amp.GradScaler._unscale_grads_ = _unscale_or_raise  # type: ignore[method-assign]
