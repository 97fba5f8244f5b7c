# SPDX-License-Identifier: Apache-2.0
"""The examples run; the result of examples/finetune.py can be loaded."""

import pathlib
import runpy
import sys

import pytest
import torch

import sherd

transformers = pytest.importorskip("transformers")
EXAMPLE = pathlib.Path(__file__).parents[2] / "examples" / "finetune.py"
TEXT = "the quick brown fox jumps over the lazy dog " * 20


def write_model(folder):
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = {word: number for number, word in enumerate(["?", *sorted(set(TEXT.split()))])}
    words_of_text = Tokenizer(models.WordLevel(words, unk_token="?"))
    words_of_text.pre_tokenizer = pre_tokenizers.Whitespace()
    transformers.PreTrainedTokenizerFast(tokenizer_object=words_of_text, unk_token="?").save_pretrained(folder)
    config = transformers.LlamaConfig(
        vocab_size=len(words), hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4
    )
    transformers.LlamaForCausalLM(config).save_pretrained(folder)


def test_finetune(shared_folder, world, monkeypatch, capsys):
    folder = pathlib.Path(shared_folder)
    if world.rank == 0:
        write_model(folder / "model")
        (folder / "text.txt").write_text(TEXT)
    world.barrier()
    options = ["--steps", "3", "--length", "8", "--batch", "2"]
    arguments = [str(EXAMPLE), *(str(folder / name) for name in ("model", "text.txt", "out")), *options]
    monkeypatch.setattr(sys, "argv", arguments)
    runpy.run_path(str(EXAMPLE))
    if world.rank > 0:
        return
    assert "step 3/3  loss" in capsys.readouterr().out
    tuned = transformers.AutoModelForCausalLM.from_pretrained(folder / "out", dtype="auto")
    before = transformers.AutoModelForCausalLM.from_pretrained(folder / "model")
    assert tuned.dtype == torch.bfloat16
    weights = zip(tuned.state_dict().values(), before.state_dict().values(), strict=True)
    assert any(not torch.equal(one.float(), other) for one, other in weights)
    assert sherd.describe_checkpoint(str(folder / "out"))


def test_plan(world, monkeypatch, capsys, tmp_path):
    if world.size > 1:
        return  # nothing there depends on ranks
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(EXAMPLE.with_name("plan.py")))
    text = capsys.readouterr().out
    assert "one rank of 64" in text and "512 ranks:" in text
    assert "details" in (tmp_path / "program.html").read_text()
