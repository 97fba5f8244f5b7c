# SPDX-License-Identifier: Apache-2.0
"""The step as data."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

import torch

from . import _C
from ._C import Network, ProgramBytes
from .mirrors import sharded
from .pages import page_of_program


class Traffic(NamedTuple):
    """The collectives of one kind in a step."""

    calls: int
    bytes: int  # of their full sides


class Program:
    """A step as data: the instructions of all streams, the slots of the arena, the bytes. `print(program)` prints all
    of it; a program does not change when the model later runs another one."""

    def __init__(self, program: _C.Program) -> None:
        self._program = program

    def __str__(self) -> str:
        return self._program.text()

    def json(self) -> dict[str, Any]:
        """Returns the program as data of JSON."""
        return json.loads(self._program.json())

    def to_html(self) -> str:
        """Returns it as a piece of HTML: bytes, collectives, and what each stream does when. Notebooks show it."""
        return page_of_program(self)

    _repr_html_ = to_html

    @property
    def bytes(self) -> ProgramBytes:
        """The bytes that it needs on this rank, without activations and optimizer state."""
        return self._program.bytes()

    @property
    def traffic(self) -> dict[str, Traffic]:
        """The collectives of a step: all_gather, reduce_scatter, all_reduce."""
        return {kind: Traffic(*numbers) for kind, numbers in self._program.traffic().items()}

    @property
    def fingerprint(self) -> int:
        """A hash of all that ranks must agree on."""
        return self._program.fingerprint()

    def collective_seconds(self, network: Network) -> float:
        """Returns the seconds that a step's collectives take on a network one after another; a run hides part of them
        behind computing."""
        return self._program.collective_seconds(network)


def program(model: torch.nn.Module) -> Program:
    """Returns the program of a root's step. Before the first forward it is for the order in which units were sharded.
    The first use of a root is collective."""
    return Program(_C.program(sharded(model)))
