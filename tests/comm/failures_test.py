#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs that go wrong on one rank: each must end soon, fail, and say who and why.

failures_test.py RUN_RANKS MPIRUN RANK_PROGRAM [tcp | nccl]
"""
import os
import pathlib
import re
import subprocess
import sys
import time
import unittest

sys.path.append(str(pathlib.Path(__file__).parents[1] / "ranks"))
import busy
import side_by_side

RUN_RANKS, MPIRUN, PROGRAM = sys.argv[1:4]
BACKEND = sys.argv[4] if len(sys.argv) > 4 else "mpi"
LAUNCHER = "tcp" if BACKEND == "tcp" else MPIRUN
ALL = os.environ.get("SHERD_TEST_ALL") == "1"
SLOWER = 1 / busy.least_share()  # what follows in seconds is for a quiet machine


class Run:
    """One start of the program: its exit code, output, and seconds from when the last rank's world was up to the end.
    Where no world came up, they count from the last rank's first line. (Sanitizers make starts several times as long.)"""

    def __init__(self, mode, ranks=4, patience_ms=60000, environment=()):
        done = subprocess.run(
            [RUN_RANKS, LAUNCHER, str(ranks), PROGRAM, mode, str(patience_ms)],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=120,
            env={**os.environ, **dict(environment)})
        end = time.time()
        self.code, self.text = done.returncode, done.stdout
        times = {what: [float(at) for at in re.findall(rf"<stderr>:{what}: ([\d.]+)", self.text)] for what in ("up", "begun")}
        self.seconds = end - max(times["up"] or times["begun"] or [0])

    def caught(self, rank):
        """What that rank's main function caught."""
        tag = f"[1,{rank}]<stderr>:caught: "
        return "".join(line.split("caught: ", 1)[1] for line in self.text.splitlines() if line.startswith(tag))


class CpuFailures:
    """What holds however the ranks are connected."""

    @classmethod
    def healthy(cls):
        """A run without a failure."""
        if not hasattr(cls, "healthy_run"):
            cls.healthy_run = Run("hello", ranks=3)
        return cls.healthy_run

    def assert_failed(self, run, within):
        self.assertNotEqual(run.code, 0, run.text)
        self.assertLess(run.seconds, within * SLOWER, run.text)

    def test_an_exception_on_one_rank_reaches_all(self):
        run = Run("throw")
        self.assert_failed(run, within=7)
        self.assertIn("a mistake of this rank alone", run.caught(1))
        for rank in (0, 2, 3):
            self.assertIn(f"[comm.{BACKEND}] rank {rank}, all_reduce on 'world' ({rank} of 4): another rank failed",
                          run.caught(rank), run.text)
            self.assertIn("rank 1 of 4: an exception ended it", run.caught(rank))

    def test_different_sizes_are_an_error_that_names_the_operation(self):
        run = Run("sizes")
        self.assert_failed(run, within=7)
        for rank in range(4):
            self.assertRegex(run.caught(rank), rf"\[comm.{BACKEND}\] rank {rank}, all_gather on 'world' .*different sizes")

    def test_different_calls_run_into_the_limit_and_name_the_operation(self):
        run = Run("calls", patience_ms=3000)
        self.assert_failed(run, within=9)
        for rank in range(4):
            self.assertRegex(run.caught(rank), r"(all_reduce|broadcast) on 'world' .*not done after 3 s; no word from rank")

    def test_a_rank_that_stays_away_is_named(self):
        run = Run("away", patience_ms=3000)
        self.assert_failed(run, within=9)
        for rank in (0, 2, 3):
            self.assertRegex(run.caught(rank), r"all_reduce on 'world' .*not done after 3 s; no word from ranks? .*1")
        told = "".join(run.caught(rank) for rank in (0, 2, 3))
        self.assertRegex(told, r"rank 1 is in no operation; its last, .*, ended [\d.]+ s ago", run.text)

    def test_a_rank_that_leaves_is_named_at_once(self):
        run = Run("leave", ranks=3)
        self.assert_failed(run, within=7)
        for rank in (0, 2):
            self.assertIn(f"[comm.{BACKEND}] rank {rank}, all_reduce on 'world' ({rank} of 3): rank 1 has left", run.caught(rank))
        self.assertNotIn("improperly", run.text)

    def test_a_closed_world_refuses_operations(self):
        run = Run("closed", ranks=2)
        for rank in range(2):
            self.assertIn(f"[comm.{BACKEND}] rank {rank}, all_reduce on 'world' ({rank} of 2): the world is closed",
                          run.caught(rank))
        self.assertNotIn("improperly", run.text)

    def test_operations_that_ranks_left_behind_do_not_hold_up_the_end(self):
        self.assertLess(Run("left_behind", ranks=2).seconds, 12 * SLOWER)

    def test_a_rank_that_ends_long_after_the_others_is_waited_for(self):
        run = Run("slow_end", ranks=2)
        self.assertEqual(run.code, 0, run.text)
        self.assertIn("rank 1 is through", run.text)


class MpiFailures(CpuFailures, unittest.TestCase):
    def test_a_healthy_run_says_so(self):
        run = self.healthy()
        self.assertEqual(run.code, 0, run.text)
        for rank in range(3):
            self.assertIn(f"rank {rank} of 3 by mpirun over mpi, sum 3", run.text)

    def test_a_killed_rank_ends_the_run_and_is_named_with_its_signal(self):
        run = Run("kill")
        self.assert_failed(run, within=7)
        self.assertRegex(run.text, r"process rank 1 with PID \d+ on node \S+ exited on\s+signal 9 \(Killed\)")

    def test_a_rank_that_never_arrives_is_named(self):
        run = Run("late", patience_ms=10000)  # in which the others arrive, however busy the machine is
        self.assert_failed(run, within=16)
        for rank in (0, 2, 3):
            self.assertIn(f"[comm.mpi] rank {rank} of 4, start: after 10 s rank 1 has not arrived", run.caught(rank))

    def test_cpu_ranks_under_torchrun_are_refused_with_the_remedy(self):
        environment = {**os.environ, "RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost",
                       "MASTER_PORT": "29511", "TORCHELASTIC_RUN_ID": "x", "SHERD_TEST_BACKEND": "mpi"}
        done = subprocess.run([PROGRAM, "hello"], env=environment, capture_output=True, text=True, timeout=60)
        self.assertEqual(done.returncode, 1)
        self.assertIn("torchrun started CPU ranks", done.stderr)
        self.assertIn("mpirun -n 2 or with --ranks 2", done.stderr)

    def test_a_foreign_mpirun_is_noticed(self):
        # An MPI library that does not know the launcher takes each process for a world of its own.
        environment = {key: value for key, value in os.environ.items() if not key.startswith(("OMPI_", "PMIX_"))}
        environment.update(OMPI_COMM_WORLD_RANK="1", OMPI_COMM_WORLD_SIZE="2",
                           OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1",
                           OMPI_MCA_plm="isolated", OPAL_PREFIX=os.path.dirname(os.path.dirname(MPIRUN)))
        done = subprocess.run([PROGRAM, "hello", "10000"], env=environment, capture_output=True, text=True, timeout=60)
        self.assertEqual(done.returncode, 1, done.stdout + done.stderr)
        self.assertIn("the launcher says rank 1 of 2, the MPI library says rank 0 of 1", done.stderr)


class TcpFailures(CpuFailures, unittest.TestCase):
    """No launcher helps here: the ranks alone find out what happened."""

    def assert_named(self, run, ranks, pattern, within):
        """All ranks but 1 say the same of it."""
        self.assert_failed(run, within)
        for rank in set(range(ranks)) - {1}:
            self.assertRegex(run.caught(rank), pattern, run.text)

    def test_a_healthy_run_says_so(self):
        run = self.healthy()
        self.assertEqual(run.code, 0, run.text)
        for rank in range(3):
            self.assertIn(f"rank {rank} of 3 by torchrun over tcp, sum 3", run.text)

    def test_a_killed_rank_is_named_though_programs_that_it_started_live_on(self):
        self.assert_named(Run("kill_parent", ranks=3), 3, r"rank 1 is gone: its process has ended", within=7)

    def test_a_rank_that_ends_without_a_word_is_named(self):
        self.assert_named(Run("exit", ranks=3), 3, r"rank 1 is gone: its process has ended", within=7)

    def test_a_rank_that_is_killed_in_an_operation_is_named(self):
        self.assert_named(Run("kill", ranks=3), 3, r"rank 1 is gone: its process has ended", within=7)

    def test_a_stopped_rank_is_named(self):
        run = Run("stop", ranks=3, patience_ms=3000)
        self.assert_named(run, 3, r"not done after 3 s; no word from ranks? .*1.*rank 1 does not answer", within=13)

    def test_a_rank_that_never_arrives_is_named(self):
        run = Run("late", ranks=3, patience_ms=5000)
        self.assert_named(run, 3, r"start: rank 1 has not arrived \(the limit is 5 s\)", within=40)


# These take as long over tcp and show nothing more than tcp_world_test.cpp.
if BACKEND == "tcp" and not ALL:
    for slow in ("test_different_sizes_are_an_error_that_names_the_operation",
                 "test_different_calls_run_into_the_limit_and_name_the_operation", "test_a_rank_that_stays_away_is_named",
                 "test_a_closed_world_refuses_operations", "test_a_rank_that_ends_long_after_the_others_is_waited_for",
                 "test_an_exception_on_one_rank_reaches_all", "test_a_rank_that_leaves_is_named_at_once"):
        delattr(CpuFailures, slow)
    for slow in ("test_a_rank_that_never_arrives_is_named", "test_a_rank_that_ends_without_a_word_is_named"):
        delattr(TcpFailures, slow)


class NcclFailures(unittest.TestCase):
    def test_a_rank_that_leaves_is_named_within_seconds(self):
        run = Run("leave", ranks=2, environment={"SHERD_TEST_BACKEND": "nccl"})
        self.assertNotEqual(run.code, 0, run.text)
        self.assertLess(run.seconds, 45, run.text)
        self.assertIn("[comm.nccl] rank 0, all_reduce on 'world' (0 of 2): rank 1 has left", run.caught(0), run.text)


if __name__ == "__main__":
    case = {"mpi": MpiFailures, "tcp": TcpFailures, "nccl": NcclFailures}[BACKEND]
    if BACKEND != "nccl":
        case.healthy()
    side_by_side.main(case, first="long_after")
