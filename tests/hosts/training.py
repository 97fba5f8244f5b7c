# SPDX-License-Identifier: Apache-2.0
"""The small runs of the tests with hosts."""
import json
import pathlib
import subprocess
import threading

STORY = pathlib.Path(__file__).parents[2] / "examples" / "tiny.txt"


def words(sherd, place, out, **more):
    """The command of a run. The keys of `more` have __ for the dot."""
    (place / "empty.toml").write_text("")
    values = {"data.text": STORY, "data.seq": 32, "model.dim": 32, "model.layers": 2, "model.heads": 2, "optim.max_norm": 1.0,
              "train.steps": 8, "train.out": place / out, "device.kind": "cpu", "device.start_limit": 30,
              **{key.replace("__", "."): value for key, value in more.items()}}
    return [sherd, "train", place / "empty.toml", *(f"--set={key}={value}" for key, value in values.items())]


def metrics(place, out):
    return [json.loads(line) for line in (place / out / "metrics.jsonl").read_text().splitlines()]


def results(place, out):
    """What must be equal to the last digit."""
    return [(each["step"], each["loss"], each["grad_norm"]) for each in metrics(place, out)]


class Started:
    """Several commands at once, and what each says."""

    def __init__(self, commands):
        self.texts = ["" for _ in commands]
        self.processes = [subprocess.Popen([str(word) for word in each], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
                          for each in commands]
        self.said = threading.Condition()
        self.readers = [threading.Thread(target=self._read, args=(i,)) for i in range(len(commands))]
        for reader in self.readers:
            reader.start()

    def _read(self, i):
        for line in self.processes[i].stdout:
            with self.said:
                self.texts[i] += line
                self.said.notify_all()
        with self.said:
            self.said.notify_all()

    def text(self):
        return "".join(f"[{i}] {line}\n" for i, text in enumerate(self.texts) for line in text.splitlines())

    def until(self, what, seconds=60):
        with self.said:
            found = self.said.wait_for(lambda: any(what in text for text in self.texts), seconds)
        assert found, f"nobody said '{what}':\n{self.text()}"

    def end(self, seconds, but=()):
        """Waits for all but those; returns their exit codes."""
        codes = {}
        for i, process in enumerate(self.processes):
            if i in but:
                continue
            try:
                codes[i] = process.wait(seconds)
            except subprocess.TimeoutExpired:
                raise AssertionError(f"command {i} has not ended after {seconds} s:\n{self.text()}") from None
        for i, reader in enumerate(self.readers):
            if i not in but:
                reader.join(10)
        return codes

    def kill(self):
        for process in self.processes:
            process.kill()
            process.wait()


def run(commands, seconds=120):
    started = Started(commands)
    codes = started.end(seconds)
    assert not any(codes.values()), (codes, started.text())
    return started.text()
