"""indexer.cu: scores of compressed entries and the exact choice of the best."""

import torch
from driver import floor_us, module, poison, rel_l2, same_bits, time_us
from formats import e4m3

FILE = "indexer.cu"
FORMATS = [(0, 0), (0, 1), (1, 1)]


def variants(quick):
    return [(FILE, {"QUERY_FP8": q, "KEYS_FP8": k}) for q, k in FORMATS]


def encode_rows(x):
    """e4m3 codes and one f32 scale a row."""
    s = x.abs().amax(-1).clamp_min(1e-4) / 448
    return (x / s[..., None]).to(torch.float8_e4m3fn).view(torch.uint8), s


class Scores:
    def __init__(self, g, sequences, tokens, n, visible=None, fp8=(0, 0)):
        self.shape, self.fp8 = (sequences, tokens, n), fp8
        q = torch.randn(sequences * tokens, 64, 128, generator=g, device=g.device)
        k = torch.randn(sequences, n, 128, generator=g, device=g.device)
        self.q, self.q_scale = encode_rows(q) if fp8[0] else (q.bfloat16(), None)
        self.k, self.k_scale = encode_rows(k) if fp8[1] else (k.bfloat16(), None)
        self.w = torch.randn(sequences * tokens, 64, generator=g, device=g.device) * 0.011
        if visible is None:
            visible = torch.randint(0, n + 1, (sequences * tokens,), generator=g, device=g.device)
        self.visible = visible.int()
        self.out = torch.empty(sequences * tokens, n, device=g.device)

    def run(self):
        s, t, n = self.shape
        per = t if t < 64 else 64
        module(FILE, QUERY_FP8=self.fp8[0], KEYS_FP8=self.fp8[1])["indexer_scores"](
            (-(-n // 256), -(-t // per), s), 256, 0, self.q, self.q_scale, self.w, self.k, self.k_scale, self.visible,
            self.out, t, n, per)  # fmt: skip

    def reference(self):
        s, t, n = self.shape
        q = e4m3(self.q) * self.q_scale.double()[..., None] if self.fp8[0] else self.q.double()
        k = e4m3(self.k) * self.k_scale.double()[..., None] if self.fp8[1] else self.k.double()
        rows = []
        for i in range(s * t):
            d = (q[i] @ k[i // t].T).relu()
            rows.append(self.w[i].double() @ d)
        out = torch.stack(rows)
        out[torch.arange(n, device=out.device)[None] >= self.visible[:, None]] = -torch.inf
        return out


class Topk:
    def __init__(self, scores, visible, k):
        self.scores, self.visible, self.k = scores.contiguous(), visible.int(), k
        self.ids = torch.empty(len(scores), k, dtype=torch.int32, device=scores.device)

    def run(self):
        rows, n = self.scores.shape
        words = -(-n // 32)
        cached = min(n, (190 * 1024 - 8 * words) // 4)
        module(FILE, QUERY_FP8=0, KEYS_FP8=0)["indexer_topk"](
            (rows,), 1024, 8 * words + 4 * cached, self.scores, self.visible, self.ids, n, self.k, cached)  # fmt: skip

    def reference(self):
        """By a stable sort on the order the tie rule names: NaN last, −0 as +0, lower ids first."""
        out = torch.full_like(self.ids, -1)
        for r, row in enumerate(self.scores):
            v = min(int(self.visible[r]), len(row))
            x = row[:v] + 0.0
            b = x.view(torch.int32).long() & 0xFFFFFFFF
            key = torch.where(b >> 31 == 1, 0xFFFFFFFF - b, b | 0x80000000)
            key[x.isnan()] = 0
            order = torch.sort(-key, stable=True).indices[: self.k]
            out[r, : len(order)] = order.sort().values.int()
        return out


def check(g, quick):
    device = g.device
    sizes = [(1, 1, 1), (2, 3, 300)] if quick else [(1, 1, 1), (1, 1, 255), (3, 1, 257), (2, 70, 1000), (1, 130, 4097)]
    for fp8 in FORMATS:
        for shape in sizes:
            s = Scores(g, *shape, fp8=fp8)
            s.visible[0] = shape[2]
            ref = s.reference()
            poison(s.out)
            s.run()
            first = s.out.clone()
            poison(s.out)
            s.run()
            seen = torch.isfinite(ref)
            error = rel_l2(s.out[seen], ref[seen])
            ok = error < 1e-5 and torch.equal(s.out[~seen].double(), ref[~seen]) and same_bits(first, s.out)
            yield f"indexer scores {shape}, fp8 {fp8}", ok, f"rel_l2 {error:.1e}"
    n = 3000 if quick else 131_072
    base = torch.randn(n, generator=g, device=device)
    step = torch.arange(n, device=device)
    rows = {
        "random": base,
        "all equal": torch.full((n,), 0.25, device=device),
        "zeros of both signs": torch.where(step % 3 == 0, -0.0, 0.0),
        "relu": base.relu() * (base > 1),
        "coarse": (base * 4).round() / 4,
        "close": 1 + step * 2e-7 % 1e-4,
        "-inf": torch.where(base > 2.5, base, -torch.inf),
        "inf and nan": torch.where(base > 2, torch.inf, torch.where(base < 0, torch.nan, base)),
        "all nan": torch.full((n,), torch.nan, device=device),
        "ascending": step.float(),
        "descending": -step.float(),
    }
    scores = torch.stack([r.float() for r in rows.values()])
    for k in (1, 64, 512) if quick else (1, 2, 31, 512, 1024, 2048):
        for seen in (n, k, k + 1, n // 2 + 5, 0):
            t = Topk(scores, torch.full((len(scores),), seen, device=device), k)
            poison(t.ids)
            t.run()
            bad = [name for name, a, b in zip(rows, t.ids, t.reference()) if not torch.equal(a, b)]
            yield f"top-{k} of {seen}", not bad, ", ".join(bad) or "exact"
    t = Topk(torch.randn(5, 100, generator=g, device=device), torch.tensor([100, 99, 33, 32, 1], device=device), 32)
    t.run()
    yield "top-32 of short rows", torch.equal(t.ids, t.reference()), ""


def measure(g, sweep):
    for fp8 in FORMATS:
        for sequences, tokens, n in ((1, 1, 32768), (64, 1, 32768), (1, 2048, 8192)):
            width = 128 if fp8[1] else 256
            full = torch.full((sequences * tokens,), n, device=g.device)
            size = sequences * n * width
            sets = max(1, min(24, (200 << 20) // size))
            many = [Scores(g, sequences, tokens, n, full, fp8) for _ in range(sets)]
            us = time_us([s.run for s in many])
            few = Scores(g, 1, 1, 4096, torch.full((1,), 4096, device=g.device), fp8)
            few.run()
            moved = size + sequences * tokens * (64 * (128 if fp8[0] else 256) + n * 4)
            yield {
                "kernel": "indexer_scores", "case": f"{sequences} x {tokens} tokens, {n} keys",
                "choice": f"q {'e4m3' if fp8[0] else 'bf16'}, k {'e4m3' if fp8[1] else 'bf16'}", "us": us,
                "floor_us": floor_us(moved, 2 * sequences * tokens * n * 64 * 128), "rel_l2": rel_l2(few.out, few.reference()),
            }  # fmt: skip
    for rows, n, k in ((1, 32768, 512), (1, 131072, 2048), (64, 32768, 512), (64, 131072, 2048), (2048, 8192, 512)):
        sets = max(1, min(40, (200 << 20) // (rows * n * 4)))
        many = [Topk(torch.randn(rows, n, generator=g, device=g.device), torch.full((rows,), n, device=g.device), k)
                for _ in range(sets)]  # fmt: skip
        us = time_us([t.run for t in many], 40)
        other = time_us([lambda t=t: torch.topk(t.scores, k) for t in many], 40)
        yield {
            "kernel": "indexer_topk", "case": f"{rows} rows, top {k} of {n}", "choice": f"torch.topk {other:.1f} µs", "us": us,
            "floor_us": floor_us(rows * (n + k) * 4), "rel_l2": None,
        }  # fmt: skip
