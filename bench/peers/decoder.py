# SPDX-License-Identifier: Apache-2.0
"""The parts that the peers' models share: attention, feed-forward, a decoder of any layers; and plain fp64 versions of
them, with which the models are compared."""
import copy
import math
import sys

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention import SDPBackend

NORM_EPSILON = 1e-5


def product_flops(rows, columns):
    """Returns the operations of a product for one token."""
    return 2 * rows * columns


# ---- the model, as users write it --------------------------------------------------------------
def rotary(x, cosine, sine):
    first, second = x.chunk(2, -1)
    return x * cosine + torch.cat([-second, first], -1) * sine


class Attention(nn.Module):
    """Grouped-query attention. `grouped`: its kernel takes fewer heads of keys than of queries."""

    def __init__(self, shape, grouped):
        super().__init__()
        dim, heads, kv_heads = shape["dim"], shape["heads"], shape["kv_heads"]
        self.width, self.repeats, self.grouped = dim // heads, heads // kv_heads, grouped
        narrow = kv_heads * self.width
        self.query, self.key, self.value = (nn.Linear(dim, out, bias=False) for out in (dim, narrow, narrow))
        self.output = nn.Linear(dim, dim, bias=False)

    def forward(self, x, cosine, sine):
        query, key, value = (linear(x).unflatten(-1, (-1, self.width)).transpose(1, 2)
                             for linear in (self.query, self.key, self.value))
        query, key = rotary(query, cosine, sine), rotary(key, cosine, sine)
        if not self.grouped:
            key, value = (one.repeat_interleave(self.repeats, 1) for one in (key, value))
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=self.grouped)
        return self.output(mixed.transpose(1, 2).flatten(2))

    def flops(self, seq):
        dim, narrow = self.query.out_features, self.key.out_features
        return 2 * product_flops(dim, dim) + 2 * product_flops(dim, narrow) + product_flops(dim, seq)  # causal


class FeedForward(nn.Module):
    """SwiGLU."""

    def __init__(self, dim, ffn):
        super().__init__()
        self.gate, self.up = nn.Linear(dim, ffn, bias=False), nn.Linear(dim, ffn, bias=False)
        self.down = nn.Linear(ffn, dim, bias=False)

    def forward(self, x):
        return self.down(F.silu(self.gate(x)) * self.up(x))

    def flops(self, _):
        return 3 * product_flops(self.down.in_features, self.down.out_features)


def norm_of(width):
    return nn.RMSNorm(width, NORM_EPSILON)


class Decoder(nn.Module):
    """Layers between an embedding and a head. A layer returns its result, or that and the sum of its balance loss."""

    def __init__(self, shape, layers):
        super().__init__()
        self.embedding = nn.Embedding(shape["vocab"], shape["dim"])
        self.layers = nn.ModuleList(layers)
        self.norm, self.head = norm_of(shape["dim"]), nn.Linear(shape["dim"], shape["vocab"], bias=False)

    def forward(self, tokens, cosine, sine):
        x, balance = self.embedding(tokens), 0
        for layer in self.layers:
            x = layer(x, cosine, sine)
            if isinstance(x, tuple):
                x, own = x
                balance = balance + own
        return self.head(self.norm(x)), balance

    def flops(self, seq):
        """Returns the operations of one token's forward and backward, as Sherd counts them."""
        head = product_flops(self.head.in_features, self.head.out_features)
        return 3 * (sum(layer.flops(seq) for layer in self.layers) + head)


def loss_of(logits, targets):
    return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


def with_balance(loss, balance, tokens):
    """Adds the gradient of the balance loss, but not its value."""
    return loss + (balance - balance.detach()) / tokens if isinstance(balance, torch.Tensor) else loss


def rotary_tables(shape, device, dtype):
    width = shape["dim"] // shape["heads"]
    rates = shape["rope_theta"] ** (-torch.arange(0, width, 2, device=device) / width)
    angles = torch.outer(torch.arange(shape["seq"], device=device), rates).repeat(1, 2)
    return angles.cos().to(dtype), angles.sin().to(dtype)


def attention_of(shape, device):
    """Returns the kernel that attention will run, and whether it takes fewer heads of keys than of queries."""
    width = shape["dim"] // shape["heads"]
    query = torch.empty(1, shape["heads"], shape["seq"], width, device=device, dtype=torch.bfloat16, requires_grad=True)
    key = query.detach()[:, :shape["kv_heads"]].requires_grad_()
    grouped = True
    if device.type == "cuda":
        wanted = torch.backends.cuda.SDPAParams(query, key, key, None, 0.0, True, True)
        grouped = torch.backends.cuda.can_use_cudnn_attention(wanted)
    if not grouped:
        key = query
    choice = torch._fused_sdp_choice(query, key, key, is_causal=True, enable_gqa=grouped)
    return SDPBackend(choice).name.lower(), grouped


def set_initial_values(model, initial):
    """Sets norms and other vectors to 1 and matrices to small random numbers, unless `initial` has a function for the
    last part of a parameter's name."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            local = parameter.to_local() if hasattr(parameter, "to_local") else parameter
            special = initial.get(name.rsplit(".", 1)[-1])
            if special:
                special(local)
            elif parameter.dim() > 1:
                local.normal_(0, 0.02)
            else:
                local.fill_(1)


# ---- the same in plain steps -------------------------------------------------------------------
def plain_norm(norm, x):
    return x / (x.square().mean(-1, keepdim=True) + NORM_EPSILON).sqrt() * norm.weight


def plain_attention(attention, x, theta):
    """One head after the other; a rotation is a product of complex numbers."""
    seq, width = x.size(1), attention.width
    angles = torch.outer(torch.arange(seq).double(), theta ** (-torch.arange(0, width, 2).double() / width))
    turns = torch.polar(torch.ones_like(angles), angles)

    def turned(y):
        both = torch.complex(*y.chunk(2, -1)) * turns
        return torch.cat([both.real, both.imag], -1)

    later = torch.ones(seq, seq, dtype=torch.bool).triu(1)
    heads = []
    for i, query in enumerate(attention.query(x).split(width, -1)):
        key, value = (linear(x).split(width, -1)[i // attention.repeats] for linear in (attention.key, attention.value))
        scores = (turned(query) @ turned(key).mT / math.sqrt(width)).masked_fill(later, -math.inf)
        heads.append(scores.softmax(-1) @ value)
    return attention.output(torch.cat(heads, -1))


def plain_swiglu(gate, up):
    return gate * gate.sigmoid() * up


def plain_feed_forward(feed_forward, x):
    return feed_forward.down(plain_swiglu(feed_forward.gate(x), feed_forward.up(x)))


def difference_from_plain(model, plain_layer, shape):
    """Returns the largest relative difference between logits and gradients of the model in fp32 and those of plain
    layers in fp64. Ends the program where it is more than rounding."""
    plain = copy.deepcopy(model).double()
    tokens, targets = (torch.randint(shape["vocab"], (shape["batch"], shape["seq"])) for _ in range(2))
    logits, balance = model(tokens, *rotary_tables(shape, tokens.device, torch.float))
    with_balance(loss_of(logits, targets), balance, tokens.numel()).backward()
    x, balance = plain.embedding(tokens), 0
    for layer in plain.layers:
        x, own = plain_layer(layer, x, shape)
        balance = balance + own
    expected = plain.head(plain_norm(plain.norm, x))
    loss = -expected.log_softmax(-1).gather(-1, targets[..., None]).mean()
    with_balance(loss, balance, tokens.numel()).backward()

    def difference(one, other):
        return ((one - other).norm() / other.norm().clamp(min=1e-12)).item()

    found = {"logits": difference(logits, expected)}
    for (name, mine), other in zip(model.named_parameters(), plain.parameters()):
        found[f"gradient of {name}"] = difference(mine.grad, other.grad)
    for name, value in found.items():
        if not value < 1e-5:
            sys.exit(f"[peers] {name}: {value:.2g} from those of a plain implementation, relative to their norm; "
                     "less than 1e-5 is rounding, so the model is wrong")
    return max(found.values())
