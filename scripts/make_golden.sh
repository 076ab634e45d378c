#!/bin/sh
# Make fixtures/golden anew: an environment with torch (CPU is enough) and transformers 5.24.0, then make_golden.py.
#
#   scripts/make_golden.sh [VENV_DIR] [OUT_DIR]
#
# VENV_DIR is made if it is missing and kept; by default it is a temporary folder, removed at the end.
# PyPI's torch for x86-64 Linux links CUDA libraries at import, so those it opens come along (about 3.6 GB to download);
# triton, cuSOLVER, NVRTC and NVTX are not opened on the CPU and are left out. On other platforms no CUDA package is asked for.
set -eu
cd "$(dirname "$0")/.."
out=${2:-fixtures/golden}
if [ $# -ge 1 ]; then
    venv=$1
else
    venv=$(mktemp -d)
    trap 'rm -rf "$venv"' EXIT
fi
if ! "$venv/bin/python" -c 'import torch, transformers' 2>/dev/null; then
    "${PYTHON:-python3}" -m venv "$venv"
    pip="$venv/bin/pip install --quiet --disable-pip-version-check"
    $pip transformers==5.24.0 safetensors numpy tokenizers
    $pip filelock typing-extensions sympy networkx jinja2 fsspec
    $pip --no-deps torch==2.9.1
    needs=$("$venv/bin/python" - <<'PY'
from importlib.metadata import requires
from pip._vendor.packaging.requirements import Requirement
for text in requires("torch"):
    r = Requirement(text)
    unused = any(x in r.name for x in ("cusolver", "nvrtc", "nvtx", "triton"))
    if r.name.startswith("nvidia") and not unused and (r.marker is None or r.marker.evaluate({"extra": ""})):
        print(f"{r.name}{r.specifier}")
PY
    )
    [ -z "$needs" ] || $pip --no-deps $needs
fi
mkdir -p "$out"
HF_HUB_OFFLINE=1 "$venv/bin/python" scripts/make_golden.py "$out"
"$venv/bin/python" reference/check.py "$out" --write
