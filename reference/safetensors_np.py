"""A minimal safetensors reader and writer: 8-byte little-endian header length, JSON header, raw data."""
import json

import numpy as np

DTYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "I64": "<i8", "I32": "<i4", "U8": "u1", "I8": "i1"}


def read(path):
    """Every tensor of a file as a NumPy array (BF16 is widened to float32, which is exact)."""
    with open(path, "rb") as f:
        size = int.from_bytes(f.read(8), "little")
        header = json.loads(f.read(size))
        data = f.read()
    out = {}
    for name, t in header.items():
        if name == "__metadata__":
            continue
        raw = data[t["data_offsets"][0]:t["data_offsets"][1]]
        if t["dtype"] == "BF16":
            a = (np.frombuffer(raw, "<u2").astype(np.uint32) << 16).view(np.float32)
        elif t["dtype"] in DTYPES:
            a = np.frombuffer(raw, DTYPES[t["dtype"]])
        else:
            raise ValueError(f"{path}: {name} is {t['dtype']}, which this reference does not read")
        out[name] = a.reshape(t["shape"])
    return out


def write(path, tensors, metadata=None):
    """Widest types first, then by name, so that every tensor stays aligned."""
    names = {v: k for k, v in DTYPES.items()}
    header, chunks, at = {}, [], 0
    if metadata:
        header["__metadata__"] = {k: str(v) for k, v in metadata.items()}
    for name, a in sorted(tensors.items(), key=lambda x: (-x[1].itemsize, x[0])):
        a = np.ascontiguousarray(a)
        kind = names[a.dtype.newbyteorder("<").str.replace("|", "")]
        header[name] = {"dtype": kind, "shape": list(a.shape), "data_offsets": [at, at + a.nbytes]}
        chunks.append(a.tobytes())
        at += a.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(len(text).to_bytes(8, "little") + text + b"".join(chunks))
