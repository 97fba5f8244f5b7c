#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Commands of somebody in a hurry, and what they are told: careless_test.py LAUNCHER FORK_SERVER [--show]"""
import json
import os
import pathlib
import subprocess
import sys
import tempfile

sys.path.append(str(pathlib.Path(__file__).parents[1]))
from fork_server import ForkServer  # noqa: E402

STORY = pathlib.Path(__file__).parents[2] / "examples" / "tiny.txt"
RUN = f"""[model]
dim = 16
layers = 1
heads = 2
[data]
text = "{STORY}"
seq = 16
[train]
steps = 4
out = "out"
[device]
kind = "cpu"
"""
REFUSED, DONE = 2, 0
# The command, its exit code, and what its answer must have.
COMMANDS = [
    ("./sherd trian run.toml", REFUSED, ["there is no command 'trian', did you mean train?"]),
    ("trian --help", REFUSED, ["there is no command 'trian', did you mean train?"]),
    ("", REFUSED, ["A subcommand is required"]),
    ("train", REFUSED, ["FILE is required"]),
    ("train run.tml", REFUSED, ["run.tml: it can't be read: give the path of a TOML file"]),
    ("train .", REFUSED, [".: it can't be read: give the path of a TOML file"]),
    ("train story.txt", REFUSED, ["story.txt:1: ", "it must be TOML"]),
    ("train run.toml --steps 5", REFUSED, ["train has no option --steps; its key is set with --set train.steps=VALUE"]),
    ("train run.toml --rank=2", REFUSED, ["train has no option --rank, did you mean --ranks?"]),
    ("train run.toml --set steps=5", REFUSED, ["--set steps=5: write it as --set section.key=value"]),
    ("train run.toml --set train.step=5", REFUSED, ["unknown key; did you mean train.steps?"]),
    ("train run.toml --set train.steps=many", REFUSED, ["train.steps = \"many\": it must be a whole number"]),
    ("train run.toml --set train.steps=0", REFUSED, ["train.steps = 0: it must be at least 1"]),
    ("train run.toml --set model.heads=3", REFUSED, ["model.heads = 3: it must divide model.dim = 16"]),
    ("train run.toml --set model.kind=gpt", REFUSED, ["model.kind = \"gpt\": it must be one of \"llama\""]),
    ("train run.toml --ranks two", REFUSED, ["--ranks: it must be a whole number, not two"]),
    ("train run.toml --ranks 0", REFUSED, ["it must be at least 1, not 0"]),
    ("train run.toml --ranks 3 --set data.text=story", REFUSED, ["data.text = story: there is no such file"]),
    ("train run.toml --set data.text=folder", REFUSED, ["data.text = folder is a folder: give a file"]),
    ("train run.toml --set data.text=", REFUSED, ["data: give data.tokens = \"file.bin\" or data.text = \"file.txt\""]),
    ("train run.toml --set data.text=empty.txt", REFUSED, ["empty.txt has 0 tokens; a sequence of data.seq = 16 needs 17"]),
    ("train run.toml --set data.seq=100000", REFUSED, ["tiny.txt has 6365 tokens; a sequence of data.seq = 100000 needs 100001"]),
    ("train run.toml --set data.tokens=story.txt", REFUSED, ["give data.tokens or data.text, not both"]),
    ("train run.toml --set train.validate_every=2", REFUSED, ["train.validate_every = 2: there is no validation data; set data.validation"]),
    ("train run.toml --set data.validation=validation.txt", REFUSED, ["data.validation = validation.txt: there is no such file"]),
    ("train run.toml --set model.from=llama", REFUSED, ["llama/config.json can't be read", "model.from is a folder with config.json"]),
    ("train run.toml --ranks 2 --set model.from=folder", REFUSED, ["[model.from] folder has no weights: neither model.safetensors nor"]),
    ("train run.toml --set data.tokenizer=tokenizer.json", REFUSED, ["data.tokenizer = tokenizer.json is neither a file nor a folder"]),
    ("train run.toml --set train.out=story.txt", REFUSED, ["train.out = story.txt can't be created"]),
    ("train run.toml --set train.resume=true", REFUSED, ["train.resume = true: it must be a string in quotes"]),
    ("train run.toml --set train.resume=latest", REFUSED, ['train.resume = "latest": there is no such folder: give "auto", "none"']),
    ("train run.toml --set optim.warmup=1000", REFUSED, ["optim.warmup = 1000: it must be at most train.steps = 4"]),
    ("train run.toml --set precision.recipe=fp4", REFUSED, ["precision.recipe = \"fp4\": it must be one of"]),
    ("train run.toml --set memory.budget=lots", REFUSED, ["memory.budget = \"lots\": it must be a number and a unit"]),
    ("train run.toml --set device.kind=cuda", None, ["GPU"]),
    ("train run.toml --set data.validation= --set optim.max_norm=", DONE, ["step 4/4", "saved out/step-4"]),
    ("train run.toml", DONE, ["out/step-4 is step 4 of train.steps = 4: this run is finished. To train on, raise train.steps"]),
    ("train run.toml --set train.steps=2", REFUSED, ["has step 4, but train.steps = 2: give more steps"]),
    ("train run.toml --set train.seed=2 --set train.steps=6", REFUSED, ["train.seed is 2 and was 1", "Choose another train.out"]),
    ("train run.toml --set train.out=out/step-4 --set train.resume=out", REFUSED, ["out is not a complete checkpoint"]),
    ("checkpoint show out", REFUSED, ["out is not a complete checkpoint"]),
    ("checkpoint verify out/step-5", REFUSED, ["out/step-5 is not a complete checkpoint"]),
    ("tokenize story.txt", REFUSED, ["--tokenizer is required"]),
]


def prepare(place):
    (place / "run.toml").write_text(RUN)
    (place / "story.txt").write_text("Once upon a time: there was [a story\n")
    (place / "empty.txt").touch()
    (place / "folder").mkdir()
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 16, "intermediate_size": 32,
              "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 2, "vocab_size": 256,
              "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": False, "hidden_act": "silu"}
    (place / "folder/config.json").write_text(json.dumps(config))


def main():
    launcher, show = sys.argv[1], "--show" in sys.argv
    wrong = []
    server = ForkServer(sys.argv[2], dict(os.environ, OMP_NUM_THREADS="1"))
    with server, tempfile.TemporaryDirectory() as place:
        place = pathlib.Path(place)
        prepare(place)
        for command, code, words in COMMANDS:
            name, *rest = command.split() or [""]
            if name == "./sherd":
                done = subprocess.run([launcher, *rest], cwd=place, capture_output=True, text=True, timeout=60)
            else:
                done = server.run(command.split(), cwd=place)
            answer = (done.stdout if code == DONE else "") + done.stderr
            if show:
                print(f"$ {command}   [{done.returncode}]\n{answer}")
            right = done.returncode == code if code is not None else done.returncode != 0
            # What is refused is said in a line or a few, and not with frames or the words of mpirun.
            brief = code == DONE or (len(answer.splitlines()) <= 4 and "frame #" not in answer and "mpirun" not in answer)
            if not right or not brief or not all(word in answer for word in words):
                wrong.append((command, done.returncode, answer, words))
    for one in wrong:
        print(*one, sep="\n", end="\n\n")
    assert not wrong, f"{len(wrong)} of {len(COMMANDS)} commands are not answered as they should be"
    print(f"{len(COMMANDS)} commands have their answers")


main()
