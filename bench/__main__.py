"""python3 -m bench ID [--json FILE] [--quick]: see scripts/bench."""

import argparse
import importlib
import signal
import sys

from bench import harness

MODULES = {"P0": "p0", "P1": "p1", "P2": "p2", "P4": "programs", "P5": "programs", "P6": "programs"}


def main():
    p = argparse.ArgumentParser(prog="scripts/bench", description="one benchmark of docs/benchmarks.md")
    p.add_argument(
        "id", type=str.upper, choices=sorted(MODULES), metavar="ID", help=", ".join(sorted(MODULES))
    )
    p.add_argument("--json", metavar="FILE", help="write the rows there")
    p.add_argument(
        "--quick", action="store_true", help="fewer jobs and rounds: a look, not a figure to quote"
    )
    p.add_argument(
        "--row", metavar="WORD", action="append", default=[], help="only rows whose name has WORD in it"
    )
    a = p.parse_args()
    # So that a kill, too, unwinds the `with` blocks that undo what was done to the machine.
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: sys.exit(128 + signal.SIGTERM))
    bench = harness.Bench(a.id, a.json, a.quick)
    try:
        module = importlib.import_module("bench." + MODULES[a.id])
        wanted = (lambda name: any(w in name for w in a.row)) if a.row else (lambda name: True)
        module.measure(bench, wanted)
        return bench.finish()
    except (harness.Cannot, harness.RunFailed) as e:
        print("bench %s: %s" % (a.id, e), file=sys.stderr)
        return harness.EXIT_CANNOT
    except KeyboardInterrupt:
        print("bench %s: stopped; the machine is as it was" % a.id, file=sys.stderr)
        return 130
    finally:
        bench.close()


sys.exit(main())
