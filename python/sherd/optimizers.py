# SPDX-License-Identifier: Apache-2.0
"""AdamW over shards, and what torch's own optimizers need around their step."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
import torch.nn.utils.clip_grad as torch_clipping
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from . import _C
from ._C import AdamWRule, LossScaling
from .mirrors import sharded, unit_of
from .state import ShardedTensor, shards_by_parameter
from .training import gradient_norm, named_parameters


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

    # torch's GradScaler asks for this, and then sets found_inf: without it ranks would skip steps each on their own.
    _step_supports_amp_scaling = True

    @property
    def found_inf(self) -> None:
        """Not supported: see scaling."""

    @found_inf.setter
    def found_inf(self, value: object) -> None:
        raise ValueError("[sherd] AdamW does not work with torch's GradScaler: use AdamW(scaling=sherd.LossScaling())")

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Raises after construction: AdamW has all parameters of its model."""
        if self.param_groups:
            raise ValueError("[sherd] AdamW has all parameters of its model: use rules for exceptions")
        super().add_param_group(param_group)

    def state_dict(self) -> dict[str, Any]:
        """Returns the moments by parameter, as ShardedTensors, the progress and the settings, for
        torch.distributed.checkpoint."""
        moments = self._impl.moments()
        progress = self._impl.progress()
        state = {}
        for entry in shards_by_parameter(self._module).values():
            shard = entry.shard
            if shard.name in moments:
                names = ("exp_avg", "exp_avg_sq")
                pieces = zip(names, moments[shard.name], strict=True)
                state[shard.name] = {name: ShardedTensor(piece, shard.shape, shard.runs) for name, piece in pieces}
        return {
            "state": state,
            "progress": {
                "updates": progress.updates,
                "loss_scale": progress.loss_scale,
                "healthy": progress.healthy,
                "missed": dict(progress.missed),
            },
            "param_groups": [{"lr": self.param_groups[0]["lr"], **self._fixed}],
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Takes the state that state_dict() of the same model has returned, maybe with other values in it."""
        moments = self._impl.moments()
        if set(moments) != set(state_dict["state"]):
            difference = sorted(set(moments) ^ set(state_dict["state"]))
            raise ValueError(f"[sherd] the optimizer's state is of other parameters; it differs in {difference}")
        for name, given in state_dict["state"].items():
            for moment, kind in zip(moments[name], ("exp_avg", "exp_avg_sq"), strict=True):
                local = given[kind].local
                if local.data_ptr() != moment.data_ptr():
                    moment.copy_(local)
        self._impl.set_progress(_C.Progress(**state_dict["progress"]))
        self.param_groups[0].update(state_dict["param_groups"][0])

    def _follow_param_groups(self) -> None:
        group = self.param_groups[0]
        for name, value in self._fixed.items():
            if tuple(group[name]) != tuple(value) if name == "betas" else group[name] != value:
                raise ValueError(
                    f"[sherd] AdamW's {name} was changed from {value} to {group[name]}: only lr may change; make a new "
                    "optimizer, or use rules"
                )
        if group["lr"] != self._lr:
            self._impl.set_lr(float(group["lr"]))
            self._lr = group["lr"]


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


# ---- torch's functions on sharded models ----------------------------------------------------------------------------


def _models_of(optimizer: torch.optim.Optimizer) -> list[torch.nn.Module]:
    """Returns the sharded models whose main weights the optimizer updates."""
    models: dict[int, torch.nn.Module] = {}
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if unit_of(parameter) is not None:
                raise ValueError(
                    f"[sherd] {type(optimizer).__name__} was built over model.parameters() of a sharded model, which "
                    "have no gradients: build it over sherd.parameters(model)"
                )
            reference = getattr(parameter, "_sherd_model", None)
            if reference is not None and (model := reference()) is not None:
                models[id(model)] = model
    return list(models.values())


def _before_step(optimizer: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    if isinstance(optimizer, AdamW):
        return
    models = _models_of(optimizer)
    if models and (kwargs.get("closure") is not None or any(callable(one) for one in args[1:])):
        raise ValueError("[sherd] an optimizer of a sharded model takes no closure: call backward() before step()")
    for model in models:
        if model.__dict__["_sherd_loss"] == "per_token":
            raise ValueError("[sherd] the loss is per token, which optimizers of torch do not know: use sherd.AdamW")
        try:
            _C.leave_out_unused(sharded(model))
        except RuntimeError as error:
            raise RuntimeError(f"{error}. A model has one optimizer, whose step ends the step of the model") from None


def _after_step(optimizer: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    if not isinstance(optimizer, AdamW):
        for model in _models_of(optimizer):
            _C.publish(sharded(model))


register_optimizer_step_pre_hook(_before_step)
register_optimizer_step_post_hook(_after_step)


def _refuse_shards(parameters: Iterable[torch.Tensor]) -> None:
    if any(unit_of(one) is not None or hasattr(one, "_sherd_model") for one in parameters):
        raise ValueError(
            "[sherd] clip_grad_norm_ sees this rank's gradients only: use sherd.AdamW(max_norm=...), or "
            "sherd.clip_grad_norm_(model, max_norm) before an optimizer of torch"
        )


# Without this, clipping the parameters of a sharded model would do nothing, and clipping sherd.parameters(model) would
# use another norm on each rank, both silently. torch's function looks the name up when it is called.
_clip_grads_with_norm = torch_clipping._clip_grads_with_norm_


def _clip_grads_with_norm_or_raise(parameters: Any, *args: Any, **kwargs: Any) -> None:
    parameters = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
    _refuse_shards(parameters)
    _clip_grads_with_norm(parameters, *args, **kwargs)


torch_clipping._clip_grads_with_norm_ = _clip_grads_with_norm_or_raise
