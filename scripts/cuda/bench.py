#!/usr/bin/env python3
"""Checks and times the CUDA kernels of kernels/ on the current GPU.

    python3 scripts/cuda/bench.py check   [NAME …] [--quick] [--seed N]     correctness; exit 1 if anything fails
    python3 scripts/cuda/bench.py measure [NAME …] [--sweep] [--json FILE]  times, floors, shares of the floor
    python3 scripts/cuda/bench.py all     [NAME …]                          both

Needs PyTorch with CUDA (its NVRTC compiles the kernels; `NVRTC=/path/to/libnvrtc.so` names another) and a GPU of compute
capability 8.0 or more with 164 KB of shared memory a block or more for every variant. NAME: mla, indexer, mhc, moe,
linear, prefill. --sweep times every variant and split count, not just the best. For memory and race checks:

    compute-sanitizer --tool memcheck  python3 scripts/cuda/bench.py check --quick
    compute-sanitizer --tool racecheck python3 scripts/cuda/bench.py check --quick

Inputs are random (fresh for every seed), outputs are filled with NaN before each launch, references are computed in f64
from the same stored bytes. Times are medians over replays of a CUDA graph, which launches the kernel in turn on inputs
that together exceed the second-level cache; the floor is the larger of bytes over the copy bandwidth and operations over
the rate of a large bf16 product, both measured on this device at the start. The launch of an empty kernel in such a graph
is reported too: no call of n kernels takes less than n times that.
"""

import argparse
import json
import os
import sys
import time
import traceback

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import driver  # noqa: E402
import nvrtc  # noqa: E402
import torch  # noqa: E402
from cases import indexer, linear, mhc, mla, moe, prefill  # noqa: E402

CASES = {"mla": mla, "indexer": indexer, "mhc": mhc, "moe": moe, "linear": linear, "prefill": prefill}


def check(names, quick, g):
    failed = total = 0
    for name in names:
        begin, count, bad = time.time(), 0, 0
        try:
            for label, ok, detail in CASES[name].check(g, quick):
                count, bad = count + 1, bad + (not ok)
                if not ok or quick:
                    print(f"{'ok    ' if ok else 'FAILED'} {label}: {detail}", flush=True)
            torch.cuda.synchronize()
        except Exception:
            bad += 1
            print(f"FAILED {name}: {traceback.format_exc()}", flush=True)
        print(f"{name}: {count} checks, {bad} failed, {time.time() - begin:.1f} s", flush=True)
        failed, total = failed + bad, total + count
        torch.cuda.empty_cache()
    print(f"{total} checks, {failed} failed")
    return failed


def measure(names, sweep, g, out):
    c = driver.ceilings()
    empty = driver.module("mhc.cu")["mhc_mix"]
    m = mhc.Mix(g, 1)
    launch = driver.time_us([lambda: empty((1, 1), 256, 0, m.x, m.fn, m.base, m.factors, m.pre, m.post, m.comb, m.partial,
                                           m.arrived, 0, 0, 1e-6, 1e-6, 1)], 100)  # fmt: skip
    print(f"{torch.cuda.get_device_name()}: copy {c['bandwidth'] / 1e6:.2f} TB/s, bf16 product {c['product'] / 1e6:.0f} TFLOP/s, "
          f"a kernel without work {launch:.2f} µs")  # fmt: skip
    rows = []
    print("| kernel | case | choice | µs | floor µs | share of floor | rel_l2 |\n|---|---|---|---:|---:|---:|---:|", flush=True)
    for name in names:
        try:
            for r in CASES[name].measure(g, sweep):
                rows.append(r)
                error = "" if r["rel_l2"] is None else f"{r['rel_l2']:.1e}"
                print(f"| {r['kernel']} | {r['case']} | {r['choice']} | {r['us']:.1f} | {r['floor_us']:.1f} | "
                      f"{100 * r['floor_us'] / r['us']:.0f} % | {error} |", flush=True)  # fmt: skip
        except Exception:
            print(f"FAILED {name}: {traceback.format_exc()}", flush=True)
        torch.cuda.empty_cache()
    if out:
        with open(out, "w") as f:
            json.dump({"device": torch.cuda.get_device_name(), "ceilings": c, "launch_us": launch, "rows": rows}, f, indent=1)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("check", "measure", "all"))
    parser.add_argument("names", nargs="*", choices=[*CASES, []], default=[])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--sweep", action="store_true")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--json")
    args = parser.parse_args()
    names = args.names or list(CASES)
    g = torch.Generator("cuda").manual_seed(args.seed)
    begin = time.time()
    driver.compile_all([v for n in names for v in CASES[n].variants(args.quick)] + [("mhc.cu", {})])
    print(f"NVRTC {nvrtc.version()}, {driver.arch()}, seed {args.seed}, compiled in {time.time() - begin:.1f} s", flush=True)
    failed = check(names, args.quick, g) if args.what != "measure" else 0
    if args.what != "check":
        measure(names, args.sweep, g, args.json)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
