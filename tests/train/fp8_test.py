#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Training in fp8 through the trainer, and models saved in fp8: fp8_test.py SHERD FORK_SERVER FOLDER_PROGRAM"""
import json
import math
import os
import pathlib
import shutil
import struct
import subprocess
import sys
import tempfile

import torch

sys.path.append(str(pathlib.Path(__file__).parents[1]))
from fork_server import ForkServer  # noqa: E402

STORY = pathlib.Path(__file__).parents[2] / "examples" / "tiny.txt"
RECIPES = ("fp8", "fp8_wgrad16", "fp8_block", "mxfp8")
SHERD, PROGRAM = sys.argv[1], sys.argv[3]
ENVIRONMENT = dict(os.environ, OMP_NUM_THREADS="1")
SERVER = ForkServer(sys.argv[2], ENVIRONMENT)
STEPS, SAMPLES, MIDDLE = 8, 6, 4  # steps; samples of a step, on all ranks together; the step that runs go on from
MODEL = {"model.dim": 128, "model.ffn": 256, "model.layers": 2, "model.heads": 2, "optim.lr": 3e-3}
TOKENS = [(7 * i * i + 3 * i) % 256 for i in range(32)]


def settings_of(out, ranks, **changes):
    changes = {key.replace("__", "."): value for key, value in changes.items()}
    settings = {"data.text": STORY, "data.seq": 32, "data.batch": SAMPLES // ranks, "train.steps": STEPS, "train.out": out,
                "train.save_every": MIDDLE, "device.kind": "cpu", **MODEL, **changes}
    return [f"--set={key}={value}" for key, value in settings.items()]


def train(place, out, ranks=1, code=0, **changes):
    """Returns the losses of the steps, or what it says if it is to fail."""
    (place / "empty.toml").write_text("")
    words = ["train", "empty.toml", *settings_of(out, ranks, **changes)]
    if ranks == 1:
        done = SERVER.run(words, cwd=place, timeout=120)
    else:
        done = subprocess.run([SHERD, *words, "--ranks", str(ranks)], cwd=place, capture_output=True, text=True,
                              env=ENVIRONMENT, timeout=120)
    assert done.returncode == code, (done.returncode, done.stderr)
    if code:
        return done.stderr
    lines = (place / out / "metrics.jsonl").read_text().splitlines()
    return {step["step"]: step["loss"] for step in map(json.loads, lines) if "loss" in step}


def apart(one, other):
    """The largest relative difference of losses."""
    steps = one.keys() & other.keys()
    assert steps
    return max(abs(one[step] / other[step] - 1) for step in steps)


def tensors(folder, kind):
    """Those of the files of a kind: by name, as torch has them."""
    found = {}
    for path in pathlib.Path(folder).glob(f"{kind}-*.safetensors"):
        data = path.read_bytes()
        size = int.from_bytes(data[:8], "little")
        dtypes = {"F32": torch.float32, "BF16": torch.bfloat16, "F8_E4M3": torch.float8_e4m3fn}
        for name, about in json.loads(data[8:8 + size]).items():
            if name == "__metadata__":
                continue
            begin, end = (8 + size + at for at in about["data_offsets"])
            raw = torch.frombuffer(bytearray(data[begin:end]), dtype=torch.uint8)
            found[name] = raw.view(dtypes[about["dtype"]]).view(about["shape"])
    assert found, (folder, kind)
    return found


def decibels(wanted, found):
    return 20 * math.log10(wanted.norm().item() / (found - wanted).norm().item())


def logits(folder, place):
    subprocess.run([PROGRAM, str(folder), str(place / "copy"), *map(str, TOKENS)], check=True, timeout=60, env=ENVIRONMENT)
    return torch.tensor([value for value, in struct.iter_unpack("<f", (place / "copy/logits").read_bytes())])


def every_recipe_trains(place):
    worst = 0
    hybrid = {"model__kind": "hybrid", "model__pattern": "M*-E", "model__layers": 4, "model__ssm_state": 32,
              "model__ssm_head_dim": 8, "model__ssm_groups": 1, "model__experts": 4, "model__expert_ffn": 64}
    moe = {"model__kind": "moe", "model__experts": 4, "model__expert_ffn": 64}
    odd_heads = {"model__head_dim": 48}
    biased, normed = {"model__qkv_bias": "true", **odd_heads}, {"model__qk_norm": "true", **odd_heads}
    for kind, changes in (("llama", {}), ("moe", moe), ("hybrid", hybrid), ("biased", biased), ("normed", normed)):
        wide = train(place, f"{kind}-bf16", precision__recipe="bf16_o2", **changes)
        for recipe in RECIPES if kind == "llama" else ("fp8", "mxfp8"):
            losses = train(place, f"{kind}-{recipe}", precision__recipe=recipe, **changes)
            assert losses != wide, (kind, recipe, "nothing was in fp8")
            worst = max(worst, apart(losses, wide))
            assert worst < 0.01, (kind, recipe, losses, wide)
    kept = train(place, "kept", precision__recipe="fp8", precision__keep='["layer*"]')
    assert kept == train(place, "wide", precision__recipe="bf16_o2"), "layers that are kept are as in bf16"
    return worst


def runs_go_on(place):
    """Resumed on as many ranks a run has the same bits, also with recompute; on others, almost."""
    whole = train(place, "whole", 2, precision__recipe="fp8")
    assert train(place, "selective", 2, precision__recipe="fp8", train__recompute="selective") == whole
    # Full recompute is for the head, too, which then rounds the gradients of its logits elsewhere, in any precision.
    full = train(place, "recomputed", 2, precision__recipe="fp8", train__recompute="full")
    assert full[1] == whole[1] and apart(full, whole) < 1e-3, (full, whole)
    for ranks in (2, 3, 1):
        out = f"resumed{ranks}"
        strategy = {2: "optim_grads_params", 3: "optim", 1: "no_shard"}[ranks]
        further = train(place, out, ranks, precision__recipe="fp8", shard__strategy=strategy, train__resume=f"whole/step-{MIDDLE}")
        assert sorted(further)[0] == MIDDLE + 1, further
        if ranks != 2:
            # The first step has the same weights. Its gradients are added up in another order; where that changes the last digit
            # of a main weight, the weight may be rounded to another number, in any precision (6e-5 with bf16_o2).
            first = MIDDLE + 1
            assert apart({first: further[first]}, whole) < 1e-6 and apart(further, whole) < 3e-4, (ranks, further, whole)
            continue
        assert apart(further, whole) == 0, (further, whole)
        for kind in ("model", "main", "first_moment", "second_moment"):
            ours, theirs = (tensors(place / run / f"step-{STEPS}", kind) for run in (out, "whole"))
            assert ours.keys() == theirs.keys()
            assert all(torch.equal(ours[name], theirs[name]) for name in ours), kind
    # A run may change its recipe at a checkpoint, either way.
    wide = train(place, "wide2", 2, precision__recipe="bf16_o2")
    for out, recipe, start, like in (("to-wide", "bf16_o2", "whole", whole), ("to-fp8", "fp8", "wide2", wide),
                                     ("to-block", "fp8_block", "whole", whole)):
        further = train(place, out, 2, precision__recipe=recipe, train__resume=f"{start}/step-{MIDDLE}")
        assert sorted(further)[0] == MIDDLE + 1 and 0 < apart(further, like) < 0.01, (out, further, like)


def models_are_saved_in_fp8(place):
    run = {"precision__recipe": "fp8", "precision__keep": '["layer1.feed_forward.down.weight"]', "train__export_dtype": "fp8_block",
           "model__ffn": 200}
    run["precision__keep"] = '["layer*.feed_forward.*", "layer1.attention.output.weight"]'  # 200 is no multiple of 16
    losses = train(place, "saved", 2, **run)
    folder = place / "saved" / f"step-{STEPS}"
    config = json.loads((folder / "config.json").read_text())
    about = config["quantization_config"]
    assert (about["quant_method"], about["weight_block_size"], config["torch_dtype"]) == ("fp8", [128, 128], "bfloat16"), config
    others = {"lm_head", "model.layers.1.self_attn.o_proj"}
    others |= {f"model.layers.{i}.mlp.{name}_proj" for i in (0, 1) for name in ("gate", "up", "down")}
    assert set(about["modules_to_not_convert"]) == others, about
    model, main = tensors(folder, "model"), tensors(folder, "main")
    encoded = {name for name, tensor in model.items() if tensor.dtype == torch.float8_e4m3fn}
    assert encoded == {name for name in model if name.endswith("_proj.weight") and name.rsplit(".", 1)[0] not in others}
    assert {name for name in model if name.endswith("_scale_inv")} == {name + "_scale_inv" for name in encoded}
    decoded = {}
    for name, tensor in model.items():
        if name.endswith("_scale_inv"):
            continue
        decoded[name] = tensor.float()
        if name not in encoded:
            assert tensor.dtype == torch.bfloat16, name
            continue
        scale = model[name + "_scale_inv"]
        assert scale.dtype == torch.float32 and list(scale.shape) == [-(-size // 128) for size in tensor.shape], name
        assert torch.equal(torch.frexp(scale)[0], torch.full_like(scale, 0.5)), "scales are powers of two"
        decoded[name] *= scale.repeat_interleave(128, 0).repeat_interleave(128, 1)[:tensor.shape[0], :tensor.shape[1]]
        assert decibels(main[name], decoded[name]) > 28, name
    # Folders with the main weights and with the decoded ones, as anybody might have them.
    for out, weights in (("plain", main), ("decoded", decoded)):
        copy = place / out
        copy.mkdir()
        write_folder(copy, {name: weights[name] if name in weights else decoded[name] for name in decoded}, config)
    exact, near = logits(place / "plain", place), logits(place / "decoded", place)
    assert torch.equal(logits(folder, place), near), "model.from reads what a reader of the format would"
    distance = decibels(exact, near)
    assert distance > 20, distance
    # Training goes on from the main weights as if the model had been saved in another dtype.
    plain = train(place, "unsaved", 2, **{**run, "train__export_dtype": "bf16"})
    assert losses == plain
    assert train(place, "onwards", 2, **{**run, "train__resume": f"saved/step-{MIDDLE}"}).items() <= losses.items()
    tuned = train(place, "tuned", 2, **{**run, "model__from": folder, "train__export_dtype": "bf16"})
    assert abs(tuned[1] / losses[STEPS] - 1) < 0.1, (tuned, losses)
    assert "quantization_config" not in json.loads((place / f"tuned/step-{STEPS}/config.json").read_text())
    shutil.rmtree(folder)
    return distance


def others_are_named(place):
    """A mixture of experts and a hybrid, saved in fp8: all linear layers that are not in fp8 are named for transformers."""
    moe = {"model__kind": "moe", "model__experts": 4, "model__expert_ffn": 64}
    hybrid = {"model__kind": "hybrid", "model__pattern": "M-*-", "model__layers": 4, "model__rope_fraction": 0.5,
              "model__ssm_state": 32, "model__ssm_head_dim": 8}
    for kind, settings in (("mixtral", moe), ("bamba", hybrid)):
        train(place, kind, precision__recipe="fp8", train__export_dtype="fp8_block", train__steps=1, **settings)
        config = json.loads((place / kind / "step-1" / "config.json").read_text())
        assert config["model_type"] == kind, config
        model = tensors(place / kind / "step-1", "model")
        matrices = {name.rsplit(".", 1)[0] for name, tensor in model.items()
                    if tensor.dim() == 2 and name.endswith(".weight") and tensor.dtype != torch.float8_e4m3fn}
        assert set(config["quantization_config"]["modules_to_not_convert"]) == matrices - {"model.embed_tokens"}, (kind, matrices)
        assert any(tensor.dtype == torch.float8_e4m3fn for tensor in model.values()), kind


def write_folder(folder, weights, config):
    header, data = {}, b""
    for name, tensor in weights.items():
        raw = bytes(tensor.float().contiguous().view(torch.uint8).flatten().tolist())
        header[name] = {"dtype": "F32", "shape": list(tensor.shape), "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data)
    (folder / "config.json").write_text(json.dumps({key: value for key, value in config.items() if key != "quantization_config"}))


def mistakes_are_named(place):
    def expect(*words, **changes):
        said = train(place, "mistake", 1, 2, **changes)
        assert all(word in said for word in words), (words, said)

    expect("'feed_forward.down.weight'", "[128, 200]", "multiples of 16", 'precision.keep = ["*feed_forward.down.weight"]',
           precision__recipe="fp8", model__ffn=200)
    expect("'attention.qkv.weight'", "multiples of 128", precision__recipe="fp8_block", model__dim=64)
    expect("precision.keep", '"layer7.*"', "matches no weight", precision__recipe="fp8", precision__keep='["layer7.*"]')
    expect("precision.keep", "recipes of fp8", precision__recipe="bf16_o2", precision__keep='["layer0.*"]')
    expect("precision.keep", "list of strings", precision__recipe="fp8", precision__keep="layer0")
    expect("train.export_dtype", "fp8_block", train__export_dtype="fp8_bloc")
    folder = place / "quantized"
    folder.mkdir()
    config = json.loads((place / f"llama-fp8/step-{STEPS}/config.json").read_text())
    for about, words in (({"quant_method": "gptq"}, ("quant_method", "gptq", "bf16")), ({"quant_method": "fp8"}, ("weight_block_size", "bf16")),
                         (3, ("quant_method", "null"))):
        (folder / "config.json").write_text(json.dumps({**config, "quantization_config": about}))
        expect("[model.from]", *words, model__from="quantized")


def main():
    with SERVER, tempfile.TemporaryDirectory() as place:
        place = pathlib.Path(place)
        worst = every_recipe_trains(place)
        mistakes_are_named(place)
        runs_go_on(place)
        others_are_named(place)
        distance = models_are_saved_in_fp8(place)
    print(f"losses at most {100 * worst:.2f} % from bf16; logits of a model saved in fp8 {distance:.1f} dB from its main weights")


main()
