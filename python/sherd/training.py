# SPDX-License-Identifier: Apache-2.0
"""What a training loop calls on a root, besides the optimizer."""

from __future__ import annotations

import weakref
from collections.abc import Callable

import torch

from . import _C
from .mirrors import check_unchanged, sharded


_models: weakref.WeakSet[torch.nn.Module] = weakref.WeakSet()  # whose pieces others may have


def micro_batches(model: torch.nn.Module, count: int) -> None:
    """Sets the number of backwards in a step (gradient accumulation). Call it between steps, on all ranks alike."""
    _C.micro_batches(sharded(model), count)


def idle_pass(model: torch.nn.Module) -> None:
    """Takes part in the other ranks' forward and backward, as a rank without data: contributes zero gradients. Under
    torch.no_grad(), in their forward alone. Collective; blocks."""
    _C.idle_pass(sharded(model))


def finish(model: torch.nn.Module) -> None:
    """Blocks until all communication of the model on this rank is done."""
    _C.finish(sharded(model))


def publish(model: torch.nn.Module) -> None:
    """Makes the model compute with main weights that were changed by hand. Optimizers do it by themselves."""
    _C.publish(sharded(model))


def named_parameters(model: torch.nn.Module) -> list[tuple[str, torch.Tensor]]:
    """Returns this rank's elements of the main weight of each trainable parameter, with its full name: flat, maybe
    empty, in the same order on all ranks. They have a grad from the end of a step's last backward to the update.
    Raises if the model's parameters are not those that were sharded."""
    pieces = _C.named_parameters(sharded(model))
    check_unchanged(model)
    for name, piece in pieces:
        piece._sherd_model = weakref.ref(model)  # strong, it would keep the model alive for ever
        piece._sherd_name = name
    _models.add(model)
    return pieces


def model_of(piece: torch.Tensor) -> torch.nn.Module | None:
    """Returns the root of which named_parameters() has returned this tensor, if it is one of these."""
    reference = getattr(piece, "_sherd_model", None)
    return None if reference is None else reference()


def addresses_of_main_gradients() -> set[int]:
    """Returns where the main gradients of all models are for which named_parameters() was called."""
    gradients = [piece.grad for model in list(_models) for _, piece in _C.named_parameters(sharded(model))]
    return {one.data_ptr() for one in gradients if one is not None and one.numel() > 0}


def parameters(model: torch.nn.Module) -> list[torch.Tensor]:
    """Returns the tensors to build an optimizer of torch over, in place of model.parameters():
    torch.optim.SGD(sherd.parameters(model), lr=0.1). Optimizers that look at each element alone are right over them;
    those that need a parameter's shape or norm are not."""
    return [piece for _, piece in named_parameters(model)]


def gradient_norm(model: torch.nn.Module, *, tokens: int | None = None) -> float:
    """Returns the L2 norm of the step's gradient over all parameters and ranks, between the last backward and the
    update. With sherd.AdamW its gradient_norm() costs nothing. Collective; waits for the device."""
    return _C.gradient_norm(sharded(model), tokens)


def edit_parameters(unit: torch.nn.Module, edit: Callable[[], None]) -> None:
    """Runs `edit` while the unit's own parameters have their values in full, and stores what it writes to them. It must
    write the same on all ranks. Collective; blocks.

    sherd.edit_parameters(layer, lambda: layer.up.weight.mul_(0.5))
    """
    _C.edit_parameters(sharded(unit), edit)


def gather(unit: torch.nn.Module) -> None:
    """Gathers the unit's own parameters so that they can be read, until release(), the next pass or update. Collective;
    blocks."""
    _C.gather(sharded(unit))


def release(unit: torch.nn.Module) -> None:
    """Releases what gather() has gathered."""
    _C.release(sharded(unit))
