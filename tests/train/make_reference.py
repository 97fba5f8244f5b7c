#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Trains the model of llama_folder.py with transformers and writes losses and norms to reference.json, and some
logits to logits.json.

Run by hand where transformers is installed, when llama_folder.py has changed."""
import json
import pathlib
import tempfile

import torch
import transformers

import llama_folder as given


def load(kind):
    with tempfile.TemporaryDirectory() as folder:
        given.write(kind, folder)
        return transformers.LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32)


def logits(kind):
    with torch.no_grad():
        rows = load(kind)(torch.tensor([given.LOGITS_OF])).logits[0]
    return [[float(f"{value:.8g}") for value in rows[place].tolist()] for place in given.LOGITS_AT]


def train(kind):
    model = load(kind)
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
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), given.CLIP)
        optimizer.step()
        steps.append({"loss": loss.item(), "grad_norm": norm.item()})
    return steps


if __name__ == "__main__":
    torch.set_num_threads(1)
    result = {"transformers": transformers.__version__, "torch": torch.__version__.split("+")[0],
              **{kind: train(kind) for kind in given.CONFIGS}}
    folder = pathlib.Path(__file__).parent
    (folder / "reference.json").write_text(json.dumps(result, indent=1) + "\n")
    (folder / "logits.json").write_text(json.dumps({kind: logits(kind) for kind in given.CONFIGS}) + "\n")
