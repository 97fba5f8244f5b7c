#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`sherd train` on documents and masks gives the losses of transformers with the same masks and block-diagonal attention, and
refuses by name what knows no documents: documents_test.py FORK_SERVER"""
import json
import os
import pathlib
import struct
import sys
import tempfile

os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_VERBOSITY="error")
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.models.gpt2.tokenization_gpt2 import bytes_to_unicode

import family_folders as families
import llama_folder as given

sys.path.append(str(pathlib.Path(__file__).parents[1]))
from fork_server import ForkServer  # noqa: E402

SERVER = ForkServer(sys.argv[1], dict(os.environ, OMP_NUM_THREADS="1"))
ALL = os.environ.get("SHERD_TEST_ALL") == "1"
TOKENIZER = pathlib.Path(__file__).parents[1] / "data" / "tokenizers" / "llama3.json"
BOUND = 1e-6  # relative
SEQ, SAMPLES, STEPS = 32, 4, 3
RUNS = [(ranks, micro_batches, recompute) for ranks in (1, 2, 4) for micro_batches in (1, 2) if ranks * micro_batches <= SAMPLES
        for recompute in ("none", "full", "selective")]
FEW = {"separate": [(1, 1, "none")], "packed": [(2, 2, "full"), (4, 1, "none")], "cross": [(2, 1, "none")]}


def sherd(*words, code=0):
    done = SERVER.run(words, timeout=120)
    assert done.returncode == code, (words, done.returncode, done.stdout, done.stderr)
    return done.stdout if code == 0 else done.stderr


def read_tokens(path):
    """Tokens, where documents begin, and which tokens are targets."""
    data = path.read_bytes()
    magic, version, width, count, documents, edges = struct.unpack_from("<8sIIQQQ", data)
    assert (magic, version, width) == (b"SHERDTOK", 1, 2), data[:64]
    tokens = list(struct.unpack_from(f"<{count}H", data, 64))
    behind = (64 + 2 * count + 7) // 8 * 8
    begins = list(struct.unpack_from(f"<{documents}Q", data, behind))
    edges = struct.unpack_from(f"<{edges}Q", data, behind + 8 * documents)
    assert behind + 8 * (documents + len(edges)) == len(data), (data[:64], len(data))
    return tokens, begins, [sum(edge <= i for edge in edges) % 2 == 0 for i in range(count)]


def tokenized(place):
    """The story's paragraphs: some as text, some as prompts with completions."""
    paragraphs = [one for one in given.STORY.read_text().split("\n") if len(one) > 20][:24]
    with open(place / "story.jsonl", "w") as lines:
        for number, text in enumerate(paragraphs):
            cut = len(text) // 3
            line = {"text": text[:60]} if number % 3 == 0 else {"prompt": text[:cut], "completion": text[cut:150]}
            lines.write(json.dumps(line) + "\n")
    out = sherd("tokenize", "--tokenizer", TOKENIZER, "--end", "<|end_of_text|>", "--out", place / "story.bin",
                place / "story.jsonl")
    assert "24 documents" in out and 'documents = "packed"' in out, out
    tokens, begins, targets = read_tokens(place / "story.bin")
    assert len(begins) == 24 and 0 < sum(targets) < len(targets), (begins, targets)
    return tokens, begins, targets


def samples_of(documents, tokens, begins):
    """For each sample its pieces, (begin, count of inputs)."""
    ends = [*begins[1:], len(tokens)]
    if documents != "packed":
        cuts = set(begins) if documents == "separate" else set()
        result = []
        for first in range(0, len(tokens) - SEQ, SEQ):
            starts = [i for i in range(first, first + SEQ) if i == first or i in cuts]
            result.append([(a, b - a) for a, b in zip(starts, [*starts[1:], first + SEQ])])
        return result
    result = []
    for begin, end in zip(begins, ends):
        for at in range(begin, end - 1, SEQ):
            count = min(SEQ, end - 1 - at)
            free = next((one for one in result if sum(c for _, c in one) + count <= SEQ), None)
            if free is None:
                result.append(free := [])
            free.append((at, count))
    return result


def rows_of(pieces, tokens, begins, targets, documents):
    """Inputs, targets, positions, and the mask of attention of one sample."""
    inputs, wanted, positions, owner = [], [], [], []
    for number, (begin, count) in enumerate(pieces):
        for i in range(begin, begin + count):
            masked = not targets[i + 1] or (documents != "cross" and i + 1 in begins)
            inputs.append(tokens[i])
            wanted.append(-100 if masked else tokens[i + 1])
            positions.append(i - begin)
            owner.append(number)
    rest = SEQ - len(inputs)
    inputs, wanted = inputs + [0] * rest, wanted + [-100] * rest
    positions, owner = positions + list(range(rest)), torch.tensor(owner + [-1] * rest)
    sees = (owner[:, None] == owner[None]) & torch.ones(SEQ, SEQ, dtype=torch.bool).tril()
    return inputs, wanted, positions, torch.zeros(SEQ, SEQ).masked_fill(~sees, torch.finfo(torch.float32).min)


def reference(folder, documents, tokens, begins, targets):
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=given.RATE, betas=given.BETAS, eps=given.EPS, weight_decay=given.DECAY)
    samples = samples_of(documents, tokens, begins)
    assert len(samples) >= SAMPLES * STEPS, len(samples)
    losses = []
    for step in range(STEPS):
        rows = [rows_of(one, tokens, begins, targets, documents) for one in samples[step * SAMPLES:(step + 1) * SAMPLES]]
        inputs, wanted, positions = (torch.tensor([row[i] for row in rows]) for i in range(3))
        mask = torch.stack([row[3] for row in rows]).unsqueeze(1)
        logits = model(inputs, attention_mask=mask, position_ids=positions).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), wanted.flatten())
        optimizer.zero_grad()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), given.CLIP)
        optimizer.step()
        losses.append((loss.item(), norm.item()))
    return losses


def train(place, folder, documents, ranks=1, micro_batches=1, recompute="none", code=0, **more):
    out = place / f"{folder.name}-{documents}-{ranks}-{micro_batches}-{recompute}"
    settings = {
        "model.from": folder, "data.tokens": place / "story.bin", "data.documents": documents, "data.seq": SEQ,
        "data.batch": max(1, SAMPLES // ranks // micro_batches), "data.micro_batches": micro_batches, "data.shuffle": "false",
        "optim.lr": given.RATE, "optim.betas": list(given.BETAS), "optim.eps": given.EPS, "optim.weight_decay": given.DECAY,
        "optim.max_norm": given.CLIP, "optim.schedule": "constant", "train.steps": STEPS, "train.out": out,
        "train.recompute": recompute, "device.kind": "cpu", **{key.replace("__", "."): value for key, value in more.items()}}
    (place / "empty.toml").write_text("")
    words = [f"--set={key}={value}" for key, value in settings.items() if value is not None]
    errors = sherd("train", place / "empty.toml", "--ranks", ranks, *words, code=code)
    lines = [] if code else (pathlib.Path(settings["train.out"]) / "metrics.jsonl").read_text().splitlines()
    return errors if code else [json.loads(line) for line in lines]


def like_transformers(place, folder, tokens, begins, targets, shapes_of):
    worst = 0
    for documents, shapes in shapes_of.items():
        wanted = reference(folder, documents, tokens, begins, targets)
        runs = [train(place, folder, documents, *shape) for shape in shapes]
        for shape, steps in zip(shapes, runs):
            for got, (loss, norm) in zip(steps, wanted, strict=True):
                apart = abs(got["loss"] / loss - 1)
                assert apart < BOUND and abs(got["grad_norm"] / norm - 1) < 1e-5, (folder, documents, shape, got, loss, norm)
                worst = max(worst, apart)
        assert len({loss for loss, _ in wanted}) == STEPS, wanted
    return worst


def shared_sequences(place, folder):
    """Ranks that have parts of the weights know documents."""
    sizes = {"model__from": None, "model__vocab": 512, "model__dim": 64, "model__layers": 2, "model__heads": 4}
    alone = train(place, folder, "packed", train__out=place / "alone", **sizes)
    shared = train(place, folder, "packed", 2, train__out=place / "tp", parallel__tp=2, data__batch=SAMPLES,
                   train__loss="per_token", **sizes)
    for one, other in zip(alone, shared, strict=True):
        assert abs(one["loss"] / other["loss"] - 1) < BOUND and abs(one["grad_norm"] / other["grad_norm"] - 1) < 1e-5, (one, other)


def validated(place, folder):
    """A part of the documents is not trained on."""
    steps = train(place, folder, "packed", 2, train__steps=1, train__validate_every=1, data__val_fraction=0.4, train__seed=2,
                  train__out=place / "validated")
    assert steps[-1]["val_loss"] > 1, steps


CHATML = ("{% for one in messages %}{{ '<|im_start|>' + one.role + '\\n' + one.content + '<|im_end|>' + '\\n' }}{% endfor %}"
          "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}")
SECRETIVE = ("{% for one in messages %}{% if one.role != 'assistant' or loop.last %}{{ one.content }}{{ eos_token }}{% endif %}"
             "{% endfor %}")


def text_of(tokenizer, tokens):
    """The text of tokens of byte-level BPE; the tokenizer's file names no decoder."""
    byte = {symbol: number for number, symbol in bytes_to_unicode().items()}
    return bytes(byte[symbol] for symbol in "".join(tokenizer.convert_ids_to_tokens(tokens))).decode()


def conversations(place):
    """The text is what transformers renders, and the assistant's turns are the targets."""
    folder = place / "chat"
    folder.mkdir()
    (folder / "tokenizer.json").write_text(TOKENIZER.read_text())
    (folder / "chat_template.jinja").write_text(CHATML)
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast",
                                                              "eos_token": "<|eot_id|>"}))
    talk = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Hi, pot é!"},
            {"role": "assistant", "content": "Hello 🙂"}, {"role": "user", "content": "Cook"},
            {"role": "assistant", "content": "I cook."}]
    (place / "talk.jsonl").write_text(json.dumps({"messages": talk}) + "\n" + json.dumps({"messages": talk[1:3]}) + "\n")
    words = ["tokenize", "--tokenizer", folder / "tokenizer.json", "--out", place / "talk.bin", place / "talk.jsonl"]
    out = sherd(*words)
    assert "2 documents" in out, out
    tokens, begins, targets = read_tokens(place / "talk.bin")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    for part, messages in ((tokens[:begins[1]], talk), (tokens[begins[1]:], talk[1:3])):
        assert text_of(tokenizer, part) == tokenizer.apply_chat_template(messages, tokenize=False)
    learned = text_of(tokenizer, [token for token, target in zip(tokens, targets) if target])
    assert learned == "Hello 🙂<|im_end|>\nI cook.<|im_end|>\nHello 🙂<|im_end|>\n", learned
    (place / "secretive.jinja").write_text(SECRETIVE)
    (place / "bad.jsonl").write_text(json.dumps({"messages": talk}) + "\n" + json.dumps({"messages": talk[:2]}) + "\n")
    for extra, wanted in ((["--template", place / "secretive.jinja"], ["talk.jsonl:1", "renders a conversation otherwise"]),
                          (["--template", place], ["neither chat_template.jinja nor", "--template FILE"]),
                          (["--template", TOKENIZER.parent / "none"], ["neither"]),
                          ([place / "bad.jsonl"], ["bad.jsonl:2", "no message of the assistant"])):
        errors = sherd(*words, *extra, code=2)
        assert all(word in errors for word in wanted), (extra, errors)


def refused(place, folder):
    families.write("bamba", place / "bamba")
    for folder, settings, words in (
            (folder, {"parallel__cp": 2, "ranks": 2}, ["data.documents", "parallel.cp = 1"]),
            (folder, {"train__graph": "true"}, ["data.documents", "train.graph = false"]),
            (folder, {"documents": "cross", "train__graph": "true"}, ["story.bin masks tokens", "train.graph = false"]),
            (place / "bamba", {}, ["data.documents", "Mamba-2"]),
            (folder, {"data__tokens": place / "plain.bin"}, ["plain.bin does not say where documents begin", "sherd tokenize"]),
            (folder, {"data__val_fraction": 0.5, "data__validation": place / "plain.bin"}, ["data.validation is set as well"])):
        (place / "plain.bin").write_bytes(b"\x01\x00" * 100)
        errors = train(place, folder, **{"documents": "packed", **settings}, code=2)
        assert all(word in errors for word in words), (settings, errors)


def main():
    with SERVER, tempfile.TemporaryDirectory() as place:
        place = pathlib.Path(place)
        folder = place / "words"
        given.write_words(folder)
        tokens, begins, targets = tokenized(place)
        worst = like_transformers(place, folder, tokens, begins, targets,
                                  {documents: RUNS for documents in FEW} if ALL else FEW)
        shared_sequences(place, folder)
        validated(place, folder)
        conversations(place)
        refused(place, folder)
    print(f"losses at most {worst:.1e} apart")


main()
