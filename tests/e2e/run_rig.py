"""What the run_*_test.py share: jobs under `terrace run` with real programs, and what has to be true after
one.

A job is found by a mark in its environment: after it has ended, however that was, no process with the mark
may be alive, its store directory must be empty and its file system's space be back. Under root each test
program has a mount namespace of its own, so that nothing it mounts outlives it.
"""

import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

TERRACE, PROGRAM, FILTERED = (os.path.abspath(path) for path in sys.argv[1:4])
NPJOB = os.path.join(os.path.dirname(os.path.abspath(__file__)), "run_numpy_job.py")
PYTHON = "/usr/bin/python3"
MIB = 1 << 20
SEEDS = (1, 2, 3)
ROOT = os.geteuid() == 0
_CLONE_NEWNS, _MS_REC, _MS_PRIVATE = 0x20000, 0x4000, 1 << 18
_libc = ctypes.CDLL(None, use_errno=True)


def _own_mounts():
    if not ROOT or _libc.unshare(_CLONE_NEWNS) != 0:
        return False
    return _libc.mount(b"none", b"/", None, _MS_REC | _MS_PRIVATE, None) == 0


CAN_MOUNT = _own_mounts()
HOME = tempfile.mkdtemp(prefix="terrace-e2e-", dir=os.getcwd())


def environment(mark=None, **more):
    env = {k: v for k, v in os.environ.items() if not k.startswith("TERRACE_")}
    env.update(PYTHONDONTWRITEBYTECODE="1", OMP_WAIT_POLICY="passive", OMP_NUM_THREADS="2")
    if mark is not None:
        env["TERRACE_E2E_MARK"] = mark
    env.update(more)
    return env


def processes(mark):
    """Living processes that carry the mark: {pid: name}."""
    found = {}
    needle = ("TERRACE_E2E_MARK=" + mark).encode()
    for pid in filter(str.isdigit, os.listdir("/proc")):
        # A first thread that has ended has neither environment nor life: every thread is asked.
        try:
            threads = os.listdir(f"/proc/{pid}/task")
        except OSError:
            continue
        for thread in threads:
            try:
                with open(f"/proc/{pid}/task/{thread}/environ", "rb") as f:
                    if needle not in f.read().split(b"\0"):
                        continue
                with open(f"/proc/{pid}/task/{thread}/stat") as f:
                    name, rest = f.read().split("(", 1)[1].rsplit(")", 1)
                if rest.split()[0] not in "ZX":
                    found[int(pid)] = name
                    break
            except OSError:
                pass
    return found


def pager_of(mark):
    return next((pid for pid, name in processes(mark).items() if name == "terrace-pager"), None)


def wait_until(condition, seconds=10):
    end = time.time() + seconds
    while time.time() < end:
        value = condition()
        if value:
            return value
        time.sleep(0.01)
    return condition()


def free_bytes(directory):
    s = os.statvfs(directory)
    return s.f_bavail * s.f_frsize


def mount_disk(name, mib):
    """A file system of its own, so that its free space is only the job's doing; None where that cannot be."""
    if not CAN_MOUNT or shutil.which("mkfs.ext4") is None:
        return None
    image, place = os.path.join(HOME, name + ".img"), os.path.join(HOME, name)
    os.makedirs(place)
    with open(image, "wb") as f:
        f.truncate(mib * MIB)
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    if subprocess.run(["mkfs.ext4", "-q", "-m", "0", image], **quiet).returncode != 0:
        return None
    if subprocess.run(["mount", "-o", "loop", image, place], **quiet).returncode != 0:
        return None
    os.rmdir(os.path.join(place, "lost+found"))
    return place


def plain_directory(name):
    place = os.path.join(HOME, name)
    os.makedirs(place, exist_ok=True)
    return place


def kill_now(pid):
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


class Done:
    def __init__(self, status, out, err, stats, seconds):
        self.status, self.out, self.err, self.stats, self.seconds = status, out, err, stats, seconds

    def lines_of_ours(self):
        return [line for line in self.err.splitlines() if line.startswith("terrace")]

    def __str__(self):
        said = f"--out\n{self.out}\n--err\n{self.err}\n--stats\n{self.stats}"
        return f"status {self.status} after {self.seconds:.1f} s\n{said}"


class Job:
    """One `terrace run` in the background."""

    count = 0

    def __init__(
        self, words, options=(), store=None, prefix=(), env=None, stdin=subprocess.DEVNULL, pass_fds=()
    ):
        Job.count += 1
        self.mark = f"{os.getpid()}-{Job.count}"
        self.stats_file = os.path.join(HOME, self.mark + ".json")
        self.begin = time.time()
        store_words = ["--store", store] if store else []
        self.process = subprocess.Popen(
            [*prefix, TERRACE, "run", *store_words, "--stats", self.stats_file, *options, "--", *words],
            env=environment(self.mark, **(env or {})),
            text=True,
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            pass_fds=pass_fds,
            start_new_session=True,
        )
        self.pid = 0

    def wait_ready(self):
        """Of a program that says `ready PID`."""
        words = self.process.stdout.readline().split()
        if len(words) != 2 or words[0] != "ready":
            raise AssertionError(f"not ready: {words} {self.finish()}")
        self.pid = int(words[1])
        return self.pid

    def finish(self, timeout=60):
        stdin, self.process.stdin = self.process.stdin, None  # stays open: communicate() would end it
        try:
            out, err = self.process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            state = {pid: (name, _wchan(pid)) for pid, name in processes(self.mark).items()}
            for pid in state:
                kill_now(pid)
            self.process.kill()
            out, err = self.process.communicate()
            raise AssertionError(f"hung for {timeout} s: {state}\n{out}\n{err}") from None
        finally:
            if stdin:
                stdin.close()
        stats = None
        if os.path.exists(self.stats_file):
            with open(self.stats_file) as f:
                text = f.read()
            stats = json.loads(text) if text else None
            os.unlink(self.stats_file)
        return Done(self.process.returncode, out, err, stats, time.time() - self.begin)


def _wchan(pid):
    try:
        with open(f"/proc/{pid}/wchan") as f:
            return f.read()
    except OSError:
        return "?"


class TestCase(unittest.TestCase):
    store = None  # a directory that only this class's jobs use

    def run(self, result=None):
        begin = time.time()
        super().run(result)
        print(f"{time.time() - begin:6.2f} s  {self.id().split('.', 1)[1]}", file=sys.stderr)

    @classmethod
    def setUpClass(cls):
        cls.store = plain_directory("store-" + cls.__name__)

    def plain(self, *words, stdin=subprocess.DEVNULL, timeout=60, env=None):
        done = subprocess.run(
            words,
            env=environment(**(env or {})),
            stdin=stdin,
            capture_output=True,
            text=True,
            timeout=timeout,
        )
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout

    def run_job(self, *words, options=(), timeout=60, **more):
        job = Job(words, options, more.pop("store", self.store), **more)
        done = job.finish(timeout)
        self.assert_nothing_left(job)
        return done

    def assert_nothing_left(self, job):
        left = wait_until(lambda: not processes(job.mark), 5)
        self.assertTrue(left, f"processes left: {processes(job.mark)}")
        if os.path.isdir(self.store):
            self.assertEqual(os.listdir(self.store), [])

    def assert_right(self, done, status=0):
        self.assertEqual(done.status, status, str(done))
        self.assertNotIn("wrong bytes", done.err)
        if done.stats:
            self.assertEqual(done.stats["checksum_failures"], 0)

    def assert_refused(self, done, *texts):
        """One line, and status 125."""
        self.assertEqual(done.status, 125, str(done))
        self.assertEqual(len(done.err.splitlines()), 1, str(done))
        self.assertTrue(done.err.startswith("terrace: "), done.err)
        for text in texts:
            self.assertIn(text, done.err)


def main():
    try:
        program = unittest.main(argv=[sys.argv[0], *sys.argv[4:]], exit=False)
    finally:
        shutil.rmtree(HOME, ignore_errors=True)
        if CAN_MOUNT:  # what is still mounted goes with this process; the empty folders now
            for name in os.listdir(HOME) if os.path.isdir(HOME) else ():
                _libc.umount2(os.path.join(HOME, name).encode(), 2)
            shutil.rmtree(HOME, ignore_errors=True)
    result = program.result
    if result.wasSuccessful() and result.testsRun and len(result.skipped) == result.testsRun:
        sys.exit(77)
    sys.exit(not result.wasSuccessful())
