#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`sherd rehearse` with ranks that share sequences and experts, and where memory is short: rehearse_commands_test.py FORK_SERVER"""
import json
import os
import pathlib
import sys
import tempfile

sys.path.append(str(pathlib.Path(__file__).parents[1]))
from fork_server import ForkServer  # noqa: E402

H200 = pathlib.Path(__file__).parents[2] / "networks" / "h200_nvlink_infiniband.toml"
# What Sherd allocates itself; a CPU tells nothing else.
OWN = ["model weights", "main weights", "main gradients", "optimizer state", "arena", "control"]
ALL = os.environ.get("SHERD_TEST_ALL") == "1"
MODEL = """[model]
kind = "KIND"
dim = 64
layers = 3
heads = 4
kv_heads = 2
ffn = 128
experts = 8
expert_ffn = 32
pattern = "M*E"
ssm_head_dim = 16
vocab = 256
[data]
text = "text.txt"
seq = 64
[device]
kind = "cpu"
"""


def settings(**values):
    return [word for key, value in values.items() for word in ("--set", f"{key.replace('__', '.')}={json.dumps(value)}")]


def rehearses(server, place, kind, **parallel):
    """As one rank of 16: memory to the byte as planned, the exchanges of a plan, and times that a plan takes."""
    (place / "run.toml").write_text(MODEL.replace("KIND", kind))
    words = ["run.toml", "--world", "16", "--network", H200]
    keys = settings(**{f"parallel__{axis}": size for axis, size in parallel.items()})
    done = server.run(["rehearse", *words, *keys, "--steps", "2", "--times", "times.json", "--json"], cwd=place)
    assert done.returncode == 0, (kind, parallel, done.stderr)
    rehearsed = json.loads(done.stdout)
    ledger = {entry["name"]: entry for entry in rehearsed["ledger"]}
    for name in OWN:
        assert ledger[name]["planned"] == ledger[name]["measured"], (kind, parallel, ledger[name])
        # In fp32 main weights are model weights.
        assert ledger[name]["planned"] > 0 or name == "main weights", (kind, parallel, ledger[name])
    done = server.run(["plan", *words, *keys, "--times", "times.json", "--json"], cwd=place)
    assert done.returncode == 0, (kind, parallel, done.stderr)
    planned = json.loads(done.stdout)
    assert rehearsed["traffic"] == planned["traffic"], (kind, parallel)
    axes = {row["axis"] for row in rehearsed["traffic"]}
    assert {axis for axis in parallel if axis != "outer"} <= axes, (kind, parallel, axes)
    assert [entry["planned"] for entry in planned["ledger"]] == [entry["planned"] for entry in rehearsed["ledger"]], parallel
    assert abs(planned["timeline"]["seconds"] / rehearsed["timeline"]["seconds"] - 1) < 1e-6, (kind, parallel)
    assert rehearsed["timeline"]["seconds"] > 0 and rehearsed["tokens_per_second"] > 0, rehearsed["timeline"]["seconds"]


def refuses_what_does_not_fit(server, place):
    """Before it takes any memory, with what would help; also where the file does not say what the device is."""
    (place / "large.toml").write_text(MODEL.replace("KIND", "llama").replace("dim = 64", "dim = 16384").replace(
        "layers = 3", "layers = 126").replace("ffn = 128", "ffn = 53248").replace('kind = "cpu"', 'kind = "auto"'))
    environment = ["large.toml", "--world", "2"]
    done = server.run(["rehearse", *environment], cwd=place)
    assert done.returncode == 2 and not done.stdout, done
    assert len(done.stderr.splitlines()) == 1, done.stderr
    for said in ("[train.rehearse]", "does not fit this device", "are free", "TiB", "saves most is 4 ranks instead of 2"):
        assert said in done.stderr, (said, done.stderr)


def main():
    environment = dict(os.environ, OMP_NUM_THREADS="1", CUDA_VISIBLE_DEVICES="")
    with ForkServer(sys.argv[1], environment) as server, tempfile.TemporaryDirectory() as place:
        place = pathlib.Path(place)
        (place / "text.txt").write_bytes(bytes(range(256)) * 100)
        cases = [("llama", dict(cp=2, tp=2)), ("moe", dict(tp=2, ep=8)), ("hybrid", dict(cp=2, ep=4))]
        if ALL:
            cases += [("llama", dict(tp=2)), ("llama", dict(cp=4)), ("moe", dict(ep=8)), ("moe", dict(cp=2, tp=2, ep=4)),
                      ("hybrid", dict(cp=2, tp=2, ep=8))]
        for kind, parallel in cases:
            rehearses(server, place, kind, **parallel)
        refuses_what_does_not_fit(server, place)
    print(f"{len(cases)} rehearsals of ranks that share something; what does not fit is refused")


main()
