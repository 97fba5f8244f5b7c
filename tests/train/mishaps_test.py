#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What goes wrong in a run, or with its folder, is said, and nothing trained is lost: mishaps_test.py SHERD FORK_SERVER [TEST…]"""
import json
import os
import pathlib
import signal
import struct
import subprocess
import sys
import tempfile

sys.path.append(str(pathlib.Path(__file__).parents[1]))
from fork_server import ForkServer  # noqa: E402

STORY = pathlib.Path(__file__).parents[2] / "examples" / "tiny.txt"
SETTINGS = {"data.text": STORY, "data.seq": 16, "model.dim": 16, "model.layers": 1, "model.heads": 2, "train.steps": 4,
            "train.out": "out", "device.kind": "cpu"}
ENVIRONMENT = dict(os.environ, OMP_NUM_THREADS="1")
SERVER = ForkServer(sys.argv[2], ENVIRONMENT)


def command(changes, ranks=1):
    settings = {**SETTINGS, **changes}
    return [sys.argv[1], "train", "empty.toml", "--ranks", str(ranks),
            *(f"--set={key}={value}" for key, value in settings.items() if value is not None)]


def run(place, code=0, ranks=1, **changes):
    """Its output and its errors."""
    changes = {key.replace("__", "."): value for key, value in changes.items()}
    words = command(changes, ranks)
    if ranks == 1:
        done = SERVER.run(words[1:], cwd=place)
    else:
        done = subprocess.run(words, cwd=place, timeout=60, capture_output=True, text=True, env=ENVIRONMENT)
    assert done.returncode == code if code is not None else done.returncode != 0, (changes, done.returncode, done.stdout, done.stderr)
    return done.stdout, done.stderr


def steps(place, out="out"):
    return [json.loads(line)["step"] for line in (place / out / "metrics.jsonl").read_text().splitlines()]


def validations(place):
    return [json.loads(line).get("val_loss") for line in (place / "out/metrics.jsonl").read_text().splitlines()]


def verify(place, folder):
    SERVER.run(["checkpoint", "verify", folder], cwd=place).check_returncode()


def a_step_that_is_not_finite_leaves_the_last_good_state(place):
    for ranks, watch in ((1, "on"), (2, "ranks")):
        out = f"out{ranks}"
        # The first update makes weights of 1e30. The second step's loss is finite, but not the layer's gradients.
        _, errors = run(place, 3, ranks, optim__lr=1e30, train__watch=watch, train__out=out)
        assert "[train] step 2 is not finite: the gradient of parameter 'layer0.feed_forward.down.weight' is NaN" in errors, errors
        assert "train.watch" in errors if watch == "on" else " on rank " in errors, errors
        assert "lower optim.lr" in errors and "set optim.max_norm" in errors and "sherd::watch" not in errors, errors
        assert f"the last good state is in {out}/step-1" in errors, errors
        assert json.loads((place / out / "step-1/state.json").read_text())["step"] == 1
        verify(place, f"{out}/step-1")
        assert steps(place, out) == [1]
        assert (place / out / "report.html").read_text().endswith("</html>\n")


def a_validation_that_fails_comes_after_the_save(place):
    """The file is overwritten while the run has it open: nothing at the start can find that."""
    tokens = place / "tokens.bin"
    tokens.write_bytes(struct.pack("<200H", *(i % 256 for i in range(200))))
    validation = place / "validation.bin"
    validation.write_bytes(tokens.read_bytes())
    changes = {"data.text": None, "data.tokens": tokens, "data.validation": validation, "train.steps": 100000,
               "train.validate_every": 1, "train.save_every": 1, "train.keep": 2}
    with subprocess.Popen(command(changes), cwd=place, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                          env=ENVIRONMENT) as process:
        assert any(line.startswith("step") for line in process.stdout)
        with open(validation, "r+b") as file:
            file.write(b"\xff" * 400)
        process.stdout.read()
        errors = process.stderr.read()
    assert process.returncode == 2 and "is 65535" in errors, (process.returncode, errors)
    newest = max(int(path.name[5:]) for path in (place / "out").glob("step-*"))
    assert steps(place) == list(range(1, newest + 1)), (steps(place)[-3:], newest)
    assert None not in validations(place)[:-1] and validations(place)[-1] is None, validations(place)[-3:]
    verify(place, f"out/step-{newest}")
    # A resumed run makes the missing validation.
    validation.write_bytes(tokens.read_bytes())
    run(place, **{**changes, "train.steps": newest + 1})
    assert steps(place) == list(range(1, newest + 2)) and None not in validations(place), validations(place)[-3:]


def another_run_is_told_apart(place):
    """A folder with a run of 4 steps, and what may be changed before it goes on."""
    run(place)
    metrics, before = (place / "out/metrics.jsonl").read_text(), (place / "out/configuration.toml").read_text()
    (place / "other.txt").write_text("Something else. " * 300)
    for key, value, words in (("data.text", "other.txt", ["data.text", "other tokens"]),
                              ("train.seed", 7, ["train.seed is 7 and was 1"]),
                              ("model.dim", 32, ["the checkpoint has dim 16, model.dim is 32"])):
        _, errors = run(place, 2, **{key.replace(".", "__"): value, "train__steps": 6})
        assert all(word in errors for word in ["out/step-4", "train.resume = ", *words]), errors
        assert "remove" not in errors, errors
    assert (place / "out/metrics.jsonl").read_text() == metrics
    assert (place / "out/configuration.toml").read_text() == before

    # A wrong line is no reason to lose the others.
    lines = metrics.splitlines(keepends=True)
    (place / "out/metrics.jsonl").write_text("".join([*lines[:2], '{"step": "three"}\n', "no JSON\n", *lines[2:]]))
    # The same text at another place is the same data.
    (place / "moved.txt").write_bytes(STORY.read_bytes())
    said, _ = run(place, optim__lr=0.01, train__steps=6, data__text="moved.txt")
    for word in ("optim.lr = 0.01, was 0.001", "train.steps = 6, was 4", "data.text = ", "2 lines can't be read"):
        assert word in said, (word, said)
    assert said.count("changed since out/step-4: ") == 3, said
    assert steps(place) == [1, 2, 3, 4, 5, 6]
    assert (place / "out/metrics.jsonl.unreadable").read_text() == '{"step": "three"}\nno JSON\n'
    assert (place / "out/configuration-4.toml").read_text() == before
    assert "lr = 0.01\n" in (place / "out/configuration.toml").read_text()
    assert (place / "out/step-4/configuration.toml").read_text() == before

    # Whoever names the checkpoint wants it, into whichever folder.
    said, _ = run(place, data__text="other.txt", train__seed=7, train__steps=5, train__resume="out/step-4", train__out="other")
    assert "continuing from out/step-4" in said and "train.seed = 7, was 1" in said, said

    # Only damage is a reason to remove a checkpoint; also where nothing but the weights says that the model is another.
    for name in ("configuration.toml", "config.json"):
        (place / "out/step-6" / name).write_text("[")
    _, errors = run(place, 2, train__steps=8, optim__lr=0.01, model__dim=32)
    assert "has the shape" in errors and "remove" not in errors, errors
    weights = next((place / "out/step-6").glob("model-*.safetensors"))
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)
    _, errors = run(place, 2, train__steps=8, optim__lr=0.01)
    assert "damaged" in errors and "remove out/step-6" in errors, errors


def the_folder_of_an_earlier_version_is_continued(place):
    """Its configuration.toml has keys under their old names: the same value is no change."""
    names = {"max_norm": "clip", "weight_decay_on": "decay"}
    run(place, optim__max_norm=0.5)
    for file in (place / "out/configuration.toml", place / "out/step-4/configuration.toml"):
        text = file.read_text()
        for new, old in names.items():
            assert text.count(f"\n{new} = ") == 1, text
            text = text.replace(f"\n{new} = ", f"\n{old} = ")
        file.write_text(text)
    _, errors = run(place, 2, optim__max_norm=0.5, train__seed=7)
    assert "train.seed is 7 and was 1" in errors, errors
    said, _ = run(place, optim__max_norm=0.5, train__steps=5)
    assert said.count("changed since out/step-4: ") == 1 and "train.steps = 5, was 4" in said, said
    assert steps(place) == [1, 2, 3, 4, 5]
    (place / "out/step-5/configuration.toml").write_text(text)
    said, _ = run(place, optim__max_norm=0.25, train__steps=6)
    assert "changed since out/step-5: optim.max_norm = 0.25, was 0.5" in said, said
    # The folder's own file, given to the program, is refused with the new names.
    (place / "empty.toml").write_text(text)
    _, errors = run(place, 2)
    for new, old in names.items():
        assert f"optim.{old} is now optim.{new}: write optim.{new} = " in errors, errors


def a_finished_run_says_so(place):
    said, _ = run(place)
    assert said.count("saved out/step-4\n") == 1 and "continuing" not in said, said
    said, _ = run(place)
    assert "out/step-4 is step 4 of train.steps = 4: this run is finished. To train on, raise train.steps" in said, said
    assert "continuing" not in said and "\nstep " not in said and "saved" not in said, said
    said, _ = run(place, train__steps=5)
    assert "continuing from out/step-4\n" in said and "finished" not in said and "step 5/5" in said, said


def a_long_run_is_saved_now_and_then(place):
    """With the default of train.save_every."""
    run(place, data__seq=4, model__dim=2, model__heads=1, train__steps=1001, train__log_every=1000)
    assert sorted(path.name for path in (place / "out").glob("step-*")) == ["step-1000", "step-1001"]


def two_runs_do_not_share_a_folder(place):
    with subprocess.Popen(command({"train.steps": 1000000}), cwd=place, stdout=subprocess.PIPE, text=True,
                          env=ENVIRONMENT) as process:
        assert any(line.startswith("step") for line in process.stdout)
        _, errors = run(place, 2)
        assert f"train.out = out is in use by another run: process {process.pid} on {os.uname().nodename}, since " in errors, errors
        process.send_signal(signal.SIGKILL)
    assert (place / "out/run.lock").exists()
    run(place)  # the lock of a dead process is none
    assert not (place / "out/run.lock").exists()


def limits_hold_for_the_start_and_for_operations(place):
    """A millisecond is too short to meet, or to gather some megabytes."""
    _, errors = run(place, None, ranks=2, device__start_limit=0.001)
    assert "start: after 0.001 s" in errors, errors
    _, errors = run(place, None, ranks=2, device__operation_limit=0.001, model__dim=512, model__heads=4)
    assert "0.001 s" in errors, errors


def main():
    tests = [limits_hold_for_the_start_and_for_operations, a_step_that_is_not_finite_leaves_the_last_good_state,
             a_validation_that_fails_comes_after_the_save, a_long_run_is_saved_now_and_then, another_run_is_told_apart,
             the_folder_of_an_earlier_version_is_continued, a_finished_run_says_so, two_runs_do_not_share_a_folder]
    with SERVER:
        for test in tests:
            if len(sys.argv) > 3 and test.__name__ not in sys.argv[3:]:
                continue
            with tempfile.TemporaryDirectory() as place:
                place = pathlib.Path(place)
                (place / "empty.toml").write_text("")
                test(place)


main()
