#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A step whose gradients are not finite is skipped, or the run goes back and leaves out its samples: on_bad_step_test.py SHERD FORK_SERVER

One byte value makes the model's embedding NaN. It is in one sample, which is in step 5.
"""
import json
import os
import pathlib
import shutil
import signal
import struct
import subprocess
import sys
import tempfile

sys.path.append(str(pathlib.Path(__file__).parents[1]))
from fork_server import ForkServer  # noqa: E402

STORY = (pathlib.Path(__file__).parents[2] / "examples" / "tiny.txt").read_bytes().replace(b"\1", b" ")
ENVIRONMENT = dict(os.environ, OMP_NUM_THREADS="1")
SERVER = ForkServer(sys.argv[2], ENVIRONMENT)
SEQ, G, BAD = 16, 2, 5  # a step has two samples; the step that is bad
MODEL = {"model.dim": 16, "model.layers": 1, "model.heads": 2}


def run(place, text, out, code=0, ranks=1, **keys):
    settings = {"data.text": text, "data.seq": SEQ, "data.micro_batches": G // ranks, "data.shuffle": "false", "train.steps": 12,
                "train.out": out, "train.save_every": 3, "device.kind": "cpu", "optim.schedule": "constant",
                **{key.replace("__", "."): value for key, value in keys.items()}}
    words = ["train", "empty.toml", "--ranks", str(ranks), *(f"--set={key}={value}" for key, value in settings.items())]
    if ranks == 1:
        done = SERVER.run(words, cwd=place)
    else:
        done = subprocess.run([sys.argv[1], *words], cwd=place, timeout=60, capture_output=True, text=True, env=ENVIRONMENT)
    assert done.returncode == code, (keys, done.returncode, done.stdout, done.stderr)
    return done.stdout + done.stderr


def metrics(place, out):
    return [json.loads(line) for line in (place / out / "metrics.jsonl").read_text().splitlines()]


def numbers(place, out):
    return [(each["step"], each["loss"], each["grad_norm"]) for each in metrics(place, out)]


def decisions(place, out):
    return [json.loads(line) for line in (place / out / "bad-steps.jsonl").read_text().splitlines()]


def state(place, folder):
    return json.loads((place / folder / "state.json").read_text())


def spoil_embedding(folder):
    """Row 1 of the embedding is NaN from now on."""
    for file in folder.glob("model-*.safetensors"):
        data = bytearray(file.read_bytes())
        size = struct.unpack("<Q", data[:8])[0]
        header = json.loads(data[8:8 + size])
        for name, tensor in header.items():
            if "embed_tokens" in name:
                assert tensor["dtype"] == "F32", tensor
                row = 8 + size + tensor["data_offsets"][0] + 4 * tensor["shape"][1]
                data[row:row + 4 * tensor["shape"][1]] = struct.pack("<f", float("nan")) * tensor["shape"][1]
                file.write_bytes(data)
                return
    raise AssertionError("no embedding")


def prepare(place):
    (place / "empty.toml").write_text("")
    (place / "good.txt").write_bytes(STORY)
    run(place, "good.txt", "first", train__steps=1, **{key.replace(".", "__"): value for key, value in MODEL.items()})
    (place / "spoilt").mkdir()
    for file in (place / "first/step-1").glob("*"):
        if file.name == "config.json" or file.name.startswith("model"):
            shutil.copy(file, place / "spoilt")
    spoil_embedding(place / "spoilt")
    begin = SEQ * G * (BAD - 1)
    text = bytearray(STORY)
    text[begin] = text[begin + SEQ * G]  # the last target of the step before is the same in both texts
    text[begin + SEQ // 2] = 1
    (place / "bad.txt").write_bytes(text)
    # What a run trains on that leaves out the samples of that step.
    (place / "without.txt").write_bytes(text[:begin] + text[begin + SEQ * G:])


def skip(place):
    for ranks in (1, 2):
        out = f"skip{ranks}"
        said = run(place, "bad.txt", out, ranks=ranks, model__from="spoilt", train__on_bad_step="skip")
        assert "step 5 is bad: the gradient of parameter" in said and "its update was left out" in said, said
        assert [(each["step"], each["grad_norm"] is None) for each in metrics(place, out)] == \
            [(step, step == BAD) for step in range(1, 13)]
        assert state(place, f"{out}/step-12")["skipped_steps"] == 1 and "skipped_steps" not in state(place, f"{out}/step-3")
        assert [each["step"] for each in decisions(place, out)] == [BAD]
        # As if the step had trained on nothing: the weights are those of a run without its samples, a step later.
        reference = f"without{ranks}"
        run(place, "without.txt", reference, ranks=ranks, model__from="spoilt")
        expected = [values[1:] for values in numbers(place, reference)]
        got = [values[1:] for values in numbers(place, out)]
        assert got[:BAD - 1] == expected[:BAD - 1] and got[BAD:] == expected[BAD - 1:-1], (got, expected)


def rewind(place):
    for ranks in (1, 2):
        out = f"rewind{ranks}"
        said = run(place, "bad.txt", out, ranks=ranks, model__from="spoilt", train__on_bad_step="rewind")
        assert "step 5 is bad: the gradient of parameter" in said and "back to step 3" in said, said
        assert numbers(place, out) == numbers(place, f"without{ranks}")
        last = state(place, f"{out}/step-12")
        assert (last["left_out_1_from"], last["left_out_1_to"], last["samples"]) == (8, 10, 26), last
        assert [(each["step"], each["samples"]) for each in decisions(place, out)] == [(BAD, [8, 10])]
    # A run that was killed before its next checkpoint decides the same again; one after it remembers.
    for step in (6, 9, 12):
        shutil.rmtree(place / f"rewind1/step-{step}")
    said = run(place, "bad.txt", "rewind1", model__from="spoilt", train__on_bad_step="rewind")
    assert "continuing from" in said and "back to step 3" in said, said
    assert numbers(place, "rewind1") == numbers(place, "without1")
    for step in (9, 12):
        shutil.rmtree(place / f"rewind1/step-{step}")
    said = run(place, "bad.txt", "rewind1", model__from="spoilt", train__on_bad_step="rewind")
    assert "continuing from" in said and "is bad" not in said, said
    assert state(place, "rewind1/step-12")["left_out_1_from"] == 8 and numbers(place, "rewind1") == numbers(place, "without1")


def rewind_to_the_start(place):
    text = bytearray(STORY)
    text[SEQ * G + 3] = 1
    (place / "early.txt").write_bytes(text)
    said = run(place, "early.txt", "early", model__from="spoilt", train__on_bad_step="rewind", train__steps=6)
    assert "step 2 is bad" in said and "back to step 0" in said, said
    assert [each["step"] for each in metrics(place, "early")] == list(range(1, 7))


def not_for_ever(place):
    (place / "all.txt").write_bytes(b"\1" * 4000)
    said = run(place, "all.txt", "all", 3, model__from="spoilt", train__on_bad_step="skip", train__steps=40)
    assert len(decisions(place, "all")) == 11 and "step 11 is not finite" in said, said
    said = run(place, "all.txt", "again", 3, model__from="spoilt", train__on_bad_step="rewind", train__steps=40)
    assert len(decisions(place, "again")) == 4 and "too often" in said and "step 1 is not finite" in said, said


def an_explosion(place):
    """A text that the model soon knows, but for one step's samples."""
    text = bytearray(b"ab" * 1000)
    strange = 14
    text[SEQ * G * (strange - 1) + 1:SEQ * G * strange] = bytes(range(100, 100 + SEQ * G - 1))
    (place / "calm.txt").write_bytes(text)
    keys = {"model__from": "first/step-1", "train__steps": 18, "optim__lr": 3e-2, "train__log_every": 6}
    run(place, "calm.txt", "calm", **keys)
    norms = [each["grad_norm"] for each in metrics(place, "calm")]
    ratios = {step: norms[step - 1] / (sum(norms[:step - 1]) / (step - 1)) for step in range(11, strange + 1)}
    assert ratios[strange] > 8 and max(ratios[step] for step in (11, 12, 13)) < 2, ratios
    said = run(place, "calm.txt", "explosion", train__on_bad_step="rewind", train__bad_norm=5, **keys)
    assert "step 14 is bad: the norm of its gradients is " in said and "back to step 12" in said, said
    assert [each["step"] for each in metrics(place, "explosion")] == list(range(1, 19))
    assert max(each["grad_norm"] for each in metrics(place, "explosion")[10:]) < 8
    said = run(place, "good.txt", "never", 3, train__on_bad_step="rewind", train__bad_norm=1e-3, train__steps=20)
    assert "the run has gone back to step 9 3 times" in said and "not finite" not in said, said
    assert "set train.on_bad_step" in run(place, "good.txt", "refused", 2, train__bad_norm=2)
    assert "loss scaling skips" in run(place, "good.txt", "refused", 2, train__on_bad_step="skip", precision__recipe="fp16")


def main():
    with tempfile.TemporaryDirectory() as place:
        place = pathlib.Path(place)
        prepare(place)
        for test in (skip, rewind, rewind_to_the_start, not_for_ever, an_explosion):
            test(place)


main()
