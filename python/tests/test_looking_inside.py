# SPDX-License-Identifier: Apache-2.0
"""Programs, plans and diagnostics."""

import pytest
import torch

import sherd
from parity import DIM, Net, sample, shard, square


def test_programs(world):
    net = shard(Net())
    program = sherd.program(net)
    assert "gather" in str(program) and program.json()["sections"]
    need, have = program.bytes, sherd.allocated_bytes(net)
    for kind in ("model_weights", "main_weights", "main_gradients", "arena"):
        assert getattr(need, kind) == have[kind], kind
    assert need.peak == need.rest + need.arena
    # Each of four units is gathered in the forward, and all but the root's last again in the backward.
    assert program.traffic["reduce_scatter"].calls == 4
    assert program.traffic["all_gather"].calls >= 7
    assert program.fingerprint == sherd.program(net).fingerprint
    square(net, sample(0, 0)).backward()
    sherd.AdamW(net).step()


def test_pages(world):
    """As HTML, with the numbers of the program, and well-formed."""
    import xml.etree.ElementTree as xml

    net = shard(Net())
    program = sherd.program(net)
    page = program.to_html()
    tree = xml.fromstring(page.replace("<br>", "<br/>"))
    cells = ["".join(cell.itertext()) for cell in tree.iter("td")]
    for kind, traffic in program.traffic.items():
        assert cells[cells.index(kind) + 1] == str(traffic.calls)
    sections = program.json()["sections"]
    assert [one.text.split(":")[0] for one in tree.iter("summary")] == [one["name"] for one in sections]
    gathers = [cell for cell in tree.iter("td") if cell.text and cell.text.startswith("gather ")]
    shown = sum(len(list(cell.iter("br"))) + 1 for cell in gathers)
    assert shown >= sum(one["action"] == "gather" for section in sections for one in section["instructions"])
    assert program._repr_html_() == page
    planned = sherd.plan(lambda: shard(Net()), world=8, network=sherd.Network(latency=1e-5, bandwidth=1e9))
    text = "".join(xml.fromstring(planned._repr_html_().replace("<br>", "<br/>")).itertext())
    assert "one rank of 8" in text and f"{len(planned.groups)} groups" in text


def test_budgets():
    with pytest.raises(RuntimeError, match="budget"):
        net = Net()
        for block in net.blocks:
            sherd.fully_shard(block)
        sherd.fully_shard(net, budget=100)
        sherd.program(net)


def test_plans_of_large_worlds():
    def build():
        net = Net(layers=8)
        assert net.head.weight.is_meta
        return shard(net, precision="bf16_o2")

    network = sherd.Network(latency=1e-5, bandwidth=1e9)
    small, large = (sherd.plan(build, world=ranks, network=network) for ranks in (4, 64))
    assert large.program.bytes.rest < small.program.bytes.rest / 8
    assert large.collective_seconds > 0 and "one rank of 64" in str(large)
    hybrid = sherd.plan(
        lambda: shard(Net(), strategy=("optim_grads_params", "no_shard")), world={"dp_outer": 4, "dp": 8}
    )
    assert hybrid.ranks == 32 and hybrid.program.traffic["all_reduce"].calls > 0
    assert sherd.mesh().size == sherd.world().size, "the plan's world is gone"


def test_a_plan_is_what_a_run_allocates(world):
    def build():
        return shard(Net())

    planned = sherd.plan(build, world=world.size, rank=world.rank).program
    assert planned.bytes.peak == sherd.program(build()).bytes.peak


def test_norms_and_groups(world):
    net = shard(Net())
    square(net, sample(0, 0)).backward()
    norms = {one.parameter: one for one in sherd.norms(net)}
    assert len(norms) == len(list(net.parameters()))
    whole = sum(one.gradient**2 for one in norms.values()) ** 0.5
    assert abs(whole - sherd.gradient_norm(net)) < 1e-6
    weight = sherd.full_state_dict(net)["head.weight"].norm().item()
    assert abs(norms["head.weight"].weight - weight) < 1e-5
    assert sum(group.elements for group in sherd.groups(net)) == 3 * (4 * DIM * DIM + 3 * DIM) + DIM * DIM + DIM
    assert "blocks.0" in sherd.groups_text(net)


def test_gradients_that_are_not_finite():
    net = shard(Net())
    optimizer = sherd.AdamW(net)
    before = sherd.full_state_dict(net)
    (square(net, sample(0, 0)) * float("nan")).backward()
    with pytest.raises(sherd.NotFiniteError, match="no weight was changed") as raised:
        optimizer.step()
    assert raised.value.findings[0].fault == "nan" and raised.value.findings[0].parameter in before
    after = sherd.full_state_dict(net)
    assert all(torch.equal(before[name], after[name]) for name in before)
    sherd.watch(net, enabled=True, before_reduction=True, exploding=0)
    square(net, sample(0, 0)).backward()
    optimizer.step()
    assert sherd.findings(net) == []


def test_loss_scaling():
    net = shard(Net())
    optimizer = sherd.AdamW(net, scaling=sherd.LossScaling(initial=1024, interval=1))
    optimizer.scale(square(net, sample(0, 0))).backward()
    optimizer.step()
    assert optimizer.loss_scale == 2048 and optimizer.updates == 1
    assert optimizer.gradient_norm() == pytest.approx(optimizer.gradient_norm_on_device().item())


def test_rules_of_adamw():
    net = shard(Net())
    optimizer = sherd.AdamW(net, weight_decay=0.1, rules=[sherd.AdamWRule("blocks.*", lr_factor=0)])
    before = sherd.full_state_dict(net)
    square(net, sample(0, 0)).backward()
    optimizer.step()
    after = sherd.full_state_dict(net)
    assert all(torch.equal(before[name], after[name]) == name.startswith("blocks.") for name in before)
    assert optimizer.allocated_bytes()["moments"] > 0
