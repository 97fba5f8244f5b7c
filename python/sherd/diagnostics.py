# SPDX-License-Identifier: Apache-2.0
"""Looking for what goes wrong: gradients, norms, memory. All functions take a root."""

from __future__ import annotations

from typing import NamedTuple

import torch

from . import _C
from ._C import Finding, GroupReport
from .mirrors import sharded


class NotFiniteError(RuntimeError):
    """The error for gradients that are NaN or infinite, raised on all ranks. No weight was changed, and training can
    continue. (On a GPU it is a RuntimeError with the same words, at the end of a later backward.)"""

    findings: list[Finding] = []  #: the parameters and micro-batches, earliest first


class ParameterNorms(NamedTuple):
    """The L2 norms of one parameter, over the elements of all ranks."""

    parameter: str
    weight: float
    gradient: float


def watch(
    model: torch.nn.Module, *, enabled: bool = True, before_reduction: bool = False, exploding: float = 1000.0
) -> None:
    """Sets how gradients are watched from the next step on.

    enabled: False turns the watch off.
    before_reduction: also checks each rank's own gradients, so that a finding names the rank.
    exploding: reports gradients whose norm is above this multiple of their mean; 0: none.
    """
    _C.watch(sharded(model), enabled, before_reduction, exploding)


def findings(model: torch.nn.Module) -> list[Finding]:
    """Returns the faults of gradients since the last call or report. Collective; waits for the device."""
    return _C.findings(sharded(model))


def norms(model: torch.nn.Module) -> list[ParameterNorms]:
    """Returns the norms of the main weight and main gradient of each trainable parameter. Collective; waits for the
    device."""
    return [ParameterNorms(*one) for one in _C.norms(sharded(model))]


def groups(model: torch.nn.Module) -> list[GroupReport]:
    """Returns the sizes of all groups, unit by unit."""
    return _C.groups(sharded(model))


def groups_text(model: torch.nn.Module) -> str:
    """Returns the sizes of all groups as a table."""
    return _C.groups_text(sharded(model))


def allocated_bytes(model: torch.nn.Module) -> dict[str, int]:
    """Returns the bytes that Sherd has allocated for the model on this rank, by purpose."""
    return _C.allocated_bytes(sharded(model))
