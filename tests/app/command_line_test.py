#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What `./sherd` and the program say before and around a run: command_line_test.py LAUNCHER SHERD FORK_SERVER"""
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import time

sys.path.append(str(pathlib.Path(__file__).parents[1]))
from fork_server import ForkServer  # noqa: E402

LAUNCHER, SHERD = sys.argv[1], sys.argv[2]
STORY = pathlib.Path(__file__).parents[2] / "examples" / "tiny.txt"
SETTINGS = {"data.text": STORY, "data.seq": 16, "model.dim": 16, "model.layers": 1, "model.heads": 2, "train.steps": 4,
            "train.out": "out", "device.kind": "cpu"}
ENVIRONMENT = dict(os.environ, OMP_NUM_THREADS="1")
SERVER = ForkServer(sys.argv[3], ENVIRONMENT)


def settings(**changes):
    changed = {**SETTINGS, **{key.replace("__", "."): value for key, value in changes.items()}}
    return ["empty.toml", *(f"--set={key}={value}" for key, value in changed.items())]


def indented_words(text):
    return re.findall(r"^ {2,}([a-z]+)", text, re.MULTILINE)


def the_launcher_lists_the_commands_of_the_program(place):
    listed = indented_words(subprocess.run([LAUNCHER, "--help"], capture_output=True, text=True, check=True).stdout)
    commands = indented_words(SERVER.run(["--help"]).stdout.split("Subcommands:")[1])
    assert len(commands) >= 8 and set(commands) < set(listed), (commands, listed)


def a_command_that_does_not_exist_is_refused(place):
    done = subprocess.run([LAUNCHER, "trian"], cwd=place, capture_output=True, text=True, timeout=20)
    assert done.returncode == 2 and "there is no command 'trian', did you mean train?" in done.stderr, done
    done = subprocess.run([LAUNCHER, "nonsense"], cwd=place, capture_output=True, text=True, timeout=20)
    assert done.returncode == 2 and "there is no command 'nonsense' (commands: build test train " in done.stderr, done
    for words in (["trian"], ["trian", "--help"]):
        done = SERVER.run(words)
        assert done.returncode == 2, done
        assert "there is no command 'trian', did you mean train?" in done.stderr and not done.stdout, done


def numbers_of_ranks_start_at_one(place):
    for words in (["train", "--ranks", "0", "x.toml"], ["plan", "--world", "-1", "x.toml"]):
        done = SERVER.run(words)
        assert done.returncode == 2 and f"it must be at least 1, not {words[2]}" in done.stderr, done


def a_wrong_input_is_said_once_before_ranks_start(place):
    done = SERVER.run(["train", "--ranks", "3", *settings(data__text="story")], cwd=place)
    assert done.returncode != 0 and done.stderr.count("story") == 1 and len(done.stderr.splitlines()) == 1, done


def an_error_of_the_ranks_is_not_followed_by_those_of_mpirun(place):
    changes = {"precision__recipe": "fp8", "precision__keep": '["nothing"]'}
    done = SERVER.run(["train", "--ranks", "2", *settings(**changes)], cwd=place)
    lines = done.stderr.splitlines()
    assert done.returncode == 2 and re.match(r'rank [01]: \[train\] precision.keep has "nothing"', lines[0]), done
    assert lines[1:] == ["[launch] 2 ranks have ended with the same error"], done.stderr


def inputs_are_checked_before_ranks_start(place):
    folder = place / "model"
    folder.mkdir()
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 16, "intermediate_size": 32,
              "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 2, "vocab_size": 256,
              "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": False, "hidden_act": "silu"}
    (folder / "config.json").write_text(json.dumps(config))
    (place / "file").touch()
    for changes, text in (({"model__from": folder}, "model has no weights: neither model.safetensors nor"),
                          ({"data__tokenizer": "missing.json"}, "[train] data.tokenizer = missing.json is neither a file nor"),
                          ({"train__out": "/proc/out"}, "[train] train.out = /proc/out can't be created: "),
                          ({"train__out": "file"}, "[train] train.out = file can't be created: "),
                          ({"train__resume": "yes"}, '[train] train.resume = "yes": there is no such folder: give "auto", '),
                          ({"device__emulate": 4, "device__network": "missing.toml"}, "missing.toml")):
        ranks = "1" if "device__emulate" in changes else "3"
        changes = {**({"model__dim": 256, "model__heads": 8, "model__layers": 8} if "model__from" in changes else {}), **changes}
        done = SERVER.run(["train", "--ranks", ranks, *settings(**changes)], cwd=place)
        assert done.returncode == 2 and text in done.stderr and len(done.stderr.splitlines()) == 1, done
        assert not done.stdout, done


def frames_are_printed_on_request(place):
    words = [SHERD, "train", *settings(train__out="/proc/out")]
    for wanted in ("0", "1"):
        done = subprocess.run(words, cwd=place, capture_output=True, text=True, timeout=60,
                              env=dict(ENVIRONMENT, SHERD_BACKTRACE=wanted))
        assert done.returncode == 2 and ("frame #0: " in done.stderr) == (wanted == "1"), done


def more_ranks_than_cores_are_warned_of(place):
    cores = len(os.sched_getaffinity(0))
    done = SERVER.run(["train", "--ranks", str(cores + 1), *settings(precision__recipe="fp8", precision__keep='["nothing"]')],
                      cwd=place)
    assert done.stderr.startswith(f"[launch] {cores + 1} ranks on a machine with {cores} core"), done
    assert f"[launch] {cores + 1} ranks have ended with the same error" in done.stderr, done


def a_run_begins_with_what_it_is(place):
    lines = SERVER.run(["train", "--ranks", "2", *settings()], cwd=place).stdout.splitlines()
    assert re.fullmatch(r"sherd [\d.]+: llama with [\d,]+ parameters, fp32; 2 CPU ranks on \d+ cores?.*", lines[0]), lines
    size = STORY.stat().st_size
    epochs = 4 * 32 / size  # of 2 ranks with sequences of 16
    assert lines[1] == f"data: {size:,} tokens; a step takes 32 of them, so 4 steps make {epochs:.2g} epochs and 128 tokens", lines
    assert re.fullmatch(r"memory of a rank: [\d.]+ [KM]iB planned; results: out", lines[2]), lines
    assert lines[3].startswith("step 1/4"), lines


def a_rank_that_is_killed_is_not_silent(place):
    words = [SHERD, "train", "--ranks", "2", *settings(train__steps=100000)]
    run = subprocess.Popen(words, cwd=place, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT)
    while not run.stdout.readline().startswith("step "):
        assert run.poll() is None, run.stderr.read()
    ranks = [int(folder.name) for folder in pathlib.Path("/proc").glob("[0-9]*") if is_rank_in(folder, place)]
    assert len(ranks) == 2, ranks
    os.kill(ranks[1], signal.SIGKILL)
    _, errors = run.communicate(timeout=60)
    assert run.returncode == 137 and "[launch] a rank was ended by signal 9" in errors, (run.returncode, errors)


def is_rank_in(folder, place):
    try:
        return (folder / "cwd").resolve() == place.resolve() and b"OMPI_COMM_WORLD_RANK" in (folder / "environ").read_bytes()
    except OSError:  # it has ended
        return False


def main():
    tests = [the_launcher_lists_the_commands_of_the_program, a_command_that_does_not_exist_is_refused,
             numbers_of_ranks_start_at_one, a_wrong_input_is_said_once_before_ranks_start,
             an_error_of_the_ranks_is_not_followed_by_those_of_mpirun, inputs_are_checked_before_ranks_start,
             frames_are_printed_on_request, more_ranks_than_cores_are_warned_of, a_run_begins_with_what_it_is,
             a_rank_that_is_killed_is_not_silent]
    with SERVER:
        for test in tests:
            with tempfile.TemporaryDirectory() as place:
                place = pathlib.Path(place)
                (place / "empty.toml").touch()
                begin = time.monotonic()
                test(place)
                print(f"{test.__name__}: {time.monotonic() - begin:.1f} s", flush=True)


if __name__ == "__main__":
    main()
