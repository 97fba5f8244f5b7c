# SPDX-License-Identifier: Apache-2.0
"""Every kind of model, strategy, execution and parameters trains as with torch alone: a selection in which each pair of
values occurs, or with SHERD_TEST_ALL every combination."""

import itertools
import os

import pytest
import torch

import sherd
from matrix_models import MODELS, make_pair

pytest.importorskip("transformers")

FACTORS = (
    tuple(MODELS),
    ("no_shard", "optim", "optim_grads", "optim_grads_params", "hsdp", "hfsdp"),
    ("eager", "compiled", "checkpointing"),
    ("plain", "tied", "frozen", "lora"),
)


def pairs_of(case):
    return set(itertools.combinations(enumerate(case), 2))


def pairwise(factors):
    """Returns combinations in which each pair of values of two factors occurs; greedily, so that they are few."""
    everything = list(itertools.product(*factors))
    open_pairs = set().union(*map(pairs_of, everything))
    chosen = []
    while open_pairs:
        best = max(everything, key=lambda case: len(pairs_of(case) & open_pairs))
        open_pairs -= pairs_of(best)
        chosen.append(best)
    return chosen


CASES = list(itertools.product(*FACTORS)) if "SHERD_TEST_ALL" in os.environ else pairwise(FACTORS)


def test_the_selection_has_every_pair():
    chosen = pairwise(FACTORS)
    everything = set().union(*map(pairs_of, itertools.product(*FACTORS)))
    assert set().union(*map(pairs_of, chosen)) == everything and len(chosen) < 45


def options_of(strategy, world):
    if strategy in ("hsdp", "hfsdp"):
        outer = "no_shard" if strategy == "hsdp" else "optim"
        return {"mesh": sherd.mesh(dp_outer=2, dp=world.size // 2), "strategy": ("optim_grads_params", outer)}
    return {"strategy": strategy}


def largest_difference(model, reference):
    full = sherd.full_state_dict(model)
    assert full.keys() == reference.state_dict().keys()
    return max((full[name] - value).abs().max().item() for name, value in reference.state_dict().items())


@pytest.mark.ranks(2)
@pytest.mark.parametrize("name, strategy, execution, parameters", CASES, ids=["-".join(case) for case in CASES])
def test_trains_like_torch(world, name, strategy, execution, parameters):
    kind = MODELS[name]
    model, reference = make_pair(name, parameters)
    if execution == "checkpointing":
        kind.checkpoint(model)
    if execution == "compiled":
        torch._dynamo.reset()
        for unit in kind.units(model):
            unit.compile(backend="aot_eager")
    options = options_of(strategy, world)
    for unit in kind.units(model):
        sherd.fully_shard(unit, **options)
    sherd.fully_shard(model, **options)
    settings = {"lr": 1e-3, "eps": 1e-5}
    optimizer = sherd.AdamW(model, **settings)
    plain = torch.optim.AdamW([one for one in reference.parameters() if one.requires_grad], **settings)
    for step in range(3):
        plain.zero_grad()
        expected = [kind.loss(reference, step, rank) for rank in range(world.size)]
        (sum(expected) / world.size).backward()
        plain.step()
        loss = kind.loss(model, step, world.rank)
        loss.backward()
        optimizer.step()
        assert abs(loss.item() - expected[world.rank].item()) < 1e-6 * max(1.0, loss.item())
    assert largest_difference(model, reference) < 1e-6
