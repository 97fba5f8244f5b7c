# SPDX-License-Identifier: Apache-2.0
"""Trains a small model; rank 1 does what the argument says in the third step: see test_failures.py."""

import os
import signal
import sys
import time

import torch

import sherd
from parity import Net, sample, shard, square

how = sys.argv[1]
number = int(os.environ.get("OMPI_COMM_WORLD_RANK") or os.environ["RANK"])
if how == "absent" and number == 1:
    time.sleep(12)
    sys.exit(0)
world = sherd.open_world(sherd.WorldOptions(start_timeout=4.0, operation_timeout=20.0))
torch.manual_seed(0)
net = shard(Net())
optimizer = sherd.AdamW(net)
for step in range(5):
    if step == 2 and world.rank == 1:
        if how == "raise":
            raise KeyError("the data of rank 1")
        if how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if how == "leave":
            sys.exit(0)
    square(net, sample(step, world.rank)).backward()
    optimizer.step()
print("trained")
