# SPDX-License-Identifier: Apache-2.0
"""Activation checkpointing (recompute) around units. Inside a unit torch's own works as it is."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch.utils.checkpoint

from . import _C


class _Run:
    """A scope around one run of what is recomputed."""

    def __init__(self, calls: _C.RecomputedCalls, begin: Callable[[], None]) -> None:
        self._calls = calls
        self._begin = begin

    def __enter__(self) -> None:
        self._begin()

    def __exit__(self, *_: object) -> None:
        self._calls.end()


def checkpoint_context() -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
    """Makes torch's activation checkpointing work around units:
    torch.utils.checkpoint.checkpoint(layer, x, use_reentrant=False, context_fn=sherd.checkpoint_context)."""
    calls = _C.RecomputedCalls()
    return _Run(calls, calls.begin_forward), _Run(calls, calls.begin_again)


def checkpoint(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Returns `function(*args, **kwargs)` without keeping what its backward needs, and runs it again in the backward.
    It may call units, or be one; then the unit needs no further gather."""
    return torch.utils.checkpoint.checkpoint(
        function, *args, use_reentrant=False, context_fn=checkpoint_context, **kwargs
    )
