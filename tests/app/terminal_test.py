#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What a run shows on a terminal, also of one whose width changes: terminal_test.py SHERD"""
import atexit
import contextlib
import fcntl
import os
import pathlib
import re
import select
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import time

STORY = pathlib.Path(__file__).parents[2] / "examples" / "tiny.txt"
SETTINGS = {"data.text": STORY, "data.validation": STORY, "data.seq": 16, "model.dim": 16, "model.layers": 1,
            "model.heads": 2, "train.steps": 1000000, "train.out": "out", "train.save_every": 50, "train.keep": 1,
            "train.validate_every": 50, "device.kind": "cpu"}


class Terminal:
    """A terminal of some columns with a run in it."""

    def __init__(self, place, ranks, columns):
        self._screen, terminal = os.openpty()
        self.text = ""
        self.resize(columns)
        (place / "empty.toml").touch()
        words = [sys.argv[1], "train", "empty.toml", "--ranks", str(ranks),
                 *(f"--set={key}={value}" for key, value in SETTINGS.items())]
        environment = dict(os.environ, OMP_NUM_THREADS="1", TERM="xterm")
        self.run = subprocess.Popen(words, cwd=place, stdin=subprocess.DEVNULL, stdout=terminal, stderr=terminal,
                                    env=environment, start_new_session=True)
        os.close(terminal)
        atexit.register(self.kill)  # a run that never ends must not outlive a failed check

    def kill(self):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.run.pid, signal.SIGKILL)

    def resize(self, columns):
        fcntl.ioctl(self._screen, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))

    def wait_for(self, pattern):
        """Reads until the pattern has come; what came until then."""
        limit = time.monotonic() + 60
        while not (found := re.search(pattern, self.text)):
            assert select.select([self._screen], [], [], max(0, limit - time.monotonic()))[0], self.text[-500:]
            try:
                self.text += os.read(self._screen, 1 << 16).decode()
            except OSError:  # the run has ended
                raise AssertionError((pattern, self.text[-500:])) from None
        before, self.text = self.text[:found.end()], self.text[found.end():]
        return before

    def end(self):
        self.run.terminate()
        try:
            while os.read(self._screen, 1 << 16):
                pass
        except OSError:
            pass
        os.close(self._screen)
        return self.run.wait(60)


def bars(text):
    """Each state of the line with the bar."""
    return re.findall(r"\r\x1b\[(?:K|\d+A\x1b\[J)((?:\[[#.]+\] )?step[^\r\n]*)", text)


def fields(bar):
    return [word for word in ("step", "loss", "norm", "lr", "tokens/s", "TFLOP/s", "iB of", "left") if f"{word}" in bar]


def check(place, ranks):
    terminal = Terminal(place, ranks, 140)
    seen = bars(terminal.wait_for(r"step +100/1000000 [^\r]*left"))
    wide = [bar for bar in seen if bar.endswith("left")]
    assert wide and all(len(bar) < 140 and "TFLOP/s" in fields(bar) for bar in wide), wide[-3:]
    assert not any("%" in bar for bar in wide), wide[-3:]  # of what, on ranks that share cores?
    terminal.resize(80)
    terminal.wait_for(r"\x1b\[1A\x1b\[J")  # the bar had two lines for a moment
    narrow = [bar for bar in bars(terminal.wait_for(r"\[[#.]{10}\] step [^\r]*left(.|\s)*step [^\r]*left")) if bar.endswith("left")]
    assert narrow and all(len(bar) < 80 and {"step", "loss", "left"} <= set(fields(bar)) for bar in narrow), narrow[-3:]
    # What stays is above the bar, which is there again at once.
    stays = terminal.wait_for(r"\r\x1b\[Ksaved out/step-\d+\r\n\[[#.]{10}\] step [^\r]*left")
    assert stays
    terminal.wait_for(r"\r\x1b\[Kstep \d+: validation loss \d\.\d{4}\r\n\[[#.]{10}\] step [^\r]*left")
    assert terminal.end() == 0


def main():
    for ranks in (1, 2):
        with tempfile.TemporaryDirectory() as place:
            begin = time.monotonic()
            check(pathlib.Path(place), ranks)
            print(f"{ranks} ranks: {time.monotonic() - begin:.1f} s", flush=True)


main()
