#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`sherd generate` writes the tokens that transformers writes, and `sherd eval` measures its losses: generate_test.py FORK_SERVER"""
import json
import math
import os
import pathlib
import shutil
import sys
import tempfile

os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_VERBOSITY="error")
import torch
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

import family_folders as families
import llama_folder as given

sys.path.append(str(pathlib.Path(__file__).parents[1]))
from fork_server import ForkServer  # noqa: E402

SERVER = ForkServer(sys.argv[1], dict(os.environ, OMP_NUM_THREADS="1"))
ALL = os.environ.get("SHERD_TEST_ALL") == "1"
TOKENIZER = pathlib.Path(__file__).parents[1] / "data" / "tokenizers" / "llama3.json"
PROMPT, COUNT, BEGIN = "Once upon a time", 24, 500
BOUND = 1e-6  # relative, of losses
DRAWN = ("--temperature", 1.5, "--seed")


def sherd(*words, code=0):
    done = SERVER.run([*words, "--device", "cpu"])
    assert done.returncode == code, (words, done.returncode, done.stdout, done.stderr)
    return done.stdout if code == 0 else done.stderr


def generated(folder, *words, prompt=PROMPT):
    return json.loads(sherd("generate", folder, "--prompt", prompt, "--max-tokens", COUNT, "--json", *words))


def load(folder):
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    if not any("eos_token_id" in (folder / name).read_text() for name in ("config.json", "generation_config.json")
               if (folder / name).exists()):
        model.generation_config.eos_token_id = None  # not the default of the model's class
    return model


def greedy(model, prompt):
    with torch.no_grad():
        return model.generate(torch.tensor([prompt]), do_sample=False, max_new_tokens=COUNT)[0, len(prompt):].tolist()


def check_greedy(folder, ranks):
    wanted = greedy(load(folder), list(PROMPT.encode()))
    for count in ranks:
        result = generated(folder, "--ranks", count)
        assert result["tokens"] == wanted, (folder, count, result, wanted)
        assert result["text"] == bytes(wanted).decode(errors="replace") and result["ended"] == "max tokens", result
    return len(set(wanted))


def of_every_family(place):
    """With a cache; the Bamba, which has Mamba-2 layers, without."""
    kinds = []
    for kind in given.CONFIGS:
        given.write(kind, place / kind)
        kinds.append(check_greedy(place / kind, (1, 2, 4) if ALL else (1, 2)))
    for kind in families.CONFIGS:
        families.write(kind, place / kind)
        kinds.append(check_greedy(place / kind, (1, 2) if ALL or kind in ("qwen3_moe", "bamba") else (1,)))
    assert sum(kinds) > 5 * len(kinds), kinds  # tokens that differ: else little was shown


def of_a_tokenizer(place):
    """The prompt begins with the template's token, and ends at a token of generation_config.json."""
    folder = place / "words"
    given.write_words(folder)
    file = json.loads(TOKENIZER.read_text())
    special = {"id": "<|begin_of_text|>", "ids": [BEGIN], "tokens": ["<|begin_of_text|>"]}
    pieces = [{"SpecialToken": {"id": special["id"], "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]
    file["post_processor"] = {"type": "TemplateProcessing", "single": pieces, "pair": pieces,
                              "special_tokens": {special["id"]: special}}
    file["decoder"] = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}
    (folder / "tokenizer.json").write_text(json.dumps(file))
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"))
    prompt, model = tokenizer(PROMPT).input_ids, load(folder)
    assert prompt[0] == BEGIN, prompt
    wanted = greedy(model, prompt)
    result = generated(folder)
    assert result == {"prompt_tokens": prompt, "tokens": wanted, "ended": "max tokens",
                      "text": tokenizer.decode(wanted, clean_up_tokenization_spaces=False)}, (result, wanted)
    assert generated(folder, prompt="<|begin_of_text|>" + PROMPT) == result  # not twice
    assert generated(folder, "--no-prefix")["prompt_tokens"] == prompt[1:]
    shutil.copytree(folder, place / "ending")
    end = wanted[9]
    (place / "ending/generation_config.json").write_text(json.dumps({"eos_token_id": [end, 3]}))
    shorter = greedy(load(place / "ending"), prompt)
    result = generated(place / "ending")
    assert result["tokens"] == shorter and shorter[-1] == end and len(shorter) <= 10 and result["ended"] == "end token", result
    assert result["text"] == tokenizer.decode(shorter[:-1], clean_up_tokenization_spaces=False), result
    assert generated(place / "ending", "--ignore-end")["tokens"] == wanted
    plain = sherd("generate", folder, "--prompt", PROMPT, "--max-tokens", COUNT)
    assert plain == generated(folder)["text"] + "\n", plain


def of_draws(place):
    folder = place / "untied"
    best = generated(folder)["tokens"]
    drawn = [generated(folder, *DRAWN, seed)["tokens"] for seed in (1, 2, 1)]
    assert drawn[0] == drawn[2] and len({tuple(best), tuple(drawn[0]), tuple(drawn[1])}) == 3, (best, drawn)
    assert generated(folder, *DRAWN, 1, "--ranks", 2)["tokens"] == drawn[0]
    for words in (("--top-k", 1), ("--top-p", 0.001)):
        assert generated(folder, *DRAWN, 2, *words)["tokens"] == best, words


def losses(model, tokens, seq):
    """The sum over all windows, of which the last may be short."""
    total = 0
    for begin in range(0, len(tokens) - 1, seq):
        row = torch.tensor([tokens[begin:begin + seq + 1]])
        with torch.no_grad():
            logits = model(row[:, :-1]).logits[0]
        total += torch.nn.functional.cross_entropy(logits, row[0, 1:], reduction="sum").item()
    return total


def evaluated(place):
    story = given.STORY.read_bytes()[:1000]
    (place / "story.txt").write_bytes(story)
    worst = 0

    def check(folder, tokens, size, seq, *words):
        nonlocal worst
        result = json.loads(sherd("eval", folder, "--json", *words))
        loss = losses(load(folder), tokens, min(seq, len(tokens) - 1)) / (len(tokens) - 1)
        wanted = {"loss": loss, "perplexity": math.exp(loss), "bits_per_byte": loss * (len(tokens) - 1) / math.log(2) / size}
        assert (result["targets"], result["bytes"]) == (len(tokens) - 1, size), result
        for key, value in wanted.items():
            worst = max(worst, abs(result[key] / value - 1))
            assert abs(result[key] / value - 1) < BOUND, (folder, words, key, result, wanted)

    data = ("--data", place / "story.txt")
    check(place / "untied", list(story), 999, 256, *data)  # its max_position_embeddings
    for ranks, batch in ((1, 3), (2, 2), (4, 1)) if ALL else ((1, 3), (2, 2)):
        check(place / "untied", list(story), 999, 64, *data, "--seq", 64, "--ranks", ranks, "--batch", batch)
    check(place / "bamba", list(story), 999, 64, *data, "--seq", 64)
    tokens = PreTrainedTokenizerFast(tokenizer_file=str(TOKENIZER))(story.decode(), add_special_tokens=False).input_ids
    size = 1000 - len(PreTrainedTokenizerFast(tokenizer_file=str(TOKENIZER)).decode(tokens[:1]))
    check(place / "words", tokens, size, 50, *data, "--seq", 50)
    (place / "tokens.bin").write_bytes(b"".join(token.to_bytes(2, "little") for token in tokens))
    check(place / "words", tokens, size, 50, "--data", place / "tokens.bin", "--tokens", "uint16", "--seq", 50, "--ranks", 2)
    lines = sherd("eval", place / "untied", *data, "--seq", 64).splitlines()
    assert [line.split("  ")[0] for line in lines] == ["loss", "perplexity", "bits per byte", "targets"], lines
    return worst


def sampled(place):
    """What a model writes in training; the same on any number of ranks."""
    (place / "empty.toml").write_text("")
    written = []
    for ranks in (1, 2):
        settings = {"model.from": place / "untied", "data.text": given.STORY, "data.seq": 16, "data.batch": 4 // ranks,
                    "train.steps": 5, "train.sample_every": 2, "train.sample_prompts": '["Once", "The pot"]',
                    "train.sample_tokens": 9, "train.out": place / f"sampled-{ranks}", "device.kind": "cpu",
                    "optim.schedule": "constant", "train.save_every": 0}
        done = SERVER.run(["train", place / "empty.toml", "--ranks", ranks, *(f"--set={key}={value}" for key, value in settings.items())])
        assert done.returncode == 0 and done.stdout.count("sample of step") == 4, (done.stdout, done.stderr)
        lines = (place / f"sampled-{ranks}/samples.jsonl").read_text().splitlines()
        written.append([json.loads(line) for line in lines])
    assert written[0] == written[1], written
    assert [(one["step"], one["prompt"]) for one in written[0]] == [(2, "Once"), (2, "The pot"), (4, "Once"), (4, "The pot")]
    assert len({one["text"] for one in written[0]}) == 4, written


def refused(place):
    prompt = ("--prompt", PROMPT)
    (place / "words-only").mkdir()
    shutil.copy(place / "words/config.json", place / "words-only")
    for words, wanted in (
            (("generate", place / "none", *prompt), ["none", "config.json"]),
            (("generate", place / "none", *prompt, "--ranks", 2), ["none", "config.json"]),
            (("generate", place / "untied", "--prompt", ""), ["[generate] the prompt is empty"]),
            (("generate", place / "untied", *prompt, "--top-k", 3), ["--top-k", "give --temperature 1"]),
            (("generate", place / "mistral", *prompt, "--max-tokens", 60), ["sliding_window = 64", "76 tokens"]),
            (("generate", place / "words-only", *prompt), ["has no tokenizer.json", "--tokenizer"]),
            (("generate", place / "untied", *prompt, "--tokenizer", TOKENIZER), ["tokens up to 504", "has 256"]),
            (("eval", place / "untied", "--data", place / "missing"), ["missing"]),
            (("eval", place / "untied", "--data", place / "tokens.bin", "--tokens", "uint16"), ["token ", "model knows 256"]),
            (("eval", place / "untied", "--data", TOKENIZER, "--seq", 0), ["it must be at least 1"])):
        errors = sherd(*words, code=2)
        assert all(word in errors for word in wanted) and errors.count("[") < 4, (words, errors)


def main():
    with SERVER, tempfile.TemporaryDirectory() as place:
        place = pathlib.Path(place)
        of_every_family(place)
        of_a_tokenizer(place)
        of_draws(place)
        worst = evaluated(place)
        sampled(place)
        refused(place)
    print(f"losses at most {worst:.1e} apart")


main()
