# SPDX-License-Identifier: Apache-2.0
"""Sharded training does what torch does alone."""

import copy

import pytest
import torch

import sherd
from parity import DIM, Block, Net, largest_difference, sample, shard, square, trains_like_torch

STRATEGIES = ("no_shard", "optim", "optim_grads", "optim_grads_params")


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_every_strategy(strategy):
    trains_like_torch(Net(), strategy=strategy)


@pytest.mark.all
@pytest.mark.ranks(4)
@pytest.mark.parametrize("inner", STRATEGIES)
@pytest.mark.parametrize("outer", STRATEGIES)
def test_every_pair_of_strategies_over_two_axes(world, inner, outer):
    mesh = sherd.mesh(dp_outer=2, dp=world.size // 2)
    if STRATEGIES.index(outer) > STRATEGIES.index(inner):
        with pytest.raises(ValueError, match="outer"):
            shard(Net(), mesh=mesh, strategy=(inner, outer))
        return
    trains_like_torch(Net(), mesh=mesh, strategy=(inner, outer))


@pytest.mark.ranks(2)
@pytest.mark.parametrize("outer", ("no_shard", "optim"))
def test_hsdp_and_hfsdp(world, outer):
    mesh = sherd.mesh(dp_outer=2, dp=world.size // 2)
    trains_like_torch(Net(), mesh=mesh, strategy=("optim_grads_params", outer))


def test_micro_batches():
    trains_like_torch(Net(), micro_batches=3)


@pytest.mark.parametrize("options", [{"keep_gathered": True}, {"prefetch_depth": 2}, {"memory": "eager"}])
def test_options_of_units_and_roots(options):
    net = Net()
    unit = {name: value for name, value in options.items() if name == "keep_gathered"}
    reference = copy.deepcopy(net)
    for block in net.blocks:
        sherd.fully_shard(block, **unit)
    sherd.fully_shard(net, **options)
    optimizer = sherd.AdamW(net)
    for _ in range(3):
        square(net, sample(0, 0)).backward()
        optimizer.step()
    plain = torch.optim.AdamW(reference.parameters())
    for _ in range(3):
        plain.zero_grad()
        square(reference, sample(0, 0)).backward()
        plain.step()
    assert largest_difference(net, reference) < 1e-6


def test_rules_and_ignored():
    net = Net()
    for block in net.blocks:
        sherd.fully_shard(block, rules=[sherd.Rule("*.bias", strategy="no_shard", granule=sherd.Granule.whole())])
    sherd.fully_shard(net, ignored=["head.bias"])
    optimizer = sherd.AdamW(net)
    square(net, sample(0, 0)).backward()
    assert net.head.bias.grad is not None
    assert "head.bias" not in dict(sherd.named_parameters(net))
    torch.optim.SGD([net.head.bias], lr=0.1).step()
    optimizer.step()
    groups = {(group.unit, group.group) for group in sherd.groups(net)}
    assert len([unit for unit, _ in groups if unit == "blocks.0"]) == 2, groups


def test_a_bad_option_is_a_value_error():
    with pytest.raises(ValueError, match="strategy.*optim_grads_params"):
        sherd.fully_shard(Net(), strategy="zero3")
    with pytest.raises(ValueError, match="known.*bf16_o2|bf16_o2"):
        sherd.fully_shard(Net(), precision="bf17")
    with pytest.raises(ValueError, match="loss is 'sun'; it must be one of 'mean'"):
        sherd.fully_shard(Net(), loss="sun")


@pytest.mark.parametrize(
    "precision",
    [
        "bf16_o2",
        sherd.Precision(compute=torch.bfloat16, main=torch.float32),
        sherd.Precision(autocast=torch.bfloat16),
        torch.distributed.fsdp.MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32),
    ],
    ids=["recipe", "policy", "autocast", "fsdp2_policy"],
)
def test_precision(precision):
    seen = []

    class Seeing(Block):
        def forward(self, x):
            seen.append(self.up.weight.dtype)
            return super().forward(x)

    trains_like_torch(Net(Seeing), precision=precision, tolerance=0.1)
    assert (torch.bfloat16 in seen) == (getattr(precision, "autocast", None) is None)


def test_tied_weights():
    class Tied(Net):
        def __init__(self):
            super().__init__()
            self.blocks[2].up.weight = self.blocks[0].up.weight

    trains_like_torch(Tied())


def test_frozen_parameters():
    net = Net()
    net.blocks[0].requires_grad_(False)
    trains_like_torch(net)


def test_freezing_after_sharding():
    world, net = sherd.world(), Net()
    reference = copy.deepcopy(net)
    shard(net)
    optimizer, plain = sherd.AdamW(net), torch.optim.AdamW(reference.parameters())
    for step in range(6):
        for model in (net, reference):
            model.blocks[1].requires_grad_(step not in (2, 3))
        plain.zero_grad()
        (sum(square(reference, sample(step, rank)) for rank in range(world.size)) / world.size).backward()
        plain.step()
        square(net, sample(step, world.rank)).backward()
        optimizer.step()
    assert largest_difference(net, reference) < 1e-6


def test_training_what_was_frozen_when_it_was_sharded_is_an_error():
    net = Net()
    net.blocks[0].up.requires_grad_(False)
    shard(net)
    net.blocks[0].up.requires_grad_(True)
    with pytest.raises(RuntimeError, match="set requires_grad before"):
        square(net, sample(0, 0)).backward()


class Branches(Net):
    """Some steps call only some of the blocks; `rank_alone` calls block 1 on rank 0 alone."""

    def forward(self, x, used=(0, 1, 2)):
        for number in used:
            x = self.blocks[number](x)
        return self.head(x)


@pytest.mark.parametrize("make", [None, torch.optim.AdamW, torch.optim.SGD], ids=["sherd", "AdamW", "SGD"])
def test_unused_parameters_stay_as_they_are(make):
    world, net = sherd.world(), Branches()
    reference = copy.deepcopy(net)
    shard(net)
    settings = {"lr": 1e-2, "weight_decay": 0.1}
    optimizer = make(sherd.parameters(net), **settings) if make else sherd.AdamW(net, **settings)
    plain = (make or torch.optim.AdamW)(reference.parameters(), **settings)
    for used in ((0, 1, 2), (0, 2), (0, 2), (0, 1, 2)):
        plain.zero_grad()
        (sum(reference(sample(0, r), used).square().mean() for r in range(world.size)) / world.size).backward()
        plain.step()
        net(sample(0, world.rank), used).square().mean().backward()
        optimizer.step()
    assert largest_difference(net, reference) < 1e-6


def test_parameters_that_one_rank_uses_are_updated():
    world, net = sherd.world(), Net()

    class Detached(Net):
        def forward(self, x):
            for number, block in enumerate(self.blocks):
                y = block(x)
                x = y.detach() + 0 * x if number == 1 and world.rank > 0 else y
            return self.head(x)

    net = Detached()
    shard(net)
    before = sherd.full_state_dict(net)
    optimizer = sherd.AdamW(net)
    square(net, sample(0, world.rank)).backward()
    optimizer.step()
    after = sherd.full_state_dict(net)
    assert all(not torch.equal(before[name], after[name]) for name in before if name.startswith("blocks.1"))


@pytest.mark.parametrize("make", [torch.optim.SGD, torch.optim.AdamW])
def test_optimizers_of_torch(make):
    trains_like_torch(Net(), make_optimizer=make)


def test_learning_rate_schedulers():
    net = Net()
    reference = copy.deepcopy(net)
    shard(net)
    pairs = []
    for model, optimizer in (
        (net, sherd.AdamW(net, lr=0.1)),
        (reference, torch.optim.AdamW(reference.parameters(), lr=0.1)),
    ):
        cosine = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=6)
        warm = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=2)
        pairs.append((model, optimizer, torch.optim.lr_scheduler.SequentialLR(optimizer, [warm, cosine], [2])))
    for step in range(6):
        for model, optimizer, scheduler in pairs:
            optimizer.zero_grad()
            square(model, sample(step, 0)).backward()
            optimizer.step()
            scheduler.step()
    assert pairs[0][2].get_last_lr() == pairs[1][2].get_last_lr()
    assert largest_difference(net, reference) < 1e-5


def test_clipping():
    world, net = sherd.world(), Net()
    reference = copy.deepcopy(net)
    others = copy.deepcopy(net)
    shard(net)
    shard(others)
    mine = sherd.AdamW(net, lr=1e-2, max_norm=0.01)
    of_torch = torch.optim.AdamW(sherd.parameters(others), lr=1e-2)
    plain = torch.optim.AdamW(reference.parameters(), lr=1e-2)
    for step in range(3):
        plain.zero_grad()
        (sum(square(reference, sample(step, rank)) for rank in range(world.size)) / world.size).backward()
        expected = torch.nn.utils.clip_grad_norm_(reference.parameters(), 0.01).item()
        plain.step()
        square(net, sample(step, world.rank)).backward()
        mine.step()
        square(others, sample(step, world.rank)).backward()
        norm = sherd.clip_grad_norm_(others, 0.01)
        of_torch.step()
        assert abs(mine.gradient_norm() - expected) < 1e-6
        assert abs(norm - expected) < 1e-6
    assert largest_difference(net, reference) < 1e-6
    assert largest_difference(others, reference) < 1e-6


def test_loss_per_token():
    world, net = sherd.world(), Net()
    reference = copy.deepcopy(net)
    for block in net.blocks:
        sherd.fully_shard(block)
    sherd.fully_shard(net, loss="per_token")
    optimizer, plain = sherd.AdamW(net), torch.optim.AdamW(reference.parameters())
    tokens = [3 + rank for rank in range(world.size)]
    total = sum(reference(sample(0, rank)).square().sum() for rank in range(world.size))
    (total / sum(tokens)).backward()
    plain.step()
    net(sample(0, world.rank)).square().sum().backward()
    with pytest.raises(ValueError, match="per token"):
        optimizer.step()
    optimizer.step(tokens=tokens[world.rank])
    assert largest_difference(net, reference) < 1e-6


def test_rank_without_data():
    world, net = sherd.world(), Net()
    shard(net)
    optimizer = sherd.AdamW(net)
    for step in range(3):
        if world.rank == world.size - 1 and step == 1 and world.size > 1:
            sherd.idle_pass(net)
        else:
            square(net, sample(step, world.rank)).backward()
        optimizer.step()
    assert optimizer.updates == 3


def test_evaluation():
    net = Net()
    reference = copy.deepcopy(net)
    shard(net)
    x = sample(0, 0)
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            assert torch.equal(net(x), reference(x))
    square(net, x).backward()
    sherd.AdamW(net).step()


def test_edit_gather_and_release():
    net = Net()
    shard(net)
    before = sherd.full_state_dict(net)["blocks.0.up.weight"]

    def double():
        net.blocks[0].up.weight.mul_(2)

    sherd.edit_parameters(net.blocks[0], double)
    sherd.gather(net.blocks[0])
    assert torch.equal(net.blocks[0].up.weight, 2 * before)
    sherd.release(net.blocks[0])
    assert torch.equal(sherd.full_state_dict(net)["blocks.0.up.weight"], 2 * before)
    with pytest.raises(RuntimeError):
        net.blocks[0].up.weight.sum()


def test_initialise_on_the_meta_device(world):
    with torch.device("meta"):
        net = Net()
    shard(net)
    with pytest.raises(RuntimeError, match="no values"):
        net(sample(0, 0))
    sherd.initialise(net, seed=3, values=lambda name, shape: ("constant", 0.5) if name.endswith("bias") else None)
    full = sherd.full_state_dict(net)
    assert full["head.bias"].eq(0.5).all()
    bound = DIM**-0.5
    assert 0.5 * bound < full["head.weight"].abs().max() <= bound
    square(net, sample(0, 0)).backward()
    sherd.AdamW(net).step()


def test_initialise_is_the_same_for_any_strategy():
    states = []
    for strategy in ("no_shard", "optim_grads_params"):
        with torch.device("meta"):
            net = Net()
        shard(net, strategy=strategy)
        sherd.initialise(net, seed=7)
        states.append(sherd.full_state_dict(net))
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])
