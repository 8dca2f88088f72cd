"""What machine and what commit a figure belongs to."""

import os
import subprocess

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def _first(path, key):
    try:
        with open(path, encoding="utf-8") as f:
            for line in f:
                if line.startswith(key):
                    return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return "unknown"


def _line(path):
    try:
        with open(path, encoding="utf-8") as f:
            return f.readline().strip()
    except OSError:
        return "unknown"


def commit():
    """Short commit id, with `-dirty` when tracked files differ from it; `unknown` outside a clone."""
    try:
        run = subprocess.run(
            ["git", "describe", "--always", "--dirty", "--abbrev=10", "--exclude=*"],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=True,
        )
        return run.stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def disk_of(path):
    """File system and device under `path`, from /proc/self/mounts (longest mount point that is a prefix)."""
    path, best = os.path.realpath(path), ("", "unknown", "unknown")
    with open("/proc/self/mounts", encoding="utf-8") as f:
        for line in f:
            device, point, kind = line.split()[:3]
            inside = path == point or path.startswith(point.rstrip("/") + "/")
            if inside and len(point) >= len(best[0]):
                best = (point, kind, device)
    return best[1], best[2]


def describe(store):
    kind, device = disk_of(store)
    memory_kib = int(_first("/proc/meminfo", "MemTotal").split()[0])
    return {
        "cpu": _first("/proc/cpuinfo", "model name"),
        "cores": os.cpu_count(),
        "memory_bytes": memory_kib * 1024,
        "kernel": os.uname().release,
        "store": "%s on %s" % (kind, device),
        "thp": _line("/sys/kernel/mm/transparent_hugepage/enabled"),
    }
