#!/usr/bin/env python3
"""Real programs give the same bytes plainly, at half of their peak, and with everything on the move.

    run_bytes_test.py TERRACE PROGRAM FILTERED [--every] [unittest options]
--every runs each job under each seed; without it the seeds are spread over the jobs.
"""

import hashlib
import os
import random
import shutil
import sys
import unittest

EVERY = "--every" in sys.argv
if EVERY:
    sys.argv.remove("--every")

import run_rig as rig  # noqa: E402
from run_rig import MIB, NPJOB, PROGRAM, PYTHON, SEEDS  # noqa: E402


def seeds(turn):
    return SEEDS if EVERY else SEEDS[turn % 3 : turn % 3 + 1]


class Numpy(rig.TestCase):
    def job(self, name, turn, half_mib):
        plain = self.plain(PYTHON, NPJOB, name)
        done = self.run_job(PYTHON, NPJOB, name, options=["--dram", f"{half_mib}MiB"])
        self.assert_right(done)
        self.assertEqual(done.out, plain)
        self.assertGreater(done.stats["blocks_stored"], 0, str(done))
        for seed in seeds(turn):
            with self.subTest(seed=seed):
                done = self.run_job(PYTHON, NPJOB, name, options=[f"--force-eviction={seed}"])
                self.assert_right(done)
                self.assertEqual(done.out, plain)

    # About half of what each has beyond the 35 MiB of Python and its libraries, which stay.
    def test_scan(self):
        self.job("scan", 0, 112)

    def test_sort(self):
        self.job("sort", 1, 60)

    def test_fft(self):
        self.job("fft", 2, 160)

    def test_chain(self):
        self.job("chain", 0, 60)


class Torch(rig.TestCase):
    def test_losses_and_weights_are_equal_to_the_last_bit(self):
        try:
            plain = self.plain(PYTHON, NPJOB, "torch")
        except AssertionError as e:
            if "No module named" in str(e):
                self.skipTest("python3-torch is not installed")
            raise
        # Most of its memory is libraries, which stay: half of what it has beyond them.
        for options in (["--dram", "250MiB"], *([f"--force-eviction={seed}"] for seed in seeds(1))):
            with self.subTest(options=options):
                done = self.run_job(PYTHON, NPJOB, "torch", options=options, timeout=120)
                self.assert_right(done)
                self.assertEqual(done.out, plain)
                self.assertGreater(done.stats["blocks_stored"], 0, str(done))


class Cpp(rig.TestCase):
    def job(self, verb, dram, turn):
        plain = self.plain(PROGRAM, verb)
        for options in (["--dram", dram], *([f"--force-eviction={seed}"] for seed in seeds(turn))):
            with self.subTest(options=options):
                done = self.run_job(PROGRAM, verb, options=options)
                self.assert_right(done)
                self.assertEqual(done.out, plain)
                self.assertGreater(done.stats["blocks_stored"], 0, str(done))

    def test_containers_of_the_standard_library(self):
        self.job("stl", "48MiB", 1)

    def test_threads(self):
        self.job("threads", "32MiB", 2)


class Tools(rig.TestCase):
    """Unmodified tools. Their results are files, compared by hash."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.text = os.path.join(rig.HOME, "text")
        words = random.Random(1)
        with open(cls.text, "w") as f:
            for _ in range(150_000):
                f.write("%x %d\n" % (words.getrandbits(40), words.randrange(1000)))

    def tool(self, name, script, turn=0, options=None, may_store_nothing=False):
        if shutil.which(name) is None:
            self.skipTest(name + " is not installed")
        results = []
        out = os.path.join(rig.HOME, "out-" + name.replace("+", "p"))
        command = ["sh", "-ec", script, "sh", self.text, out]
        self.plain(*command)
        with open(out, "rb") as f:
            results.append(hashlib.sha256(f.read()).hexdigest())
        for seed in seeds(turn)[: 1 if options else None]:
            os.unlink(out)
            done = self.run_job(*command, options=options or [f"--force-eviction={seed}"])
            if may_store_nothing and done.status == 124:
                self.assertIn("no block went to the store", done.err)
            else:
                self.assert_right(done)
                self.assertGreater(done.stats["blocks_stored"], 0, str(done))
            with open(out, "rb") as f:
                results.append(hashlib.sha256(f.read()).hexdigest())
        self.assertEqual(len(set(results)), 1, results)

    # Small tables: under forced eviction each random look-up of a large one is a read of the store.
    def test_xz(self):
        self.tool("xz", 'exec xz -1 -T2 --block-size=1MiB -c "$1" > "$2"', 0)

    def test_xz_at_its_largest(self):
        self.tool("xz", 'exec xz -9 -T2 --block-size=1MiB -c "$1" > "$2"', options=["--dram", "160MiB"])

    def test_zstd(self):
        self.tool("zstd", 'exec zstd -q -f -7 -T2 "$1" -o "$2"', 1)

    def test_sort(self):
        self.tool("sort", 'LC_ALL=C exec sort --parallel=2 -S 24M "$1" -o "$2"', 2)

    def test_compiler(self):
        source = os.path.join(rig.HOME, "source.cpp")
        with open(source, "w") as f:
            f.write("#include <algorithm>\n#include <string>\n#include <vector>\n")
            f.write("static const long table[] = {" + ",".join(map(str, range(60_000))) + "};\n")
            f.write(
                "long sum(std::vector<std::string>& v) {\n"
                "  std::sort(v.begin(), v.end()); return table[v.size()]; }\n"
            )
        # cc1plus takes most of its memory by mmap of its own, so it may have nothing to give.
        self.tool("g++", f'g++ -O1 -c {source} -o "$2"', 0, may_store_nothing=True)


if __name__ == "__main__":
    rig.main()
