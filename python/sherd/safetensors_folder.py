# SPDX-License-Identifier: Apache-2.0
"""Folders of safetensors files that Sherd has not written, as models are distributed: each rank reads the elements that
it needs."""

from __future__ import annotations

import json
import mmap
import os
from pathlib import Path
from typing import NamedTuple

import torch

_DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}


class _Tensor(NamedTuple):
    file: Path
    dtype: torch.dtype
    shape: list[int]
    begin: int  # first byte in the file


class SafetensorsFolder:
    """The tensors of all *.safetensors files of a folder, by name."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)
        self._tensors: dict[str, _Tensor] = {}
        self._maps: dict[Path, mmap.mmap] = {}
        for file in self._files():
            self._read_header(file)

    def _files(self) -> list[Path]:
        """The files of the index if there is one: folders of the hub may have the same weights twice, under other names
        (consolidated.safetensors)."""
        indices = sorted(self.folder.glob("*.safetensors.index.json"))
        indices = [one for one in indices if one.name == "model.safetensors.index.json"] or indices
        if len(indices) > 1:
            raise ValueError(f"[sherd] {self.folder} has several models: {[one.name for one in indices]}")
        single = self.folder / "model.safetensors"
        if indices:
            entries = json.loads(indices[0].read_text())["weight_map"]
            return [self.folder / name for name in sorted(set(entries.values()))]
        files = [single] if single.exists() else sorted(self.folder.glob("*.safetensors"))
        if not files:
            raise ValueError(f"[sherd] {self.folder} has no *.safetensors files")
        return files

    def _read_header(self, file: Path) -> None:
        with file.open("rb") as opened:
            size = int.from_bytes(opened.read(8), "little")
            if size > 100 << 20:
                raise ValueError(f"[sherd] {file} is not a safetensors file: its header would have {size} bytes")
            header = json.loads(opened.read(size))
        for name, entry in header.items():
            if name == "__metadata__":
                continue
            if entry["dtype"] not in _DTYPES:
                raise ValueError(f"[sherd] {file}: tensor '{name}' is {entry['dtype']}, which is not supported")
            if name in self._tensors:
                raise ValueError(f"[sherd] tensor '{name}' is in {self._tensors[name].file} and in {file}")
            begin = 8 + size + entry["data_offsets"][0]
            self._tensors[name] = _Tensor(file, _DTYPES[entry["dtype"]], entry["shape"], begin)

    def shape(self, name: str) -> list[int] | None:
        """Returns the shape of a tensor; None if there is none of this name."""
        found = self._tensors.get(name)
        return None if found is None else found.shape

    def names(self) -> set[str]:
        """Returns the names of all tensors."""
        return set(self._tensors)

    def read(self, name: str, begin: int, count: int) -> torch.Tensor:
        """Returns `count` elements of a tensor from element `begin` on, flat."""
        tensor = self._tensors[name]
        if tensor.file not in self._maps:
            with tensor.file.open("rb") as opened:
                self._maps[tensor.file] = mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_COPY)
        offset = tensor.begin + begin * tensor.dtype.itemsize
        return torch.frombuffer(self._maps[tensor.file], dtype=tensor.dtype, count=count, offset=offset)
