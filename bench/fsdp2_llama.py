# SPDX-License-Identifier: Apache-2.0
"""The small Llama of small_llama.py under PyTorch's FSDP2: torchrun … fsdp2_llama.py SECONDS_FILE SHAPE_JSON"""
import json
import pathlib
import sys
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.fsdp import fully_shard


def rotary(x, cosine, sine):
    first, second = x.chunk(2, -1)
    return x * cosine + torch.cat([-second, first], -1) * sine


class Layer(nn.Module):
    def __init__(self, dim, heads, kv_heads, ffn, **_):
        super().__init__()
        self.width = dim // heads
        narrow = kv_heads * self.width
        self.attention_norm, self.feed_forward_norm = nn.RMSNorm(dim, 1e-5), nn.RMSNorm(dim, 1e-5)
        self.query, self.key, self.value = (nn.Linear(dim, out, bias=False) for out in (dim, narrow, narrow))
        self.output = nn.Linear(dim, dim, bias=False)
        self.gate, self.up = nn.Linear(dim, ffn, bias=False), nn.Linear(dim, ffn, bias=False)
        self.down = nn.Linear(ffn, dim, bias=False)

    def forward(self, x, cosine, sine):
        y = self.attention_norm(x)
        query, key, value = (linear(y).unflatten(-1, (-1, self.width)).transpose(1, 2)
                             for linear in (self.query, self.key, self.value))
        mixed = F.scaled_dot_product_attention(rotary(query, cosine, sine), rotary(key, cosine, sine), value,
                                               is_causal=True, enable_gqa=True)
        x = x + self.output(mixed.transpose(1, 2).flatten(2))
        y = self.feed_forward_norm(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Llama(nn.Module):
    def __init__(self, dim, layers, heads, vocab, seq, **shape):
        super().__init__()
        self.embedding = nn.Embedding(vocab, dim)
        self.layers = nn.ModuleList(Layer(dim, heads, **shape) for _ in range(layers))
        self.norm, self.head = nn.RMSNorm(dim, 1e-5), nn.Linear(dim, vocab, bias=False)
        width = dim // heads
        angles = torch.outer(torch.arange(seq), 10000.0 ** (-torch.arange(0, width, 2) / width)).repeat(1, 2)
        self.cosine, self.sine = angles.cos(), angles.sin()

    def forward(self, tokens, targets):
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x, self.cosine, self.sine)
        return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1), targets.flatten())


def main():
    shape = json.loads(sys.argv[2])
    steps, batch = shape.pop("steps"), shape.pop("batch")
    dist.init_process_group("gloo")
    torch.manual_seed(1)
    model = Llama(**shape)
    for unit in (model.embedding, *model.layers, model):
        fully_shard(unit)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1)
    torch.manual_seed(dist.get_rank())
    seconds = []
    for _ in range(steps):
        rows = torch.randint(shape["vocab"], (batch, shape["seq"] + 1))
        begin = time.perf_counter()
        loss = model(rows[:, :-1], rows[:, 1:])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        loss.item()
        seconds.append(time.perf_counter() - begin)
    if dist.get_rank() == 0:
        pathlib.Path(sys.argv[1]).write_text(json.dumps(seconds))
    dist.destroy_process_group()


main()
