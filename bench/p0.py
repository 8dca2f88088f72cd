"""P0: programs that fit their budget. An unmodified program under `terrace run`, its budget above its peak,
against the same program with glibc and with the allocators that people preload for this.

Six PyTorch jobs (seconds of the median step, peak memory of the process), python's start-up, a churn of 256
KiB to 8 MiB blocks, and gcc compiling one file. Checksums over the exact bits of losses and parameters must
be equal.
"""

import os
import shutil

from bench import harness
from bench.harness import GIB, MIB, PYTHON, ROOT, median

TRAIN = os.path.join(ROOT, "bench", "jobs", "train.py")
JOBS = [
    ("transformer", ["--model", "transformer", "--batch", "4"]),
    ("resnet", ["--model", "resnet", "--batch", "32", "--opt", "sgdm"]),
    ("lstm", ["--model", "lstm", "--width", "1024", "--depth", "2", "--batch", "32"]),
    ("mlp", ["--model", "mlp", "--batch", "256"]),
    ("recsys", ["--model", "recsys", "--ctx", "250000", "--batch", "4096"]),
    (
        "inference",
        ["--model", "transformer", "--mode", "infer", "--width", "2048", "--depth", "20", "--batch", "1"],
    ),
]
LIB = "/usr/lib/x86_64-linux-gnu/"
# allocator -> environment; jemalloc as tuning guides set it
ALLOCATORS = {
    "glibc": {},
    "tcmalloc": {"LD_PRELOAD": LIB + "libtcmalloc_minimal.so.4"},
    "jemalloc": {
        "LD_PRELOAD": LIB + "libjemalloc.so.2",
        "MALLOC_CONF": "background_thread:true,metadata_thp:auto,dirty_decay_ms:9000000000,"
        "muzzy_decay_ms:9000000000",
    },
    "mimalloc": {"LD_PRELOAD": LIB + "libmimalloc.so.2.0"},
    "glibc hugetlb": {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"},
}
# A median of a few steps is not known better than this on a shared machine; "none slower" means beyond it.
SAME = 0.99


def missing(name):
    preload = ALLOCATORS[name].get("LD_PRELOAD")
    return preload is not None and not os.path.exists(preload)


class Figures:
    """All runs of one program, by allocator (`terrace` is one of them)."""

    def __init__(self):
        self.seconds, self.peaks, self.checks = {}, {}, {}

    def add(self, name, run, seconds, peak_bytes):
        self.seconds.setdefault(name, []).append(seconds)
        self.peaks.setdefault(name, []).append(peak_bytes)
        self.checks.setdefault(name, set()).add(run)

    def s(self, name):
        return median(self.seconds[name]) if name in self.seconds else None

    def peak(self, name):
        return median(self.peaks[name]) if name in self.peaks else None


def under(bench, name, dram, argv):
    """argv as it runs with that allocator, its environment, and the stats file if it is Terrace."""
    if name == "terrace":
        prefix, stats = bench.terrace(dram, "stats.json")
        return prefix + argv, {}, stats
    return argv, ALLOCATORS[name], None


def measure(bench, wanted):
    speedups = torch_rows(bench, wanted)
    if len(speedups) > 1 and wanted("geometric mean"):
        mean = harness.geometric_mean(speedups)
        bench.row("geometric mean of %d jobs" % len(speedups), mean, 1.0, "glibc", "x", 1.3, ratio=mean)
    if wanted("python start-up"):
        timed(bench, "python start-up", [PYTHON, "-c", "import json, re, argparse, subprocess"], 40)
    if wanted("churn 256 KiB to 8 MiB"):
        churn(bench)
    if wanted("gcc"):
        compile_file(bench)


def torch_rows(bench, wanted):
    jobs = [j for j in JOBS if wanted(j[0])]
    if bench.quick and len(jobs) == len(JOBS):  # unless some were asked for by name
        jobs = [j for j in jobs if j[0] in ("mlp", "recsys")]
    steps, rounds = ("4", 1) if bench.quick else ("7", 3)
    speedups = []
    for job, words in jobs:
        argv = [PYTHON, TRAIN] + words + ["--steps", steps]
        f = Figures()
        for number in range(rounds):
            # the three that decide in every round, the others beside them once
            names = ["glibc", "terrace", "tcmalloc"]
            if number == 0 and not bench.quick:
                names += ["jemalloc", "mimalloc", "glibc hugetlb"]
            for name in names:
                if name in ALLOCATORS and missing(name):
                    continue
                command, env, stats = under(bench, name, 16 * GIB, argv)
                r = harness.run(command, env=env, stats=stats)
                f.add(name, r.field("checksum", str), r.field("median_s"), r.field("peak_rss_mib") * MIB)
                bench.say(
                    "%s: %s %.3f s a step, peak %.0f MiB, checksum %s"
                    % (job, name, f.seconds[name][-1], f.peaks[name][-1] / MIB, r.field("checksum", str))
                )
        speedups.append(job_rows(bench, job, f))
    return speedups


def job_rows(bench, job, f):
    ours = f.s("terrace")
    same_bits = len(set.union(*f.checks.values())) == 1
    speedup = f.s("glibc") / ours
    bench.row(
        job + ", step",
        ours,
        f.s("glibc"),
        "glibc",
        "s",
        SAME,
        ratio=speedup,
        spread=harness.spread(f.seconds["terrace"]),
        bits_equal=same_bits,
    )
    if not same_bits:
        bench.note("%s: checksums differ: %s" % (job, {k: sorted(v) for k, v in f.checks.items()}))
        bench.rows[-1]["holds"] = False
    tcmalloc = f.s("tcmalloc")
    bench.row(
        job + ", step", ours, tcmalloc, "tcmalloc", "s", SAME, ratio=tcmalloc / ours if tcmalloc else None
    )
    peak = f.peak("tcmalloc")
    bench.row(
        job + ", peak",
        f.peak("terrace") / MIB,
        peak / MIB if peak else None,
        "tcmalloc",
        "MiB",
        1.05,
        ratio=f.peak("terrace") / peak if peak else None,
        at_most=True,
    )
    for name in ("jemalloc", "mimalloc", "glibc hugetlb"):
        if f.s(name):
            bench.row(
                job + ", step",
                ours,
                f.s(name),
                name,
                "s",
                None,
                ratio=f.s(name) / ours,
                peer_peak_mib=f.peak(name) / MIB,
            )
    return speedup


def timed(bench, label, argv, repeats):
    """Wall time of short programs, interleaved; Terrace may take 1 % more."""
    repeats = repeats // 4 if bench.quick else repeats
    f = Figures()
    for _ in range(repeats):
        for name in ("glibc", "terrace"):
            command, env, stats = under(bench, name, 4 * GIB, argv)
            r = harness.run(command, env=env, stats=stats)
            f.add(name, r.rc, r.wall_s, r.peak_rss_bytes)
    bench.row(
        label,
        1000 * f.s("terrace"),
        1000 * f.s("glibc"),
        "glibc",
        "ms",
        SAME,
        ratio=f.s("glibc") / f.s("terrace"),
        spread=harness.spread(f.seconds["terrace"]),
    )


def churn(bench):
    f = Figures()
    for _ in range(2 if bench.quick else 7):
        for name in ("glibc", "terrace", "tcmalloc"):
            if name in ALLOCATORS and missing(name):
                continue
            command, env, stats = under(bench, name, 4 * GIB, [bench.program("churn"), "15"])
            r = harness.run(command, env=env, stats=stats)
            f.add(name, r.rc, r.field("median_s"), r.peak_rss_bytes)
    label = "churn 256 KiB to 8 MiB"
    bench.row(
        label,
        1000 * f.s("terrace"),
        1000 * f.s("glibc"),
        "glibc",
        "ms",
        SAME,
        ratio=f.s("glibc") / f.s("terrace"),
    )
    if f.s("tcmalloc"):
        bench.row(
            label,
            1000 * f.s("terrace"),
            1000 * f.s("tcmalloc"),
            "tcmalloc",
            "ms",
            None,
            ratio=f.s("tcmalloc") / f.s("terrace"),
        )


def compile_file(bench):
    compiler = shutil.which("g++")
    if not compiler:
        raise harness.Cannot("no g++ to time")
    source = os.path.join(ROOT, "bench", "cyclic.cpp")
    timed(bench, "gcc, one file", [compiler, "-O2", "-std=c++20", "-c", source, "-o", "/dev/null"], 12)
