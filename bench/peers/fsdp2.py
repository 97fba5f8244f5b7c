#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""PyTorch's FSDP2 on what `sherd bench` runs: Llama-3-8B, sequence 8192, one rank of a world of 8 that isn't there.

With the python that has torch: .venv/bin/python bench/peers/fsdp2.py --compile --out fsdp2.json"""
import argparse
import ctypes
import json
import math
import pathlib
import statistics
import sys
import threading
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.nn.attention import SDPBackend, sdpa_kernel

SHAPE = {"dim": 4096, "layers": 32, "heads": 32, "kv_heads": 8, "ffn": 14336, "vocab": 128256, "seq": 8192}
QUICK = {"dim": 64, "layers": 2, "heads": 4, "kv_heads": 2, "ffn": 128, "vocab": 256, "seq": 64}
ROPE_THETA = 500000.0
# PyTorch's own flash kernel takes twice cuDNN's time.
ATTENTION = [SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
UNITS, WIDTH, BATCH = 128, 64, 1  # of --units small


# ---- the model, as users write it --------------------------------------------------------------
def rotary(x, cosine, sine):
    first, second = x.chunk(2, -1)
    return x * cosine + torch.cat([-second, first], -1) * sine


class Layer(nn.Module):
    def __init__(self, dim, heads, kv_heads, ffn, grouped, **_):
        super().__init__()
        self.width, self.repeats, self.grouped = dim // heads, heads // kv_heads, grouped
        narrow = kv_heads * self.width
        self.attention_norm, self.feed_forward_norm = nn.RMSNorm(dim, 1e-5), nn.RMSNorm(dim, 1e-5)
        self.query, self.key, self.value = (nn.Linear(dim, out, bias=False) for out in (dim, narrow, narrow))
        self.output = nn.Linear(dim, dim, bias=False)
        self.gate, self.up = nn.Linear(dim, ffn, bias=False), nn.Linear(dim, ffn, bias=False)
        self.down = nn.Linear(ffn, dim, bias=False)

    def forward(self, x, cosine, sine):
        y = self.attention_norm(x)
        query, key, value = (linear(y).unflatten(-1, (-1, self.width)).transpose(1, 2)
                             for linear in (self.query, self.key, self.value))
        query, key = rotary(query, cosine, sine), rotary(key, cosine, sine)
        if not self.grouped:
            key, value = (one.repeat_interleave(self.repeats, 1) for one in (key, value))
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=self.grouped)
        x = x + self.output(mixed.transpose(1, 2).flatten(2))
        y = self.feed_forward_norm(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Llama(nn.Module):
    def __init__(self, dim, layers, vocab, **shape):
        super().__init__()
        self.embedding = nn.Embedding(vocab, dim)
        self.layers = nn.ModuleList(Layer(dim, **shape) for _ in range(layers))
        self.norm, self.head = nn.RMSNorm(dim, 1e-5), nn.Linear(dim, vocab, bias=False)

    def forward(self, tokens, cosine, sine):
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x, cosine, sine)
        return self.head(self.norm(x))


def loss_of(logits, targets):
    return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


def rotary_tables(shape, device):
    width = shape["dim"] // shape["heads"]
    rates = ROPE_THETA ** (-torch.arange(0, width, 2, device=device) / width)
    angles = torch.outer(torch.arange(shape["seq"], device=device), rates).repeat(1, 2)
    return angles.cos().bfloat16(), angles.sin().bfloat16()


def attention_of(shape, device):
    """The kernel that attention will run, and whether it takes fewer heads of keys than of queries."""
    width = shape["dim"] // shape["heads"]
    query = torch.empty(1, shape["heads"], shape["seq"], width, device=device, dtype=torch.bfloat16, requires_grad=True)
    key = query.detach()[:, :shape["kv_heads"]].requires_grad_()
    grouped = True
    if device.type == "cuda":
        wanted = torch.backends.cuda.SDPAParams(query, key, key, None, 0.0, True, True)
        grouped = torch.backends.cuda.can_use_cudnn_attention(wanted)
    if not grouped:
        key = query
    choice = torch._fused_sdp_choice(query, key, key, is_causal=True, enable_gqa=grouped)
    return SDPBackend(choice).name.lower(), grouped


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


def in_fp8(model, device):
    """The layers' products by torchao: scales of whole tensors, weights gathered in fp8."""
    try:
        from torchao.float8 import Float8LinearConfig, convert_to_float8_training
    except ImportError:
        sys.exit("--fp8 needs torchao: pip install torchao")
    config = Float8LinearConfig(enable_fsdp_float8_all_gather=True, emulate=device.type != "cuda")
    convert_to_float8_training(model, config=config, module_filter_fn=lambda _, name: name.startswith("layers."))


def sharded_llama(shape, grouped, options, device):
    """Built without memory, sharded, then given values; units as torchtitan makes them."""
    with torch.device("meta"):
        model = Llama(**shape, grouped=grouped)
    parameters = sum(one.numel() for one in model.parameters())
    if options.fp8:
        in_fp8(model, device)
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
    with torch.no_grad():
        for parameter in model.parameters():
            local = parameter.to_local()
            local.normal_(0, 0.02) if parameter.dim() > 1 else local.fill_(1)
    return model, parameters


def scales_of(model):
    """Finds the scales of all weights at once, after each update."""
    from torchao.float8 import precompute_float8_dynamic_scale_for_fsdp
    return lambda: precompute_float8_dynamic_scale_for_fsdp(model)


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


def run_llama(options, device):
    shape = dict(QUICK if options.quick else SHAPE)
    if options.layers and not options.quick:
        shape["layers"] = options.layers
    with sdpa_kernel(ATTENTION, set_priority=True):
        attention, grouped = attention_of(shape, device)
        model, parameters = sharded_llama(shape, grouped, options, device)
        optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
        objective = torch.compile(loss_of) if options.compile else loss_of
        tables = rotary_tables(shape, device)
        tokens, targets = (torch.randint(shape["vocab"], (1, shape["seq"]), device=device) for _ in range(2))
        losses = []
        after_update = scales_of(model) if options.fp8 else lambda: None

        def step():
            optimizer.zero_grad()
            loss = objective(model(tokens, *tables), targets)
            loss.backward()
            optimizer.step()
            after_update()
            losses[:] = [loss.detach()]

        warm_up(step, options.seconds_of_load, device)
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
        with PowerMeter(device) as meter:
            seconds = statistics.median(time_steps(step, options.steps, device))
    watts, mhz = meter.means()
    squares = sum(one.grad.to_local().double().square().sum().item() for one in model.parameters())
    dense = parameters - shape["vocab"] * shape["dim"]
    operations = shape["seq"] * (6 * dense + 6 * shape["layers"] * shape["dim"] * shape["seq"])
    gib = {}
    if device.type == "cuda":
        gib = {"allocated_gib": torch.cuda.max_memory_allocated(device) / 2**30,
               "reserved_gib": torch.cuda.max_memory_reserved(device) / 2**30}
    return {"layers": shape["layers"], "parameters": parameters, "attention": attention, "seconds": seconds,
            "tflops": operations / seconds / 1e12, **gib, "loss": losses[0].item(), "gradient_norm": math.sqrt(squares),
            "watts": watts, "sm_mhz": mhz, "joules": watts and watts * seconds}


def run_small_units(options, device):
    """Steps per second (forward and backward) where the host's work for each unit is what takes the time."""
    mesh = enter_world(options.world, device)

    units = 8 if options.quick else UNITS

    def tower():
        stacks = (nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(4))) for _ in range(units))
        return nn.Sequential(*stacks).to(device)

    plain, sharded = tower(), tower()
    for stack in sharded:
        fully_shard(stack, mesh=mesh)
    fully_shard(sharded, mesh=mesh)
    emulate_reductions(sharded, options.world)
    x = torch.randn(BATCH, WIDTH, device=device)
    losses = []

    def step(model):
        loss = model(x).sum()
        loss.backward()
        losses[:] = [loss.detach()]

    def seconds_of(model):
        def one():
            model.zero_grad()
            step(model)

        warm_up(one, options.seconds_of_load, device)
        times = []
        for _ in range(options.steps):  # the device is waited for: the host's time is what counts
            synchronize(device)
            begin = time.perf_counter()
            one()
            synchronize(device)
            times.append(time.perf_counter() - begin)
        return statistics.median(times)

    alone, seconds = seconds_of(plain), seconds_of(sharded)
    squares = sum(one.grad.to_local().double().square().sum().item() for one in sharded.parameters())
    return {"units": units, "seconds": seconds, "steps_per_second": 1 / seconds, "unsharded_steps_per_second": 1 / alone,
            "sharding_ms_per_unit": (seconds - alone) / units * 1e3, "loss": losses[0].item(),
            "gradient_norm": math.sqrt(squares)}


def say(result):
    def shown(value):
        return f"{value:.4g}" if isinstance(value, float) else value

    print("FSDP2: " + ", ".join(f"{key} {shown(value)}" for key, value in result.items() if value is not None), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, help="instead of 32")
    parser.add_argument("--world", type=int, default=8, help="ranks; 1: a real world of one, else one rank of a fake one")
    parser.add_argument("--compile", action="store_true", help="torch.compile each layer and the loss")
    parser.add_argument("--fp8", action="store_true", help="the layers' products in fp8, by torchao")
    parser.add_argument("--recompute", choices=["none", "full"], default="none")
    parser.add_argument("--seconds-of-load", type=float, default=10, help="before the timed steps: clocks settle")
    parser.add_argument("--steps", type=int, default=10, help="that are timed")
    parser.add_argument("--units", choices=["small"], help="small: 128 units of four 64x64 linears instead of the Llama")
    parser.add_argument("--device", choices=["auto", "cpu", "cuda"], default="auto", help="auto: cuda where there is one")
    parser.add_argument("--quick", action="store_true", help="a tiny model, to try it out")
    parser.add_argument("--out", type=pathlib.Path, help="a JSON file to write")
    options = parser.parse_args()
    cuda = torch.cuda.is_available() if options.device == "auto" else options.device == "cuda"
    device = torch.device("cuda", 0) if cuda else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    torch.manual_seed(1)
    result = {"peer": "fsdp2", "torch": torch.__version__,
              "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu", "world": options.world,
              "compile": options.compile, "fp8": options.fp8, "recompute": options.recompute}
    result |= run_small_units(options, device) if options.units else run_llama(options, device)
    if options.out:
        options.out.write_text(json.dumps(result, indent=1) + "\n")
    say(result)
    dist.destroy_process_group()
    if not (math.isfinite(result["loss"]) and 0 < result["gradient_norm"] < math.inf):
        sys.exit(f"no training: loss {result['loss']}, norm of the gradients {result['gradient_norm']}")


main()
