# SPDX-License-Identifier: Apache-2.0
"""What this Sherd was built with must be what runs: the extension would crash or not be found under anything else."""

from __future__ import annotations

import sys

import torch

from . import built_with


def check_versions() -> None:
    """Raises ImportError, naming both versions, under another Python, torch or CUDA."""
    python = ".".join(map(str, sys.version_info[:2]))
    for name, built, running in (
        ("Python", built_with.PYTHON_VERSION, python),
        ("torch", built_with.TORCH_VERSION, torch.__version__),
        ("a torch for CUDA", built_with.CUDA_VERSION or "none", torch.version.cuda or "none"),
    ):
        if built != running:
            raise ImportError(
                f"[sherd] this Sherd was built with {name} {built}, but this is {name} {running}: use {name} {built}, "
                "or build Sherd again with ./sherd build"
            )
