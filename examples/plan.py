# SPDX-License-Identifier: Apache-2.0
"""Plans the training of a Llama on many ranks, on any machine and without memory. The cells (# %%) are for notebooks;
as a program it prints the same: python examples/plan.py"""

# %% A model, as a training script builds it.
import transformers

import sherd

config = transformers.LlamaConfig(
    vocab_size=128256, hidden_size=4096, intermediate_size=14336, num_hidden_layers=32, num_attention_heads=32,
    num_key_value_heads=8,
)


def build(strategy="optim_grads_params", layers=32):
    config.num_hidden_layers = layers
    model = transformers.LlamaForCausalLM(config)
    for layer in model.model.layers:
        sherd.fully_shard(layer, strategy=strategy, precision="bf16_o2")
    return sherd.fully_shard(model, strategy=strategy, precision="bf16_o2")


def show(value):
    """In a notebook as a page, else as text."""
    display = globals().get("display", print)
    display(value)


# %% What one rank of 64 needs, and how long a step's collectives take one after another.
network = sherd.Network({"dp": (3e-6, 4e11), "dp_outer": (1e-5, 5e10)})  # seconds, bytes per second
show(sherd.plan(build, world=64, network=network))

# %% The same with the parameters sharded within each machine of 8, and the optimizer's state over all (HFSDP).
world = {"dp_outer": 8, "dp": 8}
show(sherd.plan(lambda: build(("optim_grads_params", "optim")), world=world, network=network))

# %% Other numbers of ranks.
for ranks in (8, 64, 512):
    plan = sherd.plan(build, world=ranks)
    total = plan.program.bytes.peak + plan.adamw_bytes()
    print(f"{ranks:4} ranks: {total / 2**30:6.1f} GiB a rank without activations")

# %% The step as data: what each stream does when.
program = sherd.plan(lambda: build(layers=2), world=64).program
show(program)
with open("program.html", "w") as file:
    file.write(program.to_html())
