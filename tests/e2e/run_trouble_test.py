#!/usr/bin/env python3
"""Bad settings, missing features, full stores, closed descriptors, children, the budget in a memory cgroup.

run_trouble_test.py TERRACE PROGRAM FILTERED [unittest options]
"""

import os
import shutil
import subprocess
import sys
import time
import unittest

import run_rig as rig
from run_rig import FILTERED, MIB, NPJOB, PROGRAM, PYTHON, Job

SMALL = ["--dram", "32MiB"]
CHECK = (PROGRAM, "check", "64")


class Refusals(rig.TestCase):
    def refused_store(self, store, *texts):
        done = Job(["true"], [], store).finish()
        self.assert_refused(done, "store", *texts)

    def test_a_store_that_is_missing_or_a_file(self):
        self.refused_store(os.path.join(self.store, "missing"), "does not exist (ENOENT); make it")
        self.refused_store(__file__, "not a directory (ENOTDIR)")

    def test_a_store_in_memory(self):
        if not os.path.isdir("/dev/shm"):
            self.skipTest("no tmpfs at /dev/shm")
        self.refused_store("/dev/shm", "tmpfs", "on a disk")

    def test_a_store_that_is_read_only(self):
        place = rig.plain_directory("read-only")
        if not rig.CAN_MOUNT or subprocess.call(["mount", "--bind", "-o", "ro", place, place]) != 0:
            self.skipTest("needs root and mount")
        subprocess.call(["mount", "-o", "remount,bind,ro", place])
        self.refused_store(place, "EROFS")

    def test_settings_out_of_range(self):
        for words, text in (
            (["--dram", "8MiB"], "give 16MiB to"),
            (["--dram", "much"], "write a size"),
            (["--min-object", "1KiB"], "give 64KiB to 1GiB"),
            (["--policy", "best"], "choose one of stream|lru"),
            (["--io-depth", "0"], "from 1 to 256"),
            (["--io-depth", "1000"], "from 1 to 256"),
            (["--io-timeout", "0"], "from 1 to"),
            (["--force-eviction=x"], "whole number"),
            (["--store", self.store + ":1MiB"], "too small"),
        ):
            with self.subTest(words=words):
                self.assert_refused(Job(["true"], words, None).finish(), words[0].split("=")[0], text)


class FullStores(rig.TestCase):
    def test_malloc_says_enomem_when_the_disk_is_full(self):
        disk = rig.mount_disk("small-disk", 64)
        if disk is None:
            self.skipTest("needs root, mkfs.ext4 and mount")
        free = os.statvfs(disk).f_bavail
        done = self.run_job(PROGRAM, "nulls", "256", options=SMALL, store=disk)
        self.assert_right(done)
        self.assertRegex(done.out, "refused errno 12\nagain yes\n")
        self.assertGreater(done.stats["fallbacks"]["store_full"], 0)
        self.assertIn("store_full", done.err)
        self.assertEqual(os.listdir(disk), [])
        # The space is back, once ext4 has committed that it was freed.
        for _ in range(100):
            os.sync()
            if os.statvfs(disk).f_bavail >= free:
                break
            time.sleep(0.1)
        self.assertGreaterEqual(os.statvfs(disk).f_bavail, free)
        again = self.run_job(PROGRAM, "nulls", "256", options=SMALL, store=disk)
        self.assertEqual(again.out, done.out)

    def test_the_store_takes_no_more_than_it_may(self):
        done = self.run_job(PROGRAM, "nulls", "256", options=SMALL, store=self.store + ":48MiB")
        self.assert_right(done)
        self.assertRegex(done.out, "refused errno 12\nagain yes\n")

    def test_too_small_for_what_lives_already(self):
        done = self.run_job(
            PROGRAM, "check", "160", options=["--dram", "100MiB"], store=self.store + ":16MiB"
        )
        self.assert_right(done)  # nothing leaves DRAM, and the line says why
        self.assertIn("terrace: no tiering: ", done.err)
        self.assertIn("--store", done.err)

    def test_someone_else_fills_the_disk_meanwhile(self):
        disk = rig.mount_disk("contended-disk", 96)
        if disk is None:
            self.skipTest("needs root, mkfs.ext4 and mount")
        job = Job([PROGRAM, "hold", "48"], SMALL, disk, stdin=subprocess.PIPE)
        job.wait_ready()
        with open(os.path.join(disk, "other"), "wb") as f:
            try:
                while True:
                    f.write(bytes(MIB))
                    f.flush()
            except OSError:
                pass
        for _ in range(3):  # its space was reserved before it was promised
            job.process.stdin.write("c")
            job.process.stdin.flush()
            self.assertEqual(job.process.stdout.readline(), "right\n")
        os.unlink(os.path.join(disk, "other"))
        job.process.stdin.close()
        job.process.stdin = None
        self.assert_right(job.finish())

    def test_a_limit_on_file_size(self):
        done = self.run_job("sh", "-c", 'ulimit -f 2000; exec "$0" "$@"', *CHECK, options=SMALL)
        self.assertIn(done.status, (0, 4), str(done))
        self.assertTrue(
            "no memory: Cannot allocate memory" in done.out or "no tiering" in done.err, str(done)
        )


class MissingFeatures(rig.TestCase):
    def test_no_io_uring(self):
        for error in ("EPERM", "ENOSYS"):
            filtered = [FILTERED, "io_uring=" + error, "--"]
            for done in (
                self.run_job(*CHECK, options=SMALL, prefix=filtered),
                self.run_job(*filtered, *CHECK, options=["--force-eviction=1"]),
            ):
                self.skip_without_filters(done)
                self.assert_right(done)
                self.assertEqual(done.stats["fallbacks"].get("sync_io"), 1, str(done))
                self.assertGreater(done.stats["blocks_stored"], 0)
                self.assertIn("sync_io", done.err)

    def test_no_userfaultfd(self):
        for error in ("EPERM", "ENOSYS"):
            done = self.run_job(FILTERED, "userfaultfd=" + error, "--", *CHECK, options=SMALL)
            self.skip_without_filters(done)
            self.assert_right(done)
            self.assertEqual(done.stats["fallbacks"].get("no_pager"), 1)
            line = done.lines_of_ours()[0]
            self.assertIn("userfaultfd errno=" + error, line)
            self.assertIn("vm.unprivileged_userfaultfd=1", line)

    def skip_without_filters(self, done):
        if done.status == 77:
            self.skipTest(done.err)

    def limited(self, limit, *words, options=SMALL):
        plain = self.plain(*words)
        for done in (
            self.run_job(*words, options=options, prefix=["sh", "-c", f'ulimit {limit}; exec "$0" "$@"']),
            self.run_job("sh", "-c", f'ulimit {limit}; exec "$0" "$@"', *words, options=options),
        ):
            self.assert_right(done)
            self.assertEqual(done.out, plain)
            yield done

    def test_no_locked_memory(self):
        for done in self.limited("-l 0", *CHECK):
            self.assertGreater(done.stats["blocks_stored"], 0)

    def test_few_descriptors(self):
        for limit in ("-n 64", "-n 20"):
            for done in self.limited(limit, *CHECK):
                self.assertGreater(done.stats["blocks_stored"], 0)

    def test_too_few_descriptors_for_the_pager(self):
        for limit in (4, 5, 6, 7, 8, 9):
            done = self.run_job(
                "sh", "-c", f'ulimit -n {limit}; exec "$0" "$@"', *CHECK, options=SMALL, timeout=20
            )
            with self.subTest(limit=limit):
                self.assert_right(done)
                told = "EMFILE" in done.err or done.stats["blocks_stored"] > 0 or "no_duplicate" in done.err
                self.assertTrue(told, str(done))

    def test_a_limited_address_space(self):
        for limit, managed in (("-v 4000000", True), ("-v 1000000", False), ("-v 300000", False)):
            for done in self.limited(limit, *CHECK):
                with self.subTest(limit=limit):
                    if managed:
                        self.assertGreater(done.stats["blocks_stored"], 0)
                    else:
                        self.assertEqual(done.stats["fallbacks"].get("no_arena"), 1)

    def test_less_dram_than_what_cannot_leave(self):
        done = self.run_job(PYTHON, NPJOB, "scan", "6", options=["--dram", "24MiB"])
        self.assert_right(done)
        self.assertEqual(done.out, self.plain(PYTHON, NPJOB, "scan", "6"))
        self.assertRegex(done.err, "terrace: --dram 24MiB is less than what cannot leave DRAM .* would do\n")

    def test_the_program_closes_and_replaces_all_descriptors(self):
        for verb in ("closes", "replaces"):
            for options in (SMALL, ["--force-eviction=1"]):
                done = self.run_job(PROGRAM, verb, "64", options=options)
                self.assert_right(done)
                self.assertRegex(done.out, "^right ")
                self.assertGreater(done.stats["blocks_stored"], 0)


class Children(rig.TestCase):
    OPTIONS = (SMALL, ["--force-eviction=2"])

    def test_children_that_exec_are_unharmed(self):
        plain = self.plain(PROGRAM, "fork-exec", "64")
        for options in self.OPTIONS:
            done = self.run_job(PROGRAM, "fork-exec", "64", options=options)
            self.assert_right(done)
            self.assertEqual(done.out, plain)

    def test_a_child_that_touches_an_object_dies_clearly_or_sees_it_right(self):
        for options in self.OPTIONS:
            done = self.run_job(PROGRAM, "fork-touch", "64", options=options)
            self.assert_right(done)
            self.assertRegex(
                done.out, "a child's own memory: status 0\nchildren: (all died of SIGSEGV|both)\n"
            )

    def test_before_there_is_a_pager_a_child_has_a_copy(self):
        done = self.run_job(PROGRAM, "fork-touch", "64", options=["--dram", "1GiB"])
        self.assert_right(done)
        self.assertIn("children: all right\n", done.out)

    def test_python_starts_children(self):
        script = (
            "import os, subprocess, numpy as np\n"
            "x = [np.full(1 << 17, i, np.int64) for i in range(64)]\n"
            "print(subprocess.run(['echo', 'a child'], capture_output=True, text=True).stdout, flush=True)\n"
            "print(os.system('exit 3') >> 8, flush=True)\n"
            "lines = 'b\\na\\n' * 1000\n"
            "print(subprocess.run(['sort'], input=lines, capture_output=True, text=True).stdout[:4])\n"
            "print(all((p == i).all() for i, p in enumerate(x)))\n"
        )
        plain = self.plain(PYTHON, "-c", script)
        for options in (["--dram", "64MiB"], ["--force-eviction=3"]):
            done = self.run_job(PYTHON, "-c", script, options=options)
            self.assert_right(done)
            self.assertEqual(done.out, plain)
            self.assertGreater(done.stats["blocks_stored"], 0)


class Budget(rig.TestCase):
    """memory = memory+swap = --dram + 5 %, objects of two to three times the budget: nothing is killed."""

    ROOT = "/sys/fs/cgroup/memory"

    def setUp(self):
        self.group = os.path.join(self.ROOT, f"terrace-e2e-{os.getpid()}")
        try:
            os.mkdir(self.group)
            self.write("memory.swappiness", 0)
        except OSError as e:
            self.skipTest(f"no memory cgroup (v1) can be made: {e}")

    def tearDown(self):
        if os.path.isdir(self.group):
            for _ in range(100):
                try:
                    return os.rmdir(self.group)
                except OSError:
                    time.sleep(0.02)

    def write(self, name, value):
        with open(os.path.join(self.group, name), "w") as f:
            f.write(str(value))

    def read(self, name):
        with open(os.path.join(self.group, name)) as f:
            return int(f.read())

    def job(self, dram_mib, *words):
        plain = self.plain(*words)
        limit = dram_mib * MIB * 105 // 100 // 4096 * 4096
        self.write("memory.limit_in_bytes", limit)
        try:
            self.write("memory.memsw.limit_in_bytes", limit)
        except OSError:
            print("no memory+swap limit on this kernel: memory alone is limited", file=sys.stderr)
        done = self.run_job(
            *words,
            options=["--dram", f"{dram_mib}MiB"],
            prefix=["sh", "-c", f'echo $$ > {self.group}/cgroup.procs; exec "$0" "$@"'],
        )
        self.assert_right(done)
        self.assertEqual(done.out, plain)
        self.assertGreater(done.stats["object_peak_bytes"], 2 * dram_mib * MIB)
        most = self.read("memory.max_usage_in_bytes")
        print(
            f"  {words[1:]}: --dram {dram_mib} MiB, objects {done.stats['object_peak_bytes'] >> 20} MiB,"
            f" cgroup peak {most / MIB:.0f} of {limit / MIB:.0f} MiB, failcnt {self.read('memory.failcnt')}",
            file=sys.stderr,
        )
        self.assertLessEqual(most, limit)

    def test_a_cyclic_scan(self):
        self.job(128, PYTHON, NPJOB, "scan", "80")

    def test_many_odd_objects(self):
        self.job(96, PROGRAM, "check", "256")

    def test_threads(self):
        self.job(96, PROGRAM, "threads", "180")


if __name__ == "__main__":
    rig.main()
