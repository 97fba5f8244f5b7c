# SPDX-License-Identifier: Apache-2.0
"""What a unit sharded with sherd.compat is: an FSDPModule, with FSDP2's methods."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NoReturn

import torch

from .. import _C
from ..mirrors import sharded, unit_of
from ..training import gather, release
from ..unit_class import cast, leave_uncompiled
from .model_state import before_root, divide_factor_of, model_of, pieces_of, prepare, state_of, units_of
from .sharded_parameters import ShardedParameter


class UnshardHandle:
    """What unshard(async_op=True) returns."""

    def wait(self) -> None:
        """Does nothing: unshard() has waited."""


class FSDPModule:
    """A unit, with FSDP2's methods. Those whose effect Sherd does not have raise."""

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        # Slices of containers make a module of their own class: a plain one.
        plain = cls._sherd_base  # type: ignore[attr-defined]
        self = plain.__new__(plain)
        self.__init__(*args, **kwargs)
        return self

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return run_forward(self, super().__call__, args, kwargs)  # type: ignore[misc]

    # ---- parameters ------------------------------------------------------------------------------------------------

    def named_parameters(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, torch.nn.Parameter]]:
        """As torch's, with this rank's part of each parameter (a ShardedParameter), for optimizers of torch; inside a
        forward the module's own parameters. The first call is collective."""
        plain = type(self)._sherd_base  # type: ignore[attr-defined]
        pieces: dict[int, ShardedParameter] = {}
        for name, parameter in plain.named_parameters(self, prefix, recurse, remove_duplicate):
            root = unit_of(parameter)
            if root is None:  # ignored
                yield name, parameter
                continue
            model = model_of(root)
            if model.depth > 0:
                yield name, parameter
                continue
            pieces = pieces or pieces_of(model)
            yield name, pieces[id(parameter)]  # type: ignore[misc]

    def unshard(self, async_op: bool = False) -> UnshardHandle | None:
        """Gathers the unit's own parameters, so that they can be read, until reshard(), the next pass or update.
        Between passes; collective, blocks also with async_op. Within a forward unshard(async_op=True) has no effect:
        the program has gathers ahead."""
        model = model_of(self)  # type: ignore[arg-type]
        if async_op and model.depth > 0:
            return UnshardHandle()
        root = model.root()
        assert root is not None
        _C.count_backwards(sharded(root))  # so that the root is the root
        gather(self)  # type: ignore[arg-type]
        return UnshardHandle() if async_op else None

    def reshard(self) -> None:
        """Releases what unshard() has gathered."""
        if state_of(self).model is not None:  # type: ignore[arg-type]
            release(self)  # type: ignore[arg-type]

    def to_empty(self, *, device: Any, recurse: bool = True) -> NoReturn:
        """Raises: initialise(model) or load(model) gives values to parameters on the meta device."""
        raise NotImplementedError(
            "[sherd.compat] to_empty(): parameters on the meta device get values from sherd.load(model, folder) or "
            "sherd.initialise(model), which calls reset_parameters() or the model's _init_weights; leave out "
            "to_empty() and the initialisation after it"
        )

    # ---- micro-batches ---------------------------------------------------------------------------------------------

    def set_requires_gradient_sync(self, requires_gradient_sync: bool, *, recurse: bool = True) -> None:
        """False: more backwards of this step follow the next one; True: it is the last one, or may be. For roots.
        Sharded gradients are reduced after each backward, whatever this says; the step's gradients are the same."""
        self._set_last("set_requires_gradient_sync", requires_gradient_sync, recurse)

    def set_is_last_backward(self, is_last_backward: bool) -> None:
        """As set_requires_gradient_sync."""
        self._set_last("set_is_last_backward", is_last_backward, True)

    def set_requires_all_reduce(self, requires_all_reduce: bool, *, recurse: bool = True) -> None:
        """As set_requires_gradient_sync: with HSDP, gradients are summed over replicas in the last backward."""
        self._set_last("set_requires_all_reduce", requires_all_reduce, recurse)

    def _set_last(self, method: str, last: bool, recurse: bool) -> None:
        model = model_of(self)  # type: ignore[arg-type]
        root = model.root()
        inner = len(units_of(self)) > 1  # type: ignore[arg-type]
        if root is not self or (inner and not recurse):
            raise NotImplementedError(
                f"[sherd.compat] {method} for a part of the units of {type(root).__name__}: all units of a model have "
                "the same backwards; call it on the whole model, with recurse=True"
            )
        if last and model.next_backward == "unknown":
            return
        model.next_backward = "last" if last else "more"
        if model.awaits_backward_after is not None:  # the forward came before
            done, planned = _C.count_backwards(sharded(root))
            if done == model.awaits_backward_after < planned:
                _C.expect_backward(sharded(root), model.next_backward)

    # ---- settings --------------------------------------------------------------------------------------------------

    def set_reshard_after_forward(self, reshard_after_forward: bool, recurse: bool = True) -> None:
        """Sets whether parameters are released after the forward and gathered again for the backward. After the model's
        first use between steps only."""
        if not isinstance(reshard_after_forward, bool):
            raise ValueError(f"[sherd.compat] reshard_after_forward is {reshard_after_forward!r}: give a bool")
        for unit in units_of(self) if recurse else [self]:  # type: ignore[arg-type, list-item]
            state_of(unit).auto_reshard = False
            _C.change_options(sharded(unit), keep_gathered=not reshard_after_forward)

    def set_reshard_after_backward(self, reshard_after_backward: bool, *, recurse: bool = True) -> None:
        """True is what Sherd does; False raises."""
        _refuse_unless(
            reshard_after_backward, "set_reshard_after_backward(False)", "parameters are released after each backward"
        )

    def set_unshard_in_backward(self, unshard_in_backward: bool) -> None:
        """True is what Sherd does; False raises."""
        _refuse_unless(
            unshard_in_backward,
            "set_unshard_in_backward(False)",
            "a unit has all its parameters in the backward; set_reshard_after_forward(False) saves the gather",
        )

    def set_modules_to_forward_prefetch(self, modules: list[torch.nn.Module]) -> None:
        """Sets the units to gather when this one begins its forward. This one must contain no units."""
        _C.change_options(sharded(self), prefetch=_mirrors(modules))  # type: ignore[arg-type]

    def set_modules_to_backward_prefetch(self, modules: list[torch.nn.Module]) -> None:
        """Sets the units to gather when this one begins its backward. This one must contain no units."""
        _C.change_options(sharded(self), backward_prefetch=_mirrors(modules))  # type: ignore[arg-type]

    def set_gradient_divide_factor(self, factor: float) -> None:
        """Sets what the sum of gradients over ranks is divided by: their number (the default) or 1, for all units of a
        model alike, before its first use."""
        state = state_of(self)  # type: ignore[arg-type]
        if state.model is not None and float(factor) != divide_factor_of(self):  # type: ignore[arg-type]
            raise RuntimeError(
                f"[sherd.compat] set_gradient_divide_factor({factor}) after the model's first use (parameters() is "
                "one): call it right after fully_shard"
            )
        state.divide_factor = float(factor)

    def set_reduce_scatter_divide_factor(self, factor: float) -> None:
        """The old name of set_gradient_divide_factor."""
        self.set_gradient_divide_factor(factor)

    def set_allocate_memory_from_process_group_for_comm(self, enable: bool) -> None:
        """Allocates the arena of the whole model with NCCL and registers it (sherd.fully_shard(symmetric=True)); before
        the model's first use."""
        state = state_of(self)  # type: ignore[arg-type]
        if state.model is not None and enable != state.symmetric:
            raise RuntimeError(
                "[sherd.compat] set_allocate_memory_from_process_group_for_comm after the model's first use: call it "
                "after fully_shard"
            )
        state.symmetric = enable

    def set_force_sum_reduction_for_comms(self, enable: bool) -> None:
        """Does nothing: Sherd's reductions are sums, which are divided after them."""

    def set_post_optim_event(self, event: Any) -> None:
        """Does nothing: the next gathers wait for the stream that the optimizer's step ran on."""

    def set_custom_all_gather(self, comm: Any) -> NoReturn:
        _refuse("set_custom_all_gather", "collectives are Sherd's; open the world over another backend (sherd.World)")

    def set_custom_reduce_scatter(self, comm: Any) -> NoReturn:
        _refuse("set_custom_reduce_scatter", "collectives are Sherd's; open the world over another backend")

    def set_all_reduce_hook(self, hook: Any, *, stream: Any = None) -> NoReturn:
        _refuse("set_all_reduce_hook", "change gradients between the last backward and the optimizer's step")


leave_uncompiled(FSDPModule.__call__)


def run_forward(unit: Any, method: Any, args: Any, kwargs: Any) -> Any:
    """Calls a forward method of a unit, which has a boundary."""
    state = unit.__dict__["_sherd_fsdp"]
    model = state.model
    if model is None or model.root() is None:  # FSDP2's rule: what is called first is the root
        model = prepare(unit)
    recomputes = torch._C._current_graph_task_id() != -1
    if model.depth == 0 and not recomputes and torch.is_grad_enabled() and model.root() is unit:
        before_root(unit, model)
    model.depth += 1
    try:
        result = method(*args, **kwargs)
    finally:
        model.depth -= 1
    return result if state.output_dtype is None else cast(result, state.output_dtype)


leave_uncompiled(run_forward)


def _mirrors(modules: list[torch.nn.Module]) -> list[_C.Mirror]:
    for module in modules:
        if not isinstance(module, FSDPModule):
            raise ValueError(f"[sherd.compat] {type(module).__name__} is to be prefetched, but is no FSDPModule")
    return [sharded(module) for module in modules]


def _refuse(method: str, remedy: str) -> NoReturn:
    raise NotImplementedError(f"[sherd.compat] {method} is not there: {remedy}")


def _refuse_unless(wanted: bool, call: str, remedy: str) -> None:
    if not wanted:
        _refuse(call, remedy)
