"""What every benchmark shares: runs, the lock, rows, the table, the JSON.

Nouns: a *run* is one execution of a program, alone on the machine as far as other benchmark runs go (one
lock file); a *row* compares Terrace with one peer, both measured in this process, interleaved, medians. A
row holds when its ratio reaches its target (and, where it has a bound, its share of the bound). A row
without a target informs only. `holds: null` on a row with a target means that its peer is missing: exit
status 77.
"""

import contextlib
import fcntl
import json
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time

from bench import cgroup, machine, swap

ROOT = machine.ROOT
BUILD = os.environ.get("TERRACE_BUILD_DIR", os.path.join(ROOT, "build", "release"))
BIN = os.path.join(BUILD, "bin")
PYTHON = "/usr/bin/python3"
MIB, GIB = 1 << 20, 1 << 30

EXIT_HOLDS, EXIT_FAILS, EXIT_NO_PEER, EXIT_CANNOT = 0, 1, 77, 125


class Cannot(Exception):
    """The benchmark cannot be run here; the text says what is missing and what would help."""


class RunFailed(Exception):
    """A measured program ended badly; the text carries the end of what it said."""


class Run:
    """One finished run: rc, wall_s, peak_rss_bytes (the largest process of its tree), out, err, counters
    (of its cgroup), stats (what `terrace run --stats` wrote)."""

    def __init__(self, rc, wall_s, peak_rss_bytes, out, err, counters, stats):
        self.rc, self.wall_s, self.peak_rss_bytes = rc, wall_s, peak_rss_bytes
        self.out, self.err, self.counters, self.stats = out, err, counters, stats

    def field(self, name, convert=float):
        """The value after `name ` in the output, last place it occurs."""
        found = re.findall(r"(?:^|\s)%s (\S+)" % re.escape(name), self.out)
        if not found:
            raise RunFailed("no %s in the output:\n%s" % (name, self.out[-500:]))
        return convert(found[-1])

    def fields(self, name, convert=float):
        return [convert(x) for x in re.findall(r"(?:^|\s)%s (\S+)" % re.escape(name), self.out)]


@contextlib.contextmanager
def machine_lock():
    """One measured run at a time, whoever measures: other benchmarks would be in each other's way."""
    path = os.environ.get("TERRACE_BENCH_LOCK", os.path.join(BUILD, "bench.lock"))
    with open(path, "a", encoding="utf-8") as f:
        fcntl.flock(f, fcntl.LOCK_EX)
        yield


def run(
    argv,
    group=None,
    env=None,
    timeout_s=900,
    stats=None,
    check=True,
    cwd=None,
    keep_late=False,
    on_line=None,
    on_idle=None,
):
    """Runs argv (in `group`), returns a Run. RunFailed on a bad end when `check`, and when time is up unless
    `keep_late`. The whole process group is killed on any way out. While it runs, on_line gets each line of
    its output and on_idle is called about twice a second."""
    seen, partial, idle_at = 0, "", 0.0
    command = group.wrap(argv) if group else list(argv)
    full_env = dict(os.environ, OMP_WAIT_POLICY="passive", **(env or {}))
    with machine_lock(), tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        start = time.perf_counter()
        child = subprocess.Popen(
            command,
            stdout=out,
            stderr=err,
            stdin=subprocess.DEVNULL,
            env=full_env,
            start_new_session=True,
            cwd=cwd,
        )
        usage, status, late = None, None, False
        try:
            while status is None:
                pid, raw, usage = os.wait4(child.pid, os.WNOHANG)
                if pid:
                    status = os.waitstatus_to_exitcode(raw)
                elif time.perf_counter() - start > timeout_s:
                    late = True
                    os.killpg(child.pid, signal.SIGKILL)
                    _, raw, usage = os.wait4(child.pid, 0)
                    status = os.waitstatus_to_exitcode(raw)
                else:
                    time.sleep(0.005)
                if on_line:
                    fresh = os.pread(out.fileno(), 1 << 20, seen)
                    seen += len(fresh)
                    lines = (partial + fresh.decode(errors="replace")).split("\n")
                    partial = lines.pop()
                    for line in lines:
                        on_line(line)
                if on_idle and time.perf_counter() - idle_at > 0.5:
                    idle_at = time.perf_counter()
                    on_idle()
            wall_s = time.perf_counter() - start
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            child.returncode = 0 if status is None else status  # reaped by wait4 above
        out.seek(0)
        err.seek(0)
        result = Run(
            status,
            wall_s,
            usage.ru_maxrss * 1024,
            out.read(),
            err.read(),
            group.counters() if group else {},
            _read_stats(stats),
        )
    if late and not keep_late:
        raise RunFailed("%s: not done after %d s" % (" ".join(argv[:6]), timeout_s))
    if check and status != 0 and not late:
        said = (result.err or result.out).strip().split("\n")[-3:]
        raise RunFailed("%s: exit status %d: %s" % (" ".join(argv[:12]), status, " | ".join(said)))
    return result


def _read_stats(path):
    if not path:
        return {}
    try:
        with open(path, encoding="utf-8") as f:
            return json.load(f)
    except (OSError, ValueError):
        return {}


class Bench:
    """One benchmark: its folder on the store's disk (removed at the end), its rows, its closing table."""

    def __init__(self, ident, json_path=None, quick=False):
        self.ident, self.json_path, self.quick = ident, json_path, quick
        self.rows, self.notes = [], []
        store = os.environ.get("TERRACE_STORE", BUILD)
        os.makedirs(store, exist_ok=True)
        swap.sweep(store)
        cgroup.sweep()
        self.store_parent = store
        self.dir = tempfile.mkdtemp(prefix="bench-%s-" % ident, dir=store)
        self.machine = machine.describe(store)

    def close(self):
        shutil.rmtree(self.dir, ignore_errors=True)

    def path(self, name):
        return os.path.join(self.dir, name)

    def say(self, text):
        print("  " + text, file=sys.stderr, flush=True)

    def note(self, text):
        """A line that stays under the table."""
        self.notes.append(text)
        self.say(text)

    def program(self, name):
        path = os.path.join(BIN, name)
        if not os.path.exists(path):
            raise Cannot("%s is not built (scripts/build)" % name)
        return path

    def terrace(self, dram_bytes, stats_name, *options):
        """The words before the program's own: (prefix, stats path)."""
        stats = self.path(stats_name)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(stats)
        return [
            self.program("terrace"),
            "run",
            "--dram",
            str(int(dram_bytes)),
            "--store",
            self.dir,
            "--quiet",
            "--stats",
            stats,
        ] + list(options) + ["--"], stats

    def row(
        self,
        name,
        terrace,
        peer,
        peer_name,
        unit,
        target,
        ratio=None,
        bound=None,
        bound_target=None,
        at_most=False,
        **extra
    ):
        """Adds a row. `ratio` says how much better Terrace is (or, with at_most, how much more it takes);
        None for terrace or peer: not measured, the row stays undone. Extra figures go into the JSON as they
        are."""
        share = terrace / bound if bound and terrace is not None else None
        holds = None
        if target is not None and ratio is not None:
            holds = ratio <= target if at_most else ratio >= target
            if bound_target is not None:
                holds = holds and share is not None and share >= bound_target
        wanted = None if target is None else ("at most %g" if at_most else "%g") % target
        if wanted and bound_target is not None:
            wanted += ", %g of the bound" % bound_target
        self.rows.append(
            dict(
                name=name,
                terrace=terrace,
                peer=peer,
                peer_name=peer_name,
                unit=unit,
                ratio=ratio,
                bound=bound,
                bound_share=share,
                target=wanted,
                holds=holds,
                **extra
            )
        )
        self.say(_cells(self.rows[-1]))

    def finish(self):
        """Prints the table, writes the JSON, returns the exit status."""
        with_target = [r for r in self.rows if r["target"] is not None]
        undone = not with_target or any(r["holds"] is None for r in with_target)
        failed = any(r["holds"] is False for r in with_target)
        holds = False if failed else None if undone else True
        commit = machine.commit()
        print(table(self.rows))
        for text in self.notes:
            print("  " + text)
        print(
            "%s at %s: %s"
            % (
                self.ident,
                commit,
                {True: "every row holds", False: "a row does not hold", None: "a peer is missing"}[holds],
            )
        )
        if self.json_path:
            with open(self.json_path, "w", encoding="utf-8") as f:
                json.dump(
                    dict(
                        id=self.ident,
                        commit=commit,
                        machine=self.machine,
                        rows=self.rows,
                        holds=holds,
                        notes=self.notes,
                        quick=self.quick,
                    ),
                    f,
                    indent=1,
                )
                f.write("\n")
        return {True: EXIT_HOLDS, False: EXIT_FAILS, None: EXIT_NO_PEER}[holds]


def median(values):
    return statistics.median(values)


def spread(values):
    """Half of the range over the median: how far a figure can be trusted."""
    return (max(values) - min(values)) / 2 / median(values) if values else 0.0


def geometric_mean(values):
    return statistics.geometric_mean(values)


def _number(x):
    if x is None:
        return "-"
    if isinstance(x, str):
        return x
    return "%.0f" % x if abs(x) >= 1000 else "%.3g" % x


def _cells(r):
    return "%s: %s against %s (%s) %s, ratio %s" % (
        r["name"],
        _number(r["terrace"]),
        _number(r["peer"]),
        r["peer_name"],
        r["unit"],
        _number(r["ratio"]),
    )


def table(rows):
    """Ratios first, then what they are made of."""
    head = ["ratio", "target", "", "what", "Terrace", "peer", "unit", "against", "of the bound"]
    mark = {True: "ok", False: "NO", None: ""}
    body = [
        [
            _number(r["ratio"]),
            "" if r["target"] is None else str(r["target"]),
            mark[r["holds"]] if r["target"] is not None else "",
            r["name"],
            _number(r["terrace"]),
            _number(r["peer"]),
            r["unit"],
            r["peer_name"],
            "" if r["bound_share"] is None else "%.0f %%" % (100 * r["bound_share"]),
        ]
        for r in rows
    ]
    widths = [max(len(row[i]) for row in [head] + body) for i in range(len(head))]
    line = "  ".join("-" * w for w in widths)
    text = ["  ".join(c.ljust(w) for c, w in zip(row, widths)).rstrip() for row in [head] + body]
    return "\n".join([text[0], line] + text[1:])
