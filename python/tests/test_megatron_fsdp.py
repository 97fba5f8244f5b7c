# SPDX-License-Identifier: Apache-2.0
"""The conditions of Megatron-FSDP's own tests (by their names) on sherd.compat.megatron_fsdp. Training is held to that
of the plain module on the samples of all ranks, at 1e-6."""

import copy

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

import sherd
from parity import DIM, Block, Net, sample, square
from sherd.compat.megatron_fsdp import MegatronFSDP, MixedPrecisionPolicy, ShardingStrategy, fully_shard

TOLERANCE = 1e-6
STRATEGIES = ["no_shard", "optim", "optim_grads", "optim_grads_params"]


def all_only(value):
    return pytest.param(value, marks=pytest.mark.all)


def hybrid_arguments(world, outer):
    """The arguments for an outer dimension; none if `outer` is None."""
    if outer is None:
        return {}
    mesh = init_device_mesh("cpu", (2, world.size // 2), mesh_dim_names=("outer", "shard"))
    return dict(device_mesh=mesh, dp_shard_dim="shard", dp_outer_dim="outer", outer_dp_sharding_strategy=outer)


def possible(world, inner, outer):
    """Whether Megatron-FSDP, too, takes the combination, and there are ranks for it."""
    return (outer is None or world.size % 2 == 0) and (outer != "optim" or inner == "optim_grads_params")


def check_training(model, reference, optimizer, plain, *, steps=4, micro_batches=2, loss=square):
    """The last backward of a step is announced, as for Megatron-FSDP."""
    world = sherd.world()
    for step in range(steps):
        for micro_batch in range(micro_batches):
            last = micro_batch + 1 == micro_batches
            model.set_model_auto_sync(last)
            number = 10 * step + micro_batch
            mine = loss(model, sample(number, world.rank))
            mine.backward()
            expected = [loss(reference, sample(number, rank)) for rank in range(world.size)]
            (sum(expected) / world.size).backward()
            assert abs(mine.item() - expected[world.rank].item()) < TOLERANCE
            trained = [one for one in model.parameters() if one.requires_grad]
            assert all((one.grad is not None) == last for one in trained)
        for one in (optimizer, plain):
            one.step()
            one.zero_grad()
    check_weights(model, reference)


def check_weights(model, reference):
    full = sherd.full_state_dict(model)
    for name, value in reference.state_dict().items():
        assert (full[name] - value).abs().max() < TOLERANCE, name


def check_what_is_sharded(model, inner, ranks):
    """`ranks`: that shard."""
    if ranks == 1:
        return
    full = 4 * sum(one.numel() for one in model.parameters())
    sizes = sherd.program(model).bytes
    assert (sizes.model_weights < 0.7 * full) == (inner == "optim_grads_params")
    assert (sizes.main_gradients < 0.7 * full) == (inner in ("optim_grads", "optim_grads_params"))


@pytest.mark.parametrize("meta", [False, True])
@pytest.mark.parametrize("outer", [None, "no_shard", "optim"])
@pytest.mark.parametrize("inner", STRATEGIES)
def test_fully_shard(process_group, world, inner, outer, meta):
    if not possible(world, inner, outer):
        return
    with torch.device("meta" if meta else "cpu"):
        model = Net()
    reference = copy.deepcopy(model)
    model, optimizer = fully_shard(
        model,
        torch.optim.Adam(model.parameters(), lr=1e-2),
        fsdp_unit_modules=[Block, "torch.nn.LayerNorm"],
        zero_dp_strategy=inner,
        init_model_with_meta_device=meta,
        report_nan_in_param_grad=True,
        **hybrid_arguments(world, outer),
    )
    check_what_is_sharded(model, inner, world.size if outer is None else world.size // 2)
    assert isinstance(model, MegatronFSDP) and model.module is model and isinstance(model, Net)
    if meta:
        reference = Net()
        reference.load_state_dict(sherd.full_state_dict(model))
        assert reference.head.weight.std() > 0
    check_training(model, reference, optimizer, torch.optim.Adam(reference.parameters(), lr=1e-2))


def test_fully_shard_ez(world):
    """All defaults: the whole model is one unit. Each backward is a step's last unless something else is said."""
    model = Net()
    reference = copy.deepcopy(model)

    def make_optimizer(net):
        groups = [{"params": net.head.parameters(), "lr": 0.1}, {"params": net.blocks.parameters()}]
        return torch.optim.AdamW(groups, eps=1e-4)

    plain, optimizer = make_optimizer(reference), make_optimizer(model)
    scheduler = torch.optim.lr_scheduler.StepLR(plain, 1, 0.5)
    model, optimizer = fully_shard(model, optimizer)
    mine = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    for step in range(3):
        square(model, sample(step, world.rank)).backward()
        (sum(square(reference, sample(step, rank)) for rank in range(world.size)) / world.size).backward()
        for one in (optimizer, plain, mine, scheduler):
            one.step()
        optimizer.zero_grad()
        plain.zero_grad()
    check_weights(model, reference)
    assert [len(group["params"]) for group in optimizer.param_groups] == [2, 12]


@pytest.mark.parametrize("outer", [None, all_only("no_shard"), "optim"])
@pytest.mark.parametrize("inner", [all_only("no_shard"), all_only("optim"), "optim_grads", "optim_grads_params"])
def test_dcp_checkpoint_save_and_load(process_group, world, shared_folder, inner, outer):
    """The weights of a trained model, into one with other weights and, where there are several ranks, another strategy;
    both then train alike."""
    if not possible(world, inner, outer):
        return

    def make(strategy, **options):
        torch.manual_seed(len(options) + STRATEGIES.index(strategy))
        model = Net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        return fully_shard(model, optimizer, fsdp_unit_modules=[Block], zero_dp_strategy=strategy, **options)

    def step(model, optimizer):
        loss = square(model, sample(1, world.rank))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.item()

    model, optimizer = make(inner, **hybrid_arguments(world, outer))
    step(model, optimizer)
    torch.distributed.checkpoint.save({"model": model.state_dict()}, checkpoint_id=shared_folder)
    other, other_optimizer = make(STRATEGIES[STRATEGIES.index(inner) - 1])
    state = {"model": other.state_dict()}
    torch.distributed.checkpoint.load(state, checkpoint_id=shared_folder)
    other.load_state_dict(state["model"])
    full, loaded = sherd.full_state_dict(model), sherd.full_state_dict(other)
    assert all(torch.equal(loaded[name], value) for name, value in full.items())
    for _ in range(2):
        assert abs(step(model, optimizer) - step(other, other_optimizer)) < TOLERANCE
    plain = Net()
    plain.load_state_dict(sherd.full_state_dict(other))
    check_weights(model, plain)


class VisionModel(nn.Module):
    """An encoder, and a decoder that is trained on what it sees."""

    def __init__(self):
        super().__init__()
        self.vision = nn.Sequential(Block(), Block())
        self.projection = nn.Linear(DIM, DIM)
        self.decoder = nn.Sequential(Block(), Block())

    def forward(self, x):
        return self.decoder(self.projection(self.vision(x)) + x)


@pytest.mark.parametrize("meta", [False, all_only(True)])
@pytest.mark.parametrize("inner", STRATEGIES)
def test_frozen_vision_encoder(world, inner, meta):
    with torch.device("meta" if meta else "cpu"):
        model = VisionModel()
    model.vision.requires_grad_(False)
    reference = copy.deepcopy(model)
    model, optimizer = fully_shard(
        model,
        torch.optim.AdamW(model.parameters(), lr=1e-2),
        fsdp_unit_modules=[Block],
        zero_dp_strategy=inner,
        init_model_with_meta_device=meta,
    )
    if meta:
        reference = VisionModel()
        reference.vision.requires_grad_(False)
        reference.load_state_dict(sherd.full_state_dict(model))
    vision = {name: value for name, value in sherd.full_state_dict(model).items() if name.startswith("vision")}
    check_training(model, reference, optimizer, torch.optim.AdamW(reference.parameters(), lr=1e-2), micro_batches=1)
    full = sherd.full_state_dict(model)
    assert all(torch.equal(full[name], value) for name, value in vision.items())
    if inner == "optim_grads_params":  # the encoder's units are gathered, also for no backward, and never reduced
        traffic = sherd.program(model).traffic
        assert traffic["reduce_scatter"].calls == 3


class Expert(Block):
    pass


class Layer(nn.Module):
    """A router that sends each sample to one expert. On a rank, an expert may get none."""

    def __init__(self):
        super().__init__()
        self.router = nn.Linear(DIM, 3)
        self.experts = nn.ModuleList(Expert() for _ in range(3))

    def forward(self, x):
        scores = self.router(x).softmax(-1)
        chosen = scores.argmax(-1)
        parts = []
        for index, expert in enumerate(self.experts):
            mine = (chosen == index).unsqueeze(-1)
            parts.append(expert(x * mine) * mine * scores[:, index : index + 1])
        return x + sum(parts)


@pytest.mark.parametrize("outer", [None, "no_shard", "optim"])
@pytest.mark.parametrize("inner", ["optim_grads", "optim_grads_params"])
@pytest.mark.parametrize("units", [[Layer, Expert], all_only([Expert]), all_only([Layer])])
def test_nested_expert_in_layer(process_group, world, inner, outer, units):
    if not possible(world, inner, outer):
        return
    model = nn.Sequential(Layer(), Layer())
    reference = copy.deepcopy(model)
    model, optimizer = fully_shard(
        model,
        torch.optim.Adam(model.parameters(), lr=1e-2),
        fsdp_unit_modules=units,
        zero_dp_strategy=inner,
        **hybrid_arguments(world, outer),
    )
    names = [name for name, one in model.named_modules() if isinstance(one, sherd.compat.fsdp2.FSDPModule)]
    assert len(names) == 1 + 2 * (Layer in units) + 6 * (Expert in units)
    check_training(model, reference, optimizer, torch.optim.Adam(reference.parameters(), lr=1e-2))


def test_scopes_of_micro_batches(world):
    model = Net()
    reference = copy.deepcopy(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    # Without sharded gradients a step can't go on after its last backward.
    model, optimizer = fully_shard(model, optimizer, fsdp_unit_modules=[Block], zero_dp_strategy="optim")
    plain = torch.optim.SGD(reference.parameters(), lr=0.1)
    for step in range(2):
        with model.no_sync():
            square(model, sample(10 * step, world.rank)).backward()
        square(model, sample(10 * step + 1, world.rank)).backward()
        model.scale_gradients(0.5)
        optimizer.step(sync_grad_before_optimizer_step=True)
        for number in range(2):
            losses = [square(reference, sample(10 * step + number, rank)) for rank in range(world.size)]
            (sum(losses) / world.size / 2).backward()
        plain.step()
        plain.zero_grad()
    check_weights(model, reference)
    square(model, sample(0, world.rank)).backward()
    optimizer.zero_grad(set_to_none=False)  # drops them
    square(model, sample(1, world.rank)).backward()
    optimizer.step()
    (sum(square(reference, sample(1, rank)) for rank in range(world.size)) / world.size).backward()
    plain.step()
    check_weights(model, reference)


def test_mixed_precision_policy(world):
    model = Net().bfloat16()
    policy = MixedPrecisionPolicy(main_grads_dtype=torch.float32, grad_comm_dtype=torch.bfloat16)
    model, optimizer = fully_shard(
        model, torch.optim.Adam(model.parameters(), lr=1e-2), fsdp_unit_modules=[Block], mixed_precision_policy=policy
    )
    loss = model(sample(0, world.rank).bfloat16()).float().square().mean()
    loss.backward()
    assert {(one.dtype, one.grad.dtype) for one in model.parameters()} == {(torch.float32, torch.float32)}
    optimizer.step()
    assert model(sample(0, world.rank).bfloat16()).dtype == torch.bfloat16
    program = sherd.program(model)
    elements = sum(one.numel() for one in Net().parameters())
    assert 2 * elements <= program.traffic["reduce_scatter"].bytes < 3 * elements  # in 16 bits


def test_sums_of_gradients(world):
    model = Net()
    reference = copy.deepcopy(model)
    model, optimizer = fully_shard(
        model, torch.optim.SGD(model.parameters(), lr=0.1), fsdp_unit_modules=[Block], calculate_per_token_loss=True
    )
    square(model, sample(0, world.rank)).backward()
    optimizer.step()
    sum(square(reference, sample(0, rank)) for rank in range(world.size)).backward()
    torch.optim.SGD(reference.parameters(), lr=0.1).step()
    check_weights(model, reference)


REFUSED = {
    "expt_device_mesh": "Rule",
    "hybrid_fsdp_expt_group": "expt_device_mesh",
    "keep_fp8_transpose_cache": "16 or 32",
    "enable_fine_grained_param_gather": "units",
    "use_decoupled_grad": "Parameter.grad",
    "cuda_graph_mode": "StepGraph",
}


@pytest.mark.parametrize("argument", REFUSED)
def test_arguments_that_are_refused(argument):
    model = Net()
    with pytest.raises(NotImplementedError, match=f"{argument}.*{REFUSED[argument]}"):
        fully_shard(model, torch.optim.SGD(model.parameters()), **{argument: True})


def test_wrong_arguments(process_group, world):
    def shard(**options):
        model = Net()
        return fully_shard(model, torch.optim.SGD(model.parameters()), **options)

    with pytest.raises(ValueError, match="zero_dp_strategy is 'all'"):
        shard(zero_dp_strategy="all")
    assert shard(zero_dp_strategy=ShardingStrategy.OPTIM_GRADS)
    with pytest.raises(ValueError, match="device is cuda"):
        shard(device=torch.device("cuda"))
    model = Net()
    with pytest.raises(ValueError, match="lacks parameters of the model: blocks"):
        fully_shard(model, torch.optim.SGD(model.head.parameters()))
    model, optimizer = shard()
    square(model, sample(0, world.rank)).backward()
    with pytest.raises(NotImplementedError, match="install_optimized_model_weights"):
        optimizer.step(install_optimized_model_weights=False)
    with pytest.raises(NotImplementedError, match="set_model_auto_sync"):
        model.finish_grad_sync()
    if world.size % 2 == 0:
        mesh = init_device_mesh("cpu", (world.size // 2, 2), mesh_dim_names=("shard", "tp"))
        with pytest.raises(NotImplementedError, match="tensor parallelism"):
            shard(device_mesh=mesh, dp_shard_dim="shard", tp_dim="tp")
        with pytest.raises(ValueError, match="neighbours"):
            shard(device_mesh=mesh, dp_shard_dim="shard")
        hybrid = hybrid_arguments(world, "optim")
        with pytest.raises(ValueError, match="'optim' with 'optim_grads_params'"):
            shard(**hybrid, zero_dp_strategy="optim")
