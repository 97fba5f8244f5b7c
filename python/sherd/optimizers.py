# SPDX-License-Identifier: Apache-2.0
"""AdamW over shards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from . import _C
from ._C import AdamWRule, LossScaling
from .agreement import on_all_ranks
from .mirrors import check_unchanged, sharded
from .sharded_tensor import sharded_tensor, take_elements
from .training import gradient_norm, named_parameters

_MOMENTS = ("exp_avg", "exp_avg_sq")
# Further settings that torch.optim.AdamW looks for in a state dict.
_SETTINGS_OF_TORCH = {
    "amsgrad": False,
    "maximize": False,
    "foreach": None,
    "capturable": False,
    "differentiable": False,
    "fused": None,
    "decoupled_weight_decay": True,
}


class AdamW(torch.optim.Optimizer):
    """AdamW over the shards of a model: one pass clips, updates, decays and publishes. A torch Optimizer, so learning
    rate schedulers work on it: `param_groups[0]["lr"]` is the learning rate.

    model: a root. Shard the whole model first.
    max_norm: clips gradients to this norm over all parameters and ranks; 0: no clipping.
    states: dtype of the moments, torch.float32 or torch.bfloat16.
    rules: exceptions for some parameters (sherd.AdamWRule), in place of parameter groups.
    scaling: dynamic loss scaling for fp16 (sherd.LossScaling); call backward() on scale(loss) then.
    leave_out_unused: leaves parameters that no backward of a step has reached, on any rank, as they are, as torch does.
        Costs one small exchange between ranks in each step, for which a GPU's queue does not stop. Without it they
        have gradients of zero: momentum and weight decay still move them.

    Between steps, state_dict() and load_state_dict() are for torch.distributed.checkpoint: moments are ShardedTensors.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.01,
        *,
        max_norm: float = 0.0,
        states: torch.dtype = torch.float32,
        rules: Sequence[AdamWRule] = (),
        scaling: LossScaling | None = None,
        leave_out_unused: bool = True,
    ) -> None:
        self._model = sharded(model)
        check_unchanged(model)
        self._module = model
        self._leave_out_unused = leave_out_unused
        self._impl = _C.AdamW(
            self._model,
            lr=lr,
            betas=betas,
            eps=eps,
            weight_decay=weight_decay,
            max_norm=max_norm,
            states=states,
            rules=list(rules),
            scaling=scaling,
        )
        self._lr = lr
        self._fixed = dict(betas=betas, eps=eps, weight_decay=weight_decay)
        super().__init__([piece for _, piece in named_parameters(model)], dict(lr=lr, **self._fixed))

    def step(self, closure: None = None, *, tokens: int | None = None) -> None:  # type: ignore[override]
        """Clips the gradients, updates the weights and publishes them. With loss='per_token', `tokens` is the number
        that this rank trained on in the step. Collective; on a GPU it does not wait for the device."""
        if closure is not None:
            raise ValueError("[sherd] AdamW takes no closure: call backward() before step()")
        self._follow_param_groups()
        if self._leave_out_unused:
            _C.leave_out_unused(self._model)
        self._impl.step(tokens)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Does nothing: the first backward of a step overwrites the gradients."""

    def scale(self, loss: torch.Tensor) -> torch.Tensor:
        """Returns the loss times the loss scale, to call backward() on."""
        return self._impl.scale(loss)

    def gradient_norm(self) -> float:
        """Returns the norm of the last step's gradient over all parameters and ranks, before clipping; waits for the
        device."""
        return self._impl.gradient_norm()

    def gradient_norm_on_device(self) -> torch.Tensor:
        """Returns that norm as a tensor on the device, without waiting."""
        return self._impl.gradient_norm_on_device()

    @property
    def updates(self) -> int:
        """Number of updates made; skipped ones don't count."""
        return self._impl.updates()

    @property
    def loss_scale(self) -> float:
        """The loss scale; 1 without scaling."""
        return self._impl.loss_scale()

    def allocated_bytes(self) -> dict[str, int]:
        """Returns the bytes allocated on this rank, by purpose."""
        return self._impl.allocated_bytes()

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Raises after construction: AdamW has all parameters of its model."""
        if self.param_groups:
            raise ValueError("[sherd] AdamW has all parameters of its model: use rules for exceptions")
        super().add_param_group(param_group)

    def state_dict(self) -> dict[str, Any]:
        """Returns step and moments by parameter, the moments as ShardedTensors, the progress and the settings, for
        torch.distributed.checkpoint. Keys are those of torch's get_optimizer_state_dict for torch.optim.AdamW."""
        moments, progress = self._impl.moments(), self._impl.progress()
        state = {}
        for shard in _C.shards(self._model):
            if shard.name in moments:
                pieces = zip(_MOMENTS, moments[shard.name], strict=True)
                step = progress.updates - progress.missed.get(shard.name, 0)
                state[shard.name] = {"step": torch.tensor(float(step))}
                state[shard.name] |= {name: sharded_tensor(shard, piece) for name, piece in pieces}
        numbers = {name: getattr(progress, name) for name in ("updates", "loss_scale", "healthy")}
        group = {"lr": self.param_groups[0]["lr"], **self._fixed, "params": list(state), **_SETTINGS_OF_TORCH}
        return {"state": state, "progress": numbers, "param_groups": [group]}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Takes the state that state_dict() of the same model has returned, maybe with other values in it, or that of
        torch.optim.AdamW as torch's get_optimizer_state_dict returns it, with whole tensors. The learning rate is
        taken over; other settings must be equal. Collective; blocks."""
        world = self._module.__dict__["_sherd_world"]
        moments = self._impl.moments()
        shards = {shard.name: shard for shard in _C.shards(self._model)}
        taken = on_all_ranks(world, lambda: self._checked(state_dict, moments, shards))
        for name, values in taken.items():
            for moment, value in zip(moments[name], values, strict=True):
                if value.data_ptr() != moment.data_ptr():
                    moment.copy_(value)
        steps = {name: int(entry["step"]) for name, entry in state_dict["state"].items()}
        numbers = state_dict.get("progress", {"updates": max(steps.values(), default=0), "loss_scale": 0, "healthy": 0})
        missed = {name: numbers["updates"] - step for name, step in steps.items() if step < numbers["updates"]}
        self._impl.set_progress(_C.Progress(**numbers, missed=missed))
        self.param_groups[0]["lr"] = state_dict["param_groups"][0]["lr"]

    def _checked(
        self, state_dict: Mapping[str, Any], moments: Mapping[str, Any], shards: Mapping[str, _C.Shard]
    ) -> dict[str, list[torch.Tensor]]:
        """Returns this rank's elements of all moments in a state dict. Raises if it is of another optimizer."""
        if set(moments) != set(state_dict["state"]):
            difference = sorted(set(moments) ^ set(state_dict["state"]))
            raise ValueError(f"[sherd] the optimizer's state is of other parameters; it differs in {difference}")
        for group in state_dict["param_groups"]:
            for name, value in self._fixed.items():
                if not _equal(group[name], value):
                    raise ValueError(
                        f"[sherd] the optimizer's state has {name} {group[name]}, but this AdamW has {value}: make it "
                        "with the same settings"
                    )
            if group["lr"] != state_dict["param_groups"][0]["lr"]:
                raise ValueError("[sherd] the optimizer's state has several learning rates: use rules, and one lr")
        return {
            name: [take_elements(entry[kind], shards[name], f"{kind} of '{name}'") for kind in _MOMENTS]
            for name, entry in state_dict["state"].items()
        }

    def _follow_param_groups(self) -> None:
        group = self.param_groups[0]
        for name, value in self._fixed.items():
            if not _equal(group[name], value):
                raise ValueError(
                    f"[sherd] AdamW's {name} was changed from {value} to {group[name]}: only lr may change; make a new "
                    "optimizer, or use rules"
                )
        if group["lr"] != self._lr:
            self._impl.set_lr(float(group["lr"]))
            self._lr = group["lr"]


def _equal(one: Any, other: Any) -> bool:
    return tuple(one) == tuple(other) if isinstance(other, tuple) else one == other


@torch.no_grad()
def clip_grad_norm_(model: torch.nn.Module, max_norm: float, *, tokens: int | None = None) -> float:
    """Clips the gradients of a step to a norm over all parameters and ranks, for optimizers of torch, and returns the
    norm before. sherd.AdamW(max_norm=...) does it in its update, faster. Collective; waits for the device."""
    norm = gradient_norm(model, tokens=tokens)
    if norm > max_norm:
        for _, piece in named_parameters(model):
            if piece.grad is not None:
                piece.grad.mul_(max_norm / (norm + 1e-6))
    return norm
