# SPDX-License-Identifier: Apache-2.0
"""How busy the machine is with other things, for tests that have seconds in them."""
import os
import time


def share_of_core(core):
    """How much of a core this process gets when it asks for all of it."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, [core])
    begin, used = time.monotonic(), time.process_time()
    while time.monotonic() - begin < 0.3:
        pass
    share = (time.process_time() - used) / (time.monotonic() - begin)
    os.sched_setaffinity(0, before)
    return share


def least_share():
    """Of the first two cores."""
    return min(map(share_of_core, sorted(os.sched_getaffinity(0))[:2]))
