#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The peers of `sherd bench` train a tiny model whose logits and gradients are those of a plain one: peers_test.py PEERS"""
import concurrent.futures
import json
import pathlib
import subprocess
import sys
import tempfile

PEERS = pathlib.Path(sys.argv[1])


def run(script, *words):
    return subprocess.run([sys.executable, PEERS / script, *words], capture_output=True, text=True, timeout=100)


def smoke(script):
    with tempfile.TemporaryDirectory() as place:
        out = pathlib.Path(place) / "peer.json"
        done = run(script, "--smoke", "--steps", "2", "--out", out)
        assert done.returncode == 0, done.stderr
        result = json.loads(out.read_text())
    assert 0 < result["difference_from_plain"] < 1e-5, result
    assert done.stdout.startswith("FSDP2: peer fsdp2, ") and done.stdout.count("\n") == 1, done.stdout
    assert f"seconds {result['seconds']:.4g}, tflops {result['tflops']:.4g}, " in done.stdout, done.stdout


def main():
    with concurrent.futures.ThreadPoolExecutor(2) as threads:
        list(threads.map(smoke, ["fsdp2.py", "fsdp2_moe.py", "fsdp2_hybrid.py"]))

    # Of a real size the scan must be the one that is compared with.
    done = run("fsdp2_hybrid.py", "--device", "cpu")
    assert done.returncode == 1 and done.stdout == "", done
    assert "--mamba-ssm is missing" in done.stderr and "curl -L https://files.pythonhosted.org/" in done.stderr, done.stderr
    print("three peers agree with plain models")


main()
