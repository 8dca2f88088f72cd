#!/usr/bin/env python3
"""Plain NumPy and PyTorch jobs with large arrays: prints values to the last bit, and the peak on stderr.

run_numpy_job.py scan|sort|fft|chain|torch [SIZE]
"""

import resource
import sys
import zlib

import numpy as np


def scan(n, rng):
    """Cyclic read-write scan over many arrays of 4 MiB."""
    parts = [rng.standard_normal(1 << 19) for _ in range(n)]
    for _ in range(3):
        for i, p in enumerate(parts):
            p *= 0.999
            p += 0.001 * i
        yield sum(zlib.crc32(p) for p in parts)


def sort(n, rng):
    """Sort by key and gather."""
    key = rng.integers(0, 1 << 40, n << 17, dtype=np.int64)
    val = np.arange(n << 17, dtype=np.int64)
    for _ in range(3):
        order = np.argsort(key, kind="stable")
        val = val[order]
        key = (key * 6364136223846793005 + 1442695040888963407) & ((1 << 40) - 1)
        yield zlib.crc32(val)


def fft(n, rng):
    """Spectral filter over rows."""
    x = rng.standard_normal((n, 1 << 13))
    for _ in range(3):
        s = np.fft.rfft(x, axis=1)
        s[:, 1024:] = 0
        x = np.fft.irfft(s, axis=1)
        del s
        yield zlib.crc32(x)


def chain(n, rng):
    """C = A @ B, then A and C change places."""
    a = rng.standard_normal((n, n), dtype=np.float32)
    b = rng.standard_normal((n, n), dtype=np.float32)
    b /= np.float32(n**0.5)
    for _ in range(3):
        c = a @ b
        a = np.ascontiguousarray(c.T)
        yield zlib.crc32(c)


def torch(n, rng):
    """A small perceptron whose weights, moments and batches are all at least 128 KiB."""
    import torch as t

    t.manual_seed(1)
    t.set_num_threads(2)
    net = t.nn.Sequential(t.nn.Linear(n, n), t.nn.Tanh(), t.nn.Linear(n, n), t.nn.Tanh(), t.nn.Linear(n, n))
    best = t.optim.Adam(net.parameters(), lr=1e-3)
    x, y = (t.from_numpy(rng.standard_normal((256, n), dtype=np.float32)) for _ in range(2))
    for _ in range(3):
        best.zero_grad(set_to_none=True)
        loss = ((net(x) - y) ** 2).mean()
        loss.backward()
        best.step()
        yield loss.item().hex(), sum(zlib.crc32(p.detach().numpy()) for p in net.parameters())


SIZES = {"scan": 40, "sort": 16, "fft": 1000, "chain": 1500, "torch": 768}


def main():
    job = sys.argv[1]
    size = int(sys.argv[2]) if len(sys.argv) > 2 else SIZES[job]
    for step, value in enumerate(globals()[job](size, np.random.default_rng(1))):
        print("step", step, value, flush=True)
    print("peak_kib", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, file=sys.stderr)


main()
