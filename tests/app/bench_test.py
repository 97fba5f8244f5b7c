#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`sherd bench` on tiny models: what it says is whole, and memory is as planned: bench_test.py FORK_SERVER"""
import json
import math
import os
import pathlib
import sys
import tempfile

sys.path.append(str(pathlib.Path(__file__).parents[1]))
from fork_server import ForkServer  # noqa: E402

POSITIVE = ["ranks", "tokens", "seconds", "tokens_per_second", "tflops", "limit_tflops", "share_of_limit"]
MAYBE = ["joules", "watts", "sm_mhz"]  # null where nothing measures them
# What Sherd allocates itself; what else a device holds is known on a GPU only.
OWN = ["model weights", "main weights", "main gradients", "optimizer state", "arena", "control"]
ALL = os.environ.get("SHERD_TEST_ALL") == "1"
VARIANTS = ["8b", "8b-graph", "8b-recompute", "8b-fp8", "8b-fp8-graph", "8b-fp8-recompute", "8b-fp8-wgrad16", "8b-fp8-block",
            "8b-mxfp8", "8b-selective", "8layers", "moe", "moe-graph", "moe-recompute", "moe-selective", "moe-ep8",
            "llama-128k-tp2-cp2", "small-units", "small-units-graph", "hybrid", "hybrid-graph",
            "hybrid-selective", "hybrid-recompute", "hybrid-fp8"]


SERVER = ForkServer(sys.argv[1], dict(os.environ, OMP_NUM_THREADS="1"))


def bench(*words):
    return SERVER.run(["bench", "--device", "cpu", *words], timeout=200)


def check(one, name):
    assert one["name"] == name and one["about"] and one["device"], one
    for key in POSITIVE:
        assert math.isfinite(one[key]) and one[key] > 0, (key, one)
    for key in MAYBE:
        assert one[key] is None or (math.isfinite(one[key]) and one[key] > 0), (key, one)
    assert math.isfinite(one["exposed_seconds"]) and one["exposed_seconds"] >= 0, one
    assert math.isclose(one["share_of_limit"], one["tflops"] / one["limit_tflops"], rel_tol=1e-9), one
    assert math.isclose(one["tokens_per_second"], one["tokens"] / one["seconds"], rel_tol=1e-9), one
    assert one["host_seconds"] is None, one  # on CPU the host is the device
    assert len(one["steps"]) == 3, one
    for step in one["steps"]:
        assert math.isfinite(step["loss"]) and math.isfinite(step["gradient_norm"]) and step["gradient_norm"] > 0, step
    memory = one["memory"]
    entries = {entry["name"]: entry for entry in memory["entries"]}
    for key in OWN:
        assert entries[key]["planned"] == entries[key]["measured"] > 0, entries[key]
    assert entries["activations"]["planned"] > 0, entries
    assert memory["planned"] == memory["measured"] == sum(entries[key]["measured"] for key in OWN), memory


def check_sharing(out):
    """Ranks that share experts and sequences, and on request all variants that a CPU can run."""
    names = ["moe-ep8", "llama-128k-tp2-cp2"]
    if ALL:
        names += ["8b-fp8", "8b-fp8-wgrad16", "8b-fp8-block", "8b-mxfp8", "8b-fp8-recompute", "moe-recompute", "moe-selective",
                  "hybrid-selective", "hybrid-fp8"]
    done = bench("--quick", "--only", ",".join(names), "--steps", "3", "--json", str(out))
    assert done.returncode == 0, done.stderr
    every = json.loads(out.read_text())["variants"]
    assert [one["name"] for one in every] == names, every
    for one in every:
        check(one, one["name"])
    assert every[0]["tokens"] == 64 and every[1]["tokens"] == 64 // 4, every  # of a rank


def check_peer(one):
    """The peer computed what Sherd did, by its own count of operations."""
    peer, name = one["peer"], one["name"]
    assert peer["peer"] == "fsdp2" and peer["device"] == "cpu" and peer["world"] == one["ranks"], (name, peer)
    assert peer["compile"] is False, peer  # of a tiny model it would take minutes
    assert math.isfinite(peer["loss"]) and peer["gradient_norm"] > 0, peer
    mine, theirs = (each["tflops"] * each["seconds"] for each in (one, peer))
    assert math.isclose(mine, theirs, rel_tol=1e-9), (name, mine, theirs)
    # This rank's part of the main weights, in fp32; Sherd pads groups to multiples of the ranks.
    planned = next(entry["planned"] for entry in one["memory"]["entries"] if entry["name"] == "main weights")
    assert 0 <= planned - 4 * peer["parameters"] / one["ranks"] < 0.1 * planned, (name, planned, peer["parameters"])
    assert math.isclose(one["times_the_peer"], peer["seconds"] / one["seconds"], rel_tol=1e-9), one


def check_peers(out):
    done = bench("--quick", "--only", "8b,moe,hybrid-recompute,8b-selective", "--steps", "3", "--peers", "--json", str(out))
    assert done.returncode == 0, done.stderr
    *compared, alone = json.loads(out.read_text())["variants"]
    for one in compared:
        check_peer(one)
        assert f"Sherd is {one['times_the_peer']:.3f} times as fast" in done.stdout, done.stdout
    assert "peer" not in alone and done.stdout.count("FSDP2: ") == len(compared), done.stdout
    assert compared[2]["peer"]["recompute"] == "full" and compared[2]["peer"]["scan"] == "torch", compared[2]["peer"]
    assert "hybrid: FSDP2 is not run" not in done.stderr, done.stderr

    done = bench("--quick", "--only", "hybrid", "--peers", "--mamba-ssm", "nowhere")
    assert done.returncode == 2 and "nowhere" in done.stderr and "warming up" not in done.stderr, done
    done = bench("--quick", "--only", "hybrid", "--peers", "--mamba-ssm", str(out.parent))
    assert done.returncode == 1 and "hybrid: FSDP2 failed" in done.stderr, done
    assert "there is no mamba_ssm/ops/triton/ssd_combined.py" in done.stderr, done.stderr


def main():
    with SERVER, tempfile.TemporaryDirectory() as place:
        out = pathlib.Path(place) / "bench.json"
        done = bench("--quick", "--only", "8b,8b-recompute", "--steps", "3", "--table", "--json", str(out))
        assert done.returncode == 0, done.stderr
        every = json.loads(out.read_text())
        assert every["quick"] is True and "bench --only 8b,8b-recompute --quick" in every["command"], every["command"]
        assert [one["name"] for one in every["variants"]] == ["8b", "8b-recompute"], every
        for one in every["variants"]:
            check(one, one["name"])
            assert f"\n{one['name']}: " in f"\n{done.stdout}" and f"| `{one['name']}`: " in done.stdout, done.stdout
        plain, again = (one["memory"]["entries"][-1] for one in every["variants"])
        assert again["name"] == "activations" and again["planned"] < plain["planned"], (plain, again)
        assert f"by `{every['command']}`:\n\n| variant | speed |" in done.stdout, done.stdout
        rows = [line.count("|") for line in done.stdout.splitlines() if line.startswith("|")]
        assert len(rows) == 4 and len(set(rows)) == 1, done.stdout

        # Where computing isn't what counts, steps are.
        done = bench("--quick", "--only", "small-units", "--steps", "3", "--table", "--json", str(out))
        assert done.returncode == 0, done.stderr
        small = json.loads(out.read_text())["variants"][0]
        assert small["tflops"] is None and small["seconds"] > 0 and small["steps"][0]["gradient_norm"] > 0, small
        assert f"small-units: {1 / small['seconds']:.4g} steps/s;" in done.stdout, done.stdout
        done = bench("--quick", "--only", "small-units-graph")
        assert done.returncode == 1 and "CUDA graphs need a GPU" in done.stderr, done

        # Refused before anything runs, with the names that there are.
        done = bench("--quick", "--only", "8b,8b-recompote", "--json", str(out.with_name("none.json")))
        assert done.returncode == 2 and "'8b-recompote', did you mean 8b-recompute?" in done.stderr, done.stderr
        assert done.stderr.split("There are ")[1].split("\n")[0].split(", ") == VARIANTS, done.stderr
        assert "warming up" not in done.stderr and not out.with_name("none.json").exists(), done.stderr

        # A variant that fails is said so, and makes an exit code.
        done = bench("--quick", "--only", "8b", "--network", "nowhere.toml")
        assert done.returncode == 1 and "nowhere.toml" in done.stderr and "8b: failed" in done.stderr, done
        check_sharing(out)
        check_peers(out)
    print("two variants measured, an unknown one refused, three compared with their peers")


main()
