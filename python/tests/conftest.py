# SPDX-License-Identifier: Apache-2.0
"""Tests of the package, on one process or on ranks that mpirun has started. All ranks run the same tests; after each
they agree on its result, because a rank that goes on alone would wait for the others."""

import os

import pytest
import torch

import sherd
from sherd import ranks

torch.set_num_threads(1)
ranks._world = sherd.World.from_environment(sherd.WorldOptions(operation_timeout=60.0))


@pytest.fixture(scope="session")
def world() -> sherd.World:
    return sherd.world()


def share_text(text: str, world: sherd.World) -> str:
    """Returns the first rank's text."""
    letters = torch.zeros(4096, dtype=torch.uint8)
    letters[: len(text)] = torch.tensor(list(text.encode()), dtype=torch.uint8)
    world.broadcast(letters)
    return bytes(letters[letters != 0].tolist()).decode()


@pytest.fixture
def shared_folder(tmp_path_factory: pytest.TempPathFactory, world: sherd.World) -> str:
    """A folder that is the same on all ranks."""
    return share_text(str(tmp_path_factory.mktemp("shared")), world)


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    report = (yield).get_result()
    if report.when == "call":
        item.failed_here = report.failed


def pytest_runtest_teardown(item):
    failed = torch.tensor([float(getattr(item, "failed_here", True))])
    sherd.world().all_reduce(failed, "max")
    if failed.item() and not getattr(item, "failed_here", True):
        pytest.exit(f"another rank has failed in {item.name}", returncode=1)
    if failed.item() and sherd.world().size > 1:
        pytest.exit(f"rank {sherd.world().rank} has failed in {item.name}", returncode=1)


def pytest_collection_modifyitems(config, items):
    """`all` marks what SHERD_TEST_ALL runs; `ranks(n)` what needs at least n ranks, `alone` one process."""
    world, chosen, left_out = sherd.world(), [], []
    for item in items:
        needed = next((mark.args[0] for mark in item.iter_markers("ranks")), 1)
        wanted = "SHERD_TEST_ALL" in os.environ or not item.get_closest_marker("all")
        most = 1 if item.get_closest_marker("alone") else world.size
        (chosen if wanted and needed <= world.size <= most else left_out).append(item)
    items[:] = chosen
    config.hook.pytest_deselected(items=left_out)


def pytest_configure(config):
    config.addinivalue_line("markers", "all: runs with SHERD_TEST_ALL only")
    config.addinivalue_line("markers", "alone: runs on one process only")
    config.addinivalue_line("markers", "ranks(n): needs at least n ranks")


@pytest.fixture(scope="session")
def process_group(tmp_path_factory: pytest.TempPathFactory, world: sherd.World):
    """torch.distributed over the same ranks, for meshes and checkpoints of torch."""
    path = share_text(str(tmp_path_factory.mktemp("store")), world)
    store = torch.distributed.FileStore(path + "/store", world.size)
    torch.distributed.init_process_group("gloo", store=store, rank=world.rank, world_size=world.size)
    yield torch.distributed.group.WORLD
    torch.distributed.destroy_process_group()
