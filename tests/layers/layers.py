#!/usr/bin/env python3
"""Checks that the tree keeps its layers, and its style.

Nouns: a layer is a folder that has a place in ORDER; a file includes only from its own layer or from those on
its left. A wall is a header of some other library that only a few files may see. Everything here reads text;
only `headers` runs a compiler. Exit status: 0 clean, 1 with one line for each violation.

    layers.py order   [--root DIR]     who includes whom
    layers.py style   [--root DIR]     line length, file length, paths of one machine
    layers.py headers [--root DIR]     every header compiles alone
"""

import argparse
import concurrent.futures
import os
import re
import subprocess
import sys

ORDER = ["include", "base", "io", "profiles", "tiering", "daemon/protocol", "runtime", "allocator", "clients"]
SOURCES = (".hpp", ".cpp", ".h", ".c")
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')

# header pattern -> path patterns that may see it (bench/ and tests/ may see everything)
WALLS = [
    (re.compile(r"^liburing(/|\.h$)"), re.compile(r"^io/uring_device")),
    (re.compile(r"^linux/userfaultfd\.h$"), re.compile(r"^(runtime|base)/")),
    (re.compile(r"^(numa|numaif|hwloc)\.h$"), re.compile(r"^base/topology")),
    (re.compile(r"^nlohmann/"), re.compile(r"^base/json")),
    (re.compile(r"^boost/"), re.compile(r"^daemon/server/")),
    (re.compile(r"^(cuda|cuda_runtime|nccl)\.h$"), re.compile(r"^io/device/")),
]
# The public headers are read by strangers with any compiler: standard C headers and C++ headers only.
PUBLIC_C = {"stddef.h", "stdint.h", "stdbool.h", "limits.h", "inttypes.h"}

COLUMNS_MAX = 110
LINES_MAX = 800
# Written in pieces, so that this file does not find itself.
MACHINE_PATH = re.compile("|".join(("/" + "work/", "/" + "home/[a-z]", "/" + "root/", "/tmp/" + "bash_jobs")))
STYLED = SOURCES + (".py", ".sh", ".md", ".txt", ".cmake")


def files(root, folders, suffixes):
    """Paths under `folders`, relative to root and sorted, by suffix ("" is none at all)."""
    found = []
    for folder in folders:
        for base, dirs, names in os.walk(os.path.join(root, folder)):
            dirs[:] = sorted(d for d in dirs if d not in ("build", "__pycache__", ".git"))
            for name in sorted(names):
                suffix = os.path.splitext(name)[1]
                if suffix in suffixes:
                    found.append(os.path.relpath(os.path.join(base, name), root))
    return found


def layer_of(path):
    """The layer of a path, "daemon/server" for the server, None for what has no place in the order."""
    for layer in ORDER + ["daemon/server"]:
        if path.startswith(layer + "/"):
            return layer
    return None


def includes(root, path):
    """Yields (line number, header as written, path in the tree or None)."""
    with open(os.path.join(root, path), encoding="utf-8", errors="replace") as f:
        for number, line in enumerate(f, 1):
            m = INCLUDE.match(line)
            if not m:
                continue
            header, target = m.group(2), None
            for candidate in (header, "include/" + header, os.path.join(os.path.dirname(path), header)):
                candidate = os.path.normpath(candidate)
                if os.path.isfile(os.path.join(root, candidate)):
                    target = candidate
                    break
            if target is None and (m.group(1) == '"' or layer_of(header)):
                target = header if layer_of(header) else None
            yield number, header, target


def may_include(path, target):
    """The rule of the order; a reason where it is broken, else None."""
    own, other = layer_of(path), layer_of(target)
    if other is None:
        return "%s is in no layer" % target
    if own == "clients":
        if path.startswith("clients/cli/"):
            return None
        mine = "/".join(path.split("/")[:2]) + "/"
        if other == "include" or target.startswith(mine):
            return None
        return "a client sees include/terrace and its own folder only"
    if own == "daemon/server":
        if other == own or (other in ORDER and ORDER.index(other) < ORDER.index("runtime")):
            return None
        return "daemon/server sees only what is left of runtime"
    if other in ORDER and ORDER.index(other) <= ORDER.index(own):
        return None
    return "%s is not left of %s" % (other, own)


def check_order(root):
    bad = []
    for path in files(root, [x for x in ORDER] + ["daemon/server"], SOURCES):
        for number, header, target in includes(root, path):
            where = "%s:%d: includes %s: " % (path, number, header)
            if target is not None:
                reason = may_include(path, target)
                if reason:
                    bad.append(where + reason)
                continue
            for pattern, allowed in WALLS:
                if pattern.search(header) and not allowed.search(path):
                    bad.append(where + "only %s may" % allowed.pattern.lstrip("^"))
            standard = header in PUBLIC_C or re.match(r"^[a-z_0-9]+$", header)
            if layer_of(path) == "include" and not standard:
                bad.append(where + "public headers use standard headers only")
    return bad


def check_style(root):
    bad = []
    folders = [
        "include",
        "base",
        "io",
        "profiles",
        "tiering",
        "daemon",
        "runtime",
        "allocator",
        "clients",
        "bench",
        "tests",
        "scripts",
        "docs",
        "cmake",
        ".ci",
    ]
    for path in files(root, folders, STYLED + ("",)):
        with open(os.path.join(root, path), encoding="utf-8", errors="replace") as f:
            lines = f.read().split("\n")
        code = path.endswith(SOURCES + (".py", ".sh"))
        for number, line in enumerate(lines, 1):
            if code and len(line) > COLUMNS_MAX and "http" not in line:
                bad.append("%s:%d: %d columns (at most %d)" % (path, number, len(line), COLUMNS_MAX))
            if code and line != line.rstrip():
                bad.append("%s:%d: spaces at the end of the line" % (path, number))
            if MACHINE_PATH.search(line):
                bad.append("%s:%d: a path of one machine" % (path, number))
        if code and len(lines) > LINES_MAX + 1:
            bad.append("%s: %d lines (at most %d)" % (path, len(lines) - 1, LINES_MAX))
        if code and lines[-1] != "":
            bad.append("%s: no newline at the end" % path)
    return bad


def compile_alone(root, path):
    """None, or the compiler's first lines. A header under include/ must also be C."""
    languages = ["c++"] + (["c"] if path.startswith("include/") and path.endswith(".h") else [])
    for language in languages:
        std = "-std=gnu++20" if language == "c++" else "-std=c11"
        run = subprocess.run(
            [
                os.environ.get("CXX", "g++"),
                std,
                "-D_GNU_SOURCE",
                "-fsyntax-only",
                "-Wall",
                "-I.",
                "-Iinclude",
                "-x",
                language,
                "-include",
                path,
                "/dev/null",
            ],
            cwd=root,
            capture_output=True,
            text=True,
            check=False,
        )
        if run.returncode != 0:
            first = "\n".join(run.stderr.split("\n")[:6])
            return "%s: does not compile alone as %s\n%s" % (path, language, first)
    return None


def check_headers(root):
    paths = files(root, ORDER + ["daemon/server"], (".hpp", ".h"))
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        return [x for x in pool.map(lambda p: compile_alone(root, p), paths) if x]


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("check", choices=["order", "style", "headers"])
    p.add_argument("--root", default=os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", ".."))
    a = p.parse_args()
    root = os.path.abspath(a.root)
    bad = {"order": check_order, "style": check_style, "headers": check_headers}[a.check](root)
    for line in bad:
        print(line)
    print("%s: %d violation%s" % (a.check, len(bad), "" if len(bad) == 1 else "s"))
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
