# SPDX-License-Identifier: Apache-2.0
"""Runs the methods of a TestCase side by side: for tests that wait, most of the time."""
import concurrent.futures
import sys
import time
import unittest


def run_alone(test):
    result = unittest.TestResult()
    begin = time.monotonic()
    test.run(result)
    for _, said in result.failures + result.errors:
        print(said, file=sys.stderr)
    outcome = "ok" if result.wasSuccessful() else "FAILED"
    print(f"{test.id().split('.')[-1]}: {outcome}, {time.monotonic() - begin:.1f} s", flush=True)
    return result.wasSuccessful()


def main(case, first="", workers=3):
    """Ends the process; tests with `first` in their name, which take longest, begin first."""
    tests = list(unittest.defaultTestLoader.loadTestsFromTestCase(case))
    tests.sort(key=lambda test: first not in test.id())
    with concurrent.futures.ThreadPoolExecutor(workers) as pool:
        good = list(pool.map(run_alone, tests))
    sys.exit(0 if good and all(good) else 1)
