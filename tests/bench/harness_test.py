#!/usr/bin/env python3
"""Belady's bound against a search over every choice, on small sequences; and the harness's verdicts."""

import functools
import os
import random
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", ".."))
from bench import belady, harness  # noqa: E402


def least_misses(sequence, capacity):
    """Fewest loads of any policy, by trying every victim."""

    @functools.lru_cache(None)
    def cost(at, resident):
        if at == len(sequence):
            return 0
        block = sequence[at]
        if block in resident:
            return cost(at + 1, resident)
        if len(resident) < capacity:
            return 1 + cost(at + 1, resident | {block})
        return 1 + min(cost(at + 1, (resident - {v}) | {block}) for v in resident)

    return cost(0, frozenset())


class Belady(unittest.TestCase):
    def test_no_policy_loads_less(self):
        rng = random.Random(1)
        for _ in range(60):
            blocks, capacity = rng.randint(2, 6), rng.randint(1, 3)
            passes = [rng.sample(range(blocks), blocks) for _ in range(3)]
            moved = belady.least_moves(passes, capacity, writes=True)
            loads = sum(came_in for came_in, _ in moved) + blocks  # a first touch is no load from the store
            self.assertEqual(loads, least_misses(tuple(sum(passes, [])), capacity))

    def test_a_cycle_of_twice_the_capacity_moves_half_of_it_each_way(self):
        moved = belady.least_moves([list(range(1024))] * 5, 512, writes=True)
        for came_in, went_out in moved[1:]:
            self.assertAlmostEqual(came_in, 512, delta=3)
            self.assertAlmostEqual(went_out, 512, delta=3)

    def test_what_is_never_rewritten_is_stored_once(self):
        moved = belady.least_moves([list(range(64))] * 6, 32, writes=False)
        self.assertLessEqual(sum(out for _, out in moved), 64)
        self.assertGreaterEqual(min(came_in for came_in, _ in moved[1:]), 32)

    def test_what_fits_moves_nothing(self):
        self.assertEqual(belady.least_moves([[0, 1, 2]] * 3, 3, writes=True), [(0, 0)] * 3)


class Verdict(unittest.TestCase):
    def bench(self):
        b = harness.Bench.__new__(harness.Bench)
        b.ident, b.json_path, b.quick, b.rows, b.notes, b.machine = "T", None, False, [], [], {}
        b.say = lambda text: None
        return b

    def test_every_row_must_hold(self):
        b = self.bench()
        b.row("a", 2.0, 1.0, "peer", "GB/s", 1.5, ratio=2.0)
        self.assertEqual(b.finish(), 0)
        b.row("b", 1.0, 1.0, "peer", "GB/s", 1.5, ratio=1.0)
        self.assertEqual(b.finish(), 1)

    def test_a_bound_counts_beside_the_ratio(self):
        b = self.bench()
        b.row("a", 2.0, 1.0, "peer", "GB/s", 1.5, ratio=2.0, bound=4.0, bound_target=0.9)
        self.assertEqual(b.finish(), 1)

    def test_a_missing_peer_is_not_done_and_an_informing_row_does_not_count(self):
        b = self.bench()
        b.row("info", 1.0, None, "peer", "s", None)
        b.row("a", 2.0, 1.0, "peer", "s", 1.5, ratio=2.0)
        self.assertEqual(b.finish(), 0)
        b.row("b", 1.0, None, "peer", "s", 1.5)
        self.assertEqual(b.finish(), 77)

    def test_at_most_turns_the_target_round(self):
        b = self.bench()
        b.row("peak", 104, 100, "tcmalloc", "MiB", 1.05, ratio=1.04, at_most=True)
        self.assertEqual(b.finish(), 0)
        b.row("peak", 106, 100, "tcmalloc", "MiB", 1.05, ratio=1.06, at_most=True)
        self.assertEqual(b.finish(), 1)


if __name__ == "__main__":
    unittest.main()
