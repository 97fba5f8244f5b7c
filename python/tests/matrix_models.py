# SPDX-License-Identifier: Apache-2.0
"""The models of test_matrix.py: small ones of transformers, and one of our own, with their units and samples."""

from __future__ import annotations

import copy
from typing import Any

import torch
import torch.utils.checkpoint

from parity import DIM, Block, Net

LENGTH = 8
WORDS = 32


class Lora(torch.nn.Module):
    """A small adapter of our own around a linear layer."""

    def __init__(self, base: torch.nn.Linear):
        super().__init__()
        self.base = base
        self.low = torch.nn.Linear(base.in_features, 2, bias=False)
        self.high = torch.nn.Linear(2, base.out_features, bias=False)

    def forward(self, x):
        return self.base(x) + self.high(self.low(x))


class CheckpointedBlock(Block):
    checkpointing = False

    def forward(self, x):
        if not self.checkpointing:
            return super().forward(x)
        return torch.utils.checkpoint.checkpoint(super().forward, x, use_reentrant=False)


def generator(step: int, rank: int) -> torch.Generator:
    return torch.Generator().manual_seed(1000 * step + rank)


class Plain:
    adapted = ("up",)

    def make(self, tied: bool) -> torch.nn.Module:
        net = Net(CheckpointedBlock)
        if tied:
            net.blocks[2].up.weight = net.blocks[0].up.weight
        return net

    def units(self, model):
        return list(model.blocks)

    def checkpoint(self, model):
        for block in model.blocks:
            block.checkpointing = True

    def loss(self, model, step, rank):
        return model(torch.randn(4, DIM, generator=generator(step, rank))).square().mean()


class Causal:
    """A language model of transformers."""

    adapted = ("q_proj", "v_proj")

    def __init__(self, name: str, **settings: Any):
        self.name, self.settings = name, settings

    def make(self, tied: bool) -> torch.nn.Module:
        import transformers

        config = getattr(transformers, f"{self.name}Config")(
            vocab_size=WORDS,
            hidden_size=16,
            intermediate_size=32,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=1,
            head_dim=8,
            max_position_embeddings=LENGTH,
            tie_word_embeddings=tied,
            **self.settings,
        )
        return getattr(transformers, f"{self.name}ForCausalLM")(config)

    def units(self, model):
        return list(model.model.layers)

    def checkpoint(self, model):
        model.gradient_checkpointing_enable({"use_reentrant": False})

    def loss(self, model, step, rank):
        tokens = torch.randint(0, WORDS, (2, LENGTH), generator=generator(step, rank))
        return model(input_ids=tokens, labels=tokens).loss


class Vision:
    """A vision transformer of transformers."""

    adapted = ("query", "value")

    def make(self, tied: bool) -> torch.nn.Module:
        import transformers

        # A bias of keys has a gradient of zero but for rounding, which AdamW would make a step of full length.
        config = transformers.ViTConfig(
            hidden_size=16,
            intermediate_size=32,
            num_hidden_layers=2,
            num_attention_heads=2,
            image_size=8,
            patch_size=4,
            num_labels=4,
            qkv_bias=False,
        )
        model = transformers.ViTForImageClassification(config)
        if tied:
            first, last = self.units(model)
            last.intermediate.dense.weight = first.intermediate.dense.weight
        return model

    def units(self, model):
        return list(model.vit.encoder.layer)

    def checkpoint(self, model):
        model.gradient_checkpointing_enable({"use_reentrant": False})

    def loss(self, model, step, rank):
        made = generator(step, rank)
        images, labels = torch.randn(2, 3, 8, 8, generator=made), torch.randint(0, 4, (2,), generator=made)
        return model(pixel_values=images, labels=labels).loss


MODELS = {
    "plain": Plain(),
    "llama": Causal("Llama"),
    "qwen3": Causal("Qwen3"),
    "mixtral": Causal("Mixtral", num_local_experts=3, num_experts_per_tok=2),
    "vit": Vision(),
}


def freeze_first(kind, model):
    for part in (kind.units(model)[0], *(one for one in model.modules() if isinstance(one, torch.nn.Embedding))):
        part.requires_grad_(False)


def adapt(kind, model):
    model.requires_grad_(False)
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if name in kind.adapted and isinstance(child, torch.nn.Linear):
                setattr(module, name, Lora(child))


def make_pair(name: str, parameters: str) -> tuple[torch.nn.Module, torch.nn.Module]:
    """Returns a model and an equal one."""
    kind = MODELS[name]
    model = kind.make(parameters == "tied")
    if parameters == "frozen":
        freeze_first(kind, model)
    if parameters == "lora":
        adapt(kind, model)
    return model, copy.deepcopy(model)
