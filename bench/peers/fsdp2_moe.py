#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""PyTorch's FSDP2 on what `sherd bench --only moe` runs: OLMoE-1B-7B's shape, sequence 4096, batch 2, one rank of a world
of 8 that isn't there. Rows are sorted by expert and go through torch._grouped_mm; the host waits for nothing.

With the python that has torch: .venv/bin/python bench/peers/fsdp2_moe.py --compile --out moe.json"""
import torch
import torch.nn.functional as F
from torch import nn

from decoder import Attention, norm_of, plain_attention, plain_norm, plain_swiglu, product_flops
from emulated_rank import Workload, measure, options_of, parser_of, train

SHAPE = {"dim": 2048, "layers": 16, "heads": 16, "kv_heads": 16, "experts": 64, "top_k": 8, "expert_ffn": 1024,
         "vocab": 50304, "rope_theta": 1e4, "seq": 4096, "batch": 2}
QUICK = SHAPE | {"dim": 64, "layers": 2, "heads": 4, "kv_heads": 2, "experts": 4, "top_k": 2, "expert_ffn": 32,
                 "vocab": 256, "seq": 64, "batch": 1}
BALANCE = 0.01  # weight of the balance loss


# Shapes: B sequences, S positions, T = B * S tokens, D dim, E experts, K experts of a token, R = T * K rows, F width.
class ToExperts(torch.autograd.Function):
    """Rows of tokens, [T, D], to rows sorted by expert, [R, D]. `token` [R] is a row's token, `row` [T, K] the rows of a
    token. Its backward gathers and adds: torch's own would scatter, with a conflict for each of a token's rows."""

    @staticmethod
    def forward(context, tokens, token, row):
        context.save_for_backward(token, row)
        return tokens[token]

    @staticmethod
    def backward(context, gradient):
        _, row = context.saved_tensors
        return gradient[row].sum(1), None, None


class FromExperts(torch.autograd.Function):
    """The way back: the sum of each token's rows."""

    @staticmethod
    def forward(context, rows, token, row):
        context.save_for_backward(token, row)
        return rows[row].sum(1)

    @staticmethod
    def backward(context, gradient):
        token, _ = context.saved_tensors
        return gradient[token], None, None


class Experts(nn.Module):
    """SwiGLU feed-forwards of which a router chooses some for each token; none is dropped."""

    def __init__(self, shape):
        super().__init__()
        dim, experts, ffn = shape["dim"], shape["experts"], shape["expert_ffn"]
        self.top_k = shape["top_k"]
        self.router = nn.Parameter(torch.empty(experts, dim))
        self.gate_up = nn.Parameter(torch.empty(experts, 2 * ffn, dim))
        self.down = nn.Parameter(torch.empty(experts, dim, ffn))

    def route(self, y_BSD):
        """Returns chances, and weights and numbers of the chosen experts. In fp32: a choice between near equals must
        not depend on rounding."""
        chances_BSE = F.linear(y_BSD.float(), self.router.float()).softmax(-1)
        best_BSK, chosen_BSK = chances_BSE.topk(self.top_k)
        return chances_BSE, best_BSK / best_BSK.sum(-1, keepdim=True), chosen_BSK

    def forward(self, y_BSD):
        chances_BSE, weight_BSK, chosen_BSK = self.route(y_BSD)
        experts = torch.arange(self.router.size(0), device=y_BSD.device)
        load_BE = (chosen_BSK.flatten(1)[..., None] == experts).sum(1)
        balance = (load_BE * chances_BSE.sum(1)).sum() * (self.router.size(0) / chosen_BSK[0].numel())

        order_R = chosen_BSK.flatten().short().argsort(stable=True)  # short keys are sorted faster
        token_R = order_R // self.top_k
        row_R = torch.empty_like(order_R).scatter_(0, order_R, torch.arange(order_R.numel(), device=y_BSD.device))
        row_TK = row_R.view(-1, self.top_k)
        ends_E = load_BE.sum(0).cumsum(0).int()
        rows_RD = ToExperts.apply(y_BSD.flatten(0, 1), token_R, row_TK)
        gate_RF, up_RF = torch._grouped_mm(rows_RD, self.gate_up.mT, offs=ends_E).chunk(2, -1)
        weight_R1 = ToExperts.apply(weight_BSK.reshape(-1, 1), order_R, row_R[:, None])
        # Weighted before the product with down: it is linear, and its result need not be kept.
        active_RF = (F.silu(gate_RF) * up_RF * weight_R1).to(y_BSD.dtype)
        result_TD = FromExperts.apply(torch._grouped_mm(active_RF, self.down.mT, offs=ends_E), token_R, row_TK)
        return result_TD.view_as(y_BSD), BALANCE * balance

    def flops(self, _):
        experts, dim, ffn = self.down.shape
        return self.top_k * 3 * product_flops(dim, ffn) + product_flops(dim, experts)


class Layer(nn.Module):
    def __init__(self, shape, grouped):
        super().__init__()
        self.attention_norm, self.attention = norm_of(shape["dim"]), Attention(shape, grouped)
        self.experts_norm, self.experts = norm_of(shape["dim"]), Experts(shape)

    def forward(self, x, cosine, sine):
        x = x + self.attention(self.attention_norm(x), cosine, sine)
        mixed, balance = self.experts(self.experts_norm(x))
        return x + mixed, balance

    def flops(self, seq):
        return self.attention.flops(seq) + self.experts.flops(seq)


# ---- the same in plain steps -------------------------------------------------------------------
def plain_experts(experts, y_BSD):
    """Every expert computes every token; weights that are not chosen are 0."""
    chances_BSE = (y_BSD @ experts.router.T).softmax(-1)
    least_BS1 = chances_BSE.sort(-1).values[..., -experts.top_k, None]
    chosen_BSE = chances_BSE >= least_BS1
    weight_BSE = torch.where(chosen_BSE, chances_BSE, 0)
    weight_BSE = weight_BSE / weight_BSE.sum(-1, keepdim=True)
    result_BSD = 0
    for i, (gate_up, down) in enumerate(zip(experts.gate_up, experts.down)):
        gate, up = (y_BSD @ part.T for part in gate_up.chunk(2))
        result_BSD = result_BSD + weight_BSE[..., i, None] * (plain_swiglu(gate, up) @ down.T)
    share_BE = chosen_BSE.double().mean(1) / experts.top_k
    return result_BSD, BALANCE * experts.router.size(0) * (share_BE * chances_BSE.sum(1)).sum()


def plain_layer(layer, x, shape):
    x = x + plain_attention(layer.attention, plain_norm(layer.attention_norm, x), shape["rope_theta"])
    mixed, balance = plain_experts(layer.experts, plain_norm(layer.experts_norm, x))
    return x + mixed, balance


def main():
    options = options_of(parser_of(__doc__))
    moe = Workload(SHAPE, QUICK, lambda shape, _, grouped: Layer(shape, grouped), plain_layer, smoke={"batch": 3})
    measure(options, lambda device: train(moe, options, device))


main()
