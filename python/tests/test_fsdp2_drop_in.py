# SPDX-License-Identifier: Apache-2.0
"""Loops written for FSDP2 run with sherd.compat.fsdp2 in the place of torch.distributed.fsdp, and train alike: each
loop here is run with both, on gloo ranks."""

import copy

import pytest
import torch
import torch.distributed.fsdp as torch_fsdp
from torch.distributed.device_mesh import init_device_mesh

import sherd
from parity import DIM, Block, Net, sample, square
from sherd.compat import fsdp2

TOLERANCE = 1e-6
# Of Adam: with less, gradients that are nothing but rounding, which differs with the order of sums, move weights.
EPS = 1e-4


def adamw(parameters, lr):
    return torch.optim.AdamW(parameters, lr=lr, eps=EPS)


def train(
    api,
    net,
    mesh,
    *,
    steps=3,
    loss=square,
    prepare=None,
    micro_batches=lambda step: 1,
    backward=None,
    fully_shard=None,
    root=None,
    make_optimizer=adamw,
):
    """The loop. Returns losses, norms and the whole weights. Names are those of FSDP2 only."""
    rank = torch.distributed.get_rank()
    options = {"mesh": mesh, **(fully_shard or {})}
    for block in net.blocks:
        api.fully_shard(block, **options)
    api.fully_shard(net, **{**options, **(root or {})})
    if prepare:
        prepare(net)
    optimizer = make_optimizer(net.parameters(), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))
    losses, norms = [], []
    for step in range(steps):
        count = micro_batches(step)
        for micro_batch in range(count):
            if backward:
                backward(net, micro_batch + 1 == count)
            value = loss(net, sample(10 * step + micro_batch, rank)) / count
            value.backward()
            losses.append(value.item())
        norm = torch.nn.utils.clip_grad_norm_(net.parameters(), 0.5)
        norms.append((norm.full_tensor() if hasattr(norm, "full_tensor") else norm).item())
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
    return losses, norms, whole_weights(net)


def whole_weights(net):
    if isinstance(net, fsdp2.FSDPModule):
        return sherd.full_state_dict(net)
    return {name: value.full_tensor().detach() for name, value in net.state_dict().items()}


def trains_like_fsdp2(mesh, net=None, **options):
    net = net or Net()
    theirs = train(torch_fsdp, copy.deepcopy(net), mesh, **options)
    ours = train(fsdp2, net, mesh, **options)
    for mine, expected in zip(ours[:2], theirs[:2], strict=True):
        assert mine == pytest.approx(expected, abs=TOLERANCE, rel=TOLERANCE)
    check_weights(ours[2], theirs[2])
    return net


def check_weights(ours, theirs):
    assert ours.keys() == theirs.keys()
    differences = {name: (ours[name] - value).abs().max().item() for name, value in theirs.items()}
    assert max(differences.values()) < TOLERANCE, differences


@pytest.fixture
def mesh(process_group, world):
    return init_device_mesh("cpu", (world.size,))


def hybrid_mesh(world):
    return init_device_mesh("cpu", (2, world.size // 2), mesh_dim_names=("any", "names"))


@pytest.mark.parametrize("reshard", [None, True, False])
def test_the_loop(mesh, reshard):
    trains_like_fsdp2(mesh, fully_shard={"reshard_after_forward": reshard})


def test_gathers_are_those_of_fsdp2(mesh, world):
    for reshard, gathers in ((True, 8), (False, 4), (None, 7)):  # None: the root keeps its parameters
        net = trains_like_fsdp2(mesh, fully_shard={"reshard_after_forward": reshard}, steps=2)
        traffic = sherd.program(net).traffic
        assert (traffic["all_gather"].calls, traffic["reduce_scatter"].calls) == (gathers, 4)
    net.set_reshard_after_forward(True)
    assert sherd.program(net).traffic["all_gather"].calls == 8


@pytest.mark.ranks(2)
def test_hybrid_sharding(process_group, world):
    mesh = hybrid_mesh(world)
    net = trains_like_fsdp2(mesh)
    assert sherd.program(net).traffic["all_reduce"].calls == 4


@pytest.mark.parametrize("way", ["set_requires_gradient_sync", "set_is_last_backward", "set_requires_all_reduce"])
@pytest.mark.parametrize("hybrid", [False, True])
def test_gradient_accumulation(process_group, world, way, hybrid):
    if hybrid and world.size % 2:
        return
    mesh = hybrid_mesh(world) if hybrid else init_device_mesh("cpu", (world.size,))
    if way == "set_requires_all_reduce" and not hybrid:
        return  # means nothing there
    trains_like_fsdp2(
        mesh,
        micro_batches=lambda step: (3, 1, 2, 2)[step],
        steps=4,
        backward=lambda net, last: getattr(net, way)(last),
    )


def test_gradient_accumulation_without_a_word(mesh):
    trains_like_fsdp2(mesh, micro_batches=lambda step: (2, 3, 1)[step])


@pytest.mark.ranks(2)
def test_hybrid_accumulation_without_a_word_raises(process_group, world):
    mesh = hybrid_mesh(world)
    with pytest.raises(RuntimeError, match="set_requires_gradient_sync"):
        train(fsdp2, Net(), mesh, micro_batches=lambda step: 2)


def test_the_last_backward_is_announced_after_its_forward(mesh):
    def loss(net, x):
        value = square(net, x)
        loss.count += 1
        net.set_is_last_backward(loss.count % 2 == 0)
        return value

    net = Net()
    reference = copy.deepcopy(net)
    results = []
    for api, model in ((torch_fsdp, reference), (fsdp2, net)):
        loss.count = 0
        results.append(train(api, model, mesh, loss=loss, micro_batches=lambda step: 2))
    assert results[0][0] == pytest.approx(results[1][0], abs=TOLERANCE)
    check_weights(results[1][2], results[0][2])


@pytest.mark.parametrize("to_none", [True, False])
def test_gradients_that_zero_grad_drops(mesh, world, to_none):
    def loop(api, net):
        api.fully_shard(net, mesh=mesh)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for number in (0, 1, 2):
            square(net, sample(number, world.rank)).backward()
            if number == 1:  # a step that is skipped
                optimizer.zero_grad(set_to_none=to_none)
                continue
            optimizer.step()
            optimizer.zero_grad(set_to_none=to_none)
        return whole_weights(net)

    net = Net()
    theirs, ours = loop(torch_fsdp, copy.deepcopy(net)), loop(fsdp2, net)
    check_weights(ours, theirs)


def test_some_gradients_dropped_and_others_not(mesh, world):
    net = fsdp2.fully_shard(Net(), mesh=mesh)
    square(net, sample(0, world.rank)).backward()
    next(net.parameters()).grad = None
    with pytest.raises(RuntimeError, match="zero_grad"):
        square(net, sample(0, world.rank))


@pytest.mark.parametrize("factor", ["ranks", "one"])
def test_gradient_divide_factor(mesh, world, factor):
    def prepare(net):
        for module in net.modules():
            if hasattr(module, "set_gradient_divide_factor"):
                module.set_force_sum_reduction_for_comms(True)  # else FSDP2's reduction is none of gloo's
                module.set_gradient_divide_factor(1.0 if factor == "one" else world.size)

    net = trains_like_fsdp2(mesh, prepare=prepare)
    if world.size > 1:
        with pytest.raises(RuntimeError, match="first use"):
            net.set_gradient_divide_factor(1.0 if factor == "ranks" else world.size)


@pytest.mark.ranks(2)
def test_divide_factors_that_differ(mesh):
    net = Net()
    for block in net.blocks:
        fsdp2.fully_shard(block, mesh=mesh)
    fsdp2.fully_shard(net, mesh=mesh)
    net.blocks[0].set_gradient_divide_factor(3)
    with pytest.raises(ValueError, match="scale the loss"):
        net.parameters().__next__()


def test_mixed_precision(mesh, world):
    seen = []

    class Seeing(Block):
        def forward(self, x):
            seen.append((x.dtype, self.up.weight.dtype, next(self.parameters()).dtype))
            return super().forward(x)

    policy = dict(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)

    def loop(api):
        torch.manual_seed(0)
        net = Net(Seeing)
        inner = {"mp_policy": api.MixedPrecisionPolicy(**policy)}
        root = {"mp_policy": api.MixedPrecisionPolicy(**policy, output_dtype=torch.float32)}
        result = train(api, net, mesh, fully_shard=inner, root=root)
        assert net(sample(0, 0)).dtype == torch.float32
        return result

    theirs, ours = loop(torch_fsdp), loop(fsdp2)
    half = len(seen) // 2
    assert seen[:half] == seen[half:] and set(seen) == {(torch.bfloat16,) * 3}
    assert ours[0] == pytest.approx(theirs[0], rel=2e-2)
    assert all(value.dtype == torch.float32 for value in ours[2].values())


def gathers_ahead(net):
    """The number of instructions before the first block has computed, which are gathers and waits for them."""
    boundaries = sherd.program(net).json()["sections"][0]["boundaries"]
    return next(one["begin"] for one in boundaries if (one["kind"], one["unit"]) == ("leave", "blocks.0"))


def test_prefetching(mesh):
    def prepare(net):
        blocks = list(net.blocks)
        blocks[0].set_modules_to_forward_prefetch(blocks[1:4])
        blocks[-1].set_modules_to_backward_prefetch(blocks[:-1])

    plain, net = (trains_like_fsdp2(mesh, Net(layers=5), prepare=one) for one in (None, prepare))
    assert sherd.program(net).bytes.arena > sherd.program(plain).bytes.arena
    ahead = gathers_ahead(net)
    net.blocks[0].set_modules_to_forward_prefetch([])  # between steps, too
    assert ahead > gathers_ahead(net) == gathers_ahead(plain)
    with pytest.raises(ValueError, match="no FSDPModule"):
        net.blocks[0].set_modules_to_forward_prefetch([net.head])


def test_lists_of_modules(mesh, world):
    class Parts(Net):
        def __init__(self):
            super().__init__()
            self.norm = torch.nn.LayerNorm(DIM)

        def forward(self, x):
            return super().forward(self.norm(x))

    def loop(api, net):
        parts = [net.norm, net.head]
        assert api.fully_shard(parts, mesh=mesh) is parts
        return train(api, net, mesh)

    net = Parts()
    theirs, ours = loop(torch_fsdp, copy.deepcopy(net)), loop(fsdp2, net)
    check_weights(ours[2], theirs[2])


def test_parameters_look_like_those_of_the_module(mesh, world):
    plain, net = Net(), Net()
    fsdp2.fully_shard(net, mesh=mesh)
    expected = dict(plain.named_parameters())
    for name, parameter in net.named_parameters():
        assert parameter.shape == expected[name].shape and parameter.dim() == parameter.ndim == expected[name].ndim
        assert parameter.numel() == expected[name].numel() and isinstance(parameter, torch.nn.Parameter)
        assert parameter.to_local().dim() == 1 and parameter.requires_grad
    count = torch.tensor([float(sum(one.to_local().numel() for one in net.parameters()))])
    world.all_reduce(count)
    assert count.item() == sum(one.numel() for one in plain.parameters())
    with pytest.raises(NotImplementedError, match="full_state_dict"):
        next(net.parameters()).full_tensor()


def test_parameter_groups_by_their_dims(mesh):
    def make_optimizer(parameters, lr):
        parameters = list(parameters)
        matrices = [one for one in parameters if one.dim() >= 2]
        rest = [one for one in parameters if one.ndim < 2]
        assert matrices and rest
        groups = [{"params": matrices, "weight_decay": 0.3}, {"params": rest, "weight_decay": 0}]
        return torch.optim.AdamW(groups, lr=lr, eps=EPS)

    trains_like_fsdp2(mesh, make_optimizer=make_optimizer)


def test_parameter_groups_by_module(mesh):
    """Also those of modules that are no units."""

    def loop(api, net):
        for block in net.blocks:
            api.fully_shard(block, mesh=mesh)
        api.fully_shard(net, mesh=mesh)
        groups = [{"params": net.head.parameters(), "lr": 0.1}, {"params": [net.blocks[0].up.weight]}]
        groups.append({"params": net.blocks[1].parameters()})
        optimizer = torch.optim.SGD(groups, lr=0.01)
        for step in range(2):
            square(net, sample(step, torch.distributed.get_rank())).backward()
            torch.nn.utils.clip_grad_norm_(net.head.parameters(), 0.1)
            optimizer.step()
            optimizer.zero_grad()
        return whole_weights(net)

    net = Net()
    theirs, ours = loop(torch_fsdp, copy.deepcopy(net)), loop(fsdp2, net)
    check_weights(ours, theirs)


def test_parameters_frozen_later(mesh, world):
    def loop(api, net):
        api.fully_shard(net.blocks[0], mesh=mesh)
        api.fully_shard(net, mesh=mesh)
        optimizer = torch.optim.Adam(net.parameters(), lr=0.01, eps=EPS)
        for step in range(3):
            square(net, sample(step, world.rank)).backward()
            optimizer.step()
            optimizer.zero_grad()
            net.head.weight.requires_grad_(False)
            net.blocks[0].requires_grad_(step == 1)
        return whole_weights(net)

    net = Net()
    theirs, ours = loop(torch_fsdp, copy.deepcopy(net)), loop(fsdp2, net)
    check_weights(ours, theirs)


@pytest.mark.parametrize("norm_type", [1.0, 2.0, 3.0, float("inf")])
def test_norms_over_all_ranks(mesh, world, norm_type):
    net = Net()
    plain = copy.deepcopy(net)
    sum(square(plain, sample(0, rank)) for rank in range(world.size)).div(world.size).backward()
    fsdp2.fully_shard(net, mesh=mesh)
    square(net, sample(0, world.rank)).backward()
    some = [name for name, _ in plain.named_parameters()][::2]
    mine = [one.grad for name, one in net.named_parameters() if name in some]
    expected = torch.nn.utils.get_total_norm(
        [one.grad for name, one in plain.named_parameters() if name in some], norm_type
    )
    norm = torch.nn.utils.get_total_norm(mine, norm_type)
    assert norm.item() == pytest.approx(expected.item(), rel=1e-6)
    torch.nn.utils.clip_grads_with_norm_(net.parameters(), 0.01, norm)
    torch.nn.utils.clip_grads_with_norm_(plain.parameters(), 0.01, expected)
    everything = torch.nn.utils.clip_grad_norm_(net.parameters(), 1e9, norm_type)
    assert everything.item() == pytest.approx(
        torch.nn.utils.clip_grad_norm_(plain.parameters(), 1e9, norm_type).item(), rel=1e-6
    )
    with pytest.raises(ValueError, match="separately"):
        torch.nn.utils.clip_grad_norm_([*net.parameters(), *plain.parameters()], 1.0)
    if world.size > 1:
        with pytest.raises(ValueError, match="this rank's only"):
            torch.nn.utils.clip_grads_with_norm_(net.parameters(), 0.01, torch.ones(()))


def test_ignored_parameters(mesh, world):
    net = Net()
    ignored = {net.blocks[1].up.weight, net.head.bias}
    for block in net.blocks:
        fsdp2.fully_shard(block, mesh=mesh, ignored_params=ignored)
    fsdp2.fully_shard(net, mesh=mesh, ignored_params=ignored)
    parameters = dict(net.named_parameters())
    assert parameters["head.bias"] is net.head.bias and parameters["blocks.1.up.weight"] is net.blocks[1].up.weight
    square(net, sample(0, world.rank)).backward()
    mine = copy.deepcopy(Net())
    mine.load_state_dict(sherd.full_state_dict(net))
    square(mine, sample(0, world.rank)).backward()
    assert torch.allclose(net.head.bias.grad, mine.head.bias.grad, atol=1e-7)  # this rank's


def test_other_methods_than_forward(mesh, world):
    class Encoder(Block):
        def encode(self, x):
            return self(x) * 2

        def decode(self, x):
            return self.down(self.up(x))

    def loss(net, x):
        return net.blocks[1].decode(net.blocks[0](x)).square().mean() + net.head(x).mean()

    class Root(Net):
        def forward(self, x):
            return loss(self, x)

    def loop(api, net):
        for block in net.blocks:
            api.fully_shard(block, mesh=mesh)
        api.register_fsdp_forward_method(net.blocks[1], "decode")
        api.register_fsdp_forward_method(net.head, "forward")  # no unit: no effect
        api.fully_shard(net, mesh=mesh)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for step in range(2):
            net(sample(step, world.rank)).backward()
            optimizer.step()
            optimizer.zero_grad()
        return whole_weights(net)

    net = Root(Encoder)
    theirs, ours = loop(torch_fsdp, copy.deepcopy(net)), loop(fsdp2, net)
    check_weights(ours, theirs)
    with pytest.raises(ValueError, match="no method"):
        fsdp2.register_fsdp_forward_method(net, "nothing")


def test_unshard_and_reshard(mesh):
    net = Net()
    expected = net.blocks[0].up.weight.detach().clone()
    for block in net.blocks:
        fsdp2.fully_shard(block, mesh=mesh)
    fsdp2.fully_shard(net, mesh=mesh)
    assert net.blocks[0].unshard() is None
    assert torch.equal(net.blocks[0].up.weight, expected)
    net.blocks[0].reshard()
    with pytest.raises(RuntimeError, match="blocks.0"):
        net.blocks[0].up.weight.sum()
    net.blocks[0].unshard(async_op=True).wait()
    assert torch.equal(net.blocks[0].up.weight, expected)


def test_unshard_ahead_in_a_forward(mesh):
    class Ahead(Net):
        def forward(self, x):
            for block, following in zip(self.blocks, [*self.blocks[1:], None], strict=True):
                if following is not None and hasattr(following, "unshard"):
                    following.unshard(async_op=True)
                x = block(x)
            return self.head(x)

    trains_like_fsdp2(mesh, Ahead())


def test_classes(mesh):
    net = torch.nn.Sequential(Block(), Block(), Block())
    for block in net:
        fsdp2.fully_shard(block, mesh=mesh)
    fsdp2.fully_shard(net, mesh=mesh)
    assert isinstance(net, fsdp2.FSDPModule) and isinstance(net[0], fsdp2.FSDPModule) and isinstance(net[0], Block)
    assert not isinstance(net[0].up, fsdp2.FSDPModule)
    part = net[:2]
    assert type(part) is torch.nn.Sequential and part[0] is net[0]


REFUSED = {
    "set_reshard_after_backward": (lambda net: net.set_reshard_after_backward(False), "set_reshard_after_backward"),
    "set_unshard_in_backward": (lambda net: net.set_unshard_in_backward(False), "set_unshard_in_backward"),
    "set_custom_all_gather": (lambda net: net.set_custom_all_gather(None), "set_custom_all_gather"),
    "set_custom_reduce_scatter": (lambda net: net.set_custom_reduce_scatter(None), "set_custom_reduce_scatter"),
    "set_all_reduce_hook": (lambda net: net.set_all_reduce_hook(None), "set_all_reduce_hook"),
    "to_empty": (lambda net: net.to_empty(device="cpu"), "sherd.initialise"),
    "a part": (lambda net: net.blocks[0].set_requires_gradient_sync(False), "whole model"),
    "one unit": (lambda net: net.set_requires_gradient_sync(False, recurse=False), "whole model"),
}


@pytest.mark.parametrize("method", REFUSED)
def test_methods_that_are_refused(mesh, method):
    net = Net()
    for block in net.blocks:
        fsdp2.fully_shard(block, mesh=mesh)
    fsdp2.fully_shard(net, mesh=mesh)
    call, words = REFUSED[method]
    with pytest.raises(NotImplementedError, match=words):
        call(net)
    for harmless in ("set_reshard_after_backward", "set_unshard_in_backward", "set_force_sum_reduction_for_comms"):
        getattr(net, harmless)(True)


def test_all_methods_of_fsdp2_are_known():
    for name in vars(torch_fsdp.FSDPModule):
        if not name.startswith("_"):
            assert name in vars(fsdp2.FSDPModule), name
    for name in ("fully_shard", "register_fsdp_forward_method", "share_comm_ctx", "UnshardHandle", "OffloadPolicy"):
        assert hasattr(torch_fsdp, name) and hasattr(fsdp2, name)


ARGUMENTS = {
    "reshard_after_forward": (dict(reshard_after_forward=2), "reshard_after_forward is 2"),
    "offload_policy": (dict(offload_policy=fsdp2.CPUOffloadPolicy()), "CPUOffloadPolicy"),
    "shard_placement_fn": (
        dict(shard_placement_fn=lambda one: torch.distributed.tensor.Shard(one.ndim - 1)), "shard_placement_fn"
    ),
}


@pytest.mark.parametrize("argument", ARGUMENTS)
def test_arguments_that_are_refused(mesh, argument):
    options, words = ARGUMENTS[argument]
    with pytest.raises(NotImplementedError, match=words):
        fsdp2.fully_shard(Net(), mesh=mesh, **options)
    with pytest.raises(ValueError, match="never called"):
        fsdp2.fully_shard(Net().blocks, mesh=mesh)


@pytest.mark.parametrize("kind", ["Adafactor", "Muon", "LBFGS"])
def test_optimizers_of_whole_parameters_are_refused(mesh, world, kind):
    net = fsdp2.fully_shard(Net(), mesh=mesh)
    matrices = [one for one in net.parameters() if one.ndim == 2]
    with pytest.raises(ValueError, match=kind):
        getattr(torch.optim, kind)(matrices)


def test_a_model_that_two_interfaces_shard(mesh):
    net = Net()
    fsdp2.fully_shard(net.blocks[0], mesh=mesh)
    sherd.fully_shard(net)
    with pytest.raises(ValueError, match="same fully_shard"):
        list(net.blocks[0].parameters())
