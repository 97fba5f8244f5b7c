#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Each unit has a range per phase, and each instruction one of its own: ranges_test.py RECORDER TOY"""
import os
import subprocess
import sys
from collections import Counter

recorder, toy = sys.argv[1:]
out = subprocess.run([toy], env=dict(os.environ, NVTX_INJECTION64_PATH=recorder), check=True, capture_output=True,
                     text=True).stdout
open_ranges, depth, seen = [], 0, Counter()
for line in out.splitlines():
    what, _, name = line.partition(" ")
    if what == "start":
        open_ranges.append(name)
        seen[name] += 1
    elif what == "end":
        open_ranges.remove(name)
    elif what == "push":
        depth += 1
        seen[name] += 1
    elif what == "pop":
        depth -= 1
        assert depth >= 0, "a range is left that was not entered"
assert not open_ranges and depth == 0, f"still open: {open_ranges}, {depth} scopes"
steps = 50
for block in range(4):
    for phase in ("forward", "backward"):
        assert seen[f"{phase} block{block}"] == steps, (phase, block, seen)
assert seen["forward Toy"] == seen["backward Toy"] == seen["update Toy"] == steps, seen
for action, count in (("gather", 2), ("reduce", 1), ("accumulate", 1)):
    names = [name for name in seen if name.startswith(f"{action} block2/")]
    assert len(names) == 1 and seen[names[0]] == count * steps, (action, names, seen)
