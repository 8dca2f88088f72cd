"""The least that any policy must move: Belady's MIN on a program's own sequence of touches.

Source: Belady, "A study of replacement algorithms for a virtual-storage computer", IBM Systems Journal
5(2), 1966: evict what is used again last. Units are blocks of one size. A block that left dirty is written;
one that is equal to its stored version is dropped.
"""

import heapq

NEVER = 1 << 60


def least_moves(passes, capacity, writes):
    """passes: one list of block numbers a pass; capacity in blocks; writes: whether a pass after the first
    rewrites what it touches. Returns (blocks in, blocks out) for each pass."""
    sequence = [b for order in passes for b in order]
    next_use, last = [NEVER] * len(sequence), {}
    for at in range(len(sequence) - 1, -1, -1):
        next_use[at] = last.get(sequence[at], NEVER)
        last[sequence[at]] = at
    resident, dirty, stored = {}, set(), set()
    heap = []  # (-next use, block); an entry is stale when resident[block] says otherwise
    result, at = [], 0
    for number, order in enumerate(passes):
        came_in = went_out = 0
        for block in order:
            if block not in resident:
                if len(resident) >= capacity:
                    while True:
                        use, victim = heapq.heappop(heap)
                        if resident.get(victim) == -use:
                            break
                    del resident[victim]
                    if victim in dirty:
                        dirty.discard(victim)
                        went_out += 1
                    stored.add(victim)
                if block in stored:
                    came_in += 1
            if writes or number == 0:
                dirty.add(block)
            resident[block] = next_use[at]
            heapq.heappush(heap, (-next_use[at], block))
            at += 1
        result.append((came_in, went_out))
    return result
