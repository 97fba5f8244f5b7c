#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Each folder may include only itself and those before it; `files` and `plan` nothing of torch.

include_arrow.py ROOT
"""
import pathlib
import re
import sys

FOLDERS = ["files", "plan", "kernels", "device", "comm", "shard", "optim", "checkpoint", "nn", "models",
           "data", "configuration", "forecast", "train"]
TRAINER = {"data", "configuration", "forecast", "train"}
# These use the library through its public headers, as anybody could, and through few private ones, named here.
PUBLIC_ONLY = {"models"} | TRAINER
PRIVATE_BUT_SHARED = {
    "checkpoint/mapped_file.h": {"models", "data"},
    "checkpoint/safetensors.h": {"models"},
    "comm/flight/flight_ring.h": {"train"},
    "comm/host_names.h": {"train"},
    "comm/wait_time.h": {"train"},
    "nn/autocast.h": {"models"},
    "plan/price.h": {"forecast"},
    "shard/diagnostics/recording.h": {"forecast"},
    "shard/glob.h": {"configuration"},
    "shard/meta_memory.h": {"forecast"},
}
OPEN_TO_ALL = {"files", "device"}
TORCH = re.compile(r"<(torch|ATen|c10|c10d)/")
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"][^>"]+[>"])')


def neighbours(folder):
    """The folders whose private headers a folder may include."""
    return OPEN_TO_ALL | (TRAINER if folder in TRAINER else {folder})


def mistakes(root, path):
    """The includes of one file that go against the arrow, in words."""
    relative = path.relative_to(root)
    parts = relative.parts[1:] if relative.parts[0] == "src" else relative.parts[2:]
    folder = parts[0] if parts[0] in FOLDERS else None
    for number, line in enumerate(path.read_text().splitlines(), 1):
        match = INCLUDE.match(line)
        if not match:
            continue
        name = match.group(1)
        where = f"{relative}:{number}: {name}"
        if folder in ("files", "plan") and TORCH.match(name):
            yield f"{where}: {folder} knows nothing of torch"
        if name.strip('<>"') == "sherd/sherd.h" and folder not in PUBLIC_ONLY:
            yield f"{where}: that header includes every folder"
        target = name.strip('<>"').removeprefix("sherd/").split("/")[0]
        if relative.parts[0] == "include" and name.startswith('"') and not name.startswith('"sherd/'):
            yield f"{where}: a public header includes a private one"
        if target not in FOLDERS or folder is None:
            continue
        if FOLDERS.index(target) > FOLDERS.index(folder):
            yield f"{where}: {folder} stands before {target}"
        shared = folder in PRIVATE_BUT_SHARED.get(name.strip('<>"'), {})
        if folder in PUBLIC_ONLY and target not in neighbours(folder) and "sherd/" not in name and not shared:
            yield f"{where}: {folder} may use public headers only"


def main():
    root = pathlib.Path(sys.argv[1])
    files = [path for top in ("src", "include/sherd") for path in (root / top).rglob("*") if path.suffix in (".h", ".cpp", ".cu", ".cuh")]
    unknown = {path.parts[len(root.parts) + 1] for path in files if path.is_relative_to(root / "src")} - set(FOLDERS)
    found = [f"src/{name}: not a folder of the architecture" for name in sorted(unknown)]
    found += [text for path in sorted(files) for text in mistakes(root, path)]
    print("\n".join(found) or f"{len(files)} files follow the arrow")
    return 1 if found or not files else 0


if __name__ == "__main__":
    sys.exit(main())
