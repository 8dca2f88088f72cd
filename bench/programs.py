"""P4, P5 and P6: what C++ programs measure by themselves, put into the common table.

P4 counts instructions of a malloc/free pair under valgrind's callgrind, with and without the preload
library. P5 is bench_io (io/ against a bare ring and pread), P6 is bench_fault (a demand fault, a rescue):
both print a JSON object a row.
"""

import json
import os
import re
import shutil

from bench import harness


def measure(bench, wanted):
    {"P4": instructions, "P5": io_rows, "P6": fault_rows}[bench.ident](bench, wanted)


def instructions(bench, wanted):
    """Callgrind's count for PAIRS pairs minus its count for none, so that start-up does not matter."""
    pairs = 20000
    program = os.path.join(harness.BUILD, "tests", "allocator_programs", "pairs")
    preload = os.path.join(harness.BUILD, "lib", "libterrace_preload.so")
    for path in (program, preload):
        if not os.path.exists(path):
            raise harness.Cannot("%s is not built (scripts/build)" % path)
    name = "malloc and free of 100 bytes"
    if not wanted(name):
        return
    if not shutil.which("valgrind"):
        bench.row(name, None, None, "libc (valgrind is missing)", "instructions", 8, at_most=True)
        return

    def count(env, n):
        r = harness.run(
            ["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null", program, str(n)], env=env
        )
        return int(re.search(r"Collected : (\d+)", r.err).group(1))

    def a_pair(env):
        return (count(env, pairs) - count(env, 0)) / pairs

    libc, ours = a_pair({}), a_pair({"LD_PRELOAD": preload})
    # the "ratio" of this row is a difference: instructions more than libc
    bench.row(
        name + ", more than libc", ours, libc, "libc", "instructions", 8.01, ratio=ours - libc, at_most=True
    )


def io_rows(bench, wanted):
    words = ["--dir", bench.dir, "--rounds", "3" if bench.quick else "7"]
    if bench.quick:
        words += ["--size-mib", "1024"]
    json_rows(bench, wanted, [bench.program("bench_io")] + words + ["--json"])
    json_rows(bench, wanted, [bench.program("bench_io"), "--hash", "--json"])


def fault_rows(bench, wanted):
    words = ["--dir", bench.dir] + (["--rounds", "40"] if bench.quick else [])
    json_rows(bench, wanted, [bench.program("bench_fault")] + words + ["--json"])


def json_rows(bench, wanted, command):
    """Rows as the program gave them: one JSON object a line, with the fields of harness rows."""
    r = harness.run(command, timeout_s=900, check=False)
    if r.rc not in (harness.EXIT_HOLDS, harness.EXIT_FAILS):
        raise harness.RunFailed("%s: exit status %d: %s" % (" ".join(command), r.rc, r.err.strip()[-300:]))
    found = 0
    for line in r.out.splitlines():
        if line.startswith("{"):
            row = dict(
                bound=None, bound_share=None, **{k: v for k, v in json.loads(line).items() if k != "bound"}
            )
            if wanted(row["name"]):
                bench.rows.append(row)
            found += 1
    for line in r.err.splitlines():
        bench.note(line)
    if not found:
        raise harness.RunFailed("%s printed no row" % " ".join(command))
