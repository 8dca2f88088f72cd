#!/usr/bin/env python3
"""A character-level transformer learns to continue a text. Plain PyTorch on the CPU: nothing here knows
about memory tiers. Each step prints its time and its loss, also as the exact bits (float hex); the closing
line has the median.
"""

import argparse
import glob
import os
import time

import torch
import torch.nn as nn
import torch.nn.functional as F


class Block(nn.Module):
    """Pre-norm transformer block with explicit causal attention."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.ln1, self.ln2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x, mask):
        b, t, c = x.shape
        q, k, v = (
            z.view(b, t, self.heads, c // self.heads).transpose(1, 2)
            for z in self.qkv(self.ln1(x)).split(c, dim=2)
        )
        att = (q @ k.transpose(-2, -1)) * (c // self.heads) ** -0.5
        att = F.softmax(att.masked_fill(mask, float("-inf")), dim=-1)
        x = x + self.out((att @ v).transpose(1, 2).reshape(b, t, c))
        return x + self.down(F.gelu(self.up(self.ln2(x))))


class CharModel(nn.Module):
    def __init__(self, vocab, width, depth, heads, context):
        super().__init__()
        self.tok = nn.Embedding(vocab, width)
        self.pos = nn.Parameter(torch.zeros(1, context, width))
        self.blocks = nn.ModuleList([Block(width, heads) for _ in range(depth)])
        self.ln = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocab, bias=False)
        self.register_buffer("mask", torch.triu(torch.ones(context, context, dtype=torch.bool), 1))

    def forward(self, ids):
        x = self.tok(ids) + self.pos
        for block in self.blocks:
            x = block(x, self.mask)
        return self.head(self.ln(x))


def read_text(patterns):
    """All files that match, in the order of their names, as one string."""
    paths = sorted(p for pattern in patterns for p in glob.glob(pattern) if os.path.isfile(p))
    return "\n".join(open(p, encoding="utf-8", errors="replace").read() for p in paths)


def main():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("text", nargs="+", help="text files, or patterns of them")
    p.add_argument("--steps", type=int, default=8)
    p.add_argument("--batch", type=int, default=16)
    p.add_argument("--context", type=int, default=256)
    p.add_argument("--width", type=int, default=384)
    p.add_argument("--depth", type=int, default=6)
    p.add_argument("--heads", type=int, default=6)
    a = p.parse_args()
    torch.manual_seed(1)
    torch.set_num_threads(2)

    text = read_text(a.text)
    letters = sorted(set(text))
    code = {c: i for i, c in enumerate(letters)}
    data = torch.tensor([code[c] for c in text], dtype=torch.long)
    model = CharModel(len(letters), a.width, a.depth, a.heads, a.context)
    optimizer = torch.optim.AdamW(model.parameters(), lr=6e-4)
    count = sum(x.numel() for x in model.parameters())
    print(
        "text %d characters, %d letters; model %.1f million parameters"
        % (len(text), len(letters), count / 1e6),
        flush=True,
    )

    times = []
    for step in range(a.steps):
        start = time.perf_counter()
        at = torch.randint(len(data) - a.context - 1, (a.batch,))
        x = torch.stack([data[i : i + a.context] for i in at])
        y = torch.stack([data[i + 1 : i + a.context + 1] for i in at])
        loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        times.append(time.perf_counter() - start)
        print(
            "step %d time_s %.3f loss %.5f bits %s" % (step, times[-1], loss.item(), loss.item().hex()),
            flush=True,
        )
    tail = sorted(times[1:] or times)
    print("median_s %.3f" % tail[len(tail) // 2], flush=True)


if __name__ == "__main__":
    main()
