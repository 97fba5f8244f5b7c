# SPDX-License-Identifier: Apache-2.0
"""A LlamaForCausalLM in plain torch, trained as make_reference.py trains transformers': the same losses, and weights."""
import math

import torch
import torch.nn.functional as F

import llama_folder as given


def angles(about, positions):
    width = about["hidden_size"] // about["num_attention_heads"]
    frequency = about["rope_theta"] ** (-torch.arange(0, width, 2, dtype=torch.float32) / width)
    if scaling := about.get("rope_scaling"):
        wave = 2 * math.pi / frequency
        original, low, high = (scaling[key] for key in
                               ("original_max_position_embeddings", "low_freq_factor", "high_freq_factor"))
        smooth = ((original / wave - low) / (high - low)).clamp(0, 1)
        frequency = (1 - smooth) * frequency / scaling["factor"] + smooth * frequency
    both = torch.outer(torch.arange(positions, dtype=torch.float32), frequency).repeat(1, 2)
    return both.cos(), both.sin()


def logits(about, weights, tokens):
    heads, kv_heads = about["num_attention_heads"], about["num_key_value_heads"]
    cosine, sine = angles(about, tokens.shape[1])

    def norm(x, name):
        return F.rms_norm(x, x.shape[-1:], weights[name], about["rms_norm_eps"])

    def split(x, count):
        return x.unflatten(-1, (count, -1)).transpose(1, 2)

    def turn(x):
        first, second = x.chunk(2, -1)
        return x * cosine + torch.cat([-second, first], -1) * sine

    x = weights["model.embed_tokens.weight"][tokens]
    for i in range(about["num_hidden_layers"]):
        layer = f"model.layers.{i}."
        y = norm(x, layer + "input_layernorm.weight")
        query, key, value = (F.linear(y, weights[f"{layer}self_attn.{name}_proj.weight"]) for name in "qkv")
        mixed = F.scaled_dot_product_attention(turn(split(query, heads)), turn(split(key, kv_heads)), split(value, kv_heads),
                                               is_causal=True, enable_gqa=True)
        x = x + F.linear(mixed.transpose(1, 2).flatten(2), weights[layer + "self_attn.o_proj.weight"])
        y = norm(x, layer + "post_attention_layernorm.weight")
        gate, up, down = (weights[f"{layer}mlp.{name}_proj.weight"] for name in ("gate", "up", "down"))
        x = x + F.linear(F.silu(F.linear(y, gate)) * F.linear(y, up), down)
    head = weights["model.embed_tokens.weight" if about["tie_word_embeddings"] else "lm_head.weight"]
    return F.linear(norm(x, "model.norm.weight"), head)


def train(kind, with_moments=False):
    """Losses, norms, and the weights after the last step; if asked, also AdamW's moments of each."""
    about = given.config(kind)
    weights = {name: value.requires_grad_() for name, value in given.weights(kind).items()}
    tokens = torch.tensor(list(given.STORY.read_bytes()))
    optimizer = torch.optim.AdamW(weights.values(), lr=given.RATE, betas=given.BETAS, eps=given.EPS,
                                  weight_decay=given.DECAY)
    steps = []
    for step in range(given.STEPS):
        first = step * given.SAMPLES
        rows = torch.stack([tokens[i * given.SEQ:(i + 1) * given.SEQ + 1] for i in range(first, first + given.SAMPLES)])
        loss = F.cross_entropy(logits(about, weights, rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(weights.values(), given.CLIP)
        optimizer.step()
        steps.append({"loss": loss.item(), "grad_norm": norm.item()})
    result = {name: value.detach() for name, value in weights.items()}
    moments = {name: (optimizer.state[value]["exp_avg"], optimizer.state[value]["exp_avg_sq"]) for name, value in weights.items()}
    return (steps, result, moments) if with_moments else (steps, result)
