# SPDX-License-Identifier: Apache-2.0
"""Tensors that are sharded over ranks, as torch.distributed.checkpoint (DCP) sees them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, MetadataIndex, TensorProperties
from torch.distributed.checkpoint.planner import TensorWriteData, WriteItem, WriteItemType

from . import _C

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


def sharded_tensor(shard: _C.Shard, local: torch.Tensor) -> ShardedTensor:
    """Returns a tensor of the shape of a whole parameter of which `local` has this rank's elements."""
    return ShardedTensor(local, shard.shape, shard.runs)


def take_elements(value: torch.Tensor, shard: _C.Shard, what: str) -> torch.Tensor:
    """Returns this rank's elements, flat, of a whole tensor or a ShardedTensor of a parameter's shape."""
    if hasattr(value, "full_tensor"):
        raise ValueError(f"[sherd] {what} is a DTensor: call full_tensor() on it first")
    if list(value.shape) != list(shard.shape):
        raise ValueError(f"[sherd] {what} has the shape {tuple(value.shape)}, but the model's is {tuple(shard.shape)}")
    if isinstance(value, ShardedTensor):
        if value.runs == shard.runs:
            return value.local
        parts = [value._elements(begin, count) for begin, count in shard.runs]
    else:
        flat = value.detach().reshape(-1)
        parts = [flat[begin : begin + count] for begin, count in shard.runs]
    return torch.cat(parts) if parts else shard.main.new_empty(0)
