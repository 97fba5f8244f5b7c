# SPDX-License-Identifier: Apache-2.0
"""Fine-tunes a causal language model of transformers on a text file, sharded over all ranks.

GPUs:  torchrun --nproc-per-node 8 examples/finetune.py MODEL_FOLDER TEXT_FILE OUT_FOLDER
CPU:   mpirun -n 4 python examples/finetune.py MODEL_FOLDER TEXT_FILE OUT_FOLDER
"""

import argparse
import pathlib

import torch
import transformers

import sherd


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("model", help="a folder with config.json, weights in safetensors and a tokenizer")
    parser.add_argument("text", help="a file")
    parser.add_argument("out", help="the folder for the result")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--batch", type=int, default=4, help="sequences of each rank")
    parser.add_argument("--length", type=int, default=1024, help="tokens of a sequence")
    options = parser.parse_args()

    world = sherd.world()
    tokenizer = transformers.AutoTokenizer.from_pretrained(options.model)
    config = transformers.AutoConfig.from_pretrained(options.model, use_cache=False)
    with sherd.meta_parameters():  # no rank ever has the whole model
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    model.gradient_checkpointing_enable()
    for layer in model.model.layers:
        if world.device.type == "cuda":
            layer.compile()
        sherd.fully_shard(layer, precision="bf16_o2")
    sherd.fully_shard(model, precision="bf16_o2")
    sherd.load(model, options.model)
    optimizer = sherd.AdamW(model, lr=1e-5, max_norm=1.0)
    scheduler = transformers.get_cosine_schedule_with_warmup(optimizer, options.steps // 10, options.steps)
    tokens = torch.tensor(tokenizer(pathlib.Path(options.text).read_text())["input_ids"])
    for step in range(1, options.steps + 1):
        random = torch.Generator().manual_seed(step * world.size + world.rank)
        starts = torch.randint(len(tokens) - options.length + 1, (options.batch,), generator=random)
        inputs = torch.stack([tokens[start : start + options.length] for start in starts]).to(world.device)
        loss = model(input_ids=inputs, labels=inputs).loss
        loss.backward()
        optimizer.step()
        scheduler.step()
        mean = loss.detach().float()
        world.all_reduce(mean, "mean")
        if world.rank == 0:
            print(f"step {step}/{options.steps}  loss {mean:.4f}  norm {optimizer.gradient_norm():.3f}")
    sherd.save(model, options.out, optimizer=optimizer, export_dtype=torch.bfloat16)
    if world.rank == 0:
        tokenizer.save_pretrained(options.out)


main()
