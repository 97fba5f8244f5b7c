# SPDX-License-Identifier: Apache-2.0
"""Models of transformers, as they are."""

import copy
import os

import pytest
import torch

import sherd

transformers = pytest.importorskip("transformers")
LENGTH = 16


def tiny_llama(**settings):
    config = transformers.LlamaConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=LENGTH,
        **settings,
    )
    return transformers.LlamaForCausalLM(config)


def batch(step, rank):
    tokens = torch.randint(0, 64, (2, LENGTH), generator=torch.Generator().manual_seed(1000 * step + rank))
    return {"input_ids": tokens, "labels": tokens}


def shard(model, **options):
    for layer in model.model.layers:
        sherd.fully_shard(layer, **options)
    return sherd.fully_shard(model, **options)


@pytest.mark.parametrize("kind", ["plain", "tied", "checkpointing", "compiled"])
def test_llama_trains_like_torch(world, kind):
    torch._dynamo.reset()
    model = tiny_llama(tie_word_embeddings=kind == "tied")
    reference = copy.deepcopy(model)
    if kind == "checkpointing":
        model.gradient_checkpointing_enable()
    if kind == "compiled":
        torch._dynamo.utils.counters.clear()
        for layer in model.model.layers:
            layer.compile(backend="aot_eager", fullgraph=True)
    shard(model)
    optimizer = sherd.AdamW(model, lr=1e-3, max_norm=1.0)
    plain = torch.optim.AdamW(reference.parameters(), lr=1e-3)
    for step in range(3):
        plain.zero_grad()
        losses = [reference(**batch(step, rank)).loss for rank in range(world.size)]
        (sum(losses) / world.size).backward()
        torch.nn.utils.clip_grad_norm_(reference.parameters(), 1.0)
        plain.step()
        loss = model(**batch(step, world.rank)).loss
        loss.backward()
        optimizer.step()
        assert abs(loss.item() - losses[world.rank].item()) < 5e-6
    full = sherd.full_state_dict(model)
    difference = max((full[name] - value).abs().max().item() for name, value in reference.state_dict().items())
    assert difference < 5e-6
    if kind == "compiled":
        assert not torch._dynamo.utils.counters["graph_break"]


def test_checkpoints_are_those_of_transformers(world, shared_folder):
    model = shard(tiny_llama())
    optimizer = sherd.AdamW(model)
    model(**batch(0, world.rank)).loss.backward()
    optimizer.step()
    sherd.save(model, shared_folder + "/sherd", optimizer=optimizer)
    again = transformers.LlamaForCausalLM.from_pretrained(shared_folder + "/sherd")
    full = sherd.full_state_dict(model)
    assert all(torch.equal(value, full[name]) for name, value in again.state_dict().items())
    if world.rank == 0:
        again.save_pretrained(shared_folder + "/theirs")
        assert os.path.exists(shared_folder + "/theirs/config.json")
    world.barrier()
    other = shard(tiny_llama())
    sherd.load(other, shared_folder + "/theirs")
    loaded = sherd.full_state_dict(other)
    assert all(torch.equal(value, full[name]) for name, value in loaded.items())


def test_initialise_uses_the_models_own_initialisation(world):
    with sherd.meta_parameters():
        model = tiny_llama(initializer_range=0.5)
    shard(model)
    sherd.initialise(model)
    full = sherd.full_state_dict(model)
    assert full["model.norm.weight"].eq(1).all()
    assert 0.4 < full["model.layers.0.mlp.up_proj.weight"].std() < 0.6
    model(**batch(0, world.rank)).loss.backward()


def test_meta_device_with_the_buffers_real(shared_folder, world):
    model = tiny_llama(tie_word_embeddings=True)
    if world.rank == 0:
        model.save_pretrained(shared_folder)
    world.barrier()
    with sherd.meta_parameters():
        other = tiny_llama(tie_word_embeddings=True)
    assert other.model.embed_tokens.weight.is_meta and not other.model.rotary_emb.inv_freq.is_meta
    shard(other, precision="bf16_o2")
    sherd.load(other, shared_folder)
    full = sherd.full_state_dict(other)
    assert all(torch.equal(value, full[name]) for name, value in model.state_dict().items())
    other(**batch(0, world.rank)).loss.backward()


def test_the_meta_device_with_nothing_real(shared_folder, world):
    settings = {"tie_word_embeddings": True, "rope_theta": 500.0}
    model = tiny_llama(**settings)
    if world.rank == 0:
        model.save_pretrained(shared_folder)
    world.barrier()
    with torch.device("meta"):
        other = tiny_llama(**settings)
    assert other.model.rotary_emb.inv_freq.is_meta
    shard(other)
    sherd.load(other, shared_folder)
    assert torch.equal(other.model.rotary_emb.inv_freq, model.model.rotary_emb.inv_freq)
    assert other.model.rotary_emb.original_inv_freq is other.model.rotary_emb.inv_freq
    expected = model(**batch(0, world.rank)).loss
    assert abs(other(**batch(0, world.rank)).loss.item() - expected.item()) < 1e-6
