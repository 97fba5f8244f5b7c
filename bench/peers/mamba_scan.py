# SPDX-License-Identifier: Apache-2.0
"""The scan and the convolution of Mamba-2: mamba_ssm's Triton kernels, and torch's operations in their place.

Shapes: B sequences, S positions, H heads, P dims of a head, G groups, N state, C channels: H * P of the values, then G * N
each of what is written to the state and read from it.

A scan is a function of channels [B, S, C], step [B, S, H], decay [H] (negative), through [H], step_bias [H], groups, state,
chunk. For each head, from state = 0 on,
  t = softplus(step + step_bias), state = exp(t * decay) * state + t * value x write, y = state . read + through * value;
it returns y [B, S, H * P]."""
import math
import pathlib
import sys
import types

import torch
import torch.nn.functional as F

GET_MAMBA_SSM = """Getting mamba_ssm's Triton files needs no build: unpack the source distribution, and put the two
packages that they import beside them:

  curl -L https://files.pythonhosted.org/packages/af/48/\\
aa7bec0efc7453fa0512276c0069c854bf684219050294266534bfef34bb/mamba_ssm-2.3.2.post1.tar.gz | tar xz
  .venv/bin/pip install --no-deps --target mamba_ssm-2.3.2.post1 einops packaging

and give --mamba-ssm mamba_ssm-2.3.2.post1. Another version's address is in https://pypi.org/pypi/mamba-ssm/VERSION/json;
`pip download` would start to build it."""


def parts_of(channels, heads, groups, state):
    """Returns values [B, S, H, P], write and read [B, S, G, N] as views."""
    keys = groups * state
    values, write, read = channels.split([channels.size(-1) - 2 * keys, keys, keys], -1)
    return values.unflatten(-1, (heads, -1)), write.unflatten(-1, (groups, -1)), read.unflatten(-1, (groups, -1))


# ---- in torch ----------------------------------------------------------------------------------
def torch_scan(channels, step, decay, through, step_bias, groups, state, chunk):
    """Matrices within a chunk, states between chunks; slow, for runs without a GPU."""
    heads = step.size(-1)
    values, write, read = (part.to(decay.dtype) for part in parts_of(channels, heads, groups, state))
    write, read = (part.repeat_interleave(heads // groups, 2) for part in (write, read))
    step = F.softplus(step.to(decay.dtype) + step_bias)
    kept = values.new_zeros(values.size(0), heads, values.size(-1), state)
    results = []
    for t, x, w, r in zip(*(part.split(chunk, 1) for part in (step, values, write, read))):
        log = (t * decay).cumsum(1)
        later = torch.ones(t.size(1), t.size(1), dtype=torch.bool, device=t.device).triu(1)[None, :, :, None]
        within = (log[:, :, None] - log[:, None]).masked_fill(later, -math.inf).exp()
        scores = torch.einsum("blhn,bmhn->blmh", r, w) * within * t[:, None]
        before = torch.einsum("blhn,bhpn->blhp", r * log.exp()[..., None], kept)
        results.append(torch.einsum("blmh,bmhp->blhp", scores, x) + before)
        weight = t * (log[:, -1:] - log).exp()
        kept = log[:, -1].exp()[..., None, None] * kept + torch.einsum("blhp,blhn->bhpn", x * weight[..., None], w)
    y = torch.cat(results, 1) + through[:, None] * values
    return y.flatten(2).to(channels.dtype)


def plain_scan(channels, step, decay, through, step_bias, groups, state):
    """One position after the other."""
    heads = step.size(-1)
    values, write, read = parts_of(channels, heads, groups, state)
    group_of_head = torch.arange(heads) // (heads // groups)
    kept, results = 0, []
    for i in range(step.size(1)):
        t = (1 + (step[:, i] + step_bias).exp()).log()[..., None, None]
        new = values[:, i, :, :, None] * write[:, i, group_of_head, None]
        kept = (t * decay[:, None, None]).exp() * kept + t * new
        results.append((kept * read[:, i, group_of_head, None]).sum(-1) + through[:, None] * values[:, i])
    return torch.stack(results, 1).flatten(2)


def torch_convolution(channels, kernel, bias):
    """The causal convolution of each channel, [C, width], and SiLU, as a sum of shifted products, which
    torch.compile makes one pass each way."""
    width, positions = kernel.size(1), channels.size(1)
    mixed = bias + channels * kernel[:, -1]
    for back in range(1, width):
        mixed = mixed + F.pad(channels[:, :positions - back] * kernel[:, -1 - back], (0, 0, back, 0))
    return F.silu(mixed)


# ---- of the packages that users install --------------------------------------------------------
def imported_scan(folder):
    """Imports mamba_ssm's scan from a folder. Not the package itself: its __init__ wants CUDA extensions."""
    if not (folder / "mamba_ssm/ops/triton/ssd_combined.py").is_file():
        sys.exit(f"[peers] --mamba-ssm {folder}: there is no mamba_ssm/ops/triton/ssd_combined.py.\n{GET_MAMBA_SSM}")
    package = types.ModuleType("mamba_ssm")
    package.__path__ = [str(folder / "mamba_ssm")]
    sys.modules["mamba_ssm"] = package
    sys.path.append(str(folder))
    try:
        from mamba_ssm.ops.triton import ssd_combined
    except ImportError as error:
        sys.exit(f"[peers] --mamba-ssm {folder}: {error}.\n{GET_MAMBA_SSM}")
    return ssd_combined


def mamba_ssm_scan(folder: pathlib.Path):
    """Returns mamba_ssm's scan as one operation, which torch.compile does not look into. As in mamba_ssm's own fused
    layer, its backward writes the gradients of the channels into one tensor."""
    scan = imported_scan(folder)

    @torch.library.custom_op("peers::scan", mutates_args=())
    def forward(channels: torch.Tensor, step: torch.Tensor, decay: torch.Tensor, through: torch.Tensor,
                step_bias: torch.Tensor, groups: int, state: int, chunk: int) -> torch.Tensor:
        values, write, read = parts_of(channels, step.size(-1), groups, state)
        y, *_ = scan._mamba_chunk_scan_combined_fwd(values, step, decay, write, read, chunk, D=through,
                                                    dt_bias=step_bias, dt_softplus=True)
        return y.flatten(2)

    @forward.register_fake
    def _(channels, step, decay, through, step_bias, groups, state, chunk):
        return channels.new_empty(*channels.shape[:2], channels.size(-1) - 2 * groups * state)

    @torch.library.custom_op("peers::scan_backward", mutates_args=())
    def backward(dy: torch.Tensor, y: torch.Tensor, channels: torch.Tensor, step: torch.Tensor, decay: torch.Tensor,
                 through: torch.Tensor, step_bias: torch.Tensor, groups: int, state: int, chunk: int
                 ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        heads = step.size(-1)
        d_channels, d_step = channels.new_empty(channels.shape), step.new_empty(step.shape)
        values, write, read = parts_of(channels, heads, groups, state)
        d_values, d_write, d_read = parts_of(d_channels, heads, groups, state)
        dy, y = dy.unflatten(-1, (heads, -1)), y.unflatten(-1, (heads, -1))
        _, _, d_decay, _, _, d_through, _, d_step_bias, _ = scan._mamba_chunk_scan_combined_bwd(
            dy, values, step, decay, write, read, y, chunk, D=through, dt_bias=step_bias, dt_softplus=True,
            dx=d_values, ddt=d_step, dB=d_write, dC=d_read)
        return d_channels, d_step, d_decay, d_through, d_step_bias

    @backward.register_fake
    def _(dy, y, channels, step, decay, through, step_bias, groups, state, chunk):
        vectors = (one.new_empty(one.shape) for one in (decay, through, step_bias))
        return channels.new_empty(channels.shape), step.new_empty(step.shape), *vectors

    def keep(ctx, inputs, output):  # torch passes these by name
        *tensors, ctx.groups, ctx.state, ctx.chunk = inputs
        ctx.save_for_backward(output, *tensors)

    def gradients(ctx, dy):
        found = backward(dy, *ctx.saved_tensors, ctx.groups, ctx.state, ctx.chunk)
        return *found, None, None, None

    forward.register_autograd(gradients, setup_context=keep)
    return forward


def installed_convolution():
    """Returns causal_conv1d's convolution with SiLU, or None where it is not installed."""
    try:
        from causal_conv1d import causal_conv1d_fn
    except ImportError:
        return None
    opaque = torch.compiler.allow_in_graph(causal_conv1d_fn)
    return lambda channels, kernel, bias: opaque(channels.mT, kernel, bias, activation="silu").mT
