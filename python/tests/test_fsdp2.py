# SPDX-License-Identifier: Apache-2.0
"""The conditions of FSDP2's own tests (by their names) on sherd.compat.fsdp2: ten steps of training hold losses, and
weights after each step, to those of the plain module on the samples of all ranks, at 1e-6."""

import collections
import copy

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import sherd
from sherd.compat.fsdp2 import fully_shard

TOLERANCE = 1e-6
WIDTH = 12
reshard = pytest.mark.parametrize("reshard", [None, True, pytest.param(False, marks=pytest.mark.all)])


class MLP(nn.Module):
    def __init__(self, width=WIDTH):
        super().__init__()
        self.into = nn.Linear(width, 4 * width)
        self.out = nn.Linear(4 * width, width)

    def forward(self, x):
        return torch.relu(self.out(torch.relu(self.into(x))))


class Pair(nn.Module):
    """Two linear layers, of whose results one may not be computed, or not be used."""

    def __init__(self, computes_second):
        super().__init__()
        self.first, self.second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.computes_second = computes_second

    def forward(self, x):
        return (self.first(x), self.second(x)) if self.computes_second else self.first(x)


def samples(step, width=WIDTH):
    """Of all ranks."""
    generator = torch.Generator().manual_seed(step)
    return torch.rand(3 * sherd.world().size, width, generator=generator) - 0.3


def of_this_rank(x):
    return x.chunk(sherd.world().size)[sherd.world().rank]


def mean_square(model, x, step):
    return model(x).square().mean()


def adam(parameters, lr):
    # With a smaller eps a gradient that is nothing but rounding, in whatever order it is summed, moves its weight.
    return torch.optim.Adam(parameters, lr=lr, eps=1e-4)


def check_parity(
    model, shard, loss=mean_square, *, steps=10, micro_batches=1, width=WIDTH, optimizer=adam, before=None
):
    """`shard` makes units of the model. Losses are means of what each sample contributes, so that those of ranks and
    of all together agree."""
    world = sherd.world()
    reference = copy.deepcopy(model)
    shard(model)
    mine, plain = optimizer(model.parameters(), lr=1e-2), optimizer(reference.parameters(), lr=1e-2)
    for step in range(steps):
        for micro_batch in range(micro_batches):
            if before:
                before(model, micro_batch)
            x = samples(step * micro_batches + micro_batch, width)
            value, expected = loss(model, of_this_rank(x), step), loss(reference, x, step)
            value.backward()
            expected.backward()
            total = value.detach().clone().reshape(1)
            world.all_reduce(total)
            assert abs(total.item() / world.size - expected.item()) < TOLERANCE
        for one in (mine, plain):
            one.step()
            one.zero_grad(set_to_none=step % 2 == 0)
        check_weights(model, reference)


def check_weights(model, reference):
    full = sherd.full_state_dict(model)
    for name, value in reference.state_dict().items():
        assert (full[name] - value).abs().max() < TOLERANCE, name


def in_units(*names, whole=True, **options):
    """Shards the modules with these names, and then the whole."""

    def shard(model):
        for name in names:
            fully_shard(model.get_submodule(name), **options)
        if whole:
            fully_shard(model, **options)

    return shard


def calls(model):
    return {kind: traffic.calls for kind, traffic in sherd.program(model).traffic.items()}


# ---- test_fully_shard_training.py -----------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(16, 7), (5, 13), (1, 2)])  # also uneven ones, and some without elements for a rank
def test_train_parity_single_group_shard_dim0(shape):
    model = nn.Sequential(nn.Linear(shape[0], shape[1]), nn.ReLU(), nn.Linear(shape[1], 3))
    check_parity(model, fully_shard, width=shape[0])
    assert calls(model) == {"all_gather": 1, "reduce_scatter": 1, "all_reduce": 0}


@reshard
@pytest.mark.parametrize("delay", ["none", pytest.param("forward", marks=pytest.mark.all), "backward"])
def test_train_parity_multi_group(reshard, delay, world):
    model = nn.Sequential(*[MLP() for _ in range(3)])
    if delay != "none":  # ranks that are late: nothing depends on the order in which they arrive
        import time

        def late(*_):
            time.sleep(0.002 * world.rank)

        if delay == "forward":
            model[1].register_forward_pre_hook(late)
        else:
            model[1].register_full_backward_hook(late)
    steps = 10 if delay == "none" else 3
    check_parity(model, in_units("0", "1", "2", reshard_after_forward=reshard), steps=steps)
    # The whole has no parameters of its own.
    assert calls(model) == {"all_gather": 3 if reshard is False else 6, "reduce_scatter": 3, "all_reduce": 0}


def test_train_parity_multi_group_prefetch():
    model = nn.Sequential(*[MLP() for _ in range(4)])

    def shard(model):
        in_units("0", "1", "2", "3")(model)
        for index, unit in enumerate(model):
            unit.set_modules_to_forward_prefetch(list(model)[index + 1 : index + 3])
            unit.set_modules_to_backward_prefetch(list(model)[max(0, index - 2) : index][::-1])

    check_parity(model, shard)


def test_train_parity_single_worldsize1(world):
    alone = sherd.Mesh(sherd.World.emulated(rank=0, size=1), [("dp", 1)])
    if world.size > 1:
        return
    check_parity(MLP(), lambda model: fully_shard(model, mesh=alone))
    check_parity(nn.Sequential(MLP(), MLP()), in_units("0", "1"))


@reshard
def test_multi_forward_module(reshard):
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner, self.outer = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 5)

        def forward(self, x):
            return self.outer(self.inner(x) + self.inner(x + 1))

    check_parity(Twice(), in_units("inner", reshard_after_forward=reshard))


@reshard
@pytest.mark.parametrize("way", ["inside", "around"])
def test_train_parity_with_activation_checkpointing(reshard, way):
    class Checkpointed(MLP):
        def forward(self, x):
            return checkpoint(super().forward, x, use_reentrant=False)

    class Around(nn.Sequential):
        def forward(self, x):
            for module in self:
                x = sherd.checkpoint(module, x)
            return x

    model = (
        nn.Sequential(*[Checkpointed() for _ in range(3)]) if way == "inside" else Around(*[MLP() for _ in range(3)])
    )
    check_parity(model, in_units("0", "1", "2", reshard_after_forward=reshard), steps=6)


@reshard
def test_train_parity_with_shared_params(reshard):
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = nn.Embedding(8, WIDTH)
            self.layers = nn.Sequential(MLP(), MLP())
            self.head = nn.Linear(WIDTH, 8, bias=False)
            self.head.weight = self.embedding.weight

        def forward(self, x):
            return self.head(self.layers(self.embedding((x * 10).abs().long() % 8)))

    model = Tied()
    check_parity(model, in_units("layers.0", "layers.1", reshard_after_forward=reshard))
    assert len(list(model.parameters())) == 9 and model.head.weight is model.embedding.weight


@reshard
@pytest.mark.parametrize("way", ["every backward", "last backward", "all_reduce"])
@pytest.mark.parametrize("hybrid", [False, True])
def test_gradient_accumulation(reshard, way, hybrid, world):
    if hybrid and (world.size % 2 or way == "every backward"):
        return  # see test_hybrid_accumulation_without_a_word_raises
    if way == "all_reduce" and not hybrid:
        return
    options = {"reshard_after_forward": reshard}
    if hybrid:
        options["mesh"] = sherd.mesh(dp_outer=2, dp=world.size // 2)

    def before(model, micro_batch):
        method = {"last backward": "set_requires_gradient_sync", "all_reduce": "set_requires_all_reduce"}.get(way)
        if method:
            getattr(model, method)(micro_batch == 2)

    model = nn.Sequential(*[MLP() for _ in range(3)])
    check_parity(model, in_units("0", "1", "2", **options), micro_batches=3, steps=4, before=before)
    steps = 3 if way != "every backward" else 1  # what the program counts
    gathers = (3 if reshard is False else 6) * steps
    assert calls(model) == {"all_gather": gathers, "reduce_scatter": 3 * steps, "all_reduce": 3 * hybrid}


@pytest.mark.ranks(2)
@reshard
@pytest.mark.parametrize("replicas", [2, "all"])
def test_train_parity_hsdp(reshard, replicas, world):
    replicas = world.size if replicas == "all" else replicas
    if world.size % replicas:
        return
    mesh = sherd.mesh(dp_outer=replicas, dp=world.size // replicas)
    model = nn.Sequential(nn.LayerNorm(WIDTH), MLP(), MLP(), MLP())
    check_parity(model, in_units("1", "2", "3", mesh=mesh, reshard_after_forward=reshard))
    assert calls(model)["all_reduce"] == calls(model)["reduce_scatter"] == 4


# ---- test_fully_shard_autograd.py -----------------------------------------------------------------------------------


@reshard
def test_unused_forward_output(reshard):
    def loss(model, x, step):
        first, second = model(x)
        return (first * second).mean() if step < 3 else first.mean()

    check_parity(Pair(computes_second=True), in_units("first", reshard_after_forward=reshard), loss)


@reshard
def test_unused_forward_module(reshard):
    shard = in_units("first", "second", reshard_after_forward=reshard)
    check_parity(Pair(computes_second=False), shard)


Point = collections.namedtuple("Point", "x y")
CONTAINERS = {
    "list": (lambda x: [x], lambda value: value[0]),
    "tuple": (lambda x: (x,), lambda value: value[0]),
    "dict": (lambda x: {"x": x}, lambda value: value["x"]),
    "namedtuple": (lambda x: Point(x, torch.ones_like(x)), lambda value: value.x),
}


@pytest.mark.parametrize("kind", CONTAINERS)
def test_nontensor_activations(kind):
    make, take = CONTAINERS[kind]

    class Part(MLP):
        def forward(self, value):
            return make(super().forward(take(value)))

    class To(nn.Module):
        def forward(self, x):
            return make(x)

    class From(nn.Module):
        def forward(self, value):
            return take(value)

    model = nn.Sequential(To(), Part(), Part(), From())
    check_parity(model, in_units("0", "1", "2", "3"))


# ---- test_fully_shard_frozen.py -------------------------------------------------------------------------------------


@reshard
def test_train_mixed_requires_grad_per_group(reshard):
    model = nn.Sequential(*[MLP() for _ in range(3)])
    for unit in model:
        unit.into.weight.requires_grad_(False)
        unit.out.bias.requires_grad_(False)
    check_parity(model, in_units("0", "1", "2", reshard_after_forward=reshard))
    assert calls(model)["reduce_scatter"] == 3  # of what is trained


@reshard
@pytest.mark.parametrize("freezes_rest", [False, True])
def test_train_mixed_requires_grad_across_groups(reshard, freezes_rest):
    model = nn.Sequential(*[nn.Linear(WIDTH, WIDTH) for _ in range(4)])
    for index in (0, 2):
        model[index].requires_grad_(False)
    if freezes_rest:
        model[1].requires_grad_(False)
    check_parity(model, in_units("0", "1", "2", "3", reshard_after_forward=reshard))
    assert calls(model)["reduce_scatter"] == (1 if freezes_rest else 2)


@reshard
def test_multi_forward_mixed_requires_grad(reshard):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.frozen, self.trained = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
            self.frozen.requires_grad_(False)

        def forward(self, x):
            x = self.first(x)
            for _ in range(3):
                x = self.frozen(torch.relu(self.trained(x)))
                with torch.no_grad():
                    x += torch.relu(self.trained(x))
            return x

    check_parity(Model(), in_units("first", "frozen", "trained", reshard_after_forward=reshard))


# ---- counts of collectives ------------------------------------------------------------------------------------------


@reshard
def test_communication_counts(reshard):
    """A step gathers each unit twice if it is released after the forward, else once; and reduces it once."""
    model = nn.Sequential(nn.LayerNorm(WIDTH), *[MLP() for _ in range(3)])
    check_parity(model, in_units("1", "2", "3", reshard_after_forward=reshard), steps=2)
    gathers = {True: 8, False: 4, None: 7}[reshard]
    assert calls(model) == {"all_gather": gathers, "reduce_scatter": 4, "all_reduce": 0}


def test_set_reshard_after_forward():
    model = nn.Sequential(nn.LayerNorm(WIDTH), *[MLP() for _ in range(3)])
    in_units("1", "2", "3")(model)
    model.set_reshard_after_forward(True, recurse=False)
    assert calls(model)["all_gather"] == 8
    model.set_reshard_after_forward(False)
    assert calls(model)["all_gather"] == 4
    model[1].set_reshard_after_forward(True)
    assert calls(model)["all_gather"] == 5
