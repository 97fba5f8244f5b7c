#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A Llama of real width trains as in plain PyTorch: parity_gpu.py PARITY_PROGRAM [--quick] [--fp8] [--std 0.02] [--place FOLDER]

fp32: the first step's gradients agree to 1e-5, the losses too. bf16_o2: the gradients to 3e-2, and the losses of 50 steps
are at most three times as far from plain PyTorch's as those of plain PyTorch that sums in another order. fp8: the losses of
200 steps are within 0.25 % of those of bf16_o2 from step 10 on. --quick: a tiny model on the CPU. --fp8: only that case. Needs torch alone; the whole run needs 90 GB on the GPU, and 24 GB in /dev/shm or the --place."""
import argparse
import array
import collections
import dataclasses
import json
import os
import pathlib
import random
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import time

os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")  # before torch: oneDNN's AMX kills some machines
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

RATE, BETAS, EPS, DECAY = 3e-4, (0.9, 0.95), 1e-8, 0.1  # as in parity_program.cpp
GRADIENT_BOUND = {"fp32": 1e-5, "bf16_o2": 3e-2}  # norm of the difference over the norm, per tensor
LOSS_BOUND = 1e-5  # relative; of fp32
NOISE_FACTOR = 3  # of bf16
FP8_BOUND = 2.5e-3  # relative to bf16
SHOWN_STEPS = (1, 2, 5, 10, 20, 50, 100, 150, 200)


@dataclasses.dataclass(frozen=True)
class Case:
    precision: str
    dim: int
    heads: int
    kv_heads: int
    ffn: int
    vocab: int
    layers: int
    seq: int
    steps: int
    device: str
    std: float  # of the initial weights: the larger, the more each layer adds to what bf16 rounds

    @property
    def dtype(self):
        return torch.float32 if self.precision == "fp32" else torch.bfloat16

    def config(self):
        return {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": self.vocab,
                "hidden_size": self.dim, "intermediate_size": self.ffn, "num_hidden_layers": self.layers,
                "num_attention_heads": self.heads, "num_key_value_heads": self.kv_heads, "rope_theta": 10000.0,
                "rms_norm_eps": 1e-5, "hidden_act": "silu", "tie_word_embeddings": False}


def cases(quick, std):
    small = {"dim": 64, "heads": 4, "kv_heads": 2, "ffn": 176, "vocab": 256, "layers": 2, "seq": 64, "steps": 5, "device": "cpu",
             "std": std}
    wide = {"dim": 4096, "heads": 32, "kv_heads": 8, "ffn": 14336, "vocab": 32000, "device": "cuda", "std": std}
    if quick:
        return [Case("fp32", **small), Case("bf16_o2", **small)]
    return [Case("fp32", **wide, layers=2, seq=512, steps=5), Case("bf16_o2", **wide, layers=8, seq=2048, steps=50)]


def fp8_case(quick, std):
    """And the first step from which its losses are compared."""
    if quick:
        return Case("fp8", dim=64, heads=4, kv_heads=2, ffn=176, vocab=256, layers=2, seq=64, steps=20, device="cpu", std=std), 10
    return Case("fp8", dim=4096, heads=32, kv_heads=8, ffn=14336, vocab=32000, layers=8, seq=2048, steps=200, device="cuda",
                std=std), 10


# ---- what both sides are given


def initial_weights(case):
    narrow = case.dim // case.heads * case.kv_heads
    shapes = {"model.embed_tokens.weight": (case.vocab, case.dim)}
    for i in range(case.layers):
        layer = f"model.layers.{i}."
        shapes |= {layer + "input_layernorm.weight": (case.dim,), layer + "post_attention_layernorm.weight": (case.dim,)}
        for name, out in (("q", case.dim), ("k", narrow), ("v", narrow), ("o", case.dim)):
            shapes[f"{layer}self_attn.{name}_proj.weight"] = (out, case.dim)
        shapes |= {layer + "mlp.gate_proj.weight": (case.ffn, case.dim), layer + "mlp.up_proj.weight": (case.ffn, case.dim),
                   layer + "mlp.down_proj.weight": (case.dim, case.ffn)}
    shapes |= {"model.norm.weight": (case.dim,), "lm_head.weight": (case.vocab, case.dim)}
    generator = torch.Generator(case.device).manual_seed(3)

    def values(shape):
        if len(shape) == 1:
            return torch.ones(shape, device=case.device)
        # Values that the model weight holds: load_weights fills main weights through model weights.
        return torch.empty(shape, device=case.device).normal_(0, case.std, generator=generator).to(case.dtype).float()

    return {name: values(shape) for name, shape in shapes.items()}


def make_tokens(case):
    """Some words are frequent, and half of the time a word has its own successor: there is something to learn."""
    source = random.Random(5)
    count = case.steps * case.seq + 1
    drawn = source.choices(range(case.vocab), weights=[1 / (10 + i) for i in range(case.vocab)], k=count)
    successor = source.sample(range(case.vocab), case.vocab)
    for i in range(1, count):
        if source.random() < 0.5:
            drawn[i] = successor[drawn[i - 1]]
    return drawn


def write_folder(folder, case, weights):
    """Through a map of the file: straight from the device, and without numpy."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(case.config()))
    header, end = {}, 0
    for name, tensor in weights.items():
        header[name] = {"dtype": "F32", "shape": list(tensor.shape), "data_offsets": [end, end + 4 * tensor.numel()]}
        end += 4 * tensor.numel()
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path = folder / "model.safetensors"
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + end)
    place = torch.from_file(str(path), shared=True, size=(8 + len(text) + end) // 4, dtype=torch.float32)
    begin = (8 + len(text)) // 4
    for tensor in weights.values():
        place[begin:begin + tensor.numel()].copy_(tensor.flatten())
        begin += tensor.numel()


def read_tensors(path):
    """By name, as views of the mapped file."""
    with path.open("rb") as file:
        size = struct.unpack("<Q", file.read(8))[0]
        header = json.loads(file.read(size))
    values = torch.from_file(str(path), size=path.stat().st_size // 4, dtype=torch.float32)
    assert size % 4 == 0 and all(about["dtype"] == "F32" for about in header.values()), path
    result = {}
    for name, about in header.items():
        begin, end = ((8 + size + offset) // 4 for offset in about["data_offsets"])
        result[name] = values[begin:end].view(about["shape"])
    return result


# ---- plain PyTorch


@dataclasses.dataclass(frozen=True)
class Way:
    """Ways to compute the same, which round differently."""
    name: str
    attention: SDPBackend
    backwards: bool = False  # products sum from the last element to the first


def ways(case):
    """The one to compare with, then those that say how much rounding alone changes."""
    if case.precision == "fp32":
        return [Way("plain", SDPBackend.MATH), Way("backwards", SDPBackend.MATH, backwards=True)]
    usual = SDPBackend.CUDNN_ATTENTION if case.device == "cuda" else SDPBackend.MATH
    return [Way("plain", usual), Way("flash", SDPBackend.FLASH_ATTENTION), Way("backwards", usual, backwards=True)]


def loss_of(case, weights, row, way):
    def product(x, name):
        weight = weights[name + ".weight"]
        return F.linear(x.flip(-1), weight.flip(-1)) if way.backwards else F.linear(x, weight)

    def norm(x, name):
        return F.rms_norm(x, x.shape[-1:], weights[name + ".weight"], 1e-5)

    def split(x, count):
        return x.unflatten(-1, (count, -1)).transpose(1, 2)

    width = case.dim // case.heads
    frequency = 10000.0 ** (-torch.arange(0, width, 2, dtype=torch.float64, device=row.device) / width)
    angle = torch.outer(torch.arange(case.seq, dtype=torch.float32, device=row.device), frequency.float()).repeat(1, 2)
    cosine, sine = angle.cos(), angle.sin()

    def turn(x):
        first, second = x.float().chunk(2, -1)
        return (x * cosine + torch.cat([-second, first], -1) * sine).to(x.dtype)

    x = F.embedding(row[None, :-1], weights["model.embed_tokens.weight"])
    for i in range(case.layers):
        layer = f"model.layers.{i}."
        y = norm(x, layer + "input_layernorm")
        query = turn(split(product(y, layer + "self_attn.q_proj"), case.heads))
        key = turn(split(product(y, layer + "self_attn.k_proj"), case.kv_heads))
        value = split(product(y, layer + "self_attn.v_proj"), case.kv_heads)
        key, value = (z.repeat_interleave(case.heads // case.kv_heads, 1) for z in (key, value))
        with sdpa_kernel(way.attention):
            mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + product(mixed.transpose(1, 2).flatten(2), layer + "self_attn.o_proj")
        y = norm(x, layer + "post_attention_layernorm")
        x = x + product(F.silu(product(y, layer + "mlp.gate_proj")) * product(y, layer + "mlp.up_proj"), layer + "mlp.down_proj")
    logits = product(norm(x, "model.norm"), "lm_head")
    return F.cross_entropy(logits.flatten(0, 1).float(), row[1:])


def gradients_of(case, weights, row, way):
    """Loss, and by name the gradients in fp32, of weights in the dtype to compute with."""
    weights = {name: value.detach().requires_grad_() for name, value in weights.items()}
    loss = loss_of(case, weights, row, way)
    found = torch.autograd.grad(loss, list(weights.values()))
    return loss.detach(), {name: value.float() for name, value in zip(weights, found)}


def update(main, gradients, moments, step):
    for name, weight in main.items():
        gradient, (first, second) = gradients[name], moments[name]
        first.mul_(BETAS[0]).add_(gradient, alpha=1 - BETAS[0])
        second.mul_(BETAS[1]).addcmul_(gradient, gradient, value=1 - BETAS[1])
        root = (second / (1 - BETAS[1] ** step)).sqrt_().add_(EPS)
        weight.mul_(1 - RATE * DECAY).addcdiv_(first, root, value=-RATE / (1 - BETAS[0] ** step))


def train(case, start, tokens, way):
    """Losses, and the first step's gradients."""
    main = {name: value.clone() for name, value in start.items()}
    moments = {name: (torch.zeros_like(value), torch.zeros_like(value)) for name, value in start.items()}
    losses, kept = [], None
    for step in range(case.steps):
        row = tokens[step * case.seq:(step + 1) * case.seq + 1]
        loss, gradients = gradients_of(case, {name: value.to(case.dtype) for name, value in main.items()}, row, way)
        losses.append(loss)
        kept = gradients if step == 0 else kept
        update(main, gradients, moments, step + 1)
    return torch.stack(losses).tolist(), kept


# ---- Sherd


def run_sherd(program, case, folder, tokens_file, place):
    """The same two."""
    # A program that was carried here has its libraries beside it, and torch's are where this torch is.
    packages = pathlib.Path(torch.__file__).parents[1]
    libraries = [program.parent, packages / "torch/lib", *sorted(packages.glob("nvidia/*/lib"))]
    path = os.pathsep.join([*map(str, libraries), *filter(None, [os.environ.get("LD_LIBRARY_PATH")])])
    gradients, losses = place / "gradients.safetensors", place / "losses.json"
    subprocess.run([program, folder, tokens_file, "--seq", str(case.seq), "--steps", str(case.steps), "--precision",
                    case.precision, "--gradients", gradients, "--losses", losses, "--device", case.device],
                   check=True, timeout=600, env=dict(os.environ, LD_LIBRARY_PATH=path))
    return json.loads(losses.read_text()), read_tensors(gradients)


# ---- the comparison


def distances(got, wanted):
    """Of each tensor: norm of the difference over the norm."""
    assert got.keys() == wanted.keys(), got.keys() ^ wanted.keys()
    result = {}
    for name, value in wanted.items():
        assert got[name].shape == value.shape, name
        result[name] = ((got[name].to(value.device) - value).norm() / value.norm()).item()
    return result


def worst_by_kind(of_tensors):
    result = collections.defaultdict(float)
    for name, distance in of_tensors.items():
        kind = re.sub(r"^model\.(layers\.\d+\.)?|\.weight$", "", name)
        result[kind] = max(result[kind], distance) if distance == distance else distance
    return result


def print_table(head, rows):
    lines = [head, *rows]
    widths = [max(len(line[i]) for line in lines) for i in range(len(head))]
    for line in lines:
        first, *others = (word.rjust(width) for word, width in zip(line, widths))
        print("  " + "  ".join([line[0].ljust(len(first)), *others]))


def judge_gradients(case, columns):
    """Columns by title, the first is Sherd's distance from plain."""
    tables = {title: worst_by_kind(column) for title, column in columns.items()}
    sherd = next(iter(tables.values()))
    bound = GRADIENT_BOUND[case.precision]
    print(f"\n{case.precision}: gradients of the first step, the worst tensor of each kind (bound {bound:g} on the first column)")
    print_table(["", *tables], [[kind, *(f"{table[kind]:.2e}" for table in tables.values())] for kind in sherd])
    return [f"{case.precision}: gradient of {kind} is {distance:.2e} from plain PyTorch's, above {bound:g}"
            for kind, distance in sherd.items() if not distance <= bound]


def judge_losses(case, losses):
    """By title: those of plain first, then Sherd's, then the yardsticks'."""
    print(f"\n{case.precision}: losses")
    steps = [step for step in SHOWN_STEPS if step <= case.steps]
    print_table(["step", *losses], [[str(step), *(f"{column[step - 1]:.5f}" for column in losses.values())] for step in steps])
    plain, *others = torch.tensor(list(losses.values()), dtype=torch.float64)
    differences = [(column - plain).abs() for column in others]
    largest = [difference.max().item() for difference in differences]  # torch's: a NaN stays one
    print_table(["difference from plain", *list(losses)[1:]],
                [["largest", *(f"{x:.2e}" for x in largest)],
                 ["root of mean square", *(f"{x.square().mean().sqrt().item():.2e}" for x in differences)]])
    if case.precision == "fp32":
        relative = (differences[0] / plain).max().item()
        print(f"  Sherd's, relative: {relative:.2e} (bound {LOSS_BOUND:g})")
        return [] if relative <= LOSS_BOUND else [f"fp32: losses are {relative:.2e} apart, above {LOSS_BOUND:g}"]
    noise = max(largest[1:])
    print(f"  Sherd's largest is {largest[0] / max(noise, 1e-12):.2f} times the yardstick's (bound {NOISE_FACTOR})")
    if largest[0] <= NOISE_FACTOR * noise:
        return []
    return [f"{case.precision}: losses are {largest[0]:.2e} apart, above {NOISE_FACTOR} times the yardstick's {noise:.2e}"]


def check(program, case, place):
    """What was missed, in words."""
    began = time.monotonic()

    def done(what):
        nonlocal began
        if case.device == "cuda":
            torch.cuda.synchronize()
        print(f"  {what}: {time.monotonic() - began:.1f} s", flush=True)
        began = time.monotonic()

    print(f"\n{case}")
    start, numbers = initial_weights(case), make_tokens(case)
    write_folder(place / "folder", case, start)
    (place / "tokens").write_bytes(array.array("I", numbers).tobytes())
    tokens = torch.tensor(numbers, device=case.device)
    done("model and tokens")
    sherd_losses, sherd_gradients = run_sherd(program, case, place / "folder", place / "tokens", place)
    done("Sherd")
    usual, *others = ways(case)
    losses, columns = {}, {}
    losses[usual.name], gradients = train(case, start, tokens, usual)
    done(usual.name)
    losses["Sherd"], columns["Sherd"] = sherd_losses, distances(sherd_gradients, gradients)
    for way in others:
        losses[way.name], theirs = train(case, start, tokens, way)
        columns[way.name] = distances(theirs, gradients)
        done(way.name)
    if case.precision != "fp32":  # how far both are from what they stand for
        rounded = {name: value.to(case.dtype).float() for name, value in start.items()}
        _, exact = gradients_of(case, rounded, tokens[:case.seq + 1], Way("exact", SDPBackend.MATH))
        columns["Sherd to fp32"], columns["plain to fp32"] = distances(sherd_gradients, exact), distances(gradients, exact)
        done("in fp32")
    return judge_gradients(case, columns) + judge_losses(case, losses)


def check_fp8(program, case, first, place):
    """The same in bf16 and in fp8, both in Sherd: what was missed."""
    print(f"\n{case}", flush=True)
    write_folder(place / "folder", case, initial_weights(case))
    (place / "tokens").write_bytes(array.array("I", make_tokens(case)).tobytes())
    losses = {}
    for precision in ("bf16_o2", case.precision):
        losses[precision], _ = run_sherd(program, dataclasses.replace(case, precision=precision), place / "folder", place / "tokens",
                                         place)
    wide, narrow = (torch.tensor(losses[precision], dtype=torch.float64) for precision in ("bf16_o2", case.precision))
    assert wide.isfinite().all() and not torch.equal(wide, narrow), "nothing was in fp8"
    apart = (narrow / wide - 1).abs()
    steps = [step for step in SHOWN_STEPS if step <= case.steps]
    print_table(["step", *losses, "apart"], [[str(step), *(f"{column[step - 1]:.5f}" for column in losses.values()),
                                              f"{100 * apart[step - 1]:.3f} %"] for step in steps])
    largest = apart[first - 1:].max().item()
    print(f"  from step {first} on at most {100 * largest:.3f} % (bound {100 * FP8_BOUND} %)")
    return [] if largest <= FP8_BOUND else [f"{case.precision}: losses are {100 * largest:.3f} % from bf16's, above {100 * FP8_BOUND} %"]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program", type=lambda path: pathlib.Path(path).resolve())
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--fp8", action="store_true", help="only the comparison of fp8 with bf16")
    parser.add_argument("--std", type=float, default=0.02, help="of the initial weights")
    parser.add_argument("--place", help="where to put the folders; default: /dev/shm if it has room")
    arguments = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = False
    shared = pathlib.Path("/dev/shm")
    roomy = shared.is_dir() and shutil.disk_usage(shared).free > 24e9
    missed = []
    fp8, first = fp8_case(arguments.quick, arguments.std)
    checks = [] if arguments.fp8 else [(case, check) for case in cases(arguments.quick, arguments.std)]
    checks.append((fp8, lambda program, case, place: check_fp8(program, case, first, place)))
    for case, run in checks:
        with tempfile.TemporaryDirectory(dir=arguments.place or (shared if roomy else None)) as place:
            missed += run(arguments.program, case, pathlib.Path(place))
        if case.device == "cuda":
            torch.cuda.empty_cache()
    print("\n" + ("\n".join(missed) if missed else "all bounds are kept"))
    sys.exit(1 if missed else 0)


main()
