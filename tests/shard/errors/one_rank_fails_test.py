#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Trainings where rank 1 of 3 fails, or does what the others don't: each must end soon, on all ranks, and say why.

one_rank_fails_test.py RUN_RANKS MPIRUN FAILING_PROGRAM [tcp]
"""
import pathlib
import re
import subprocess
import sys
import time
import unittest

sys.path.append(str(pathlib.Path(__file__).parents[2] / "ranks"))
import busy
import side_by_side

RUN_RANKS, MPIRUN, PROGRAM = sys.argv[1:4]
BACKEND = sys.argv[4] if len(sys.argv) > 4 else "mpi"
LAUNCHER = "tcp" if BACKEND == "tcp" else MPIRUN
SLOWER = 1 / busy.least_share()  # what follows in seconds is for a quiet machine
ENDED = f"another rank failed: [comm.{BACKEND}] rank 1 of 3: an exception ended it"


class Run:
    """One start of the program: its exit code, output and seconds."""

    def __init__(self, mode, patience_ms=60000, exit_code=1):
        begin = time.monotonic()
        done = subprocess.run(
            [RUN_RANKS, LAUNCHER, "3", PROGRAM, mode, str(patience_ms), str(exit_code)],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=120)
        self.seconds = time.monotonic() - begin
        self.code, self.text = done.returncode, done.stdout

    def caught(self, rank, event="caught"):
        """What that rank's main function caught, and how many seconds after rank 1 went its own way."""
        match = re.search(rf"^\[1,{rank}\]<stderr>:{event} after ([\d.e-]+) s: (.*)$", self.text, re.MULTILINE)
        return (match.group(2), float(match.group(1))) if match else ("nothing", float("inf"))


class OneRankFails(unittest.TestCase):
    def assert_caught(self, run, rank, within, *parts, event="caught"):
        text, seconds = run.caught(rank, event)
        for part in parts:
            self.assertIn(part, text, run.text)
        self.assertLess(seconds, within * SLOWER, run.text)
        self.assertNotEqual(run.code, 0, run.text)

    def assert_others_hear_of_it(self, run, within):
        for rank in (0, 2):
            self.assert_caught(run, rank, within, f"[comm.{BACKEND}] rank {rank}, ", ENDED)

    def test_a_healthy_training_ends_well(self):
        run = Run("nothing")
        self.assertEqual(run.code, 0, run.text)
        for rank in range(3):
            self.assertIn(f"rank {rank} is through", run.text)

    def test_an_exception_in_a_forward_ends_all_ranks(self):
        run = Run("forward")
        self.assert_caught(run, 1, 2, "a mistake of this rank alone")
        self.assert_others_hear_of_it(run, 3)
        self.assertLess(run.seconds, 15 * SLOWER, run.text)

    def test_an_exception_that_nobody_catches_ends_all_ranks_and_names_the_rank(self):
        run = Run("uncaught")
        self.assertNotEqual(run.code, 0, run.text)
        self.assertIn("a mistake of this rank alone", run.text)
        if BACKEND == "mpi":
            self.assertRegex(run.text, r"process rank 1 with PID \d+ on node \S+ exited on\s+signal 6 \(Aborted\)")
        else:  # no launcher ends the others: they see it themselves
            for rank in (0, 2):
                self.assertRegex(run.text, rf"\[1,{rank}\]<stderr>:thrown after .* rank 1 is gone: its process has ended")
        self.assertLess(run.seconds, 15 * SLOWER, run.text)

    def test_one_rank_out_of_memory_ends_all_ranks(self):
        run = Run("backward")
        self.assert_caught(run, 1, 2, "std::bad_alloc")
        self.assert_others_hear_of_it(run, 3)
        self.assertLess(run.seconds, 15 * SLOWER, run.text)

    def test_a_rank_that_goes_on_alone_after_an_exception_is_stopped(self):
        run = Run("goes_on")
        for rank in range(3):
            self.assert_caught(run, rank, 3, "[shard.agree]", "Rank 0: begins a backward as pass 2 of step 3",
                               "Rank 1: goes on after an exception in 'FaultyModel'")

    def assert_all_go_on(self, mode, error_of_rank_1, given_up, idle=None):
        """The others wait for what rank 1 never issued, hear of it, and all ranks repeat the step."""
        run = Run(mode)
        text, _ = run.caught(1, "tried again")
        self.assertIn(error_of_rank_1, text, run.text)
        for rank in (0, 2):
            text, seconds = run.caught(rank, "tried again")
            told = ["[shard] rank 1 has given up what this rank waits for: an exception in " + given_up]
            if rank == idle:  # the others may be faster, and begin the pass again
                told.append("has no data in a pass that the other ranks have given up")
            self.assertTrue(any(words in text for words in told), run.text)
            self.assertLess(seconds, 4 * SLOWER, run.text)
        for rank in range(3):
            self.assertIn(f"rank {rank} is through", run.text)
            self.assertEqual(len(re.findall(rf"^\[1,{rank}\]<stderr>:tried again", run.text, re.MULTILINE)), 1, run.text)
        self.assertEqual(run.code, 0, run.text)

    def test_ranks_that_catch_an_early_exception_of_one_forward_repeat_the_step(self):
        self.assert_all_go_on("caught_in_an_early_forward", "a mistake of this rank alone",
                              "a forward of 'FaultyModel', in unit 'block1', as pass 1 of step 3")

    def test_ranks_that_catch_an_early_exception_of_one_backward_repeat_the_step(self):
        self.assert_all_go_on("caught_in_an_early_backward", "std::bad_alloc",
                              "a backward of 'FaultyModel', as pass 2 of step 3")

    def test_ranks_that_catch_a_late_exception_of_one_backward_repeat_the_step(self):
        self.assert_all_go_on("caught_in_a_late_backward", "std::bad_alloc",
                              "a backward of 'FaultyModel', as pass 2 of step 3")

    def test_a_rank_without_data_hears_of_an_exception_of_one_forward_and_repeats_the_step(self):
        self.assert_all_go_on("caught_in_a_forward_beside_an_idle_rank", "a mistake of this rank alone",
                              "a forward of 'FaultyModel', in unit 'block5', as pass 1 of step 3", idle=2)

    def test_a_rank_without_data_hears_of_an_exception_of_one_backward_and_repeats_the_step(self):
        self.assert_all_go_on("caught_in_a_backward_beside_an_idle_rank", "std::bad_alloc",
                              "a backward of 'FaultyModel', as pass 2 of step 3", idle=2)

    def test_ranks_that_are_through_a_forward_when_one_fails_cannot_go_on(self):
        run = Run("caught_in_a_late_forward")
        for rank in range(3):
            self.assert_caught(run, rank, 6, "[shard.agree]", "goes on after an exception in 'FaultyModel'")

    def test_a_unit_that_one_rank_calls_again_is_named_everywhere(self):
        run = Run("calls_again")
        for rank in range(3):
            self.assert_caught(run, rank, 3, "[shard.agree]", "Rank 0: begins a backward as pass 2 of step 3",
                               "Rank 1: calls unit 'block0' where the program does not expect it")

    def test_a_unit_that_one_rank_calls_again_in_the_first_pass_is_named_everywhere(self):
        run = Run("calls_again_at_once")
        for rank in range(3):
            self.assert_caught(run, rank, 3, "[shard.agree]", "Rank 0: calls its units for the first time",
                               "Rank 1: calls unit 'block0' where the program does not expect it")

    def test_a_rank_without_data_that_has_frozen_a_parameter_is_named_everywhere(self):
        run = Run("idles_with_frozen_parameters")
        self.assert_caught(run, 1, 2, "[shard.agree] rank 1, which has no data, begins a backward as pass 2 of step 3",
                           "but the other ranks do something else", event="thrown")
        for rank in (0, 2):
            self.assert_caught(run, rank, 2.5, "[shard] rank 1 has given up what this rank waits for: an exception in "
                                               "a backward of 'FaultyModel', as pass 2 of step 3", event="thrown")

    def test_micro_batches_that_one_rank_changes_later_name_both_numbers(self):
        run = Run("micro_batches")
        for rank in range(3):
            self.assert_caught(run, rank, 3, "[shard.agree]", "Rank 0: micro-batches: 1", "Rank 1: micro-batches: 2")

    def test_a_pass_that_only_one_rank_makes_is_named_everywhere(self):
        run = Run("validates")
        for rank in range(3):
            self.assert_caught(run, rank, 3, "[shard.agree]",
                               "Rank 0: begins a forward with gradients as pass 1 of step 3",
                               "Rank 1: begins a forward without gradients as pass 1 of step 3")

    def test_backwards_in_another_order_are_named_everywhere(self):
        run = Run("forwards_twice")
        for rank in range(3):
            self.assert_caught(run, rank, 3, "[shard.agree]",
                               "Rank 0: begins a backward as pass 2 of step 3",
                               "Rank 1: begins a forward with gradients as pass 2 of step 3")

    def assert_ends_well_though_rank_1_leaves(self, mode):
        """The others are told at once; when they handle the error, so does mpirun: MPI was finished everywhere."""
        run = Run(mode, exit_code=0)
        for rank in (0, 2):
            text, seconds = run.caught(rank)
            self.assertRegex(text, rf"\[comm.{BACKEND}\] rank {rank}, .*rank 1 has left", run.text)
            self.assertLess(seconds, 3 * SLOWER, run.text)
        self.assertNotIn("improperly", run.text)
        self.assertEqual(run.code, 0, run.text)

    def test_a_model_can_be_deleted_after_another_rank_has_failed(self):
        run = Run("drops_the_model")
        for rank in (0, 2):
            text, seconds = run.caught(rank, "dropped")
            self.assertIn("[shard] rank 1 has given up what this rank waits for", text, run.text)
            self.assertLess(seconds, 2 * SLOWER, run.text)  # rank 1 leaves after 3

    def test_a_rank_that_leaves_early_is_named(self):
        self.assert_ends_well_though_rank_1_leaves("leaves")

    def test_a_rank_that_calls_exit_is_named(self):
        self.assert_ends_well_though_rank_1_leaves("exits")

    def test_a_rank_that_catches_its_exception_and_leaves_is_named(self):
        self.assert_ends_well_though_rank_1_leaves("gives_up")

    def test_a_rank_that_is_late_has_the_time_of_an_operation_and_is_asked_where_it_is(self):
        run = Run("reports_late", patience_ms=1500)
        told = "".join(run.caught(rank)[0] for rank in (0, 2))
        self.assertIn("[shard.agree] rank 0 tells what it has found in its gradients, and waited for the other ranks", told,
                      run.text)
        self.assertRegex(told, r"not done after 1.5 s; no word from rank 1: rank 1 is in no operation; its last, ", run.text)

    def test_a_rank_may_be_late_by_less_than_an_operation_may_take(self):
        """As one that writes a bad batch to a slow disk: by 12 of 60 seconds."""
        run = Run("reports_late")
        self.assertEqual(run.code, 0, run.text)
        for rank in range(3):
            self.assertIn(f"rank {rank} is through", run.text)

    def test_an_update_that_one_rank_skips_is_named_everywhere(self):
        run = Run("skips_an_update")
        for rank in range(3):
            self.assert_caught(run, rank, 3, "[shard.agree]", "Rank 0: calls optimizer.step() in step 3",
                               "Rank 1: begins a forward with gradients")
        self.assertNotIn("improperly", run.text)


if __name__ == "__main__":
    side_by_side.main(OneRankFails)
