# SPDX-License-Identifier: Apache-2.0
"""Initial values for models that were built on the meta device."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import torch

from . import _C
from .mirrors import sharded

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
    _C.initialise(sharded(model), seed, reset or _default_reset(model), values)


def _default_reset(model: torch.nn.Module) -> Callable[[torch.nn.Module], None]:
    init_weights = getattr(model, "_init_weights", None)

    def reset(module: torch.nn.Module) -> None:
        reset_parameters = getattr(module, "reset_parameters", None)
        if init_weights is not None:
            init_weights(module)
        elif reset_parameters is not None:
            reset_parameters()

    return reset


@contextlib.contextmanager
def meta_parameters() -> Iterator[None]:
    """A scope in which modules are built with their parameters on the meta device, without memory, and their buffers
    with values, such as the tables of rotary embeddings, which checkpoints do not have. Shard the model, then call
    load() or initialise(). For one thread at a time; a module that is built needs the memory of one parameter."""
    plain = torch.nn.Module.register_parameter

    def register(module: torch.nn.Module, name: str, param: torch.nn.Parameter | None) -> None:
        if param is not None and not param.is_meta:
            empty = param.to("meta")
            param = torch.nn.Parameter(empty, requires_grad=param.requires_grad)
        plain(module, name, param)

    torch.nn.Module.register_parameter = register  # type: ignore[method-assign]
    try:
        yield
    finally:
        torch.nn.Module.register_parameter = plain  # type: ignore[method-assign]
