#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`sherd checkpoint show|verify|diff|import`, and a run that goes on from what was imported: commands_test.py FORK_SERVER"""
import json
import os
import pathlib
import sys
import tempfile

import torch
import torch.distributed.checkpoint as dcp

TESTS = pathlib.Path(__file__).parents[1]
sys.path[:0] = [str(TESTS), str(TESTS / "train")]
import llama_folder as given  # noqa: E402
import plain_llama  # noqa: E402
from fork_server import ForkServer  # noqa: E402

SERVER = ForkServer(sys.argv[1], dict(os.environ, OMP_NUM_THREADS="1"))


def sherd(*words, code=0):
    done = SERVER.run(words, timeout=120)
    assert done.returncode == code, (words, done.returncode, done.stdout, done.stderr)
    return done.stdout + done.stderr


def train(place, out, steps, *more):
    (place / "empty.toml").write_text("")
    settings = {"data.text": given.STORY, "data.seq": given.SEQ, "data.batch": given.SAMPLES, "data.shuffle": "false",
                "optim.lr": given.RATE, "optim.betas": list(given.BETAS), "optim.eps": given.EPS,
                "optim.weight_decay": given.DECAY, "optim.max_norm": given.CLIP, "optim.schedule": "constant",
                "train.steps": steps, "train.out": place / out, "device.kind": "cpu"}
    return sherd("train", place / "empty.toml", *(f"--set={k}={v}" for k, v in settings.items()), *more)


def moved_over(place):
    """Ten steps in torch, saved as torch saves, imported; ten more in Sherd are as if all had been in torch."""
    kind = "untied"
    expected, _ = plain_llama.train(kind)
    torch.manual_seed(0)
    steps, given.STEPS = given.STEPS, 10
    _, weights, moments = plain_llama.train(kind, with_moments=True)
    given.STEPS = steps
    optim = {"state": {name: {"exp_avg": first, "exp_avg_sq": second, "step": torch.tensor(10.0)}
                       for name, (first, second) in moments.items()}}
    dcp.save({"model": weights, "optim": optim}, checkpoint_id=place / "dcp", no_dist=True)
    (place / "config.json").write_text(json.dumps(given.config(kind)))
    (place / "moved").mkdir()
    said = sherd("checkpoint", "import", place / "dcp", "--out", place / "moved/step-10", "--config", place / "config.json",
                 "--samples", 10 * given.SAMPLES)
    assert "step 10; with the optimizer's state" in said, said
    sherd("checkpoint", "verify", place / "moved/step-10")
    about = given.config(kind)
    shape = {"dim": about["hidden_size"], "layers": about["num_hidden_layers"], "heads": about["num_attention_heads"],
             "kv_heads": about["num_key_value_heads"], "ffn": about["intermediate_size"], "vocab": about["vocab_size"]}
    said = train(place, "moved", steps, *(f"--set=model.{key}={value}" for key, value in shape.items()))
    assert "continuing from" in said, said
    lines = [json.loads(line) for line in (place / "moved/metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == list(range(11, steps + 1)), lines
    for line, wanted in zip(lines, expected[10:], strict=True):
        for key in ("loss", "grad_norm"):
            assert abs(line[key] / wanted[key] - 1) < 1e-5, (line, wanted)


def main():
    with SERVER, tempfile.TemporaryDirectory() as name:
        place = pathlib.Path(name)
        given.write("tied", place / "model")
        train(place, "one", 4, f"--set=model.from={place / 'model'}", "--set=train.save_every=2")
        first, second = place / "one/step-2", place / "one/step-4"
        said = sherd("checkpoint", "show", second)
        for word in ("step 4", "samples 32", "updates\":4", "model.layers.0.self_attn.q_proj.weight  Float [64, 64]",
                     "second_moment  model.norm.weight"):
            assert word in said, (word, said)
        assert "is complete and undamaged" in sherd("checkpoint", "verify", second)
        assert "identical" in sherd("checkpoint", "diff", first, first)
        said = sherd("checkpoint", "diff", first, second, code=1)
        assert "model.norm.weight (main): largest difference " in said and "(second_moment)" in said, said
        file = second / "model-00001-of-00001.safetensors"
        data = bytearray(file.read_bytes())
        data[-5] ^= 1
        file.write_bytes(data)
        said = sherd("checkpoint", "verify", second, code=2)
        assert "is damaged: tensor 'model.norm.weight'" in said or "is damaged: tensor '" in said, said
        assert "state.json" in sherd("checkpoint", "show", place, code=2)
        moved_over(place)


main()
