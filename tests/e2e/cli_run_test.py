#!/usr/bin/env python3
"""`terrace run` from outside: statuses, signals, statistics, refusals; and the watchdog against a fake owner.

    cli_run_test.py TERRACE FAKE_OWNER [unittest options]
TERRACE has a preload library that does nothing beside it, so this tests the supervisor alone.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import unittest

TERRACE, OWNER = (os.path.abspath(path) for path in sys.argv[1:3])
STORE = tempfile.mkdtemp(prefix="terrace-store-", dir=os.getcwd())


def run(*words, options=(), env=None, timeout=60, **more):
    environment = {k: v for k, v in os.environ.items() if not k.startswith("TERRACE_")}
    environment.update(env or {})
    return subprocess.run(
        [TERRACE, "run", "--store", STORE, *options, "--", *words],
        env=environment,
        text=True,
        capture_output=True,
        timeout=timeout,
        **more,
    )


def refused(*words, env=None, cwd=None):
    environment = {k: v for k, v in os.environ.items() if not k.startswith("TERRACE_")}
    environment.update(env or {})
    return subprocess.run(
        [TERRACE, *words], env=environment, text=True, capture_output=True, timeout=60, cwd=cwd
    )


def state(pid):
    try:
        with open(f"/proc/{pid}/stat") as f:
            return f.read().rsplit(")", 1)[1].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return "X"


def alive(pid):
    return state(pid) not in "ZX"


def wait_until(condition, seconds=10):
    end = time.time() + seconds
    while time.time() < end:
        if condition():
            return True
        time.sleep(0.02)
    return False


def start(script, **more):
    """A job that prints numbers of processes on its first line; (process, these numbers)."""
    process = subprocess.Popen(
        [TERRACE, "run", "--quiet", "--store", STORE, "--", "sh", "-c", script],
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        **more,
    )
    return process, [int(word) for word in process.stdout.readline().split()]


def parent_of(pid):
    with open(f"/proc/{pid}/stat") as f:
        return int(f.read().rsplit(")", 1)[1].split()[1])


def finish(process):
    out, err = process.communicate(timeout=20)
    return process.returncode, out, err


class ExitStatus(unittest.TestCase):
    def test_own_status_and_output_pass_through(self):
        done = run("sh", "-c", "cat; echo out; echo err >&2; exit 7", options=["--quiet"], input="in\n")
        self.assertEqual((done.returncode, done.stdout, done.stderr), (7, "in\nout\n", "err\n"))

    def test_a_signal_is_128_and_its_number(self):
        self.assertEqual(run("sh", "-c", "kill -SEGV $$").returncode, 128 + signal.SIGSEGV)
        self.assertEqual(run("sh", "-c", "kill -KILL $$").returncode, 137)

    def test_not_found_and_not_executable(self):
        done = run("/nonexistent/program")
        self.assertEqual(done.returncode, 127)
        self.assertIn(
            "terrace: '/nonexistent/program': No such file or directory (ENOENT); check its name and PATH\n",
            done.stderr,
        )
        self.assertEqual(run("no-such-program-on-the-path").returncode, 127)
        done = run("/etc/passwd")
        self.assertEqual(done.returncode, 126)
        self.assertEqual(done.stderr.count("\n"), 1)
        self.assertEqual(run("/").returncode, 126)

    def test_words_of_the_command_are_untouched(self):
        done = run("printf", "%s|", "--quiet", "", "a b", "--", options=["--quiet"])
        self.assertEqual(done.stdout, "--quiet||a b|--|")

    def test_the_job_inherits_no_descriptor_of_ours(self):
        done = run("sh", "-c", "ls -l /proc/$$/fd", options=["--quiet"], stdin=subprocess.DEVNULL)
        self.assertNotRegex(done.stdout, "memfd|socket|signalfd|pidfd")
        self.assertEqual(sum("->" in line for line in done.stdout.splitlines()), 3, done.stdout)

    def test_the_signal_mask_and_ignored_signals_are_the_callers(self):
        words = ["sh", "-c", "grep -E 'SigBlk|SigIgn' /proc/self/status"]
        plain = subprocess.run(words, text=True, capture_output=True).stdout
        self.assertEqual(run(*words, options=["--quiet"]).stdout, plain)

    def test_the_preload_is_put_before_others(self):
        done = run(
            "sh",
            "-c",
            "echo $LD_PRELOAD; echo $TERRACE_JOB",
            options=["--quiet"],
            env={"LD_PRELOAD": "libm.so.6"},
        )
        self.assertRegex(done.stdout, r"^/.*/libterrace_preload\.so:libm\.so\.6\n/proc/\d+/fd/\d+\n$")


class Refusals(unittest.TestCase):
    def check(self, words, line, **more):
        done = refused(*words, **more)
        self.assertEqual(done.returncode, 125, done)
        self.assertEqual(done.stdout, "")
        self.assertRegex(done.stderr, "^terrace: " + line + "\n$")

    def test_usage(self):
        self.check(["run"], "run: the command is missing; .*")
        self.check(["run", "--store", STORE, "--"], "run: the command is missing; .*")
        self.check(
            ["run", "--nonsense", "--", "true"], "option '--nonsense': unknown; terrace run --help lists them"
        )
        self.check(["plan"], "'plan' is not in this version; .*")
        self.check(["nonsense"], "'nonsense': no such command; .*")
        self.assertEqual(refused().returncode, 125)

    def test_settings(self):
        self.check(["run", "--dram", "1x", "true"], "--dram '1x': its unit .*; write a size such as .*")
        self.check(
            ["run", "true"],
            "TERRACE_DRAM '1x': its unit .*; write a size such as .*",
            env={"TERRACE_DRAM": "1x"},
        )
        self.check(
            ["run", "--store", "/a", "--store", "/b", "true"],
            "--store '/b': a second store .*; give one --store",
        )

    def test_store(self):
        self.check(
            ["run", "--store", "/nonexistent", "true"],
            r"store '/nonexistent': .*does not exist \(ENOENT\); make it.*",
        )
        self.check(
            ["run", "--store", "/etc/passwd", "true"],
            r"store '/etc/passwd': .*not a directory.*; give --store DIR.*",
        )
        self.check(["run", "--store", "/proc", "true"], r"store '/proc': .*; give --store DIR.*")

    def test_store_in_memory(self):
        if os.stat("/dev/shm").st_dev == os.stat("/").st_dev:
            self.skipTest("/dev/shm is no file system of its own here")
        self.check(
            ["run", "--store", "/dev/shm", "true"], r"store '/dev/shm': .*tmpfs.*; give --store DIR on a disk"
        )
        self.check(
            ["run", "true"],
            r"the working directory as store: .*tmpfs.*; give --store DIR on a disk",
            cwd="/dev/shm",
        )

    def test_store_read_only_and_full(self):
        with tempfile.TemporaryDirectory(dir=os.getcwd()) as folder:
            image = folder + "/image"
            point = folder + "/mounted"
            os.mkdir(point)
            subprocess.run(["truncate", "-s", "8M", image], check=True)
            made = subprocess.run(["mkfs.ext4", "-q", image], capture_output=True)
            if (
                made.returncode != 0
                or subprocess.run(["mount", "-o", "loop", image, point], capture_output=True).returncode != 0
            ):
                self.skipTest("no loop mounts here")
            try:
                self.check(
                    ["run", "--store", point, "true"],
                    r"store '.*': .*(room|full).*\(ENOSPC\); free some space.*",
                )
                subprocess.run(["mount", "-o", "remount,ro", point], check=True)
                self.check(
                    ["run", "--store", point, "true"],
                    r"store '.*': .*read-only \(EROFS\); give --store DIR.*",
                )
            finally:
                subprocess.run(["umount", point], check=True)

    def test_stats_file(self):
        self.check(
            ["run", "--store", STORE, "--stats", "/nonexistent/x", "true"],
            "--stats '/nonexistent/x': .*; name a file .*",
        )
        self.check(["run", "--store", STORE, "--stats", STORE, "true"], "--stats '.*': it is a directory .*")

    def test_no_preload_library(self):
        with tempfile.TemporaryDirectory(dir=os.getcwd()) as folder:
            os.mkdir(folder + "/bin")
            subprocess.run(["cp", TERRACE, folder + "/bin/terrace"], check=True)
            done = subprocess.run(
                [folder + "/bin/terrace", "run", "--store", STORE, "true"], text=True, capture_output=True
            )
            self.assertEqual(done.returncode, 125)
            self.assertRegex(
                done.stderr,
                r"^terrace: libterrace_preload.so: not beside this program \(ENOENT\); put it into .*\n$",
            )

    def test_nothing_is_left_in_the_store(self):
        run("true")
        self.assertEqual(os.listdir(STORE), [])


class Signals(unittest.TestCase):
    def test_signals_are_passed_on(self):
        for name in ("TERM", "HUP", "USR1", "USR2", "INT", "QUIT", "WINCH"):
            process, _ = start(f"trap 'echo got {name}; exit 3' {name}; echo 1; while :; do sleep 0.05; done")
            process.send_signal(getattr(signal, "SIG" + name))
            status, out, _ = finish(process)
            self.assertEqual((status, out), (3, f"got {name}\n"))

    def test_a_signal_that_kills_the_job_is_its_status(self):
        process, _ = start("echo 1; exec sleep 60")
        process.send_signal(signal.SIGTERM)
        self.assertEqual(finish(process)[0], 128 + signal.SIGTERM)

    def test_a_stop_of_the_group_stops_all_of_it_and_it_goes_on(self):
        process, pids = start("echo $$; sleep 1; exit 6", process_group=0)
        family = [process.pid, parent_of(pids[0]), pids[0]]
        os.killpg(process.pid, signal.SIGTSTP)
        self.assertTrue(wait_until(lambda: [state(pid) for pid in family] == ["T"] * 3), family)
        time.sleep(1.5)
        os.killpg(process.pid, signal.SIGCONT)
        self.assertEqual(finish(process)[0], 6)

    def test_kill_of_the_guard_ends_the_whole_job(self):
        process, pids = start("sleep 60 & echo $$ $!; wait")
        supervisor = parent_of(pids[0])
        self.assertEqual(parent_of(supervisor), process.pid)
        process.send_signal(signal.SIGKILL)
        finish(process)
        for pid in [supervisor, *pids]:
            self.assertTrue(wait_until(lambda: not alive(pid)), pid)

    def test_kill_of_the_supervisor_ends_the_whole_job(self):
        # The grandchild is in a session of its own and its parent is gone: only a subreaper still finds it.
        process, pids = start("(setsid sleep 60 >/dev/null 2>&1 & echo $$ $!); sleep 60")
        os.kill(parent_of(pids[0]), signal.SIGKILL)
        status, _, err = finish(process)
        self.assertEqual(status, 124)
        self.assertIn("terrace: the supervisor was killed by signal 9, so the job was ended", err)
        for pid in pids:
            self.assertTrue(wait_until(lambda: not alive(pid)), pid)

    def test_the_supervisor_ends_with_the_command_and_leaves_its_background_alone(self):
        process, pids = start("sleep 3 >/dev/null 2>&1 & echo $!; exit 4")
        self.assertEqual(finish(process)[0], 4)
        self.assertTrue(alive(pids[0]))
        os.kill(pids[0], signal.SIGKILL)


class Statistics(unittest.TestCase):
    FIELDS = (
        "version wall_s dram_budget_bytes dram_peak_bytes object_peak_bytes adopted_peak_bytes faults_demand "
        "faults_rescued stall_s bytes_in bytes_in_prefetched bytes_out blocks_dropped_clean moves copies "
        "checksum_failures io_errors fallbacks policy period processes"
    ).split()

    def test_fields(self):
        with tempfile.NamedTemporaryFile(dir=os.getcwd()) as file:
            run("sh", "-c", "sleep 0.2", options=["--dram", "64MiB", "--stats", file.name, "--quiet"])
            stats = json.load(file)
        self.assertEqual([name for name in self.FIELDS if name not in stats], [])
        self.assertGreater(stats["wall_s"], 0.2)
        self.assertEqual(stats["dram_budget_bytes"], 64 << 20)
        self.assertGreater(stats["dram_peak_bytes"], 500_000)  # of wait4: no counter was written
        self.assertEqual((stats["policy"], stats["period"], stats["fallbacks"]), ("stream", None, {}))

    def test_counters_and_settings_go_through_the_page(self):
        done = run(
            OWNER,
            "numbers",
            options=[
                "--stats",
                "-",
                "--policy",
                "lru",
                "--min-object",
                "64KiB",
                "--io-timeout",
                "3",
                "--force-eviction=9",
            ],
        )
        self.assertEqual(done.returncode, 0, done)
        first, text = done.stdout.split("\n", 1)
        self.assertEqual(first, f"store={os.path.realpath(STORE)} policy=1 min=65536 timeout=3000 seed=9")
        stats = json.loads(text)
        self.assertEqual(
            [
                stats[name]
                for name in (
                    "dram_peak_bytes",
                    "object_peak_bytes",
                    "faults_demand",
                    "stall_s",
                    "bytes_in",
                    "bytes_out",
                    "blocks_stored",
                    "policy",
                    "fallbacks",
                    "processes",
                )
            ],
            [1 << 40, 11, 12, 1.5, 13, 14, 15, "lru", {"buffered_store": 2}, 1],
        )
        self.assertRegex(
            done.stderr,
            r"^terrace: 0\.\d+ s, peak 1TiB of .* DRAM; 13B in, 14B out, 12 faults, 1\.50 s stalled, "
            r"15 blocks stored\nterrace: --dram .* is less than .*; --dram 1TiB would do\n"
            r"terrace: buffered_store x2: .*; put the store on .*\n$",
        )

    def test_summary(self):
        self.assertRegex(
            run("true", options=["--dram", "1GiB"]).stderr,
            r"^terrace: 0\.\d+ s, peak .* of 1GiB DRAM, nothing had to leave it\n$",
        )
        self.assertEqual(run("true", options=["--quiet"]).stderr, "")
        self.assertEqual(run("true", env={"TERRACE_QUIET": "1"}).stderr, "")

    def test_a_peak_beyond_the_budget_is_said(self):
        done = run("/usr/bin/python3", "-c", "b'x' * (64 << 20)", options=["--dram", "16MiB"])
        self.assertRegex(
            done.stderr, r"of 16MiB DRAM, beyond it: no memory was managed; see terrace doctor\n$"
        )

    def test_forced_eviction_without_a_block_is_a_failure(self):
        done = run("true", options=["--force-eviction", "--quiet"])
        self.assertEqual(done.returncode, 124)
        self.assertRegex(done.stderr, "^terrace: --force-eviction: no block went to the store; .*\n$")
        self.assertEqual(run("false", options=["--force-eviction", "--quiet"]).returncode, 1)


class Watchdog(unittest.TestCase):
    def ended(self, play, line, seconds):
        begin = time.time()
        done = run(OWNER, play)
        self.assertEqual(done.returncode, 124, done)
        self.assertRegex(done.stderr, "^" + line + "\n$")
        self.assertLess(time.time() - begin, seconds)

    def test_fatal_ends_the_job_with_its_line(self):
        self.ended("fatal", r"terrace: block lost object=0x1000 errno=EIO \(5\); look at the disk", 3)
        self.ended("fatal-silent", "terrace: the pager gave up without saying why; .*", 3)
        self.ended("fatal-and-exit", "terrace: no block", 3)

    def test_a_dead_pager_ends_the_job(self):
        self.ended("pager-dies", r"terrace: the pager \(process \d+\) has died, .*", 5)

    def test_a_late_pager_ends_the_job(self):
        self.ended(
            "pager-late",
            r"terrace: the pager \(process \d+, state S\) gave no sign of life for 1\d\d\d ms .*",
            6,
        )

    def test_a_pager_that_starves_stops_sleeps_or_leaves_is_let_be(self):
        for play, status in (
            ("pager-starved", 7),
            ("pager-stopped", 8),
            ("pager-asleep", 9),
            ("pager-leaves", 6),
        ):
            done = run(OWNER, play, options=["--quiet"])
            self.assertEqual((done.returncode, done.stderr), (status, ""), play)

    def test_a_pager_that_could_not_start_is_told_once(self):
        done = run(OWNER, "failed", options=["--quiet"])
        self.assertEqual(
            (done.returncode, done.stderr), (5, "terrace: no tiering: no userfaultfd; see terrace doctor\n")
        )

    def test_an_owner_that_is_no_child_of_ours_is_ended_too(self):
        done = run("sh", "-c", f"'{OWNER}' fatal; echo survived")
        self.assertEqual((done.returncode, done.stdout), (124, ""))

    def test_descriptors_are_kept_and_others_refused(self):
        done = run(OWNER, "descriptors", options=["--quiet"])
        if done.returncode == 77:
            self.skipTest("no userfaultfd")
        self.assertEqual((done.returncode, done.stdout), (0, "good=K foreign=R many=R\n"))


class Doctor(unittest.TestCase):
    def test_json(self):
        done = refused("doctor", "--json", "--store", STORE)
        seen = json.loads(done.stdout)
        self.assertEqual(done.returncode, 0 if seen["can_tier"] else 1)
        names = {entry["name"] for entry in seen["capabilities"]}
        self.assertLessEqual(
            {"userfaultfd", "uffd_move", "io_uring", "direct_io", "huge_pages", "memlock", "memory_cgroup"},
            names,
        )
        for entry in seen["capabilities"]:
            self.assertTrue(entry["found"] or entry["remedy"], entry)
        self.assertGreater(seen["default_dram_bytes"], 1 << 20)
        self.assertGreaterEqual(seen["machine"]["cpus"], 1)

    def test_table(self):
        out = refused("doctor", "--store", "/nonexistent").stdout
        self.assertRegex(out, "MISSING +store_disk .*ENOENT")
        self.assertIn("remedy: make it", out)
        self.assertEqual(refused("doctor", "--nonsense").returncode, 125)

    def test_help_and_version(self):
        self.assertRegex(refused("version").stdout, r"^terrace \d+\.\d+\.\d+\n$")
        self.assertIn("terrace run", refused("help").stdout)
        self.assertIn("--force-eviction[=SEED]", refused("run", "--help").stdout)


if __name__ == "__main__":
    try:
        result = unittest.main(argv=sys.argv[:1] + sys.argv[3:], exit=False, verbosity=2).result
    finally:
        os.rmdir(STORE)
    sys.exit(not result.wasSuccessful())
