# SPDX-License-Identifier: Apache-2.0
"""A page in Chromium, for tests that look at one."""
import base64
import fcntl
import json
import os
import pathlib
import select
import shutil
import subprocess
import sys
import time

FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
         "--disable-background-networking", "--remote-debugging-pipe"]


class Browser:
    """Chromium's DevTools protocol over a pipe: JSON messages that end with a zero byte."""

    def __init__(self, profile):
        program = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
        if not program:
            sys.exit("no chromium: the test looks at the page in a browser. Debian: apt-get install chromium")
        theirs_in, self._out = os.pipe()
        self._in, theirs_out = os.pipe()
        # Chromium reads 3 and writes 4: away from there first, so that neither covers the other.
        kept = [fcntl.fcntl(one, fcntl.F_DUPFD_CLOEXEC, 20) for one in (theirs_in, theirs_out)]
        self._process = subprocess.Popen(
            ["bash", "-c", f'exec "$@" 3<&{kept[0]} 4>&{kept[1]}', "bash", program, *FLAGS, f"--user-data-dir={profile}",
             "about:blank"], pass_fds=kept, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for one in (theirs_in, theirs_out, *kept):
            os.close(one)
        self._buffer, self._number, self._session, self.events = b"", 0, None, []
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.ask(f"{domain}.enable")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        os.close(self._out)  # without its pipe it ends
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._in)

    def _message(self, limit):
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._in], [], [], max(0, limit - time.monotonic()))
            assert ready, "chromium does not answer"
            got = os.read(self._in, 1 << 20)
            assert got, f"chromium ended with {self._process.wait(20)}"
            self._buffer += got
        message, self._buffer = self._buffer.split(b"\0", 1)
        return json.loads(message)

    def ask(self, method, **parameters):
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        limit = time.monotonic() + 60
        while (answer := self._message(limit)).get("id") != self._number:
            self.events.append(answer)
        assert "result" in answer, (method, answer)
        return answer["result"]

    def evaluate(self, script):
        answer = self.ask("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def wait_for_layout(self):
        self.evaluate("new Promise(done => requestAnimationFrame(() => setTimeout(done, 50)))")

    def open(self, page, width=1280, scheme="light", end=""):
        """Shows the page, and returns (what its console says, the addresses it asks for)."""
        self.ask("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)
        self.ask("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self.ask("Page.navigate", url="about:blank")
        self.evaluate("1")
        self.events = []
        self.ask("Page.navigate", url=page.as_uri() + end)
        limit = time.monotonic() + 60
        while not any(event["method"] == "Page.loadEventFired" for event in self.events):
            self.events.append(self._message(limit))
        self.evaluate("new Promise(done => setTimeout(done, 300))")  # for what the page does later
        asked = [event["params"]["request"]["url"] for event in self.events
                 if event["method"] == "Network.requestWillBeSent"]
        return self.said(), asked

    def said(self):
        return [event["params"] for event in self.events
                if event["method"] in ("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded")]

    def mouse(self, kind, x, y, **more):
        self.ask("Input.dispatchMouseEvent", type=f"mouse{kind}", x=x, y=y, **more)

    def picture(self, path):
        size = self.ask("Page.getLayoutMetrics")["cssContentSize"]
        data = self.ask("Page.captureScreenshot", captureBeyondViewport=True, clip=dict(size, x=0, y=0, scale=1))["data"]
        pathlib.Path(path).write_bytes(base64.b64decode(data))
