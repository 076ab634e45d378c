"""linear_fp8.cu: the fp8 linear layer with 128x128 blocks."""

import torch
from driver import floor_us, module, poison, rel_l2, same_bits, time_us
from formats import e4m3, pow2, round_fp8

FILE = "linear_fp8.cu"
CHOICES = [(1, 8), (2, 8), (8, 4), (12, 1)]


def variants(quick):
    return [(FILE, {"NT": n, "KW": k}) for n, k in CHOICES]


class Linear:
    def __init__(self, g, tokens, rows, dims, gain=1.0):
        d = g.device
        self.shape = tokens, rows, dims
        self.x = (torch.randn(tokens, dims, generator=g, device=d) * gain).bfloat16()
        self.rounded = torch.empty_like(self.x)
        codes = torch.randint(0, 127, (rows, dims), generator=g, device=d, dtype=torch.uint8)
        self.w = codes + 128 * torch.randint(0, 2, codes.shape, generator=g, device=d, dtype=torch.uint8)
        self.scales = torch.randint(112, 118, (-(-rows // 128), dims // 128), generator=g, device=d, dtype=torch.uint8)
        self.y = torch.empty(tokens, rows, dtype=torch.bfloat16, device=d)

    def run(self, nt, kw, round_first=True):
        tokens, rows, dims = self.shape
        m = module(FILE, NT=nt, KW=kw)
        if round_first:
            m["linear_round_fp8"]((-(-self.x.numel() // 1024),), 256, 0, self.x, self.rounded, self.x.numel() // 128)
        shared = 2 * (8 if kw > 1 else 4) * 2 * nt * 512  # two chunks; more than the 8192·nt that a sum over K needs
        m["linear_fp8"]((-(-rows // (32 * 8 // kw)), -(-tokens // (8 * nt))), 256, shared, self.rounded, self.w, self.scales,
                        self.y, tokens, rows, dims)  # fmt: skip

    def reference(self):
        tokens, rows, dims = self.shape
        s = pow2(self.scales.int() - 127).repeat_interleave(128, 0)[:rows].repeat_interleave(128, 1)
        return (round_fp8(self.x) @ (e4m3(self.w) * s).T).float().bfloat16().double()


def check(g, quick):
    shapes = [(3, 100, 512)] if quick else [(1, 1024, 4096), (9, 4096, 8192), (64, 1000, 1536), (65, 4096, 1024), (200, 512, 4096)]
    for shape in shapes:
        p = Linear(g, *shape)
        p.x[0, :128] *= 1000  # an outlier block
        if shape[0] > 1:
            p.x[1] = 0
        if not quick:
            p.scales[0, 0], p.scales[0, 1] = 0, 140
        ref = p.reference()
        for nt, kw in CHOICES:
            poison(p.y, p.rounded)
            p.run(nt, kw)
            first = p.y.clone()
            poison(p.y, p.rounded)
            p.run(nt, kw)
            error = rel_l2(p.y, ref)
            yield f"linear fp8 {shape}, NT {nt}, KW {kw}", error < 1e-3 and same_bits(first, p.y), f"rel_l2 {error:.1e}"


def measure(g, sweep):
    for rows, dims, name in ((1024, 4096, "wq_a"), (32768, 1024, "wq_b"), (4096, 8192, "wo_b")):
        for tokens in (1, 64, 4096):
            sets = max(1, min(24, (200 << 20) // (rows * dims)))
            many = [Linear(g, tokens, rows, dims) for _ in range(sets if tokens < 4096 else 1)]
            choices = CHOICES if tokens < 4096 else CHOICES[2:]
            found = [(time_us([lambda p=p: p.run(nt, kw) for p in many], 24 if tokens < 4096 else 3), nt, kw) for nt, kw in choices]
            for us, nt, kw in found if sweep else [min(found)]:
                many[0].run(nt, kw)
                yield {
                    "kernel": "linear_fp8", "case": f"{name}: {rows} x {dims}, {tokens} tokens", "choice": f"NT={nt} KW={kw}, rounding included",
                    "us": us, "floor_us": floor_us(rows * dims + tokens * (dims + rows) * 2, 2 * tokens * rows * dims),
                    "rel_l2": rel_l2(many[0].y, many[0].reference()) if tokens < 4096 else None,
                }  # fmt: skip
