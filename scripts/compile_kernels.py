#!/usr/bin/env python3
"""Compiles every kernel of kernels/ for every architecture it must support, with NVRTC. Needs no GPU.

    python3 scripts/compile_kernels.py [--install] [--ptxas PATH] [NAME …]

Any error or warning of the compiler fails the run (exit 1). --install fetches NVRTC with pip first if it is missing.
With ptxas (found beside NVRTC, on the PATH, or named) it also prints registers, and fails on spills and on arrays that
were left in local memory.
"""

import argparse
import glob
import os
import re
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "cuda"))
import nvrtc  # noqa: E402
from variants import ARCHS, VARIANTS  # noqa: E402


def find_ptxas():
    found = [p for path in sys.path for p in glob.glob(os.path.join(path, "nvidia/cu*/bin/ptxas"))]
    return found[0] if found else shutil.which("ptxas")


def resources(ptxas, ptx, arch):
    """[(kernel, registers, bytes of local memory)] as ptxas reports them."""
    with tempfile.NamedTemporaryFile(suffix=".ptx") as f:
        f.write(ptx.rstrip(b"\0"))
        f.flush()
        run = subprocess.run([ptxas, "-v", f"-arch={arch}", "-o", os.devnull, f.name], capture_output=True, text=True)
    if run.returncode:
        raise nvrtc.CompileError(run.stdout + run.stderr)
    found, name, spill = [], "?", 0
    for line in run.stderr.splitlines():
        if m := re.search(r"entry function '(\w+)'", line):
            name = m.group(1)
        elif m := re.search(r"(\d+) bytes stack frame, (\d+) bytes spill stores", line):
            spill = int(m.group(1)) + int(m.group(2))
        elif m := re.search(r"Used (\d+) registers", line):
            found.append((name, int(m.group(1)), spill))
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--install", action="store_true")
    parser.add_argument("--ptxas")
    parser.add_argument("names", nargs="*")
    args = parser.parse_args()
    try:
        print("NVRTC {}.{}".format(*nvrtc.version()))
    except nvrtc.CompileError as e:
        if not args.install:
            sys.exit(f"error: {e}, or run with --install")
        subprocess.run([sys.executable, "-m", "pip", "install", "-q", "nvidia-cuda-nvrtc"], check=True)
        print("NVRTC {}.{}".format(*nvrtc.version()))
    ptxas = args.ptxas or find_ptxas()
    print(f"ptxas {ptxas or 'not found: registers are not reported'}")
    names = {n if n.endswith(".cu") else n + ".cu" for n in args.names}
    known = {v.file for v in VARIANTS}
    if missing := {os.path.basename(p) for p in glob.glob(os.path.join(nvrtc.KERNELS, "*.cu"))} - known:
        sys.exit(f"error: no variant is declared for {sorted(missing)} (scripts/cuda/variants.py)")
    jobs = [(v, a) for v in VARIANTS for a in ARCHS if a in v.archs and (not names or v.file in names)]

    def one(job):
        variant, arch = job
        try:
            nvrtc.compile(variant.file, arch, variant.macros)
            if not ptxas:
                return job, [], None
            ptx = nvrtc.compile(variant.file, arch.replace("sm_", "compute_"), variant.macros)
            return job, resources(ptxas, ptx, arch), None
        except nvrtc.CompileError as e:
            return job, [], str(e)

    failed = 0
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for (variant, arch), found, error in pool.map(one, jobs):
            label = f"{variant.file} {arch} {' '.join(f'{k}={v}' for k, v in variant.macros.items())}".rstrip()
            spilled = [name for name, _, spill in found if spill]
            if error or spilled:
                failed += 1
                print(f"FAILED {label}\n{error or 'local memory is used by ' + ', '.join(spilled)}")
            print(f"{label}: " + ", ".join(f"{name} {regs} registers{f', {sp} B local' if sp else ''}" for name, regs, sp in found))
    print(f"{len(jobs)} compilations, {failed} failed")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
