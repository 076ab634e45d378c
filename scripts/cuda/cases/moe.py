"""moe.cu: routed experts at decode batches over bf16, mxfp4 and nvfp4 weights."""

import torch
from driver import floor_us, module, poison, rel_l2, same_bits, time_us
from formats import e2m1, e4m3, pow2, round_fp8

FILE = "moe.cu"
NAMES = ("bf16", "mxfp4", "nvfp4")
SITES = ("before_w2", "after_w2", "factor_on_sum")
STEP = {0: 32, 1: 128, 2: 128}  # dims of a step, by format
# 8-token tiles, warps that share K, steps of a chunk
CHOICES = ((1, 1, 4), (1, 2, 4), (1, 4, 8), (1, 8, 8), (2, 4, 8), (8, 4, 4))


def variants(quick):
    return [(FILE, macros(f, *c)) for f in range(3) for c in CHOICES]


def macros(fmt, nt, kw, steps):
    return {"FORMAT": fmt, "NT": nt, "KW": kw, "STEPS": steps}


class Matrix:
    """[experts, rows, dims] random weights in a stored format."""

    def __init__(self, g, fmt, experts, rows, dims):
        d, self.fmt = g.device, fmt
        self.scales = self.scale_2 = None
        if fmt == 0:
            self.weights = torch.empty(experts, rows, dims, dtype=torch.bfloat16, device=d)
            for e in range(experts):
                self.weights[e] = torch.randn(rows, dims, generator=g, device=d) * 0.02
        else:
            self.weights = torch.randint(0, 256, (experts, rows, dims // 2), generator=g, device=d, dtype=torch.uint8)
            if fmt == 1:
                self.scales = torch.randint(118, 123, (experts, rows, dims // 32), generator=g, device=d, dtype=torch.uint8)
            else:
                self.scales = torch.randint(0x20, 0x50, (experts, rows, dims // 16), generator=g, device=d, dtype=torch.uint8)
                self.scale_2 = torch.rand(experts, generator=g, device=d) * 0.004 + 0.001

    def args(self):
        return (self.weights, self.scales, self.scale_2)

    def value(self, e):
        """f64 [rows, dims]."""
        if self.fmt == 0:
            return self.weights[e].double()
        v = e2m1(self.weights[e])
        if self.fmt == 1:
            s = pow2(self.scales[e].int() - 127)
            return (v.unflatten(-1, (-1, 32)) * s[..., None]).flatten(-2)
        return (v.unflatten(-1, (-1, 16)) * e4m3(self.scales[e])[..., None]).flatten(-2) * self.scale_2[e].double()

    def bytes_of(self):
        return sum(t[0].numel() * t.element_size() for t in (self.weights, self.scales) if t is not None)


class Experts:
    def __init__(self, g, fmt, experts, dims, inner):
        self.count, self.fmt, self.dims, self.inner = experts, fmt, dims, inner
        self.gate, self.up = Matrix(g, fmt, experts, inner, dims), Matrix(g, fmt, experts, inner, dims)
        self.down = Matrix(g, fmt, experts, dims, inner)

    def bytes_of(self):
        return self.gate.bytes_of() + self.up.bytes_of() + self.down.bytes_of()


class Call:
    """One MoE call: routes sorted by expert, tasks of up to 8·nt routes."""

    def __init__(self, g, experts, tokens, topk, choice, site=1, limit=10.0, factor=1.5, fp8=False, ids=None, gain=1.0):
        d = g.device
        self.e, self.choice, self.site, self.limit, self.factor, self.fp8 = experts, choice, site, limit, factor, fp8
        self.x = (torch.randn(tokens, experts.dims, generator=g, device=d) * gain).bfloat16()
        if ids is None:
            ids = torch.rand(tokens, experts.count, generator=g, device=d).topk(topk).indices
        self.ids = ids
        w = torch.rand(tokens, ids.shape[1], generator=g, device=d) + 0.1
        self.w = w / w.sum(1, keepdim=True) * factor
        flat = ids.flatten()
        order = torch.sort(flat, stable=True).indices
        self.route_token = (order // ids.shape[1]).int()
        self.route_weight = self.w.flatten()[order].contiguous()
        where = torch.empty_like(order)
        where[order] = torch.arange(len(order), device=d)
        by_expert = torch.sort(ids, 1).indices  # ascending expert id
        self.token_routes = where.view(ids.shape).gather(1, by_expert).int().contiguous()
        ordered_w = self.w.gather(1, by_expert).contiguous()
        self.combine_weights = None if site == 0 else ordered_w if site == 1 else (ordered_w / factor).contiguous()
        nt, counts, at, tasks = choice[0], torch.bincount(flat, minlength=experts.count).tolist(), 0, []
        for e, n in enumerate(counts):
            tasks += [(e, at + i, min(8 * nt, n - i), 0) for i in range(0, n, 8 * nt)]
            at += n
        self.active = sum(n > 0 for n in counts)
        self.tasks = torch.tensor(tasks, dtype=torch.int32, device=d)
        self.h = torch.empty(len(flat), experts.inner, dtype=torch.bfloat16, device=d)
        self.y = torch.empty(len(flat), experts.dims, dtype=torch.bfloat16, device=d)
        self.out = torch.empty_like(self.x)

    def run(self):
        e, (nt, kw, steps) = self.e, self.choice
        m = module(FILE, **macros(e.fmt, *self.choice))
        shared = max(2 * steps * (STEP[e.fmt] // 32) * nt * 512, 8192 * nt if kw > 1 else 0)
        rows = 8 // kw
        x = self.x
        if self.fp8:
            x = self.rounded = x.clone()
            m["moe_round_fp8"]((-(-x.numel() // 1024),), 256, 0, x, x.numel() // 128)
        m["moe_gate_up"]((e.inner // (16 * rows), len(self.tasks)), 256, shared, x, e.gate.args(), e.up.args(), self.tasks,
                         self.route_token, self.route_weight, self.h, e.dims, e.inner, self.limit, int(self.site == 0))  # fmt: skip
        if self.fp8:
            m["moe_round_fp8"]((-(-self.h.numel() // 1024),), 256, 0, self.h, self.h.numel() // 128)
        m["moe_down"]((e.dims // (32 * rows), len(self.tasks)), 256, shared, self.h, e.down.args(), self.tasks, self.y, e.inner, e.dims)
        factor = self.factor if self.site == 2 else 1.0
        m["moe_combine"]((len(self.x),), 256, 0, self.y, self.token_routes, self.combine_weights, self.out,
                         self.ids.shape[1], e.dims, factor)  # fmt: skip

    def reference(self):
        """f64 with the roundings that the knobs name."""
        bf = lambda v: v.float().bfloat16().double()
        total = torch.zeros(self.x.shape, dtype=torch.float64, device=self.x.device)
        x = round_fp8(self.x) if self.fp8 else self.x.double()
        for e in range(self.e.count):
            token, slot = torch.nonzero(self.ids == e, as_tuple=True)
            if len(token) == 0:
                continue
            a, u = bf(x[token] @ self.e.gate.value(e).T), bf(x[token] @ self.e.up.value(e).T)
            a, u = a.clamp(max=self.limit), u.clamp(-self.limit, self.limit)
            w = self.w[token, slot].double()[:, None]
            h = bf(a * torch.sigmoid(a) * u * (w if self.site == 0 else 1))
            y = bf((round_fp8(h) if self.fp8 else h) @ self.e.down.value(e).T)
            total[token] += y * (1 if self.site == 0 else w if self.site == 1 else w / self.factor)
        return bf(bf(total) * self.factor) if self.site == 2 else bf(total)


def check(g, quick):
    for fmt in range(3):
        experts = Experts(g, fmt, 8, 1024 if quick else 4096, 1024 if quick else 2048)
        if not quick and fmt:  # every scale byte that means a number the products can hold
            low, high = (60, 190) if fmt == 1 else (0, 0x7F)
            # One scale a row: sums of blocks of very different scale would cancel in f32, in any kernel.
            rows = torch.randint(low, high, experts.up.scales[3].shape[:1], generator=g, device=g.device, dtype=torch.uint8)
            experts.up.scales[3] = rows[:, None]
        for choice in CHOICES:
            for site in range(1 if quick else 3):
                c = Call(g, experts, 11 if quick else 64, 3, choice, site, gain=0.2 if fmt == 0 else 0.02)
                ref = c.reference()
                poison(c.h, c.y, c.out)
                c.run()
                first = c.out.clone()
                poison(c.h, c.y, c.out)
                c.run()
                error = rel_l2(c.out, ref)
                ok = error < 3e-3 and same_bits(first, c.out)
                yield f"moe {NAMES[fmt]}, tiles, K warps, steps {choice}, {SITES[site]}", ok, f"rel_l2 {error:.1e}"
        c = Call(g, experts, 16, 3, CHOICES[0], 1, fp8=True, gain=0.02)
        c.run()
        error = rel_l2(c.out, c.reference())
        yield f"moe {NAMES[fmt]}, fp8 activations", error < 3e-2, f"rel_l2 {error:.1e} (a rounding that falls the other way moves a value by 1/16)"
        one = torch.zeros(40, 1, dtype=torch.int64, device=g.device) + 5
        c = Call(g, experts, 40, 1, CHOICES[4], 1, ids=one, limit=float("inf"), gain=0.02)
        c.run()
        error = rel_l2(c.out, c.reference())
        yield f"moe {NAMES[fmt]}, one expert has all tokens, no limit", error < 3e-3, f"rel_l2 {error:.1e}"


def measure(g, sweep):
    for fmt in range(3):
        experts = Experts(g, fmt, 256, 4096, 2048)
        for tokens in (1, 8, 64):
            # Few tokens read few experts: several calls with other choices keep these out of the cache.
            calls = {c: [Call(g, experts, tokens, 6, c, 2) for _ in range(8 if tokens == 1 else 2)] for c in CHOICES[1:5]}
            found = [(time_us([c.run for c in many], 4 if tokens == 64 else 16, 7), choice) for choice, many in calls.items()]
            for us, choice in found if sweep else [min(found)]:
                c = calls[choice][0]
                moved = c.active * experts.bytes_of() + 4 * tokens * 4096
                yield {
                    "kernel": "moe", "case": f"batch {tokens}, 6 of 256 experts ({c.active} read)",
                    "choice": NAMES[fmt] + ", NT={} KW={} STEPS={}".format(*choice), "us": us,
                    "floor_us": floor_us(moved, 6 * tokens * 6 * 4096 * 2048), "rel_l2": rel_l2(c.out, c.reference()) if tokens == 1 else None,
                }  # fmt: skip
        del experts, calls, c
        torch.cuda.empty_cache()
        one = torch.zeros(64, 1, dtype=torch.int64, device=g.device)
        many = [Call(g, Experts(g, fmt, 1, 4096, 2048), 64, 1, CHOICES[5], 1, ids=one) for _ in range(8)]
        us = time_us([c.run for c in many], 40)
        yield {
            "kernel": "moe", "case": "one expert, 64 tokens", "choice": NAMES[fmt] + ", NT={} KW={} STEPS={}".format(*CHOICES[5]), "us": us,
            "floor_us": floor_us(many[0].e.bytes_of(), 6 * 64 * 4096 * 2048), "rel_l2": rel_l2(many[0].out, many[0].reference()),
        }  # fmt: skip
        del many
