# SPDX-License-Identifier: Apache-2.0
"""Trains a decoder under PyTorch's FSDP2 as one rank of a world that isn't there, and measures it as `sherd bench` does."""
import argparse
import ctypes
import dataclasses
import json
import math
import pathlib
import statistics
import sys
import threading
import time
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.nn.attention import SDPBackend, sdpa_kernel

from decoder import (Decoder, attention_of, difference_from_plain, loss_of, rotary_tables, set_initial_values,
                     with_balance)

# PyTorch's own flash kernel takes twice cuDNN's time.
ATTENTION = [SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]


@dataclasses.dataclass
class Workload:
    """What is trained."""
    shape: dict  # as published: dim, layers, heads, kv_heads, vocab, rope_theta, seq, batch, and what the layers need
    quick: dict  # the tiny one of `sherd bench --quick`
    make_layer: Callable[[dict, int, bool], nn.Module]  # of shape, number, grouped (see Attention)
    plain_layer: Callable[[nn.Module, torch.Tensor, dict], tuple]  # result and balance loss of a layer in plain steps
    smoke: dict = dataclasses.field(default_factory=dict)  # what --smoke changes in the tiny one
    initial: dict = dataclasses.field(default_factory=dict)  # see set_initial_values
    convert: Callable[[nn.Module], None] = lambda model: None  # changes the model before it is sharded
    after_update: Callable[[nn.Module], None] = lambda model: None

    def shape_for(self, options):
        shape = dict(self.quick if options.quick else self.shape)
        if options.smoke:
            shape |= self.smoke
        if options.layers and not options.quick:
            shape["layers"] = options.layers
        return shape

    def model(self, shape, grouped):
        return Decoder(shape, [self.make_layer(shape, i, grouped) for i in range(shape["layers"])])


# ---- sharding ----------------------------------------------------------------------------------
def enter_world(size, device):
    """A real world of one, or one rank of a larger one that isn't there."""
    if size == 1:
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo", store=dist.HashStore(), rank=0, world_size=1)
    else:
        from torch.testing._internal.distributed.fake_pg import FakeStore
        dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=size)
    return init_device_mesh(device.type, (size,))


class KeepOwnPart:
    """The fake group's reduce-scatter writes nothing: gradients would be what the memory held before, maybe NaN, and
    weights with them; products of such numbers take less power. This rank's own part stands in for the sum."""

    def allocate(self, size, *, dtype, device):
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(self, output_tensor, input_tensor, group, op, async_op=False):
        output_tensor.copy_(input_tensor.view(group.size(), -1)[group.rank()])


def emulate_reductions(model, world):
    for module in model.modules():
        if world > 1 and isinstance(module, FSDPModule):
            module.set_custom_reduce_scatter(KeepOwnPart())


def shard(model, options, device):
    """Units as torchtitan makes them. The parameters have no values yet."""
    for i, layer in enumerate(model.layers):
        if options.recompute == "full":
            layer = checkpoint_wrapper(layer, preserve_rng_state=False)
        model.layers[i] = torch.compile(layer, fullgraph=True) if options.compile else layer
    how = {"mesh": enter_world(options.world, device),
           "mp_policy": MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)}
    for unit in (model.embedding, *model.layers):
        fully_shard(unit, **how)
    fully_shard([model.norm, model.head], **how, reshard_after_forward=False)  # the backward begins there
    fully_shard(model, **how)
    emulate_reductions(model, options.world)
    model.to_empty(device=device)


# ---- measuring ---------------------------------------------------------------------------------
class PowerMeter:
    """Watts and SM clock of the GPU while it is open, from NVML as `sherd bench` reads it; else nothing."""

    def __init__(self, device):
        self._samples, self._end, self._thread = [], threading.Event(), None
        if device.type != "cuda":
            return
        try:
            self._nvml = ctypes.CDLL("libnvidia-ml.so.1")
        except OSError:
            return
        self._gpu = ctypes.c_void_p()
        name = f"GPU-{torch.cuda.get_device_properties(device).uuid}".encode()  # NVML counts in another order
        if self._nvml.nvmlInit_v2() == 0 and self._nvml.nvmlDeviceGetHandleByUUID(name, ctypes.byref(self._gpu)) == 0:
            self._thread = threading.Thread(target=self._sample, daemon=True)

    def _sample(self):
        milliwatts, mhz = ctypes.c_uint(), ctypes.c_uint()
        while not self._end.wait(0.1):
            if (self._nvml.nvmlDeviceGetPowerUsage(self._gpu, ctypes.byref(milliwatts)) == 0
                    and self._nvml.nvmlDeviceGetClockInfo(self._gpu, 1, ctypes.byref(mhz)) == 0):  # 1: of the SMs
                self._samples.append((milliwatts.value / 1e3, mhz.value))

    def __enter__(self):
        if self._thread:
            self._thread.start()
        return self

    def __exit__(self, *_):
        self._end.set()
        if self._thread:
            self._thread.join()

    def means(self):
        if not self._samples:
            return None, None
        return tuple(statistics.fmean(column) for column in zip(*self._samples))


def synchronize(device):
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def time_steps(step, count, device):
    """Seconds of each step. On a GPU between events: the host may run ahead, as it does in training."""
    if device.type != "cuda":
        marks = [time.perf_counter()]
        for _ in range(count):
            step()
            marks.append(time.perf_counter())
        return [after - before for before, after in zip(marks, marks[1:])]
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(count + 1)]
    marks[0].record()
    for mark in marks[1:]:
        step()
        mark.record()
    torch.cuda.synchronize(device)
    return [before.elapsed_time(after) / 1e3 for before, after in zip(marks, marks[1:])]


def warm_up(step, load, device):
    """What is made once comes first; then steps until the clock has settled."""
    for _ in range(2):
        step()
    synchronize(device)
    end = time.perf_counter() + load
    while time.perf_counter() < end:
        step()
        synchronize(device)


def gradient_norm(model):
    squares = sum(one.grad.to_local().double().square().sum().item() for one in model.parameters())
    return math.sqrt(squares)


def training_step(workload, shape, model, options, device):
    """Returns a function that makes a step with the same random tokens each time, and a list that then has its loss."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    objective = torch.compile(loss_of) if options.compile else loss_of
    tables = rotary_tables(shape, device, torch.bfloat16)
    tokens, targets = (torch.randint(shape["vocab"], (shape["batch"], shape["seq"]), device=device) for _ in range(2))
    losses = []

    def step():
        optimizer.zero_grad()
        logits, balance = model(tokens, *tables)
        loss = with_balance(objective(logits, targets), balance, tokens.numel())
        del logits
        loss.backward()
        optimizer.step()
        workload.after_update(model)
        losses[:] = [loss.detach()]

    return step, losses


def train(workload, options, device):
    """Trains the workload's model, built without memory, and returns what was measured."""
    shape, checked = workload.shape_for(options), {}
    if options.smoke:
        alone = workload.model(shape, grouped=True)
        set_initial_values(alone, workload.initial)
        checked["difference_from_plain"] = difference_from_plain(alone, workload.plain_layer, shape)
    with sdpa_kernel(ATTENTION, set_priority=True):
        attention, grouped = attention_of(shape, device)
        with torch.device("meta"):
            model = workload.model(shape, grouped)
        parameters = sum(one.numel() for one in model.parameters())
        operations = shape["batch"] * shape["seq"] * model.flops(shape["seq"])
        workload.convert(model)
        shard(model, options, device)
        set_initial_values(model, workload.initial)
        step, losses = training_step(workload, shape, model, options, device)
        warm_up(step, options.seconds_of_load, device)
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
        with PowerMeter(device) as meter:
            seconds = statistics.median(time_steps(step, options.steps, device))
    watts, mhz = meter.means()
    gib = {}
    if device.type == "cuda":
        gib = {"allocated_gib": torch.cuda.max_memory_allocated(device) / 2**30,
               "reserved_gib": torch.cuda.max_memory_reserved(device) / 2**30}
    return {"layers": shape["layers"], "parameters": parameters, "attention": attention, "seconds": seconds,
            "tflops": operations / seconds / 1e12, **gib, "loss": losses[0].item(), "gradient_norm": gradient_norm(model),
            "watts": watts, "sm_mhz": mhz, "joules": watts and watts * seconds, **checked}


# ---- the command line --------------------------------------------------------------------------
def parser_of(about):
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, help="instead of all")
    parser.add_argument("--world", type=int, default=8, help="ranks; 1: a real world of one, else one rank of a fake one")
    parser.add_argument("--compile", action="store_true", help="torch.compile each layer and the loss")
    parser.add_argument("--recompute", choices=["none", "full"], default="none")
    parser.add_argument("--seconds-of-load", type=float, default=10, help="before the timed steps: clocks settle")
    parser.add_argument("--steps", type=int, default=10, help="that are timed")
    parser.add_argument("--device", choices=["auto", "cpu", "cuda"], default="auto", help="auto: cuda where there is one")
    parser.add_argument("--quick", action="store_true", help="a tiny model, to try it out")
    parser.add_argument("--smoke", action="store_true",
                        help="a tiny model on CPU, without load; logits and gradients are first compared with those of a "
                             "plain implementation")
    parser.add_argument("--out", type=pathlib.Path, help="a JSON file to write")
    return parser


def options_of(parser):
    options = parser.parse_args()
    if options.smoke:
        options.quick, options.device, options.seconds_of_load = True, "cpu", 0
    return options


def say(result):
    def shown(value):
        return f"{value:.4g}" if isinstance(value, float) else value

    print("FSDP2: " + ", ".join(f"{key} {shown(value)}" for key, value in result.items() if value is not None), flush=True)


def measure(options, run, **about):
    """Runs run(device) on the chosen device and reports what it returns, with `about`. Ends the program with an error
    where nothing was trained."""
    cuda = torch.cuda.is_available() if options.device == "auto" else options.device == "cuda"
    device = torch.device("cuda", 0) if cuda else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    torch.manual_seed(1)
    result = {"peer": "fsdp2", "torch": torch.__version__,
              "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu", "world": options.world,
              "compile": options.compile, "recompute": options.recompute, **about, **run(device)}
    if options.out:
        options.out.write_text(json.dumps(result, indent=1) + "\n")
    say(result)
    dist.destroy_process_group()
    if not (math.isfinite(result["loss"]) and 0 < result["gradient_norm"] < math.inf):
        sys.exit(f"no training: loss {result['loss']}, norm of the gradients {result['gradient_norm']}")
