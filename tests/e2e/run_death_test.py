#!/usr/bin/env python3
"""A job may die in any way at any time: the right status, nobody and nothing left, no wrong byte on its way.

run_death_test.py TERRACE PROGRAM FILTERED [--long] [unittest options]
"""

import os
import random
import signal
import socket
import subprocess
import sys
import time
import unittest

LONG = "--long" in sys.argv
if LONG:
    sys.argv.remove("--long")

import run_rig as rig  # noqa: E402
from run_rig import MIB, PROGRAM, Job, wait_until  # noqa: E402

FORCED = ["--force-eviction=1", "--quiet"]
MEMORY_MIB = "64"


class Deaths(rig.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.store = rig.mount_disk("disk-of-deaths", 512)
        cls.own_disk = cls.store is not None
        if not cls.own_disk:
            super().setUpClass()

    def setUp(self):
        self.free = rig.free_bytes(self.store)

    def tearDown(self):
        if self.own_disk:
            back = wait_until(lambda: rig.free_bytes(self.store) >= self.free - MIB, 5)
            self.assertTrue(back, f"{self.free - rig.free_bytes(self.store)} bytes of the store are lost")

    def start(self, *words, options=FORCED, **more):
        job = Job([PROGRAM, *words], options, self.store, **more)
        job.wait_ready()
        self.assertTrue(wait_until(lambda: rig.pager_of(job.mark)), "no pager runs")
        return job

    def hold(self, **more):
        return self.start("hold", MEMORY_MIB, stdin=subprocess.PIPE, **more)

    def ended(self, job, status, within=10):
        done = job.finish(within)
        self.assertEqual(done.status, status, str(done))
        self.assertNotIn("wrong bytes", done.err)
        self.assert_nothing_left(job)
        return done

    def let_go(self, job):
        job.process.stdin.close()
        job.process.stdin = None

    def asks_all_right(self, job):
        job.process.stdin.write("c")
        job.process.stdin.flush()
        self.assertEqual(job.process.stdout.readline(), "right\n")

    def test_the_store_takes_space_while_the_job_lives(self):
        if not self.own_disk:
            self.skipTest("needs a file system of its own: root and mkfs.ext4")
        job = self.hold()
        self.assertLess(rig.free_bytes(self.store), self.free - 32 * MIB)
        self.asks_all_right(job)
        self.let_go(job)
        self.ended(job, 0)

    def test_the_program_is_killed(self):
        for pause in (0, 0.05, 0.2):
            job = self.hold()
            time.sleep(pause)
            os.kill(job.pid, signal.SIGKILL)
            self.ended(job, 137)

    def test_the_program_is_killed_while_it_starts(self):
        for pause in (0.005, 0.02, 0.04, 0.08):
            job = Job([PROGRAM, "hold", MEMORY_MIB], FORCED, self.store, stdin=subprocess.PIPE)
            time.sleep(pause)
            for pid, name in rig.processes(job.mark).items():
                if name == "run_program":
                    os.kill(pid, signal.SIGKILL)
                    break
            else:
                job.process.kill()
            job.finish(10)
            self.assert_nothing_left(job)

    def test_the_pager_is_killed(self):
        for options in (FORCED, ["--dram", "32MiB", "--quiet"]):
            job = self.hold(options=options)
            os.kill(rig.pager_of(job.mark), signal.SIGKILL)
            begin = time.time()
            done = self.ended(job, 124)
            self.assertLess(time.time() - begin, 2.5)
            self.assertEqual(len(done.err.splitlines()), 1, str(done))
            self.assertIn("the pager", done.err)

    def test_the_pager_is_killed_while_it_starts(self):
        for _ in range(3):
            job = Job([PROGRAM, "check", MEMORY_MIB], FORCED, self.store)
            pager = wait_until(lambda: rig.pager_of(job.mark) or job.process.poll() is not None)
            if pager and pager is not True:
                rig.kill_now(pager)
            done = job.finish(10)
            self.assertIn(done.status, (124, 0), str(done))
            self.assert_nothing_left(job)

    def test_terrace_run_is_killed(self):
        job = self.hold()
        job.process.kill()
        self.assertEqual(job.process.wait(10), -9)
        self.assert_nothing_left(job)
        job.finish()

    def test_the_supervisor_is_killed(self):
        job = self.hold()
        (supervisor,) = (
            pid
            for pid, name in rig.processes(job.mark).items()
            if name == "terrace" and pid != job.process.pid
        )
        os.kill(supervisor, signal.SIGKILL)
        self.ended(job, 124)

    def test_everything_is_killed_at_once(self):
        job = self.hold()
        for pid in rig.processes(job.mark):
            rig.kill_now(pid)
        job.finish()
        self.assert_nothing_left(job)

    def test_stopped_and_continued(self):
        job = self.hold()
        family = list(rig.processes(job.mark))
        for pid in family:
            os.kill(pid, signal.SIGSTOP)
        time.sleep(2.5)  # beyond every time limit of the watchdog
        for pid in family:
            os.kill(pid, signal.SIGCONT)
        self.asks_all_right(job)
        os.kill(job.pid, signal.SIGSTOP)  # the program alone
        time.sleep(1.5)
        os.kill(job.pid, signal.SIGCONT)
        self.asks_all_right(job)
        os.kill(rig.pager_of(job.mark), signal.SIGSTOP)  # the pager alone: a stopped one is not a dead one
        time.sleep(2)
        os.kill(rig.pager_of(job.mark), signal.SIGCONT)
        self.asks_all_right(job)
        self.let_go(job)
        self.ended(job, 0)

    def test_it_ends_by_itself(self):
        for how, status in (("abort", 134), ("_exit", 5), ("segv", 139), ("thread", 6), ("main-leaves", 7)):
            with self.subTest(how=how):
                self.ended(self.start("end", how, MEMORY_MIB), status)

    def test_terminated_by_a_signal_of_the_terminal(self):
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT):
            job = self.hold()
            job.process.send_signal(number)
            self.ended(job, 128 + number)

    def test_another_program_in_the_middle(self):
        job = self.start("exec", MEMORY_MIB)
        done = self.ended(job, 0)
        self.assertRegex(done.out, "^right ")
        self.assertGreater(done.stats["blocks_stored"], 0)


class NoZerosOnTheWire(rig.TestCase):
    """Threads of a dying program are inside write() and send(): what comes out is right, or nothing."""

    def one(self, chance, how, kind):
        if kind == "socket":
            ours, theirs = socket.socketpair()
            ours_fd, theirs_fd = ours.detach(), theirs.detach()
        else:
            ours_fd, theirs_fd = os.pipe()
        job = Job(
            [PROGRAM, "send", str(theirs_fd), "48", "4"],
            FORCED,
            self.store,
            stdin=subprocess.PIPE,
            pass_fds=(theirs_fd,),
        )
        os.close(theirs_fd)
        job.wait_ready()
        end_after = chance.randrange(64 * MIB) + 1
        got = 0
        deadline = time.time() + 30
        try:
            while True:
                data = os.read(ours_fd, 1 << 18)
                if not data:
                    break
                self.assertEqual(data.count(b"A"), len(data), f"bytes that were never written, at {got}")
                got += len(data)
                self.assertLess(time.time(), deadline, "it does not end")
                if end_after and got >= end_after:
                    end_after = 0
                    if how == "kill":
                        os.kill(job.pid, signal.SIGKILL)
                    elif how == "exit":
                        job.process.stdin.close()
                        job.process.stdin = None
                    elif how == "kill run":
                        job.process.kill()
                    elif how == "kill all":  # as a cgroup or a container ends, in any order
                        for pid in sorted(rig.processes(job.mark), reverse=chance.random() < 0.5):
                            rig.kill_now(pid)
        finally:
            os.close(ours_fd)
        done = job.finish()
        self.assertNotIn("EFAULT", done.err)
        self.assert_nothing_left(job)
        return got

    def test_rounds(self):
        seed = int(os.environ.get("TERRACE_TEST_SEED", "1"))
        chance = random.Random(seed)
        total = 0
        for i in range(400 if LONG else 24):
            how = ("kill", "exit", "kill all", "kill", "kill run")[i % 5]
            kind = ("socket", "pipe")[i % 2]
            with self.subTest(round=i, seed=seed, how=how, kind=kind):
                total += self.one(chance, how, kind)
        print(f"{total >> 20} MiB read from dying programs, seed {seed}", file=sys.stderr)


if __name__ == "__main__":
    rig.main()
