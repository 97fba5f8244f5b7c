# SPDX-License-Identifier: Apache-2.0
"""Checkpoint folders: the model in the format of Hugging Face, with the optimizer's state and checksums."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from . import _C
from .agreement import first_ranks_answer, on_all_ranks
from .buffers import check_values, recreate_buffers, set_values, whole_tensors
from .mirrors import check_unchanged, named_buffers_left_out, named_parameters_for_sherd, sharded
from .optimizers import AdamW
from .safetensors_folder import SafetensorsFolder
from .state import names_by_parameter

_STATE = "state.json"  # what a folder that Sherd has written has


def save(
    model: torch.nn.Module,
    folder: str | os.PathLike[str],
    *,
    optimizer: AdamW | None = None,
    export_dtype: torch.dtype | None = None,
    export_fp8: Sequence[str] = (),
    texts: Mapping[str, str] | None = None,
    numbers: Mapping[str, int] | None = None,
) -> None:
    """Writes a checkpoint folder, which any number of ranks, any strategy and from_pretrained() can load. Call it
    between steps. Left out are buffers that are not persistent and the extra state of modules (get_extra_state).
    Collective; blocks until it is on the disk; a crash
    leaves an older folder of that name as it was.

    optimizer: whose state is saved, too.
    export_dtype: dtype of the model files; default: that of the main weights.
    export_fp8: patterns of matrices that the model files have in fp8.
    texts: further small files by name; config.json is written by itself if the model has a `config`.
    numbers: further numbers for state.json, such as the step; load() returns them.
    """
    options = _save_options(model, export_dtype, export_fp8, texts, numbers)
    _C.save(sharded(model), _implementation(optimizer), os.fspath(folder), options)


def load(
    model: torch.nn.Module, folder: str | os.PathLike[str], *, optimizer: AdamW | None = None
) -> dict[str, int]:
    """Loads a checkpoint into a root and publishes it: one that save() has written, or a folder of safetensors files as
    the Hugging Face hub has them, if the tensors have the names of the model's parameters. Parameters may be on the
    meta device. Each rank reads its own elements. Call it between steps. Returns the numbers of state.json (none for
    other folders). Collective; blocks; errors raise on all ranks."""
    mirror, implementation = sharded(model), _implementation(optimizer)
    check_unchanged(model)
    world = model.__dict__["_sherd_world"]
    recreate_buffers(model, world.device)
    path = Path(folder)
    if first_ranks_answer(world, lambda: _is_of_sherd(path)):
        left_out = named_buffers_left_out(model)
        check_values(model, whole_tensors(model).keys() - left_out)
        return _C.load(mirror, implementation, os.fspath(folder), left_out)
    if optimizer is not None:
        raise ValueError(f"[sherd] {folder} has no optimizer's state: it was not written by sherd.save")
    _load_safetensors(model, path)
    return {}


def _is_of_sherd(path: Path) -> bool:
    return any(Path(f"{path}{suffix}", _STATE).exists() for suffix in ("", ".part", ".old"))  # a save may have crashed


class BackgroundSave:
    """Saves checkpoints while training goes on: a thread writes copies of the state. A loop calls begin() after an
    update, then before_update() before and advance() after each further one, on all ranks, until that returns True."""

    def __init__(self) -> None:
        self._impl = _C.BackgroundSave()
        self._model: torch.nn.Module | None = None  # must outlive the save

    def reserve(self, model: torch.nn.Module, optimizer: AdamW | None = None) -> int:
        """Allocates the host memory for the copies now, and returns its bytes."""
        return self._impl.reserve(sharded(model), _implementation(optimizer))

    def begin(
        self,
        model: torch.nn.Module,
        folder: str | os.PathLike[str],
        *,
        optimizer: AdamW | None = None,
        export_dtype: torch.dtype | None = None,
        export_fp8: Sequence[str] = (),
        texts: Mapping[str, str] | None = None,
        numbers: Mapping[str, int] | None = None,
    ) -> None:
        """Begins to save the present state, as save() does. Collective."""
        options = _save_options(model, export_dtype, export_fp8, texts, numbers)
        self._impl.begin(sharded(model), _implementation(optimizer), os.fspath(folder), options)
        self._model = model

    def before_update(self) -> None:
        """Makes the next update wait for the copies. Call it before each update while a save is under way."""
        self._impl.before_update()

    def advance(self) -> bool:
        """Waits for the current stage and starts the next; returns True when the save is finished. Collective."""
        return self._impl.advance()

    def finish(self) -> None:
        """Blocks until the checkpoint is on the disk. Collective."""
        self._impl.finish()

    @property
    def under_way(self) -> bool:
        """Whether a save has begun and is not finished: the same on all ranks."""
        return self._impl.under_way()

    @property
    def idle(self) -> bool:
        """Whether advance() would not wait for this rank's own work. Ranks may differ."""
        return self._impl.idle()


def _implementation(optimizer: AdamW | None) -> _C.AdamW | None:
    if optimizer is None:
        return None
    if not isinstance(optimizer, AdamW):
        raise TypeError(
            f"[sherd] the optimizer is a {type(optimizer).__name__}: checkpoint folders have the state of sherd.AdamW "
            "alone; save that of other optimizers with torch.distributed.checkpoint"
        )
    return optimizer._impl


def _save_options(
    model: torch.nn.Module,
    export_dtype: torch.dtype | None,
    export_fp8: Sequence[str],
    texts: Mapping[str, str] | None,
    numbers: Mapping[str, int] | None,
) -> _C.SaveOptions:
    sharded(model)
    check_unchanged(model)
    return _C.SaveOptions(
        left_out=named_buffers_left_out(model),
        export_dtype=export_dtype,
        export_fp8=list(export_fp8),
        texts={**_config_of(model, export_dtype), **(texts or {})},
        numbers=dict(numbers or {}),
    )


def _config_of(model: torch.nn.Module, export_dtype: torch.dtype | None) -> dict[str, str]:
    """The config.json of a model of transformers, with the dtype that its files have."""
    config = getattr(model, "config", None)
    if not hasattr(config, "to_json_string"):
        return {}
    if not config.architectures:
        config.architectures = [type(model).__name__]
    entries = json.loads(config.to_json_string(use_diff=False))
    for name in ("dtype", "torch_dtype"):
        if export_dtype is not None and name in entries:
            entries[name] = str(export_dtype).removeprefix("torch.")
    return {"config.json": json.dumps(entries, indent=2) + "\n"}


def _load_safetensors(model: torch.nn.Module, path: Path) -> None:
    mirror, world = sharded(model), model.__dict__["_sherd_world"]
    shards = _C.shards(mirror)  # the first use of a root is collective
    whole = {name: tensor for name, tensor in whole_tensors(model).items() if name not in named_buffers_left_out(model)}

    def check() -> tuple[SafetensorsFolder, dict[str, str]]:
        folder = SafetensorsFolder(path)
        names = names_by_parameter(model)
        wanted = {shard.name: shard.shape for shard in shards}
        wanted |= {name: list(tensor.shape) for name, tensor in whole.items()}
        source = _sources(model, folder, wanted, names)
        known = named_parameters_for_sherd(model).keys() | named_buffers_left_out(model) | wanted.keys()
        unused = sorted(folder.names() - known)
        if unused:
            raise ValueError(f"[sherd] {path} has tensors that the model has no parameter for: {unused}")
        check_values(model, wanted)
        return folder, source

    folder, source = on_all_ranks(world, check)
    _C.load_from(mirror, set(), lambda name, begin, count: folder.read(source[name], begin, count))

    def set_whole() -> None:
        for name, tensor in whole.items():
            set_values(tensor, folder.read(source[name], 0, tensor.numel()).view(tensor.shape), world.device)

    on_all_ranks(world, set_whole)


def _sources(
    model: torch.nn.Module, folder: SafetensorsFolder, wanted: dict[str, list[int]], names: dict[int, list[str]]
) -> dict[str, str]:
    """Returns the name in the folder of each tensor: of a tied parameter any of its names."""
    parameters = named_parameters_for_sherd(model)
    source = {}
    for name, shape in wanted.items():
        candidates = names[id(parameters[name])] if name in parameters else [name]
        stored = next((one for one in candidates if folder.shape(one) is not None), None)
        if stored is None:
            raise ValueError(f"[sherd] {folder.folder} has no tensor '{name}'")
        if folder.shape(stored) != shape:
            raise ValueError(
                f"[sherd] {folder.folder}: tensor '{stored}' has the shape {folder.shape(stored)}, but the model's is "
                f"{shape}"
            )
        source[name] = stored
    return source
