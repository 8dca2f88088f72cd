"""P1: a fixed program goes round over 2 GiB with 1 GiB of DRAM; Terrace against kernel swap under the same
limit.

Both run inside a memory cgroup of 1.05 times the budget: Terrace with memory+swap bounded as well, the swap
peer with swap free, at its best vm.page-cluster. The figure is GB/s of working set passed, the median over
passes; the filling pass is left out. The bound is the larger of two times: what Belady must move over what
the disk gives at its best in the same minute, and those bytes hashed and moved at bare cost.
"""

import os

from bench import belady, cgroup, harness, swap
from bench.harness import GIB, MIB, median

TOTAL = 2 * GIB
OBJECTS_BUDGET = GIB

# name, mode, object bytes, options of terrace, ratio wanted, share of the bound wanted
ROWS = [
    ("cyclic 2 MiB", "cyclic", 2 * MIB, [], 14, 0.9),
    ("cyclic 32 MiB", "cyclic", 32 * MIB, [], 14, 0.9),
    ("random order 2 MiB", "random", 2 * MIB, [], 10, None),
    ("read-only 2 MiB", "read", 2 * MIB, [], 10, None),
    ("cyclic 64 KiB", "cyclic", 64 << 10, ["--min-object", "64KiB"], 5, None),
]


def command(bench, mode, object_bytes, passes):
    return [
        bench.program("cyclic"),
        "--object",
        str(object_bytes),
        "--total",
        str(TOTAL),
        "--passes",
        str(passes),
        "--mode",
        mode,
    ]


def measured(run):
    """GB/s of each pass but the first. The program has checked its own bytes (exit status)."""
    return run.fields("gbs")[1:]


def bound_gbs(bench, mode, object_bytes, passes):
    """(GB/s at the bound, what bounds it, bytes in, bytes out) of the median pass, with the disk as it is
    now."""
    block = min(object_bytes, 2 * MIB)
    # a larger object is a row of blocks that are touched one after the other
    order = harness.run(command(bench, mode, object_bytes, passes) + ["--order"]).out
    per_object = object_bytes // block
    sequence = [
        [int(o) * per_object + k for o in line.split() for k in range(per_object)]
        for line in order.strip().split("\n")
    ]
    moves = belady.least_moves(sequence, OBJECTS_BUDGET // block, writes=mode != "read")[1:]
    bytes_in = median([m[0] for m in moves]) * block
    bytes_out = (
        median([m[1] for m in moves]) * block if mode != "read" else 0
    )  # each block is written once, early
    share = 0 if bytes_in + bytes_out == 0 else round(100 * bytes_out / (bytes_in + bytes_out))
    disk = harness.run(
        [bench.program("disk_probe"), bench.path("probe.bin"), str(TOTAL), "0.5", str(2 * MIB), str(share)]
    ).field("total_gbs")
    bare = harness.run([bench.program("bare_cost"), str(block)])
    t_disk = (bytes_in + bytes_out) / (disk * 1e9)
    t_cpu = (bytes_in + bytes_out) / (bare.field("hash_gbs") * 1e9) + (
        bytes_in + bytes_out
    ) / block * bare.field("move_us") * 1e-6
    return (
        TOTAL / max(t_disk, t_cpu) / 1e9,
        "disk" if t_disk > t_cpu else "hash and moves",
        bytes_in,
        bytes_out,
    )


def measure(bench, wanted):
    reason = cgroup.unusable() or swap.unusable()
    if reason:
        raise harness.Cannot(reason)
    base = (
        harness.run([bench.program("cyclic"), "--total", "0", "--passes", "0"]).field("base_rss_kib", int)
        * 1024
    )
    budget = OBJECTS_BUDGET + base
    limit = int(budget * 1.05)
    bench.say(
        "budget %.0f MiB (1 GiB and the program's base of %.1f MiB), limit of the cgroup %.0f MiB"
        % (budget / MIB, base / MIB, limit / MIB)
    )
    with swap.SwapFile(bench.store_parent, 2 * TOTAL):
        for name, mode, object_bytes, options, target, bound_target in ROWS:
            if wanted(name):
                one_row(bench, name, mode, object_bytes, options, target, bound_target, budget, limit)


def one_row(bench, name, mode, object_bytes, options, target, bound_target, budget, limit):
    rounds = 1 if bench.quick else 3
    ours, bounds, theirs, dram = [], [], {}, []
    details = {}
    for number in range(rounds):
        bounds.append(bound_gbs(bench, mode, object_bytes, 4))
        # Terrace
        prefix, stats = bench.terrace(budget, "stats.json", *options)
        with cgroup.Group("terrace", limit) as group:
            r = harness.run(prefix + command(bench, mode, object_bytes, 4), group, stats=stats, timeout_s=300)
        ours += measured(r)
        details = dict(
            r.counters,
            **{
                k: r.stats.get(k)
                for k in (
                    "bytes_in",
                    "bytes_out",
                    "faults_demand",
                    "faults_rescued",
                    "stall_s",
                    "dram_peak_bytes",
                    "checksum_failures",
                    "blocks_dropped_clean",
                )
            }
        )
        bench.say(
            "%s: terrace %s GB/s; major faults %d, failcnt %d, moved %s in %s out"
            % (
                name,
                " ".join("%.2f" % x for x in measured(r)),
                r.counters["major_faults"],
                r.counters["limit_hits"],
                details["bytes_in"],
                details["bytes_out"],
            )
        )
        # the peer: all three read-ahead settings in the first round, the best of them in the others
        settings = (0, 3, 5) if not theirs else [max(theirs, key=lambda c: median(theirs[c]))]
        for cluster in settings:
            swap.SwapFile.page_cluster(cluster)
            with cgroup.Group("swap", limit, swap=True) as group:
                r = harness.run(
                    command(bench, mode, object_bytes, 1 if mode != "read" else 2), group, timeout_s=600
                )
            theirs.setdefault(cluster, []).extend(measured(r)[-1:])
            bench.say(
                "%s: swap at page-cluster %d %.3f GB/s; major faults %d, failcnt %d"
                % (name, cluster, theirs[cluster][-1], r.counters["major_faults"], r.counters["limit_hits"])
            )
        dram += measured(harness.run(command(bench, mode, object_bytes, 2)))
    best = max(theirs, key=lambda c: median(theirs[c]))
    bound = median([b[0] for b in bounds])
    bench.row(
        name,
        median(ours),
        median(theirs[best]),
        "swap, page-cluster %d" % best,
        "GB/s",
        target,
        ratio=median(ours) / median(theirs[best]),
        bound=bound,
        bound_target=bound_target,
        bounded_by=bounds[-1][1],
        full_dram_gbs=median(dram),
        terrace_spread=harness.spread(ours),
        swap_gbs={str(c): median(v) for c, v in theirs.items()},
        least_bytes_in=bounds[-1][2],
        least_bytes_out=bounds[-1][3],
        counters=details,
    )
    bench.note(
        "%s: bound %.2f GB/s (%s), full DRAM %.2f GB/s, spread %.0f %%, peak of the cgroup %.0f of %.0f MiB"
        % (
            name,
            bound,
            bounds[-1][1],
            median(dram),
            100 * harness.spread(ours),
            details.get("peak_bytes", 0) / MIB,
            limit / MIB,
        )
    )
    os.unlink(bench.path("probe.bin"))
