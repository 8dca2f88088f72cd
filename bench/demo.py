"""scripts/demo: the two pictures of what Terrace is for, watched live; one table at the end, ratios first.

(a) An unmodified PyTorch program trains a character model on a text that Debian packages: with all its DRAM,
    under Terrace with half of that, under kernel swap with the same half. Losses are compared bit by bit.
(b) A NumPy program goes round over 2 GiB of arrays in 1 GiB.

What this machine does not allow (no cgroup, no swap) is skipped by name. Cgroups, the swap file and
vm.page-cluster are undone however the demo ends.
"""

import argparse
import contextlib
import glob
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time

from bench import cgroup, harness, machine, swap
from bench.harness import GIB, MIB, PYTHON, ROOT, median

TEXT = "/usr/share/games/fortunes/*.u8"
CHARLM = os.path.join(ROOT, "bench", "jobs", "charlm.py")
NUMPY_JOB = os.path.join(ROOT, "bench", "jobs", "npjob.py")
BAR = 24


class Screen:
    """One live line a run where there is a terminal; plain lines elsewhere."""

    def __init__(self, stream):
        self.stream, self.live = stream, stream.isatty()
        self.full, self.empty = ("#", ".")
        if self.live and "UTF" in (os.environ.get("LC_ALL") or os.environ.get("LANG") or "").upper():
            self.full, self.empty = "\u2588", "\u2591"

    def colour(self, code, text):
        return "\033[%sm%s\033[0m" % (code, text) if self.live else text

    def say(self, text=""):
        print(text, file=self.stream, flush=True)

    def title(self, text):
        self.say()
        self.say(self.colour("1", text))

    def progress(self, label, done, total, text):
        """Redraws the line of this run; without a terminal only its end is written."""
        if self.live:
            filled = BAR * done // max(total, 1)
            bar = self.full * filled + self.empty * (BAR - filled)
            self.stream.write("\r\033[K  %-24s %s %2d/%d  %s" % (label, bar, done, total, text))
            self.stream.flush()

    def done(self, label, text):
        if self.live:
            self.stream.write("\r\033[K")
        self.say("  %-24s %s" % (label, text))


class Job:
    """One program and its runs: `rows` are (label, seconds a step, peak bytes, value texts or None, why
    skipped)."""

    def __init__(self, name, argv, step_flag, value_field, steps):
        self.name, self.argv, self.step_flag, self.value_field, self.steps = (
            name,
            argv,
            step_flag,
            value_field,
            steps,
        )
        self.rows = []

    def command(self, steps):
        return self.argv + [self.step_flag, str(steps)]


class Demo:
    def __init__(self, screen, quick):
        self.screen, self.quick = screen, quick
        self.store = os.environ.get("TERRACE_STORE", harness.BUILD)
        os.makedirs(self.store, exist_ok=True)
        swap.sweep(self.store)
        cgroup.sweep()
        self.no_group = cgroup.unusable()
        self.no_swap = self.no_group or swap.unusable()
        self.skipped = []

    def run(self, job, label, command, steps, group=None, stats=None, timeout_s=240, may_fail=False):
        """Runs with a live line; returns a harness.Run, or None when it was stopped at its time (then what
        it printed until there is in job.partial)."""
        started = time.monotonic()
        times = []

        def on_line(line):
            words = line.split()
            if len(words) > 3 and words[0] == "step":
                times.append(float(words[3]))
                self.screen.progress(label, len(times), steps, "%.2f s a step" % times[-1])

        def on_idle():
            self.screen.progress(
                label,
                len(times),
                steps,
                "%s, %d s"
                % ("%.2f s a step" % times[-1] if times else "starting", time.monotonic() - started),
            )

        self.screen.progress(label, 0, steps, "starting")
        return harness.run(
            command,
            group,
            stats=stats,
            timeout_s=timeout_s,
            on_line=on_line,
            on_idle=on_idle,
            check=not may_fail,
            keep_late=True,
        )

    def keep(self, job, label, r, peak):
        """Adds a finished (or stopped) run to the table and writes its line."""
        times = r.fields("time_s")
        if not times:
            job.rows.append((label, None, peak, [], "not one step in its time"))
            self.screen.done(label, "not one step in its time")
            return
        tail = times[1:] or times
        values = r.fields(job.value_field, str)
        job.rows.append((label, median(tail), peak, values, None))
        self.screen.done(
            label,
            "%7.2f s a step   peak %5.0f MiB   %s"
            % (
                median(tail),
                peak / MIB,
                "last loss %.4f" % float.fromhex(values[-1]) if job.value_field == "bits" else "",
            ),
        )

    def skip(self, job, label, reason):
        job.rows.append((label, None, None, None, reason))
        self.screen.done(label, "skipped: " + reason)
        self.skipped.append("%s: %s" % (label, reason))

    def show(self, job, budget_of):
        self.screen.title(job.name)
        full = self.run(job, "all DRAM (glibc)", job.command(job.steps), job.steps)
        self.keep(job, "all DRAM (glibc)", full, full.peak_rss_bytes)
        budget = budget_of(full.peak_rss_bytes)
        limit = int(budget * 1.05)
        with contextlib.ExitStack() as stack:
            folder = tempfile.mkdtemp(prefix="demo-", dir=self.store)
            stack.callback(shutil.rmtree, folder, ignore_errors=True)
            group = stack.enter_context(cgroup.Group("terrace", limit)) if not self.no_group else None
            label = "Terrace in %d MiB" % (budget / MIB)
            stats = os.path.join(folder, "stats.json")
            prefix = [
                os.path.join(harness.BIN, "terrace"),
                "run",
                "--dram",
                str(int(budget)),
                "--store",
                folder,
                "--quiet",
                "--stats",
                stats,
                "--",
            ]
            r = self.run(job, label, prefix + job.command(job.steps), job.steps, group, stats=stats)
            self.keep(job, label, r, r.counters.get("peak_bytes") or r.stats.get("dram_peak_bytes", 0))
        label = "kernel swap in %d MiB" % (budget / MIB)
        if self.no_swap:
            self.skip(job, label, self.no_swap)
            return
        try:
            with swap.SwapFile(self.store, 4 * GIB), cgroup.Group("swap", limit, swap=True) as group:
                swap.SwapFile.page_cluster(5)  # its best on most disks
                steps = min(job.steps, 4)
                r = self.run(job, label, job.command(steps), steps, group, timeout_s=100, may_fail=True)
                self.keep(job, label, r, r.counters["peak_bytes"])
        except OSError as e:
            self.skip(job, label, "the system refused the swap file (%s)" % e)


def table(screen, jobs):
    """One table, ratios first."""
    head = ["x swap", "x all DRAM", "s a step", "peak MiB", "results, bit by bit", "what"]
    body = []
    for job in jobs:
        seconds = {row[0].split()[0]: row[1] for row in job.rows}
        reference = job.rows[0][3]
        body.append(["", "", "", "", "", job.name])
        for label, s, peak, values, reason in job.rows:
            kind = label.split()[0]
            if s is None:
                body.append(["-", "-", "-", "-", reason or "-", "  " + label])
                continue
            slow = seconds.get("kernel")
            same = values == reference[: len(values)]
            bits = (
                "the reference"
                if kind == "all"
                else ("equal (%d of %d)" % (len(values), len(values)) if same else "DIFFERENT")
            )
            body.append(
                [
                    "%.2f" % (slow / s) if slow else "-",
                    "%.2f" % (seconds["all"] / s),
                    "%.2f" % s,
                    "%.0f" % (peak / MIB),
                    bits,
                    "  " + label,
                ]
            )
    widths = [max(len(r[i]) for r in [head] + body) for i in range(len(head))]
    screen.say()
    for number, row in enumerate([head] + body):
        right = [c.rjust(w) if i < 4 else c.ljust(w) for i, (c, w) in enumerate(zip(row, widths))]
        line = "  " + "  ".join(right).rstrip()
        if number == 0 or row[0] == row[1] == "":
            line = screen.colour("1", line)
        elif row[5].startswith("  Terrace"):
            line = screen.colour("32" if "DIFF" not in row[4] else "31", line)
        screen.say(line)
        if number == 0:
            screen.say("  " + "  ".join("-" * w for w in widths))


def main():
    p = argparse.ArgumentParser(prog="scripts/demo", description="Terrace in two pictures, under ten minutes")
    p.add_argument("--all", action="store_true", help="more steps of everything")
    p.add_argument("--installed", default="", help=argparse.SUPPRESS)  # packages that scripts/demo added
    a = p.parse_args()
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: sys.exit(143))
    screen = Screen(sys.stdout)
    demo = Demo(screen, quick=not a.all)
    info = machine.describe(demo.store)
    screen.say(
        "%s, %d cores, %.0f GiB, kernel %s, store on %s"
        % (info["cpu"], info["cores"], info["memory_bytes"] / GIB, info["kernel"], info["store"])
    )
    jobs = []
    try:
        if glob.glob(TEXT):
            job = Job(
                "PyTorch: a character model, half of its memory",
                [PYTHON, CHARLM, TEXT],
                "--steps",
                "bits",
                12 if a.all else 6,
            )
            jobs.append(job)
            demo.show(job, lambda peak: peak / 2)
        else:
            screen.say("the text (package fortunes) is not here: training skipped")
        job = Job(
            "NumPy: round and round over 2 GiB in 1 GiB",
            [PYTHON, NUMPY_JOB, "--job", "scan", "--size", "64"],
            "--rounds",
            "value",
            12 if a.all else 6,
        )
        base = numpy_base()
        jobs.append(job)
        demo.show(job, lambda peak: GIB + base)
        table(screen, jobs)
    except harness.RunFailed as e:
        screen.say()
        screen.say("demo: " + str(e))
        return 1
    except KeyboardInterrupt:
        screen.say()
        screen.say("demo: stopped")
        return 130
    finally:
        screen.say()
        screen.say(
            "  Undone: %s."
            % (
                "cgroups, the swap file, vm.page-cluster"
                if not demo.no_swap
                else "cgroups" if not demo.no_group else "nothing was changed on this machine"
            )
        )
        for text in demo.skipped:
            screen.say("  Skipped: %s." % text)
        if a.installed.strip():
            screen.say("  Packages added before: %s (apt-get remove takes them away)." % a.installed.strip())
    different = any(
        values is not None and values != job.rows[0][3][: len(values)]
        for job in jobs
        for _, _, _, values, _ in job.rows
    )
    return 1 if different else 0


def numpy_base():
    """Resident memory of python with NumPy before it holds any array."""
    code = "import numpy, resource; print('base', resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)"
    return (
        int(
            subprocess.run([PYTHON, "-c", code], capture_output=True, text=True, check=True).stdout.split()[1]
        )
        * 1024
    )


if __name__ == "__main__":
    sys.exit(main())
