# SPDX-License-Identifier: Apache-2.0
"""Runs `sherd` often, and loads its libraries once (tests/app/fork_server_program.cpp)."""
import os
import queue
import socket
import subprocess


class ForkServer:
    """Runs command lines as subprocess.run would, from any thread. All of them have the same environment."""

    def __init__(self, program, environment=None):
        self._program, self._environment = str(program), environment
        self._idle = queue.LifoQueue()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        while not self._idle.empty():
            self._end(*self._idle.get())

    def run(self, words, cwd=None, timeout=60):
        """Runs `sherd WORDS` with its output captured as text."""
        try:
            process, link = self._idle.get_nowait()
        except queue.Empty:
            process, link = self._start()
        words = [str(word) for word in words]
        message = "".join(f"{word}\0" for word in [os.path.abspath(cwd or "."), *words]).encode()
        out, errors = os.memfd_create("out"), os.memfd_create("errors")
        with open(out, "rb") as out, open(errors, "rb") as errors:
            try:
                link.settimeout(timeout)
                socket.send_fds(link, [message], [out.fileno(), errors.fileno()])
                status = link.recv(4)
                assert len(status) == 4, (words, "the server ended", process.wait(timeout))
            except TimeoutError:
                self._end(process, link, kill=True)
                raise subprocess.TimeoutExpired(words, timeout) from None
            self._idle.put((process, link))
            for file in (out, errors):
                file.seek(0)
            return subprocess.CompletedProcess(words, os.waitstatus_to_exitcode(int.from_bytes(status, "little")),
                                               out.read().decode(), errors.read().decode())

    def _start(self):
        link, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            process = subprocess.Popen([self._program, "--serve", str(theirs.fileno())], pass_fds=[theirs.fileno()],
                                       env=self._environment, stdin=subprocess.DEVNULL)
        return process, link

    def _end(self, process, link, kill=False):
        link.close()  # without which it ends by itself
        if kill:
            process.kill()
        process.wait(60)
