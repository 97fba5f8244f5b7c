#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Trains the models of llama_folder.py and family_folders.py with transformers. Writes losses and norms of the former to
reference.json and some of their logits to logits.json; of the latter all that to families.json, with how far each weight
has moved.

Run by hand where transformers is installed, when one of those files has changed."""
import json
import pathlib
import tempfile

import torch
import transformers

import family_folders as families
import llama_folder as given


def load(write, kind):
    with tempfile.TemporaryDirectory() as folder:
        write(kind, folder)
        model, about = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, output_loading_info=True)
    assert not any(about.values()), about
    return model


def logits(model, columns=slice(None)):
    with torch.no_grad():
        rows = model(torch.tensor([given.LOGITS_OF])).logits[0]
    return [[float(f"{value:.8g}") for value in rows[place][columns].tolist()] for place in given.LOGITS_AT]


def train(model):
    tokens = torch.tensor(list(given.STORY.read_bytes()))
    optimizer = torch.optim.AdamW(model.parameters(), lr=given.RATE, betas=given.BETAS, eps=given.EPS, weight_decay=given.DECAY)
    steps = []
    for step in range(given.STEPS):
        first = step * given.SAMPLES
        rows = torch.stack([tokens[i * given.SEQ:(i + 1) * given.SEQ + 1] for i in range(first, first + given.SAMPLES)])
        logits = model(rows[:, :-1]).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1).float(), rows[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        for parameter in model.parameters():  # an expert without tokens has none; torch's AdamW would skip it, decay and all
            parameter.grad = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), given.CLIP)
        optimizer.step()
        steps.append({"loss": loss.item(), "grad_norm": norm.item()})
    return steps


def reference(kind):
    model = load(families.write, kind)
    result = {"logits": logits(model, families.COLUMNS), "steps": train(model)}
    before = families.weights(kind)
    assert before.keys() <= model.state_dict().keys()
    result["moved"] = {name: float(f"{(model.state_dict()[name] - value).norm():.6g}") for name, value in before.items()}
    return result


if __name__ == "__main__":
    torch.set_num_threads(1)
    versions = {"transformers": transformers.__version__, "torch": torch.__version__.split("+")[0]}
    folder = pathlib.Path(__file__).parent
    trained = {kind: train(load(given.write, kind)) for kind in given.CONFIGS}
    (folder / "reference.json").write_text(json.dumps({**versions, **trained}, indent=1) + "\n")
    (folder / "logits.json").write_text(json.dumps({kind: logits(load(given.write, kind)) for kind in given.CONFIGS}) + "\n")
    of_families = {kind: reference(kind) for kind in families.CONFIGS}
    lines = (f' "{name}": {json.dumps(value)}' for name, value in {**versions, **of_families}.items())
    (folder / "families.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")
