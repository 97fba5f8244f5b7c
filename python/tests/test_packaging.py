# SPDX-License-Identifier: Apache-2.0
"""What pip installs fits what the repository is built with."""

import pathlib
import re

import sherd

ROOT = pathlib.Path(__file__).parents[2]


def test_the_wheel_needs_the_torch_of_the_build():
    project, requirements = (ROOT / "pyproject.toml").read_text(), (ROOT / "requirements.txt").read_text()
    (pinned,) = re.findall(r"^torch==(\S+)$", requirements, re.MULTILINE)
    assert re.findall(r'"torch==([^"]+)"', project) == [pinned, pinned]  # to build, and to run
    pattern = re.search(r"^regex = '(.*)'$", project, re.MULTILINE).group(1)
    version = re.search(pattern, (ROOT / "CMakeLists.txt").read_text()).group("value")
    assert version == sherd.__version__
