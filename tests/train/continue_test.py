#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What people do next: more steps, frozen weights, the best checkpoint, a command for events: continue_test.py SHERD FORK_SERVER [TEST…]"""
import json
import math
import os
import pathlib
import shutil
import struct
import sys
import tempfile
import time

sys.path.append(str(pathlib.Path(__file__).parents[1]))
from fork_server import ForkServer  # noqa: E402

STORY = pathlib.Path(__file__).parents[2] / "examples" / "tiny.txt"
SETTINGS = {"data.text": STORY, "data.seq": 16, "model.dim": 16, "model.layers": 2, "model.heads": 2, "train.steps": 4,
            "train.out": "out", "device.kind": "cpu"}
SERVER = ForkServer(sys.argv[2], dict(os.environ, OMP_NUM_THREADS="1"))


def run(place, code=0, ranks=1, command="train", **changes):
    """Its output and its errors."""
    settings = {**SETTINGS, **{key.replace("__", "."): value for key, value in changes.items()}}
    words = [command, "empty.toml", *(["--ranks", str(ranks)] if ranks > 1 else []),
             *(f"--set={key}={value}" for key, value in settings.items())]
    done = SERVER.run(words + (["--json", "--world", "1"] if command == "plan" else []), cwd=place)
    assert done.returncode == code, (changes, done)
    return done.stdout, done.stderr


def metrics(place, key, out="out"):
    return [json.loads(line).get(key) for line in (place / out / "metrics.jsonl").read_text().splitlines()]


def tensors(folder):
    """The bytes of each tensor of a checkpoint's model."""
    result = {}
    for path in folder.glob("model-*.safetensors"):
        data = path.read_bytes()
        size = struct.unpack("<Q", data[:8])[0]
        for name, entry in json.loads(data[8:8 + size]).items():
            if name != "__metadata__":
                begin, end = entry["data_offsets"]
                result[name] = data[8 + size + begin:8 + size + end]
    return result


def cosine(step, steps, warmup=1, lr=1e-3, least=1e-4):
    if step <= warmup:
        return lr * step / warmup
    return least + (lr - least) * (1 + math.cos(math.pi * (step - 1 - warmup) / (steps - warmup))) / 2


def same(some, others):
    return len(some) == len(others) and all(abs(a - b) < 1e-12 for a, b in zip(some, others))


def an_extended_run_begins_its_schedule_anew(place):
    schedule = {"optim__warmup": 1, "optim__min_lr": 1e-4, "train__save_every": 1}
    run(place, **schedule)
    first = [cosine(step, 4) for step in range(1, 5)]
    assert same(metrics(place, "lr"), first), metrics(place, "lr")
    shutil.copytree(place / "out", place / "stretched")
    said, _ = run(place, **schedule, train__steps=10)
    assert ('out/step-4 was the end of its run: the learning rate begins anew (optim.schedule = "cosine" for 6 steps, '
            'optim.warmup = 1); optim.on_extend = "stretch" does without\n') in said, said
    whole = first + [cosine(step, 6) for step in range(1, 7)]
    assert same(metrics(place, "lr"), whole), (metrics(place, "lr"), whole)
    assert metrics(place, "resumed") == [None] * 4 + [True] + [None] * 5
    # One that goes on within the new schedule follows it, and says nothing.
    for step in (8, 9, 10):
        shutil.rmtree(place / f"out/step-{step}")
    said, _ = run(place, **schedule, train__steps=10)
    assert "continuing from out/step-7" in said and "anew" not in said, said
    assert same(metrics(place, "lr"), whole), metrics(place, "lr")
    run(place, **schedule, train__steps=10, train__out="stretched", optim__on_extend="stretch")
    assert same(metrics(place, "lr", "stretched"), first + [cosine(step, 10) for step in range(5, 11)])


def frozen_weights_stay_and_take_no_memory(place):
    frozen = {"model__frozen": '["embedding.*", "layer0.*"]'}
    for ranks in (1, 2):
        run(place, ranks=ranks, **frozen, train__save_every=2, train__out=f"out{ranks}", data__batch=2 // ranks)
        before, after = (tensors(place / f"out{ranks}/step-{step}") for step in (2, 4))
        kept = {name for name in before if before[name] == after[name]}
        expected = {name for name in before if name == "model.embed_tokens.weight" or name.startswith("model.layers.0.")}
        assert expected and kept == expected, (kept, expected)
        assert metrics(place, "planned_bytes", f"out{ranks}") == metrics(place, "peak_bytes", f"out{ranks}")
    losses = [metrics(place, "loss", f"out{ranks}") for ranks in (1, 2)]
    assert all(abs(a - b) < 1e-5 for a, b in zip(*losses, strict=True)), losses
    run(place, **frozen, train__steps=5, train__out="out1", data__batch=2)
    # There is no optimizer state of what was frozen.
    _, errors = run(place, 2, train__steps=6, train__out="out1", data__batch=2)
    assert ('[train] out1/step-5 has optimizer state of other weights: model.frozen = [], was ["embedding.*", "layer0.*"]. '
            'Restore it; to start another run from these weights, set model.from = "out1/step-5"') in errors, errors
    said, _ = run(place, model__from="out1/step-5", model__dim=256, model__layers=8, model__heads=8, train__out="thawed")
    assert "saved thawed/step-4" in said, said
    # The plan follows.
    states = []
    for changes in ({}, frozen):
        plan, _ = run(place, command="plan", **changes)
        entries = json.loads(plan)["ledger"]
        states.append(next(entry["planned"] for entry in entries if entry["name"] == "optimizer state"))
    assert 0 < states[1] < states[0], states
    _, errors = run(place, 2, model__frozen='["layr0.*"]')
    assert '[train] model.frozen has "layr0.*", which matches no weight, such as "' in errors.replace("'", '"'), errors
    _, errors = run(place, 2, model__frozen='["*"]')
    assert '[train] model.frozen = ["*"]: nothing is left to train; leave some out' in errors, errors


def the_best_checkpoint_is_kept(place):
    """A rate that is far too high makes it worse after a while."""
    (place / "validation.txt").write_bytes(STORY.read_bytes()[:500])
    best = {"data__validation": "validation.txt", "train__validate_every": 1, "train__keep_best": "true",
            "train__steps": 8, "train__save_every": 0, "optim__lr": 0.3, "optim__schedule": "constant"}
    said, _ = run(place, **best)
    losses = metrics(place, "val_loss")
    lowest = losses.index(min(losses)) + 1
    assert json.loads((place / "out/best/state.json").read_text())["step"] == lowest, losses
    assert said.count("saved out/best\n") == sum(loss < min(losses[:i], default=math.inf) for i, loss in enumerate(losses)), said
    assert "saved out/step-8\n" in said and not (place / "out/step-4").exists(), said
    # The steps before count.
    said, _ = run(place, **{**best, "train__steps": 9, "optim__lr": 1.0})
    assert metrics(place, "val_loss")[8] > min(losses) and "saved out/best" not in said, said
    _, errors = run(place, 2, train__keep_best="true")
    assert "train.keep_best = true: there is no validation data; set data.validation" in errors, errors


def events(place):
    return [json.loads(line) for line in (place / "events.jsonl").read_text().splitlines()]


def a_command_hears_of_events(place):
    (place / "validation.txt").write_bytes(STORY.read_bytes()[:500])
    begin = time.time()
    run(place, ranks=2, train__on_event="cat > events.jsonl", data__validation="validation.txt")
    got = events(place)
    assert [event["event"] for event in got] == ["start", "step", "step", "step", "step", "checkpoint", "validation", "end"], got
    assert got[0]["ranks"] == 2 and got[0]["steps"] == 4 and got[0]["out"] == "out", got[0]
    assert [event["loss"] for event in got[1:5]] == metrics(place, "loss"), got
    assert got[5]["folder"] == "out/step-4" and got[6]["val_loss"] == metrics(place, "val_loss")[3] and got[6]["best"], got
    assert got[7]["step"] == 4 and got[7]["reason"] == "finished", got
    assert all(begin <= event["time"] <= time.time() for event in got), got
    _, errors = run(place, 3, train__on_event="cat > events.jsonl", optim__lr=1e30, train__out="bad")
    assert events(place)[-1]["reason"] == "not finite", events(place)[-1]


def no_command_stops_a_run(place):
    for i, command in enumerate(("exit 0", "exit 3", "sleep 1", "no-such-command", "head -n 1 > /dev/null")):
        run(place, train__on_event=command, train__out=f"out{i}", train__steps=20)
        assert len(metrics(place, "loss", f"out{i}")) == 20


def main():
    tests = [an_extended_run_begins_its_schedule_anew, frozen_weights_stay_and_take_no_memory, the_best_checkpoint_is_kept,
             a_command_hears_of_events, no_command_stops_a_run]
    with SERVER:
        for test in tests:
            if len(sys.argv) > 3 and test.__name__ not in sys.argv[3:]:
                continue
            with tempfile.TemporaryDirectory() as place:
                place = pathlib.Path(place)
                (place / "empty.toml").touch()
                begin = time.monotonic()
                test(place)
                print(f"{test.__name__}: {time.monotonic() - begin:.1f} s", flush=True)


main()
