# SPDX-License-Identifier: Apache-2.0
"""State dicts of sharded models: whole, or sharded for torch.distributed.checkpoint (DCP)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, MetadataIndex, TensorProperties
from torch.distributed.checkpoint.planner import TensorWriteData, WriteItem, WriteItemType
from torch.nn.modules.module import _IncompatibleKeys

from . import _C
from .mirrors import named_parameters_for_sherd, sharded, unit_of

Box = tuple[tuple[int, ...], tuple[int, ...]]  # offsets and sizes


def boxes_of(shape: Sequence[int], begin: int, end: int) -> list[Box]:
    """Returns the elements [begin, end) of a tensor of this shape, in row-major order, as boxes in that order."""
    if begin >= end:
        return []
    if len(shape) == 0:
        return [((), ())]
    if len(shape) == 1:
        return [((begin,), (end - begin,))]
    row = torch.Size(shape[1:]).numel()
    first, last = -(-begin // row), end // row  # whole rows: first to last
    if first > last:  # within one row

        def within(index: int, low: int, high: int) -> list[Box]:
            return [((index, *offsets), (1, *sizes)) for offsets, sizes in boxes_of(shape[1:], low, high)]

        return within(last, begin - last * row, end - last * row)
    result = []
    for low, high in ((begin, first * row), (first * row, last * row), (last * row, end)):
        if low >= high:
            continue
        if high - low >= row and low % row == 0:
            result.append(((low // row, *[0] * (len(shape) - 1)), ((high - low) // row, *shape[1:])))
            continue
        index = low // row
        for offsets, sizes in boxes_of(shape[1:], low - index * row, high - index * row):
            result.append(((index, *offsets), (1, *sizes)))
    return result


class ShardedTensor(torch.Tensor):
    """This rank's elements of a tensor that is sharded over ranks, as state_dict() of a sharded model has it. It has
    the shape of the whole, but no operations: torch.distributed.checkpoint saves and loads it. `local` has the
    elements, flat; `boxes` says which ones they are."""

    local: torch.Tensor
    runs: list[tuple[int, int]]
    boxes: list[Box]

    @staticmethod
    def __new__(cls, local: torch.Tensor, shape: Sequence[int], runs: list[tuple[int, int]]) -> ShardedTensor:
        self = torch.Tensor._make_wrapper_subclass(cls, torch.Size(shape), dtype=local.dtype, device=local.device)
        self.local = local.detach()
        self.runs = runs
        self.boxes = [box for begin, count in runs for box in boxes_of(shape, begin, begin + count)]
        return self

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise NotImplementedError(
            f"[sherd] {function} of a ShardedTensor, which has one rank's elements: use sherd.full_state_dict(model) "
            "for whole tensors, sherd.save or torch.distributed.checkpoint to save a model"
        )

    def __repr__(self, *, tensor_contents: object = None) -> str:
        return f"ShardedTensor({tuple(self.shape)}, {self.dtype}, {self.local.numel()} elements here)"

    def __deepcopy__(self, memo: object) -> ShardedTensor:
        return ShardedTensor(self.local.clone(), self.shape, self.runs)

    def __reduce_ex__(self, protocol: object) -> Any:
        raise RuntimeError(
            "[sherd] a ShardedTensor can't be pickled: use sherd.full_state_dict(model) with torch.save, or sherd.save"
        )

    def _elements(self, begin: int, count: int) -> torch.Tensor:
        """Elements of the whole tensor that this rank has."""
        position = 0
        for first, length in self.runs:
            if first <= begin and begin + count <= first + length:
                return self.local[position + begin - first :][:count]
            position += length
        raise ValueError(f"[sherd] this rank does not have the elements {begin} to {begin + count} of {self!r}")

    # What DCP asks a tensor for.

    def __create_write_items__(self, name: str, _: object) -> list[WriteItem]:
        properties = TensorProperties.create_from_tensor(self.local)
        return [
            WriteItem(
                index=MetadataIndex(name, chunk.offsets, number),
                type=WriteItemType.SHARD,
                tensor_data=TensorWriteData(chunk=chunk, properties=properties, size=self.shape),
            )
            for number, chunk in enumerate(self.__create_chunk_list__())
        ]

    def __create_chunk_list__(self) -> list[ChunkStorageMetadata]:
        return [ChunkStorageMetadata(torch.Size(offsets), torch.Size(sizes)) for offsets, sizes in self.boxes]

    def __get_tensor_shard__(self, index: MetadataIndex) -> torch.Tensor:
        position = 0
        for offsets, sizes in self.boxes:
            count = torch.Size(sizes).numel()
            if torch.Size(offsets) == index.offset:
                return self.local[position : position + count].view(sizes)
            position += count
        raise IndexError(f"[sherd] {self!r} has nothing at {index.offset}")


# ---- models ---------------------------------------------------------------------------------------------------------


class _Entry(NamedTuple):
    shard: _C.Shard
    parameter: torch.nn.Parameter


def shards_by_parameter(model: torch.nn.Module) -> dict[int, _Entry]:
    """Returns this rank's part of each sharded parameter of a root, by the parameter's id."""
    parameters = named_parameters_for_sherd(model)
    entries = [_Entry(shard, parameters[shard.name]) for shard in _C.shards(sharded(model))]
    return {id(entry.parameter): entry for entry in entries}


def sharded_state_dict(plain: Callable[..., dict[str, Any]], unit: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
    """Returns the state dict of a unit; `plain` makes the one that torch would, whose parameters can't be read."""
    keep_vars = kwargs.pop("keep_vars", False)
    state = plain(unit, *args, keep_vars=True, **kwargs)  # then values are the parameters themselves
    shards: dict[int, _Entry] = {}
    for name, value in state.items():
        if not isinstance(value, torch.Tensor) or isinstance(value, ShardedTensor):
            continue
        root = unit_of(value)
        if root is None:
            state[name] = value if keep_vars else value.detach()
            continue
        shards = shards or shards_by_parameter(root)
        shard = shards[id(value)].shard
        state[name] = ShardedTensor(shard.main, shard.shape, shard.runs)
    return state


def full_state_dict(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Returns the state dict of a root with whole tensors (main weights), on every rank's device: takes the memory of
    the whole model. Has the keys that the model's state_dict() had before it was sharded. Collective; blocks."""
    whole = dict(_C.full_parameters(sharded(model)))
    entries = shards_by_parameter(model)
    by_parameter = {number: whole[entry.shard.name] for number, entry in entries.items()}
    state = type(model)._sherd_base.state_dict(model, keep_vars=True)  # type: ignore[attr-defined]
    for name, value in _parameters_of_state(model, state).items():
        state[name] = by_parameter[id(value)] if id(value) in by_parameter else value.detach()
    return state


def _parameters_of_state(model: torch.nn.Module, state: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """Inner units have put ShardedTensors into the state dict: returns the parameters (and buffers) instead."""
    parameters = named_parameters_for_sherd(model)
    clean = {_without_wrappers(name): name for name in state}
    found = {name: value for name, value in state.items() if not isinstance(value, ShardedTensor)}
    for name, parameter in parameters.items():
        if name in clean:
            found[clean[name]] = parameter
    return found


def _without_wrappers(name: str) -> str:
    return name.replace("_orig_mod.", "").replace("_checkpoint_wrapped_module.", "")


def load_state_dict(model: torch.nn.Module, state: Mapping[str, Any], *, strict: bool = True) -> _IncompatibleKeys:
    """Loads a state dict of whole tensors or ShardedTensors into a root and publishes it. Collective; blocks."""
    given = {_without_wrappers(name): value for name, value in state.items()}
    parameters = named_parameters_for_sherd(model)
    names_of: dict[int, list[str]] = {}
    for name, parameter in parameters.items():
        names_of.setdefault(id(parameter), []).append(name)
    own = {_without_wrappers(name): value for name, value in model.state_dict().items()}
    missing = [name for name in own if name not in given]
    # A tied parameter may be there by one of its names only, as in the checkpoints of transformers.
    missing = [
        name
        for name in missing
        if name not in parameters or not any(other in given for other in names_of[id(parameters[name])])
    ]
    unexpected = [name for name in given if name not in own]
    wrong = [
        f"'{name}' has the shape {tuple(given[name].shape)}, but the model's is {tuple(value.shape)}"
        for name, value in own.items()
        if name in given and given[name].shape != value.shape
    ]
    if wrong or (strict and (missing or unexpected)):
        raise RuntimeError(
            f"[sherd] the state dict does not fit {type(model).__name__}: missing {missing}, unexpected {unexpected}, "
            f"wrong shapes: {'; '.join(wrong) or 'none'}"
        )
    _load_elements(model, given, names_of, parameters)
    for name, buffer in model.named_buffers():
        clean = _without_wrappers(name)
        if clean in given and clean in own:
            buffer.copy_(given[clean])
    return _IncompatibleKeys(missing, unexpected)


def _load_elements(
    model: torch.nn.Module,
    given: Mapping[str, Any],
    names_of: Mapping[int, list[str]],
    parameters: Mapping[str, torch.nn.Parameter],
) -> None:
    entries = {shard.name: shard for shard in _C.shards(sharded(model))}
    flat: dict[str, torch.Tensor] = {}

    def read(name: str, begin: int, count: int) -> torch.Tensor:
        value = next((given[one] for one in names_of[id(parameters[name])] if one in given), None)
        if value is None:  # not strict: it keeps its values
            shard = entries[name]
            return ShardedTensor(shard.main, shard.shape, shard.runs)._elements(begin, count).cpu()
        if isinstance(value, ShardedTensor):
            return value._elements(begin, count).cpu()
        if name not in flat:
            flat[name] = value.detach().reshape(-1)
        return flat[name][begin : begin + count].cpu()

    for value in given.values():
        if hasattr(value, "full_tensor"):
            raise ValueError("[sherd] the state dict has DTensors: call full_tensor() on them first")
    _C.load_from(sharded(model), set(), read)
