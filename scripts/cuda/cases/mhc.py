"""mhc.cu: mixing weights of the hyper-connections in one launch."""

import torch
from driver import floor_us, module, poison, rel_l2, same_bits, time_us

FILE = "mhc.cu"


def variants(quick):
    return [(FILE, {})]


def sinkhorn(c, eps, iters):
    c = torch.softmax(c, -1) + eps
    c = c / (c.sum(-2, keepdim=True) + eps)
    for _ in range(iters - 1):
        c = c / (c.sum(-1, keepdim=True) + eps)
        c = c / (c.sum(-2, keepdim=True) + eps)
    return c


class Mix:
    def __init__(self, g, tokens, dims=16384, gain=1.0):
        d = g.device
        self.tokens, self.dims = tokens, dims
        self.x = (torch.randn(tokens, dims, generator=g, device=d) * gain).bfloat16()
        self.fn = (torch.randn(24, dims, generator=g, device=d) * dims**-0.5).bfloat16()
        self.base, self.factors = torch.randn(24, generator=g, device=d), torch.tensor([0.7, 1.2, 1.5], device=d)
        self.pre, self.post = torch.empty(tokens, 4, device=d), torch.empty(tokens, 4, device=d)
        self.comb = torch.empty(tokens, 4, 4, device=d)
        tiles = -(-tokens // 32)
        self.partial, self.arrived = torch.empty(64 * tiles * 32 * 25, device=d), torch.zeros(tiles, dtype=torch.int32, device=d)

    def run(self, splits):
        module(FILE)["mhc_mix"](
            (-(-self.tokens // 32), splits), 256, 0, self.x, self.fn, self.base, self.factors, self.pre, self.post, self.comb,
            self.partial, self.arrived, self.tokens, self.dims, 1e-6, 1e-6, 20)  # fmt: skip

    def reference(self):
        x = self.x.double()
        mu = x @ self.fn.double().T / (x.square().mean(1, keepdim=True) + 1e-6).sqrt()
        base, f = self.base.double(), self.factors.double()
        pre = torch.sigmoid(mu[:, :4] * f[0] + base[:4]) + 1e-6
        post = 2 * torch.sigmoid(mu[:, 4:8] * f[1] + base[4:8])
        return pre, post, sinkhorn((mu[:, 8:] * f[2] + base[8:]).view(-1, 4, 4), 1e-6, 20)


def check(g, quick):
    for tokens, dims, gain in ((5, 16384, 1.0),) if quick else (
        (1, 16384, 1.0), (31, 16384, 1.0), (32, 28672, 1.0), (33, 16384, 30.0), (64, 16384, 1e-3), (100, 28672, 1.0)):  # fmt: skip
        m = Mix(g, tokens, dims, gain)
        if tokens > 4:
            m.x[2], m.x[3] = 0, 0
            m.x[3, 5] = 200.0  # nothing, and one outlier
        ref = m.reference()
        for splits in (1, 4) if quick else (1, 2, 4, 8, 16) + ((64,) if dims == 16384 else (7, 56)):
            outs = (m.pre, m.post, m.comb)
            poison(*outs, m.partial)
            m.run(splits)
            first = [o.clone() for o in outs]
            same = True
            for _ in range(3):
                poison(*outs, m.partial)
                m.run(splits)
                same &= all(same_bits(a, b) for a, b in zip(first, outs))
            errors = [rel_l2(a, b) for a, b in zip(outs, ref)]
            yield f"mhc {tokens} tokens of {dims}, {splits} splits", max(errors) < 2e-6 and same, (
                f"pre {errors[0]:.1e} post {errors[1]:.1e} comb {errors[2]:.1e}{'' if same else ', NOT REPEATABLE'}"
            )


def measure(g, sweep):
    for tokens, splits in ((1, (8, 16, 32)), (64, (8, 16, 32)), (512, (4, 8, 16)), (4096, (1, 2, 4))):
        sets = max(1, min(100, (160 << 20) // (tokens * 32768)))
        many = [Mix(g, tokens) for _ in range(sets)]
        found = [(time_us([lambda m=m: m.run(s) for m in many], 40), s) for s in splits]
        ref = many[0].reference()
        for us, s in found if sweep else [min(found)]:
            many[0].run(s)
            yield {
                "kernel": "mhc_mix", "case": f"{tokens} tokens, 4 x 4096", "choice": f"{s} splits", "us": us,
                "floor_us": floor_us(tokens * (32768 + 96) + 24 * 32768, tokens * 2 * 24 * 16384),
                "rel_l2": rel_l2(many[0].comb, ref[2]),
            }  # fmt: skip
