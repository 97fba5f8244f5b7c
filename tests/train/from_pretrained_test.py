#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""transformers loads a checkpoint as the model that it is, metadata and tokenizer too: from_pretrained_test.py FORK_SERVER PROGRAM"""
import inspect
import json
import os
import pathlib
import shutil
import struct
import subprocess
import sys
import tempfile

os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_VERBOSITY="error")
import torch
import transformers
from transformers import AutoModelForCausalLM, AutoTokenizer

import family_folders as families
import llama_folder as given

sys.path.append(str(pathlib.Path(__file__).parents[1]))
from fork_server import ForkServer  # noqa: E402

SERVER = ForkServer(sys.argv[1], dict(os.environ, OMP_NUM_THREADS="1"))
BOUND = 1e-5
TOKENIZER = pathlib.Path(__file__).parents[1] / "data" / "tokenizers" / "llama3.json"
ODD = {"bos_token_id": 3, "eos_token_id": [5, 7], "pad_token_id": 9, "max_position_embeddings": 131072, "use_cache": False,
       "attention_dropout": 0.0, "pretraining_tp": 1, "torch_dtype": "bfloat16", "transformers_version": "4.43.0",
       "_name_or_path": "someone/odd-llama", "something_else": {"deep": [1, None, "x"]}}
SPECIAL = {"bos_token": "<|begin_of_text|>", "eos_token": {"content": "<|eot_id|>", "lstrip": False, "normalized": False,
                                                           "rstrip": False, "single_word": False}}
SCRATCH = {"qwen2": {"model__qkv_bias": "true", "model__tie_embeddings": "true"},
           "qwen3": {"model__qk_norm": "true", "model__head_dim": 12},
           "mixtral": {"model__kind": "moe", "model__experts": 4, "model__expert_ffn": 16},
           "qwen3_moe": {"model__kind": "moe", "model__experts": 4, "model__expert_ffn": 16, "model__top_k": 3,
                         "model__norm_top_k": "false", "model__balance": 0, "model__qk_norm": "true"},
           "olmoe": {"model__kind": "moe", "model__experts": 4, "model__expert_ffn": 16, "model__qk_norm": "true",
                     "model__qk_norm_across": "true"},
           "bamba": {"model__kind": "hybrid", "model__pattern": "M-*-M-", "model__layers": 6, "model__rope_fraction": 0.5,
                     "model__ssm_state": 8, "model__ssm_head_dim": 16, "model__ssm_groups": 2, "model__ssm_expand": 3,
                     "model__ssm_width": 3, "model__ssm_chunk": 16}}
PLANNED = ("qwen3_moe", "bamba")
TEMPLATE = "{% for message in messages %}<{{ message.role }}>{{ message.content }}{{ eos_token }}{% endfor %}"


def write_tokenizer(folder):
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copy(TOKENIZER, folder / "tokenizer.json")
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", **SPECIAL}))
    (folder / "special_tokens_map.json").write_text(json.dumps(SPECIAL))
    (folder / "chat_template.jinja").write_text(TEMPLATE)


def write_odd(folder):
    given.write("tied", folder)
    config = {**json.loads((folder / "config.json").read_text()), **ODD}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "generation_config.json").write_text(
        json.dumps({"bos_token_id": 3, "eos_token_id": [5, 7], "do_sample": True, "temperature": 0.3}))
    write_tokenizer(folder)
    return config


def train(place, code=0, **settings):
    settings = {"data.text": given.STORY, "data.seq": given.SEQ, "device.kind": "cpu", "train.steps": 2,
                **{key.replace("__", "."): value for key, value in settings.items()}}
    (place / "empty.toml").write_text("")
    done = SERVER.run(["train", "empty.toml", *(f"--set={key}={value}" for key, value in settings.items())], cwd=place)
    assert done.returncode == code, (done.returncode, done.stderr)
    return done.stderr


def load(folder):
    model, about = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, output_loading_info=True)
    wrong = {key: value for key, value in about.items() if value}
    assert not wrong, wrong  # keys that are missing, unexpected or of another shape
    return model.eval()


def same_logits(model, folder, place):
    subprocess.run([sys.argv[2], str(folder), str(place / "copy"), *map(str, given.LOGITS_OF)], check=True, timeout=60,
                   env=dict(os.environ, OMP_NUM_THREADS="1"))
    ours = torch.tensor([value for value, in struct.iter_unpack("<f", (place / "copy/logits").read_bytes())])
    with torch.no_grad():
        theirs = model(torch.tensor([given.LOGITS_OF])).logits.flatten()
    worst = (ours - theirs).abs().max().item()
    assert worst < BOUND, worst
    return worst


def tokenizer_works(folder):
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert tokenizer.eos_token == "<|eot_id|>" and tokenizer.bos_token == "<|begin_of_text|>"
    plain = transformers.PreTrainedTokenizerFast(tokenizer_file=str(TOKENIZER))
    text = "Once upon a time"
    assert tokenizer(text).input_ids == plain(text).input_ids
    assert tokenizer.apply_chat_template([{"role": "user", "content": "Hi"}], tokenize=False) == "<user>Hi<|eot_id|>"
    return tokenizer


def fine_tuned(place):
    config = write_odd(place / "odd")
    settings = {"model__from": "odd", "train__out": "tuned"}
    train(place, **settings)
    train(place, train__steps=4, **settings)  # goes on
    for step in (2, 4):
        saved = place / f"tuned/step-{step}"
        assert json.loads((saved / "config.json").read_text()) == {**config, "torch_dtype": "float32"}
        for path in (place / "odd").iterdir():
            if path.name not in ("config.json", "model.safetensors"):
                assert (saved / path.name).read_bytes() == path.read_bytes(), path
    model = load(saved)
    for key in ("bos_token_id", "eos_token_id", "pad_token_id", "max_position_embeddings", "use_cache", "something_else"):
        assert getattr(model.config, key) == ODD[key], key
    assert model.generation_config.eos_token_id == [5, 7] and model.generation_config.temperature == 0.3
    tokenizer_works(saved)
    shutil.copytree(place / "odd", place / "another")
    errors = train(place, 2, train__steps=6, model__from="another", train__out="tuned")
    assert "another run: model.from is" in errors, errors
    return same_logits(model, saved, place)


def from_scratch(place):
    write_tokenizer(place / "tokenizer")
    settings = {"model__dim": 32, "model__layers": 2, "model__heads": 4, "model__kv_heads": 2, "model__vocab": 512}
    train(place, **settings, data__tokenizer="tokenizer", train__export_dtype="bf16", train__out="scratch")
    saved = place / "scratch/step-2"
    config = json.loads((saved / "config.json").read_text())
    known = set(inspect.signature(transformers.LlamaConfig.__init__).parameters) - {"self", "kwargs"}
    assert known <= config.keys(), known - config.keys()  # no default of transformers' decides
    model = load(saved)
    tokenizer = tokenizer_works(saved)
    assert model.config.eos_token_id == tokenizer.eos_token_id == 502
    assert model.config.bos_token_id == tokenizer.bos_token_id == 500 and model.config.pad_token_id is None
    assert model.config.max_position_embeddings == given.SEQ
    assert AutoModelForCausalLM.from_pretrained(saved, dtype="auto").dtype == torch.bfloat16
    # Without a tokenizer there is no token that ends a text; and one checkpoint may be named to go on from, where shorter
    # texts leave the model's longest as it was.
    train(place, **settings, train__out="plain", train__steps=1)
    assert json.loads((place / "plain/step-1/config.json").read_text())["eos_token_id"] is None
    train(place, **settings, train__resume="scratch/step-2", train__out="further", train__steps=3, data__seq=given.SEQ // 2)
    further = place / "further/step-3"
    assert json.loads((further / "config.json").read_text()) == {**config, "torch_dtype": "float32"}
    assert (further / "chat_template.jinja").read_text() == TEMPLATE
    return same_logits(model, saved, place)


def planned(place, kind):
    """A plan and a rehearsal from a folder alone."""
    weights = families.weights(kind)
    about = ("hybrid" if kind == "bamba" else "moe") + f", {sum(weight.numel() for weight in weights.values())} parameters"
    settings = {"model.from": kind, "data.text": given.STORY, "data.seq": given.SEQ, "device.kind": "cpu"}
    words = ["empty.toml", "--world=2", *(f"--set={key}={value}" for key, value in settings.items())]
    for command in (["plan", *words], ["rehearse", *words, "--steps=1"]):
        done = SERVER.run(command, cwd=place)
        assert done.returncode == 0 and about in done.stdout, (command, done.returncode, done.stdout, done.stderr)


def of_families(place):
    """Of each family: a model that goes on from a folder; of those that a configuration describes, one from scratch, too."""
    worst = 0
    for kind, config in families.CONFIGS.items():
        families.write(kind, place / kind)
        train(place, model__from=kind, train__out=f"tuned-{kind}")
        saved = place / f"tuned-{kind}/step-2"
        assert json.loads((saved / "config.json").read_text()) == {**config, "torch_dtype": "float32"}
        worst = max(worst, same_logits(load(saved), saved, place))
        if kind in PLANNED:
            planned(place, kind)
    sizes = {"model__dim": 32, "model__layers": 2, "model__heads": 4, "model__kv_heads": 2}
    for kind, settings in SCRATCH.items():
        train(place, **{**sizes, **settings}, train__out=f"new-{kind}")
        saved = place / f"new-{kind}/step-2"
        config = json.loads((saved / "config.json").read_text())
        model = load(saved)
        assert config["model_type"] == kind, config
        known = set(inspect.signature(type(model.config).__init__).parameters) - {"self", "kwargs"}
        assert known <= config.keys(), (kind, known - config.keys())
        worst = max(worst, same_logits(model, saved, place))
    return worst


def balanced(place):
    """The load-balancing loss of one layer and one sequence, for which it does not matter over how many it is computed."""
    about = {**families.CONFIGS["mixtral"], "num_hidden_layers": 1, "output_router_logits": True, "router_aux_loss_coef": 0.5}
    weights = {name: weight for name, weight in families.weights("mixtral").items() if ".layers.1." not in name}
    given.write_model(place / "balanced", about, weights)
    train(place, model__from="balanced", train__out="of-balanced", train__steps=1, data__shuffle="false")
    step = json.loads((place / "of-balanced/metrics.jsonl").read_text())
    assert json.loads((place / "of-balanced/step-1/config.json").read_text()) == {**about, "torch_dtype": "float32"}
    row = torch.tensor([list(given.STORY.read_bytes()[:given.SEQ + 1])])
    model = load(place / "balanced")
    outputs = model(row[:, :-1])
    loss = torch.nn.functional.cross_entropy(outputs.logits[0], row[0, 1:])
    (loss + 0.5 * outputs.aux_loss).backward()
    norm = torch.stack([weight.grad.norm() for weight in model.parameters() if weight.grad is not None]).norm().item()
    for mine, theirs in ((step["loss"], loss.item()), (step["grad_norm"], norm)):
        assert abs(mine / theirs - 1) < BOUND, (step, loss, norm)


def main():
    with SERVER, tempfile.TemporaryDirectory() as place:
        place = pathlib.Path(place)
        worst = max(fine_tuned(place), from_scratch(place), of_families(place))
        balanced(place)
    print(f"logits at most {worst:.1e} apart")


main()
