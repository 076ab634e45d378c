"""The stored formats in PyTorch: what the kernels read, made and decoded by other code than theirs."""

import torch

PAGE, PAGE_BYTES, DATA, PLAIN, ROPE = 64, 37440, 576, 448, 64
E2M1 = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0]


def pow2(k):
    """2^k in f64 for an integer tensor."""
    return torch.ldexp(torch.ones_like(k, dtype=torch.float64), k.int())


def fp8_exponent(amax):
    """k of the power-of-two scale of e4m3 blocks: ceil(log2(max(amax, 1e-4) · fp32(1/448)))."""
    v = amax.float().clamp_min(1e-4) * torch.tensor(1 / 448, dtype=torch.float32, device=amax.device)
    b = v.view(torch.int32)
    return ((b >> 23) & 255) - 127 + ((b & 0x7FFFFF) != 0).int()


def e4m3(codes):
    """f64 values of e4m3 bytes."""
    return codes.view(torch.float8_e4m3fn).double()


def encode_e4m3(x, block):
    """(codes, e8m0 bytes) of the last axis in blocks."""
    parts = x.float().unflatten(-1, (-1, block))
    k = fp8_exponent(parts.abs().amax(-1))
    codes = (parts * pow2(-k).float().unsqueeze(-1)).to(torch.float8_e4m3fn).view(torch.uint8)
    return codes.flatten(-2), (k + 127).to(torch.uint8)


def round_fp8(x, block=128):
    """f64 values after e4m3 rounding with a power-of-two scale a block."""
    codes, scales = encode_e4m3(x, block)
    return (e4m3(codes).unflatten(-1, (-1, block)) * pow2(scales.int() - 127).unsqueeze(-1)).flatten(-2)


def write_pages(rows, pages, slots):
    """Encodes rows [n, 512] into `slots` of `pages` [p, 37440] uint8."""
    codes, scales = encode_e4m3(rows[:, :PLAIN], 64)
    rope = rows[:, PLAIN:].bfloat16().contiguous().view(torch.uint8)
    put_records(pages, slots, torch.cat([codes, rope], 1), scales)


def fields(pages):
    """Views of the data records and the scale records."""
    data = pages[:, : PAGE * DATA].unflatten(1, (PAGE, DATA))
    scales = pages[:, PAGE * DATA : PAGE * (DATA + 8)].unflatten(1, (PAGE, 8))
    return data, scales


def put_records(pages, slots, data, scales):
    d, s = fields(pages)
    d[slots // PAGE, slots % PAGE] = data
    s[slots // PAGE, slots % PAGE, :7] = scales


def read_pages(pages, slots):
    """f64 rows [n, 512] of the records at `slots`."""
    d, s = fields(pages)
    data, scales = d[slots // PAGE, slots % PAGE], s[slots // PAGE, slots % PAGE, :7]
    plain = e4m3(data[:, :PLAIN].contiguous()).unflatten(1, (7, 64)) * pow2(scales.int() - 127).unsqueeze(-1)
    rope = data[:, PLAIN:].contiguous().view(torch.bfloat16).double()
    return torch.cat([plain.flatten(1), rope], 1)


def random_pages(count, generator, wild=False):
    """Pages of random records: every finite code, scales around 2^-7 (`wild`: any from 2^-60 to 2^20), bf16 rope."""
    device = generator.device
    pages = torch.zeros(count, PAGE_BYTES, dtype=torch.uint8, device=device)
    for first in range(0, count, 2048):  # in parts: indices take eight times the bytes they choose
        part = pages[first : first + 2048]
        n = len(part)
        d, s = fields(part)
        codes = torch.randint(0, 127, (n, PAGE, PLAIN), generator=generator, device=device, dtype=torch.uint8)
        if not wild:  # magnitudes as of numbers scaled into the format: mostly between 2^0 and 2^8
            codes = 0x20 + codes % 0x58
        codes += 128 * torch.randint(0, 2, codes.shape, generator=generator, device=device, dtype=torch.uint8)
        low, high = (67, 148) if wild else (117, 121)
        rope = torch.randn(n, PAGE, ROPE, generator=generator, device=device).bfloat16()
        d[:] = torch.cat([codes, rope.view(torch.uint8)], 2)
        s[:, :, :7] = torch.randint(low, high, (n, PAGE, 7), generator=generator, device=device, dtype=torch.uint8)
    return pages


def e2m1(packed):
    """f64 values of packed e2m1 codes, low nibble first."""
    table = torch.tensor(E2M1, dtype=torch.float64, device=packed.device)
    return torch.stack([table[(packed & 15).int()], table[(packed >> 4).int()]], -1).flatten(-2)
