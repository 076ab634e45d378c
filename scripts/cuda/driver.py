"""Loads compiled kernels through the CUDA driver and launches them on PyTorch's current stream and tensors."""

import ctypes
from concurrent.futures import ThreadPoolExecutor

import nvrtc
import torch

_cuda = None


def _call(name, *args):
    global _cuda
    if _cuda is None:
        torch.cuda.init()
        torch.zeros(1, device="cuda")  # makes the device's primary context current
        _cuda = ctypes.CDLL("libcuda.so.1")
    code = getattr(_cuda, name)(*args)
    if code:
        text = ctypes.c_char_p()
        _cuda.cuGetErrorString(code, ctypes.byref(text))
        raise RuntimeError(f"{name}: {text.value.decode() if text.value else code}")


def arch():
    """The architecture of the current device as NVRTC names it."""
    return "sm_{}{}".format(*torch.cuda.get_device_capability())


_cubins = {}


def compile_all(variants):
    """Compiles (file, macros) pairs side by side; later `module` calls find them."""
    keys = [(f, tuple(sorted(m.items()))) for f, m in variants]
    keys = [k for k in dict.fromkeys(keys) if k not in _cubins]
    target = arch()
    with ThreadPoolExecutor(16) as pool:
        for key, code in zip(keys, pool.map(lambda k: nvrtc.compile(k[0], target, dict(k[1])), keys)):
            _cubins[key] = code


_modules = {}


def module(file, **macros):
    """The compiled kernels of a file: `module(file, NAME=value)["entry"](grid, block, shared, *args)`."""
    key = (file, tuple(sorted(macros.items())))
    if key not in _modules:
        compile_all([(file, macros)])
        handle = ctypes.c_void_p()
        _call("cuModuleLoadData", ctypes.byref(handle), _cubins[key])
        _modules[key] = Module(handle)
    return _modules[key]


class Module:
    def __init__(self, handle):
        self.handle, self.entries = handle, {}

    def __getitem__(self, name):
        if name not in self.entries:
            function = ctypes.c_void_p()
            _call("cuModuleGetFunction", ctypes.byref(function), self.handle, name.encode())
            self.entries[name] = Kernel(function)
        return self.entries[name]


MAX_DYNAMIC_SHARED, NUM_REGS = 8, 4


class Kernel:
    def __init__(self, function):
        self.function, self.shared = function, 48 * 1024

    def __call__(self, grid, block, shared, *args):
        if shared > self.shared:
            _call("cuFuncSetAttribute", self.function, MAX_DYNAMIC_SHARED, shared)
            self.shared = shared
        held = [_argument(a) for a in args]
        pointers = (ctypes.c_void_p * len(held))(*[ctypes.cast(ctypes.byref(h), ctypes.c_void_p) for h in held])
        gx, gy, gz = (*grid, 1, 1)[:3]
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        _call("cuLaunchKernel", self.function, gx, gy, gz, block, 1, 1, shared, stream, pointers, None)


def _argument(a):
    if a is None:
        return ctypes.c_void_p(0)
    if isinstance(a, torch.Tensor):
        assert a.is_cuda and a.is_contiguous()
        return ctypes.c_void_p(a.data_ptr())
    if isinstance(a, tuple):  # a struct of pointers
        return (ctypes.c_void_p * len(a))(*[x.data_ptr() if x is not None else 0 for x in a])
    if isinstance(a, float):
        return ctypes.c_float(a)
    return ctypes.c_int(a)


def time_us(runs, launches=20, replays=15):
    """Median time of one of `runs` in µs: they are captured in turn into a graph, which is replayed. Give enough runs on
    different inputs that these do not fit in the cache."""
    for run in runs[:3]:
        run()
    torch.cuda.synchronize()
    count = -(-launches // len(runs)) * len(runs)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for i in range(count):
            runs[i % len(runs)]()
    graph.replay()
    torch.cuda.synchronize()
    times = []
    for _ in range(replays):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end) * 1e3 / count)
    return sorted(times)[len(times) // 2]


_ceilings = {}


def ceilings():
    """Measured on this device: copy bandwidth (bytes read and written a µs), bf16 product rate (operations a µs)."""
    if not _ceilings:
        a = torch.randint(-(1 << 30), 1 << 30, (1 << 30,), dtype=torch.int32, device="cuda")
        b = torch.empty_like(a)
        # Copies of two kinds, as either may be the slower one: the driver's, and a kernel that reads and writes.
        us = min(time_us([run], 3, 7) for run in (lambda: b.copy_(a), lambda: torch.bitwise_not(a, out=b)))
        _ceilings["bandwidth"] = 8 * a.numel() / us
        del a, b
        x = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
        y, z = torch.randn_like(x), torch.empty_like(x)
        _ceilings["product"] = 2 * 8192**3 / time_us([lambda: torch.mm(x, y, out=z)], 10, 7)
        torch.cuda.empty_cache()
    return _ceilings


def floor_us(bytes_moved, operations=0):
    """The least time for so many bytes of memory traffic and operations on the tensor cores."""
    c = ceilings()
    return max(bytes_moved / c["bandwidth"], operations / c["product"])


def rel_l2(x, reference):
    """‖x − reference‖ / ‖reference‖ in f64; NaN if anything is."""
    x, reference = x.double(), reference.double()
    return ((x - reference).norm() / reference.norm().clamp_min(1e-300)).item()


def poison(*tensors):
    """Fills outputs with NaN (or with a large negative integer), so that what is not written shows."""
    for t in tensors:
        t.fill_(float("nan") if t.is_floating_point() else -(1 << 30))


def same_bits(a, b):
    """True if two tensors hold the same bytes."""
    return torch.equal(a.contiguous().view(torch.uint8), b.contiguous().view(torch.uint8))
