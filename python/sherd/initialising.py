# SPDX-License-Identifier: Apache-2.0
"""Initial values for models that were built on the meta device."""

from __future__ import annotations

from collections.abc import Callable

import torch

from . import _C
from .buffers import recreate_buffers
from .mirrors import check_unchanged, sharded

Distribution = tuple[str, float] | tuple[str, float, float]


def initialise(
    model: torch.nn.Module,
    *,
    seed: int = 0,
    values: Callable[[str, list[int]], Distribution | None] | None = None,
    reset: Callable[[torch.nn.Module], None] | None = None,
) -> None:
    """Gives values to the parameters and buffers of a root that have none, unit by unit: no rank ever has more than one
    full unit. Values are the same for any number of ranks and any strategy.

    seed: of all random values.
    values: returns the distribution for a parameter, given its full name and shape: ('constant', value),
        ('uniform', low, high), ('normal', mean, deviation), or None to leave it to `reset`.
    reset: sets the parameters and buffers of one module, inner modules first. Default: the model's _init_weights if it
        has one, as transformers' have, else the module's reset_parameters(). Buffers that neither sets, such as tables
        that a constructor computes, raise: build the model under sherd.meta_parameters().

    Call it on all ranks.
    """
    mirror = sharded(model)
    check_unchanged(model)
    recreate_buffers(model, model.__dict__["_sherd_world"].device)
    _C.initialise(mirror, seed, reset or _default_reset(model), values)


def _default_reset(model: torch.nn.Module) -> Callable[[torch.nn.Module], None]:
    init_weights = getattr(model, "_init_weights", None)

    def reset(module: torch.nn.Module) -> None:
        reset_parameters = getattr(module, "reset_parameters", None)
        if init_weights is not None:
            init_weights(module)
        elif reset_parameters is not None:
            reset_parameters()

    return reset
