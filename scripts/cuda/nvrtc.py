"""NVRTC through ctypes: compiles the files of kernels/ to PTX or machine code. Needs no GPU and no driver."""

import ctypes
import glob
import os
import re
import sys

KERNELS = os.path.normpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "kernels"))


class CompileError(Exception):
    """The compiler's log."""


def source(name):
    """The text of kernels/NAME with its includes replaced by the files they name."""
    with open(os.path.join(KERNELS, name), encoding="utf-8") as f:
        text = f.read()
    return re.sub(r'^#include "([^"]+)"$', lambda m: source(m.group(1)), text, flags=re.M)


def library():
    """The NVRTC library: $NVRTC, a pip package (nvidia-cuda-nvrtc…), or the system's."""
    found = [os.environ["NVRTC"]] if "NVRTC" in os.environ else []
    for path in sys.path:
        for pattern in ("nvidia/cu*/lib/libnvrtc.so.*", "nvidia/cuda_nvrtc/lib/libnvrtc.so.*"):
            found += sorted(glob.glob(os.path.join(path, pattern)), reverse=True)
    found += sorted(glob.glob("/usr/local/cuda*/lib64/libnvrtc.so"), reverse=True) + ["libnvrtc.so"]
    for path in found:
        if "alt" in os.path.basename(path):
            continue
        try:
            return ctypes.CDLL(path)
        except OSError:
            continue
    raise CompileError("no NVRTC found\nhint: pip install nvidia-cuda-nvrtc")


_lib = None


def _call(name, *args):
    code = getattr(_lib, name)(*args)
    if code:
        _lib.nvrtcGetErrorString.restype = ctypes.c_char_p
        raise CompileError(f"{name}: {_lib.nvrtcGetErrorString(code).decode()}")


def _text(prog, what):
    size = ctypes.c_size_t()
    _call(f"nvrtcGet{what}Size", prog, ctypes.byref(size))
    buffer = ctypes.create_string_buffer(size.value)
    _call(f"nvrtcGet{what}", prog, buffer)
    return buffer.raw[: size.value]


def version():
    """(major, minor) of the compiler."""
    global _lib
    _lib = _lib or library()
    major, minor = ctypes.c_int(), ctypes.c_int()
    _call("nvrtcVersion", ctypes.byref(major), ctypes.byref(minor))
    return major.value, minor.value


def compile(name, arch, macros=(), options=()):
    """Machine code of kernels/NAME for `arch` ("sm_90"), or PTX ("compute_90"). Warnings are errors, too."""
    version()
    prog = ctypes.c_void_p()
    text = source(name).encode()
    _call("nvrtcCreateProgram", ctypes.byref(prog), text, name.encode(), 0, None, None)
    flags = [f"--gpu-architecture={arch}", "--std=c++17", "-default-device", *options]
    flags += [f"-D{k}={v}" for k, v in dict(macros).items()]
    array = (ctypes.c_char_p * len(flags))(*[f.encode() for f in flags])
    code = _lib.nvrtcCompileProgram(prog, len(flags), array)
    log = _text(prog, "ProgramLog").rstrip(b"\0").decode().strip()
    try:
        if code or "warning" in log:
            raise CompileError(f"{name} for {arch} with {dict(macros)}:\n{log}")
        return _text(prog, "CUBIN" if arch.startswith("sm_") else "PTX")
    finally:
        _lib.nvrtcDestroyProgram(ctypes.byref(prog))
