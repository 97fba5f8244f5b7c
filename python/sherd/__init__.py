# SPDX-License-Identifier: Apache-2.0
"""Fully sharded training for ordinary torch.nn.Modules, in which every step is planned before it runs.

    for layer in model.layers:
        sherd.fully_shard(layer, precision="bf16_o2")
    sherd.fully_shard(model, precision="bf16_o2")          # the whole model last
    optimizer = sherd.AdamW(model, lr=3e-4, max_norm=1.0)  # a torch Optimizer
    for batch in batches:
        model(**batch).loss.backward()
        optimizer.step()
    sherd.save(model, "out/step-1000", optimizer=optimizer)

docs/python.md describes it with examples. "Collective" means that all ranks make the same call at the same point;
"root" is the whole model, which is sharded last.
"""

import torch as _torch

from . import built_with as _built_with

if _torch.__version__ != _built_with.TORCH_VERSION:
    raise ImportError(
        f"[sherd] this Sherd was built with torch {_built_with.TORCH_VERSION}, but torch {_torch.__version__} is "
        f"imported: install torch {_built_with.TORCH_VERSION}, or build Sherd again with ./sherd build"
    )

from ._C import (
    AdamWRule,
    Cut,
    Finding,
    Granule,
    GroupReport,
    LossScaling,
    Mesh,
    Network,
    Placement,
    Precision,
    ProgramBytes,
    World,
    describe_checkpoint,
    find_checkpoints,
    keep_newest,
    remove_checkpoint,
    verify_checkpoint,
    version_text,
)
from .checkpoints import BackgroundSave, load, save
from .diagnostics import (
    NotFiniteError,
    ParameterNorms,
    allocated_bytes,
    findings,
    groups,
    groups_text,
    norms,
    watch,
)
from .initialising import initialise, meta_parameters
from .optimizers import AdamW, clip_grad_norm_
from .planning import Plan, plan
from .programs import Program, Traffic, program
from .ranks import mesh, world
from .recomputing import checkpoint, checkpoint_context
from .state import ShardedTensor, full_state_dict
from .training import (
    edit_parameters,
    finish,
    gather,
    gradient_norm,
    idle_pass,
    micro_batches,
    named_parameters,
    parameters,
    publish,
    release,
)
from .units import Rule, fully_shard

__version__ = _built_with.SHERD_VERSION
__all__ = [name for name in dir() if not name.startswith("_")]
