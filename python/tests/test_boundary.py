# SPDX-License-Identifier: Apache-2.0
"""Calls of units: what they may return and raise, and what may happen inside them."""

import collections
import copy
import dataclasses
import threading

import pytest
import torch

import sherd
from parity import DIM, Block, Net, sample, shard, square, trains_like_torch

Point = collections.namedtuple("Point", "x y")


@dataclasses.dataclass
class Output:
    hidden: torch.Tensor | None
    more: dict


@dataclasses.dataclass(slots=True)
class Slotted:
    hidden: torch.Tensor


class Box:
    """Of no kind that is known."""

    def __init__(self, content):
        self.content = content
        self.itself = self


class ModelOutput(collections.OrderedDict):
    pass


RESULTS = {
    "tuple": (lambda y: (y, None, 3), lambda result: result[0]),
    "nested": (lambda y: {"a": [y], "b": "text"}, lambda result: result["a"][0]),
    "namedtuple": (lambda y: Point(y, None), lambda result: result.x),
    "dataclass": (lambda y: Output(None, {"deep": (y,)}), lambda result: result.more["deep"][0]),
    "slots": (Slotted, lambda result: result.hidden),
    "ordered_dict": (lambda y: ModelOutput(last=y), lambda result: result["last"]),
    "object": (Box, lambda result: result.content),
}


@pytest.mark.parametrize("kind", RESULTS)
def test_tensors_are_found_in_every_kind_of_result(kind):
    make, take = RESULTS[kind]

    class Making(Block):
        def forward(self, x):
            return make(super().forward(x))

    class Taking(Net):
        def forward(self, x):
            for block in self.blocks:
                x = take(block(x))
            return self.head(x)

    trains_like_torch(Taking(Making), steps=2)


def test_arguments_in_containers_are_cast():
    seen = []

    class Taking(Block):
        def forward(self, x, pair=None, *, table=None):
            seen.extend([x.dtype, pair[0].dtype, pair[1].dtype, table["t"].dtype])
            return super().forward(x)

    class Giving(Net):
        def forward(self, x):
            for block in self.blocks:
                x = block(x, (x.float(), torch.zeros(1, dtype=torch.long)), table={"t": x.float()})
            return self.head(x)

    net = shard(Giving(Taking), precision="bf16_o2")
    square(net, sample(0, 0)).backward()
    assert seen[:4] == [torch.bfloat16, torch.bfloat16, torch.long, torch.bfloat16]


def test_a_sharded_module_is_what_it_was():
    net = Net()
    weight, text = net.head.weight, repr(net)
    shard(net)
    assert type(net).__name__ == "Net" and isinstance(net, Net) and repr(net) == text
    assert net.head.weight is weight and weight.shape == (DIM, DIM)
    assert [name for name, _ in net.named_parameters()] == [name for name, _ in Net().named_parameters()]


def test_hooks_of_modules_run_inside():
    net = shard(Net())
    seen = []
    net.blocks[0].register_forward_pre_hook(lambda module, args: seen.append(module.up.weight.sum().item()))
    net.blocks[0].register_forward_hook(lambda module, args, result: result * 2)
    y = net(sample(0, 0))
    reference = Net()
    reference.load_state_dict(sherd.full_state_dict(net))
    reference.blocks[0].register_forward_hook(lambda module, args, result: result * 2)
    assert torch.equal(y, reference(sample(0, 0))) and len(seen) == 1


def test_hooks_of_parameters_see_gradients():
    net, seen = Net(), []
    net.blocks[0].up.weight.register_hook(lambda gradient: seen.append("before"))
    shard(net)
    net.blocks[1].up.weight.register_hook(lambda gradient: seen.append("after"))
    square(net, sample(0, 0)).backward()
    assert sorted(seen) == ["after", "before"]


def test_post_accumulate_hooks_do_not_end_units():
    net = shard(Net())
    optimizer = sherd.AdamW(net)
    for parameter in net.parameters():
        parameter.register_post_accumulate_grad_hook(lambda parameter: None)
    for _ in range(2):
        square(net, sample(0, 0)).backward()
        optimizer.step()
    assert optimizer.updates == 2


class Fragile(Block):
    where = None

    def forward(self, x):
        y = super().forward(x)
        if Fragile.where == "forward":
            raise KeyError("in forward")
        return Bad.apply(y)


class Bad(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        if Fragile.where == "backward":
            raise KeyError("in backward")
        return gradient


@pytest.mark.parametrize("where", ["forward", "backward"])
def test_training_goes_on_after_an_exception_on_all_ranks(where):
    net = Net(Fragile)
    reference = copy.deepcopy(net)
    shard(net)
    optimizer, plain = sherd.AdamW(net), torch.optim.AdamW(reference.parameters())
    for fails in (None, where, None):
        Fragile.where = fails
        try:
            square(net, sample(0, 0)).backward()
            optimizer.step()
            assert fails is None
        except KeyError as error:
            assert fails and error.args == (f"in {where}",)
            continue
        finally:
            Fragile.where = None
        plain.zero_grad()
        square(reference, sample(0, 0)).backward()
        plain.step()
    full = sherd.full_state_dict(net)
    assert max((full[name] - value).abs().max().item() for name, value in reference.state_dict().items()) < 1e-6


@pytest.mark.ranks(2)
def test_an_exception_on_one_rank_is_an_error_on_the_others(world):
    net = shard(Net(Fragile))
    optimizer = sherd.AdamW(net)
    Fragile.where = "forward" if world.rank == 1 else None
    expected = KeyError if world.rank == 1 else RuntimeError
    try:
        with pytest.raises(expected) as raised:
            square(net, sample(0, world.rank)).backward()
            optimizer.step()
    finally:
        Fragile.where = None
    if world.rank != 1:
        assert "rank 1" in str(raised.value) and "C++" not in str(raised.value)
    square(net, sample(0, world.rank)).backward()
    optimizer.step()


def test_errors_are_plain_words_of_the_right_type():
    net = shard(Net())
    with pytest.raises(ValueError, match="sharded already") as raised:
        sherd.fully_shard(net)
    assert "frame #" not in str(raised.value)
    with pytest.raises(RuntimeError, match="outside its root"):
        square(net, sample(0, 0)).backward()
        net.blocks[0](sample(0, 0))
    with pytest.raises(ValueError, match="Linear is not sharded"):
        sherd.program(torch.nn.Linear(1, 1))
    with pytest.raises(ValueError, match="not the root"):
        sherd.program(net.blocks[0])


def test_other_threads_may_train():
    failures = []

    def train():
        try:
            net = shard(Net())
            optimizer = sherd.AdamW(net)
            for _ in range(2):
                square(net, sample(0, 0)).backward()
                optimizer.step()
        except Exception as error:
            failures.append(error)

    thread = threading.Thread(target=train)
    thread.start()
    thread.join()
    assert not failures


def test_gradients_of_inputs_and_two_backwards_of_one_forward():
    net = shard(Net())
    x = sample(0, 0).requires_grad_()
    (gradient,) = torch.autograd.grad(square(net, x), x)
    assert gradient.shape == x.shape and gradient.abs().sum() > 0
    sherd.micro_batches(net, 2)
    loss = square(net, x)
    loss.backward(retain_graph=True)
    loss.backward()
    sherd.AdamW(net).step()


def test_a_unit_that_is_called_twice():
    class Twice(Net):
        def forward(self, x):
            return self.head(self.blocks[2](self.blocks[0](self.blocks[1](self.blocks[0](x)))))

    trains_like_torch(Twice())


@pytest.mark.parametrize("when", ["before", "after"])
def test_compiled_units(when):
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()

    def compile_blocks(net):
        for block in net.blocks:
            block.compile(backend="aot_eager", fullgraph=True)

    if when == "before":
        trains_like_torch(Net(), prepare=compile_blocks, steps=2)
    else:
        net = Net()
        reference = copy.deepcopy(net)
        compile_blocks(shard(net))
        assert torch.allclose(net(sample(0, 0)), reference(sample(0, 0)), atol=1e-6)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] >= 1
    assert not torch._dynamo.utils.counters["graph_break"]


@pytest.mark.all
@pytest.mark.filterwarnings("error:Dynamo does not know")
def test_a_compiled_root():
    torch._dynamo.reset()
    net = shard(Net())
    reference = Net()
    reference.load_state_dict(sherd.full_state_dict(net))
    compiled, optimizer = torch.compile(net, backend="aot_eager"), sherd.AdamW(net)
    for _ in range(2):
        y = compiled(sample(0, 0))
        assert torch.allclose(y, reference(sample(0, 0)), atol=1e-6)
        y.square().mean().backward()
        optimizer.step()
        reference.load_state_dict(sherd.full_state_dict(net))


def test_wrappers_of_torch_do_not_change_names():
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

    net = Net()
    net.blocks[0] = checkpoint_wrapper(net.blocks[0])
    net.blocks[1] = torch.compile(net.blocks[1], backend="eager")
    shard(net)
    names = [name for name, _ in sherd.named_parameters(net)]
    assert sorted(names) == sorted(name for name, _ in Net().named_parameters())
    square(net, sample(0, 0)).backward()
    sherd.AdamW(net).step()
