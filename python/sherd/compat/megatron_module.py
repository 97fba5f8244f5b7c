# SPDX-License-Identifier: Apache-2.0
"""What the root of a model sharded with sherd.compat.megatron_fsdp is."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import NoReturn

import torch

from .. import _C
from ..mirrors import sharded
from ..training import finish, publish
from .fsdp_module import FSDPModule
from .model_state import model_of


class MegatronFSDP(FSDPModule):
    """The root of a model, with Megatron-FSDP's methods; those of FSDPModule are there as well."""

    @property
    def module(self) -> torch.nn.Module:
        """The model itself, which is not wrapped; its module of this name if it has one."""
        return self._modules.get("module", self)  # type: ignore[attr-defined]

    def set_model_auto_sync(self, sync_model: bool = True) -> None:
        """False: more backwards of the step follow the next one; True: it may be the last."""
        self._set_last("set_model_auto_sync", sync_model, True)

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """A scope of backwards that are not the step's last."""
        before = model_of(self).next_backward  # type: ignore[arg-type]
        self.set_model_auto_sync(False)
        try:
            yield
        finally:
            model_of(self).next_backward = "last" if before == "unknown" else before  # type: ignore[arg-type]

    @contextlib.contextmanager
    def sync(self) -> Iterator[None]:
        """A scope of backwards each of which may be the step's last; more follow after it."""
        self.set_model_auto_sync(True)
        try:
            yield
        finally:
            self.set_model_auto_sync(False)

    def zero_grad_buffer(self) -> None:
        """Drops the gradients of the step."""
        _C.drop_gradients(sharded(self))  # type: ignore[arg-type]

    @torch.no_grad()
    def scale_gradients(self, scaling_factor: float) -> None:
        """Multiplies the step's gradients, between its last backward and the update."""
        for parameter in self.parameters():  # type: ignore[attr-defined]
            if parameter.grad is not None:
                parameter.grad.mul_(scaling_factor)

    def install_optimized_model_weights(self) -> None:
        """Makes the model compute with main weights that were changed by hand; the optimizer's step does it by
        itself."""
        publish(self)  # type: ignore[arg-type]

    def synchronize_param_gather(self) -> None:
        """Waits for all communication of the model on this rank."""
        finish(self)  # type: ignore[arg-type]

    def synchronize_gradient_reduce(self) -> None:
        """Waits for all communication of the model on this rank."""
        finish(self)  # type: ignore[arg-type]

    def broadcast_params(self) -> None:
        """Does nothing: fully_shard has given all ranks the first rank's values."""

    def finish_grad_sync(self, force_all_reduce: bool | None = False) -> NoReturn:
        """Raises: gradients are reduced in backwards."""
        raise NotImplementedError(
            "[sherd.compat] finish_grad_sync: gradients are reduced in backwards; call set_model_auto_sync(True) "
            "before the step's last one"
        )
