# SPDX-License-Identifier: Apache-2.0
"""Checkpoint folders: the model in the format of Hugging Face, with the optimizer's state and checksums."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from . import _C
from .mirrors import named_buffers_left_out, named_parameters_for_sherd, sharded
from .optimizers import AdamW
from .safetensors_folder import SafetensorsFolder

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
    between steps. Buffers that are not persistent are left out. Collective; blocks until it is on the disk; a crash
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
    path = Path(folder)
    if any(Path(f"{path}{suffix}", _STATE).exists() for suffix in ("", ".part", ".old")):  # a save may have crashed
        left_out = set(named_buffers_left_out(model))
        numbers = _C.load(sharded(model), _implementation(optimizer), os.fspath(folder), left_out)
    else:
        if optimizer is not None:
            raise ValueError(f"[sherd] {folder} has no optimizer's state: it was not written by sherd.save")
        _load_safetensors(model, SafetensorsFolder(path))
        numbers = {}
    _check_buffers(model)
    return numbers


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
            "alone; save that of other optimizers with torch.save on each rank"
        )
    return optimizer._impl


def _save_options(
    model: torch.nn.Module,
    export_dtype: torch.dtype | None,
    export_fp8: Sequence[str],
    texts: Mapping[str, str] | None,
    numbers: Mapping[str, int] | None,
) -> _C.SaveOptions:
    return _C.SaveOptions(
        left_out=set(named_buffers_left_out(model)),
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


def _load_safetensors(model: torch.nn.Module, folder: SafetensorsFolder) -> None:
    parameters = named_parameters_for_sherd(model)
    names_of: dict[int, list[str]] = {}
    for name, parameter in parameters.items():
        names_of.setdefault(id(parameter), []).append(name)
    source: dict[str, str] = {}  # a tied parameter is there by one of its names
    for shard in _C.shards(sharded(model)):
        stored = [name for name in names_of[id(parameters[shard.name])] if folder.shape(name) is not None]
        if not stored:
            raise ValueError(f"[sherd] {folder.folder} has no tensor '{shard.name}'")
        if folder.shape(stored[0]) != shard.shape:
            raise ValueError(
                f"[sherd] {folder.folder}: tensor '{stored[0]}' has the shape {folder.shape(stored[0])}, but the "
                f"model's is {shard.shape}"
            )
        source[shard.name] = stored[0]
    left_out = set(named_buffers_left_out(model))
    for name, buffer in model.named_buffers():
        if name in left_out:
            continue
        if folder.shape(name) != list(buffer.shape):
            raise ValueError(f"[sherd] {folder.folder} has no tensor '{name}' of the shape {list(buffer.shape)}")
    unused = folder.names() - set(parameters) - {name for name, _ in model.named_buffers()}
    if unused:
        raise ValueError(f"[sherd] {folder.folder} has tensors that the model has no parameter for: {sorted(unused)}")
    _C.load_from(
        sharded(model), left_out, lambda name, begin, count: folder.read(source.get(name, name), begin, count)
    )
    for name, buffer in model.named_buffers():
        if name not in left_out and not buffer.is_meta:
            buffer.copy_(folder.read(name, 0, buffer.numel()).view(buffer.shape))


def _check_buffers(model: torch.nn.Module) -> None:
    """Buffers that no checkpoint has must have been built with values."""
    without = [name for name, buffer in model.named_buffers() if buffer.is_meta]
    if without:
        raise ValueError(
            f"[sherd] the checkpoint does not have the buffers {without}, which are on the meta device: build the "
            "model under sherd.meta_parameters(), where buffers have values"
        )
