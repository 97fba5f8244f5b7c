# SPDX-License-Identifier: Apache-2.0
"""What all ranks decide together. Both functions are collective and block."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch

from ._C import World

Result = TypeVar("Result")

_LETTERS = 4096  # of an error that other ranks are told


def on_all_ranks(world: World, action: Callable[[], Result]) -> Result:
    """Returns what `action` returns on this rank. If it raises on one rank, all raise: else the others would wait.
    It must not be collective itself."""
    try:
        result, error = action(), None
    except Exception as raised:
        result, error = None, raised
    failed = _first_failed(world, error is not None)
    if failed is not None:
        text = _text_of(world, failed, str(error))
        if error is None:
            error = RuntimeError(f"[sherd] rank {failed} has failed: {text}")
        raise error
    return result  # type: ignore[return-value]


def first_ranks_answer(world: World, question: Callable[[], bool]) -> bool:
    """Returns the first rank's answer, which alone is asked."""
    answer = on_all_ranks(world, lambda: world.rank == 0 and question())
    told = torch.tensor(float(answer), device=world.device)
    world.broadcast(told)
    return bool(told.item())


def _first_failed(world: World, here: bool) -> int | None:
    place = torch.tensor(float(world.size - world.rank if here else 0), device=world.device)
    world.all_reduce(place, "max")
    return None if place.item() == 0 else world.size - int(place.item())


def _text_of(world: World, rank: int, text: str) -> str:
    letters = torch.zeros(_LETTERS, dtype=torch.uint8)
    data = text.encode()[:_LETTERS]
    letters[: len(data)] = torch.tensor(list(data), dtype=torch.uint8)
    letters = letters.to(world.device)
    world.broadcast(letters, rank)
    return bytes(letters[letters != 0].tolist()).decode(errors="replace")
