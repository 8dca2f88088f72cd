"""P2, first rows: unmodified PyTorch training with half of the memory that it takes, by the online policy
`stream`.

Against the same program with all its DRAM under glibc, and under kernel swap with the same memory limit
(the best of the page-cluster settings tried). Checksums over the exact bits of losses and parameters must
be equal. A row counts only when nothing was killed and the cgroup's peak stayed under its limit.
"""

import os

from bench import cgroup, harness, p0, swap
from bench.harness import GIB, MIB, PYTHON, median

SHARE = 0.5
JOBS = [j for j in p0.JOBS if j[0] in ("transformer", "resnet")]
SWAP_TARGET = 3


def measure(bench, wanted):
    reason = cgroup.unusable() or swap.unusable()
    if reason:
        raise harness.Cannot(reason)
    with swap.SwapFile(bench.store_parent, 8 * GIB):
        for job, words in JOBS:
            if wanted(job):
                one_job(bench, job, words)


def one_job(bench, job, words):
    steps = "4" if bench.quick else "6"
    rounds = 1 if bench.quick else 3
    argv = [PYTHON, p0.TRAIN] + words + ["--steps", steps]
    f = p0.Figures()

    def keep(name, r):
        f.add(
            name,
            r.field("checksum", str),
            r.field("median_s"),
            r.counters.get("peak_bytes", r.peak_rss_bytes),
        )
        bench.say(
            "%s: %s %.3f s a step, checksum %s %s"
            % (job, name, f.seconds[name][-1], r.field("checksum", str), r.counters or "")
        )

    first = harness.run(argv)
    keep("all DRAM", first)
    peak = first.field("peak_rss_mib") * MIB
    budget = SHARE * peak
    limit = int(1.05 * budget)
    details = {}
    for number in range(rounds):
        if number > 0:
            keep("all DRAM", harness.run(argv))
        prefix, stats = bench.terrace(budget, "stats.json", "--policy", "stream")
        with cgroup.Group("terrace", limit) as group:
            r = harness.run(prefix + argv, group, stats=stats, timeout_s=1200)
        keep("terrace", r)
        details = dict(r.counters, **r.stats)
        if number == 0:
            for cluster in ((3,) if bench.quick else (0, 3, 5)):
                swap.SwapFile.page_cluster(cluster)
                short = [PYTHON, p0.TRAIN] + words + ["--steps", "3"]
                with cgroup.Group("swap", limit, swap=True) as group:
                    r = harness.run(short, group, timeout_s=2400)
                # the last step alone: the first two warm up, and swap is too slow for more
                f.seconds.setdefault("swap %d" % cluster, []).append(r.fields("time_s")[-1])
                bench.say(
                    "%s: swap at page-cluster %d %.2f s a step, failcnt %d"
                    % (job, cluster, f.s("swap %d" % cluster), r.counters["limit_hits"])
                )
                losses = {r.fields("loss", str)[i] == first.fields("loss", str)[i] for i in range(3)}
                if losses != {True}:
                    raise harness.RunFailed(
                        "%s: losses under swap differ: the program is not deterministic" % job
                    )
    best = min((n for n in f.seconds if n.startswith("swap")), key=f.s)
    ours = f.s("terrace")
    equal = f.checks["terrace"] == f.checks["all DRAM"] and len(f.checks["terrace"]) == 1
    in_limit = details["peak_bytes"] <= limit and details["oom_kills"] == 0
    label = "%s at %.0f %% of %.0f MiB" % (job, 100 * SHARE, peak / MIB)
    bench.row(
        label,
        ours,
        f.s(best),
        "swap, page-cluster " + best.split()[1],
        "s a step",
        SWAP_TARGET,
        ratio=f.s(best) / ours,
        bits_equal=equal,
        counters=details,
        budget_bytes=int(budget),
    )
    bench.row(label, ours, f.s("all DRAM"), "all DRAM, glibc", "s a step", None, ratio=f.s("all DRAM") / ours)
    bench.row(
        label + ", bits equal", 1.0 if equal else 0.0, 1.0, "all DRAM, glibc", "yes", 1, ratio=float(equal)
    )
    bench.row(
        label + ", peak in its limit",
        details["peak_bytes"] / MIB,
        limit / MIB,
        "cgroup limit",
        "MiB",
        1.0,
        ratio=details["peak_bytes"] / limit if in_limit else 9.9,
        at_most=True,
        limit_hits=details["limit_hits"],
    )
    bench.note(
        "%s: in %s out %s bytes, demand faults %s, stalled %s s, failcnt %d"
        % (
            label,
            details.get("bytes_in"),
            details.get("bytes_out"),
            details.get("faults_demand"),
            details.get("stall_s"),
            details["limit_hits"],
        )
    )
