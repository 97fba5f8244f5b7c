# SPDX-License-Identifier: Apache-2.0
"""What can't work on a sharded model raises at once, and says what to do instead."""

import copy
import os
import pickle
import re
import subprocess
import sys

import pytest
import torch
from torch.nn.utils import clip_grads_with_norm_ as bound_before

import sherd
from parity import Net, sample, shard, square


def test_optimizers_over_the_modules_parameters():
    net = Net()
    early = torch.optim.AdamW(net.parameters(), lr=1)
    shard(net)
    for make in (torch.optim.AdamW, lambda parameters: torch.optim.SGD([{"params": list(parameters)}], lr=1)):
        with pytest.raises(ValueError, match=r"sherd\.parameters\(model\)"):
            make(net.parameters())
    square(net, sample(0, 0)).backward()
    with pytest.raises(ValueError, match=r"sherd\.parameters\(model\)"):
        early.step()
    plain = torch.nn.Linear(1, 1)
    optimizer = torch.optim.AdamW(plain.parameters())
    with pytest.raises(ValueError, match=r"sherd\.parameters\(model\)"):
        optimizer.add_param_group({"params": list(net.parameters())})
    assert len(optimizer.param_groups) == 1
    optimizer.step()


@pytest.mark.parametrize("name", ["Adafactor", "Muon", "LBFGS"])
def test_optimizers_that_look_at_whole_parameters(name):
    make = getattr(torch.optim, name)
    with pytest.raises(ValueError, match=f"{name} looks at whole parameters|2D"):
        make(sherd.parameters(shard(Net())))
    make([torch.nn.Parameter(torch.ones(2, 2))])


def test_clipping_this_ranks_gradients():
    net = shard(Net())
    square(net, sample(0, 0)).backward()
    for parameters in (list(net.parameters()), sherd.parameters(net)):
        with pytest.raises(ValueError, match=r"sherd\.clip_grad_norm_"):
            torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        with pytest.raises(ValueError, match=r"sherd\.clip_grad_norm_"):
            torch.nn.utils.clip_grads_with_norm_(parameters, 1.0, torch.ones(()))
        with pytest.raises(ValueError, match=r"sherd\.clip_grad_norm_"):
            bound_before(parameters, 1.0, torch.ones(()))
    with pytest.raises(ValueError, match="this rank's gradients"):
        torch.nn.utils.get_total_norm([piece.grad for piece in sherd.parameters(net)])
    with pytest.raises(ValueError, match="no gradients"):
        torch.nn.utils.clip_grad_value_(net.parameters(), 1.0)
    torch.nn.utils.clip_grad_value_(sherd.parameters(net), 1e-4)  # of each element alone
    assert all(piece.grad.abs().max() <= 1e-4 for piece in sherd.parameters(net) if piece.numel() > 0)
    plain = torch.nn.Linear(1, 1)
    plain(torch.ones(1)).backward()
    assert torch.nn.utils.clip_grad_norm_(plain.parameters(), 1e-3) > 1e-3
    assert torch.nn.utils.get_total_norm([one.grad for one in plain.parameters()]) < 2e-3
    torch.nn.utils.clip_grad_value_(plain.parameters(), 1e-5)


def test_copies_pickles_moves_and_new_parameters():
    net = shard(Net())
    with pytest.raises(RuntimeError, match="copy it before"):
        copy.deepcopy(net)
    with pytest.raises(RuntimeError, match="sherd.save"):
        pickle.dumps(net)
    for move in (lambda: net.half(), lambda: net.to("cpu"), lambda: torch.nn.Sequential(net).double()):
        with pytest.raises(RuntimeError, match="precision="):
            move()
    with pytest.raises(RuntimeError, match="before fully_shard"):
        net.extra = torch.nn.Parameter(torch.zeros(1))


def test_released_parameters():
    net = shard(Net())
    square(net, sample(0, 0)).backward()
    for read in (lambda: net.blocks[0].up.weight.sum(), lambda: net.blocks[0].forward(sample(0, 0))):
        with pytest.raises(RuntimeError, match="blocks.0"):
            read()


def test_optimizers_of_torch_with_a_closure():
    net = shard(Net())
    optimizer = torch.optim.SGD(sherd.parameters(net), lr=0.1)
    with pytest.raises(ValueError, match="no closure"):
        optimizer.step(lambda: square(net, sample(0, 0)).backward())
    with pytest.raises(ValueError, match="no closure"):
        sherd.AdamW(net).step(lambda: None)


def test_settings_of_adamw_that_can_not_change():
    net = shard(Net())
    optimizer = sherd.AdamW(net)
    square(net, sample(0, 0)).backward()
    optimizer.param_groups[0]["weight_decay"] = 0.5
    with pytest.raises(ValueError, match="weight_decay"):
        optimizer.step()
    with pytest.raises(ValueError, match="rules"):
        optimizer.add_param_group({"params": [torch.zeros(1)]})
    with pytest.raises(ValueError, match="lr is -1"):
        sherd.AdamW(net, lr=-1)


def test_the_grad_scaler_of_torch():
    for make in (sherd.AdamW, lambda net: torch.optim.SGD(sherd.parameters(net), lr=0.1)):
        net, scaler = shard(Net()), torch.amp.GradScaler("cpu")
        optimizer = make(net)
        scaler.scale(square(net, sample(0, 0))).backward()
        for use in (scaler.unscale_, scaler.step):
            with pytest.raises(ValueError, match="LossScaling"):
                use(optimizer)
        torch.amp.GradScaler("cpu", enabled=False).step(optimizer)
    plain, scaler = torch.nn.Linear(1, 1), torch.amp.GradScaler("cpu")
    before = plain.weight.clone()
    scaler.scale(plain(torch.ones(1)).sum()).backward()
    scaler.step(torch.optim.SGD(plain.parameters(), lr=0.1))
    assert not torch.equal(before, plain.weight)


def test_a_second_optimizer_of_torch_over_the_same_model():
    net = shard(Net())
    pieces = sherd.parameters(net)
    optimizers = [torch.optim.SGD(part, lr=0.1) for part in (pieces[:3], pieces[3:])]
    square(net, sample(0, 0)).backward()
    optimizers[0].step()
    with pytest.raises(RuntimeError, match="one optimizer"):
        optimizers[1].step()


def test_optimizers_of_torch_with_a_loss_per_token():
    net = sherd.fully_shard(Net(), loss="per_token")
    optimizer = torch.optim.SGD(sherd.parameters(net), lr=0.1)
    square(net, sample(0, 0)).backward()
    with pytest.raises(ValueError, match="use sherd.AdamW"):
        optimizer.step()


def test_load_state_dict_with_assign():
    with pytest.raises(RuntimeError, match="assign"):
        shard(Net()).load_state_dict(Net().state_dict(), assign=True)


def test_a_step_before_its_backwards():
    net = shard(Net())
    optimizer = sherd.AdamW(net)
    sherd.micro_batches(net, 2)
    square(net, sample(0, 0)).backward()
    with pytest.raises(RuntimeError, match="1 of the 2 backwards"):
        optimizer.step()
    square(net, sample(0, 0)).backward()
    optimizer.step()


def test_parameters_that_can_not_be_sharded():
    class Lazy(Net):
        def __init__(self):
            super().__init__()
            self.lazy = torch.nn.LazyLinear(3)

    with pytest.raises(ValueError, match="'lazy.weight' has no shape"):
        sherd.fully_shard(Lazy())
    with pytest.raises(ValueError, match="output_dtype"):
        sherd.fully_shard(
            Net(), precision=torch.distributed.fsdp.MixedPrecisionPolicy(output_dtype=torch.float32)
        )


def test_meshes_that_do_not_have_all_ranks(process_group, world):
    from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

    named = init_device_mesh("cpu", (world.size,), mesh_dim_names=("tp",))
    with pytest.raises(ValueError, match="'tp'"):
        sherd.fully_shard(Net(), mesh=named)
    if world.size > 1:
        backwards = DeviceMesh("cpu", list(reversed(range(world.size))))
        with pytest.raises(ValueError, match="in their order"):
            sherd.fully_shard(Net(), mesh=backwards)


@pytest.mark.parametrize(
    "change, words",
    [
        ("torch.__version__ = '1.0'", f"built with torch {re.escape(torch.__version__)}, but this is torch 1.0"),
        ("torch.version.cuda = '1.0'", f"CUDA {torch.version.cuda or 'none'}, but this is a torch for CUDA 1.0"),
        ("sys.version_info = (3, 99)", r"built with Python 3.\d+, but this is Python 3.99"),
    ],
    ids=["torch", "cuda", "python"],
)
def test_another_version_of_what_it_was_built_with(world, change, words):
    if world.size > 1:
        return  # nothing here depends on ranks
    code = f"import sys, torch; {change}; import sherd"
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("OMPI", "PMIX"))}
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    assert result.returncode == 1
    assert re.search(words, result.stderr), result.stderr
