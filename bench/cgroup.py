"""A memory cgroup (version 1 or 2) for one measured program.

Invariant: what `with Group(...)` made is gone when the block ends, however it ends. Leftovers of a run that
was killed by SIGKILL are found by name (`terrace-bench-<pid>`) and removed by `sweep()`.
"""

import os
import re
import signal
import time

V1 = "/sys/fs/cgroup/memory"
V2 = "/sys/fs/cgroup"
PREFIX = "terrace-bench-"


def version():
    if os.path.exists(os.path.join(V1, "memory.limit_in_bytes")):
        return 1
    if os.path.exists(os.path.join(V2, "cgroup.controllers")):
        return 2
    return 0


def unusable():
    """None, or why no memory cgroup can be made here."""
    kind = version()
    if kind == 0:
        return "no memory cgroup is mounted"
    if os.geteuid() != 0:
        return "an ordinary user cannot make memory cgroups"
    try:
        with Group("probe", 64 << 20):
            pass
    except OSError as e:
        return "cannot make a memory cgroup: %s" % e.strerror
    return None


def _base():
    return V1 if version() == 1 else V2


def sweep():
    """Removes groups that dead benchmark processes left behind; returns their names."""
    gone = []
    base = _base()
    for name in os.listdir(base) if os.path.isdir(base) else []:
        m = re.match(re.escape(PREFIX) + r"(\d+)-", name)
        if m and not os.path.exists("/proc/" + m.group(1)):
            _remove(os.path.join(base, name))
            gone.append(name)
    return gone


def _read(path):
    try:
        with open(path, encoding="utf-8") as f:
            return f.read()
    except OSError:
        return ""


def _remove(path):
    for _ in range(100):
        for pid in _read(os.path.join(path, "cgroup.procs")).split():
            try:
                os.kill(int(pid), signal.SIGKILL)
            except ProcessLookupError:
                pass
        try:
            os.rmdir(path)
            return
        except FileNotFoundError:
            return
        except OSError:
            time.sleep(0.05)
    raise OSError("cannot remove %s" % path)


class Group:
    """limit_bytes bounds memory, page cache included. swap=False: memory plus swap has the same bound, so
    nothing of the group can be swapped out; swap=True: swap is free."""

    def __init__(self, name, limit_bytes, swap=False):
        self.limit_bytes, self.swap = int(limit_bytes) & ~4095, swap
        self.path = os.path.join(_base(), "%s%d-%s" % (PREFIX, os.getpid(), name))

    def __enter__(self):
        if version() == 2 and "memory" not in _read(os.path.join(V2, "cgroup.subtree_control")):
            self._write(V2, "cgroup.subtree_control", "+memory")
        os.mkdir(self.path)
        try:
            if version() == 1:
                self._write(self.path, "memory.limit_in_bytes", self.limit_bytes)
                memsw = os.path.join(self.path, "memory.memsw.limit_in_bytes")
                if not self.swap and os.path.exists(memsw):
                    self._write(self.path, "memory.memsw.limit_in_bytes", self.limit_bytes)
            else:
                self._write(self.path, "memory.max", self.limit_bytes)
                if not self.swap and os.path.exists(os.path.join(self.path, "memory.swap.max")):
                    self._write(self.path, "memory.swap.max", 0)
        except OSError:
            _remove(self.path)
            raise
        return self

    def __exit__(self, *_):
        _remove(self.path)

    @staticmethod
    def _write(folder, name, value):
        with open(os.path.join(folder, name), "w", encoding="utf-8") as f:
            f.write(str(value))

    def wrap(self, argv):
        """The command that runs argv inside the group (the shell moves itself in before it becomes argv)."""
        script = 'echo $$ > "$0" && exec "$@"'
        return ["/bin/sh", "-c", script, os.path.join(self.path, "cgroup.procs")] + list(argv)

    def _field(self, name, key):
        m = re.search(r"^%s (\d+)$" % key, _read(os.path.join(self.path, name)), re.M)
        return int(m.group(1)) if m else 0

    def counters(self):
        """peak_bytes, limit_hits (times an allocation met the limit), oom_kills, major_faults, swap_bytes
        now."""
        if version() == 1:
            return {
                "peak_bytes": int(_read(os.path.join(self.path, "memory.max_usage_in_bytes")) or 0),
                "limit_hits": int(_read(os.path.join(self.path, "memory.failcnt")) or 0),
                "oom_kills": self._field("memory.oom_control", "oom_kill"),
                "major_faults": self._field("memory.stat", "pgmajfault"),
            }
        return {
            "peak_bytes": int(_read(os.path.join(self.path, "memory.peak")) or 0),
            "limit_hits": self._field("memory.events", "max"),
            "oom_kills": self._field("memory.events", "oom_kill"),
            "major_faults": self._field("memory.stat", "pgmajfault"),
        }
