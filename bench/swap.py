"""A swap file on the store's disk, and vm.page-cluster, both put back at the end of the `with` block."""

import os
import subprocess

PAGE_CLUSTER = "/proc/sys/vm/page-cluster"
NAME = "terrace-bench.swap"


def active():
    """Swap areas in use, as paths."""
    with open("/proc/swaps", encoding="utf-8") as f:
        return [line.split()[0] for line in f.read().splitlines()[1:]]


def unusable():
    """None, or why no swap file can be used here."""
    if os.geteuid() != 0:
        return "an ordinary user cannot turn swap on"
    if not os.path.exists("/proc/swaps"):
        return "this kernel has no swap"
    if not os.access(PAGE_CLUSTER, os.W_OK):
        return "vm.page-cluster is not writable here"
    others = [x for x in active() if not x.endswith(NAME)]
    if others:
        return "swap is on already (%s): the peer would not be on the same disk" % others[0]
    return None


def sweep(folder):
    """Turns off and removes the swap file of a run that was killed; returns whether there was one."""
    path = os.path.join(folder, NAME)
    found = False
    if os.path.realpath(path) in active():
        subprocess.run(["swapoff", path], check=True)
        found = True
    if os.path.exists(path):
        os.unlink(path)
        found = True
    return found


class SwapFile:
    """Turned on in __enter__; OSError with the reason when the system refuses (a container, a file system
    without swap files)."""

    def __init__(self, folder, size_bytes):
        self.path, self.size_bytes = os.path.join(folder, NAME), int(size_bytes)
        self.saved = None

    def __enter__(self):
        with open(PAGE_CLUSTER, encoding="utf-8") as f:
            self.saved = f.read().strip()
        try:
            fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
            try:
                os.posix_fallocate(fd, 0, self.size_bytes)
            finally:
                os.close(fd)
            for command in (["mkswap", self.path], ["swapon", self.path]):
                run = subprocess.run(command, capture_output=True, text=True, check=False)
                if run.returncode != 0:
                    raise OSError(run.returncode, (run.stderr or run.stdout).strip().split("\n")[-1])
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        try:
            self.page_cluster(self.saved)
        finally:
            if os.path.realpath(self.path) in active():
                subprocess.run(["swapoff", self.path], check=False)
            if os.path.exists(self.path):
                os.unlink(self.path)

    @staticmethod
    def page_cluster(value):
        with open(PAGE_CLUSTER, "w", encoding="utf-8") as f:
            f.write(str(value))
