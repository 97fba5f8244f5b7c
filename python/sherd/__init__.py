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

from .versions import check_versions as _check_versions

_check_versions()  # before the extension is loaded

from . import torch_gradients as _torch_gradients  # noqa: F401 (from here on torch's functions know sharded models)
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
    WorldOptions,
    describe_checkpoint,
    find_checkpoints,
    keep_newest,
    remove_checkpoint,
    verify_checkpoint,
    version_text,
)
from .buffers import meta_parameters
from .built_with import SHERD_VERSION as __version__
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
from .initialising import initialise
from .optimizers import AdamW, clip_grad_norm_
from .planning import Plan, plan
from .programs import Program, Traffic, program
from .ranks import mesh, open_world, world
from .recomputing import checkpoint, checkpoint_context
from .sharded_tensor import ShardedTensor
from .state import full_state_dict
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

__all__ = [
    "AdamW",
    "AdamWRule",
    "BackgroundSave",
    "Cut",
    "Finding",
    "Granule",
    "GroupReport",
    "LossScaling",
    "Mesh",
    "Network",
    "NotFiniteError",
    "ParameterNorms",
    "Placement",
    "Plan",
    "Precision",
    "Program",
    "ProgramBytes",
    "Rule",
    "ShardedTensor",
    "Traffic",
    "World",
    "WorldOptions",
    "allocated_bytes",
    "checkpoint",
    "checkpoint_context",
    "clip_grad_norm_",
    "describe_checkpoint",
    "edit_parameters",
    "find_checkpoints",
    "findings",
    "finish",
    "full_state_dict",
    "fully_shard",
    "gather",
    "gradient_norm",
    "groups",
    "groups_text",
    "idle_pass",
    "initialise",
    "keep_newest",
    "load",
    "mesh",
    "meta_parameters",
    "micro_batches",
    "named_parameters",
    "norms",
    "open_world",
    "parameters",
    "plan",
    "program",
    "publish",
    "release",
    "remove_checkpoint",
    "save",
    "verify_checkpoint",
    "version_text",
    "watch",
    "world",
]
