"""sparse_prefill.cu: sparse latent attention of a prefill over bf16 rows."""

import torch
from cases.mla import LIMIT, SCALE, shared_bytes
from driver import floor_us, module, poison, rel_l2, same_bits, time_us

FILE = "sparse_prefill.cu"
SHAPES = [(64, 32), (16, 32)]


def variants(quick):
    return [(FILE, {"HEADS": h, "TILE": t}) for h, t in SHAPES]


class Prefill:
    def __init__(self, g, tokens, pos0, entries, nc, ratio=4, window=128, all_visible=False, heads=64):
        d = g.device
        self.tokens, self.pos0, self.window, self.nc, self.ratio, self.heads = tokens, pos0, window, nc, ratio, heads
        self.q = torch.randn(tokens, heads, 512, generator=g, device=d).bfloat16()
        self.kv = torch.randn(pos0 + tokens, 512, generator=g, device=d).bfloat16()
        self.comp = torch.randn(max(entries, 1), 512, generator=g, device=d).bfloat16()
        self.sinks = torch.randn(heads, generator=g, device=d)
        self.ids = None
        if not all_visible:
            self.ids = torch.full((tokens, nc), -1, dtype=torch.int32, device=d)
            for i in range(tokens):
                seen = min((pos0 + i + 1) // ratio, entries)
                if seen:
                    self.ids[i, : min(nc, seen)] = torch.randperm(seen, generator=g, device=d)[:nc].int()
        self.out, self.lse = torch.empty_like(self.q), torch.empty(tokens, heads, device=d)

    def run(self, heads, tile):
        module(FILE, HEADS=heads, TILE=tile)["sparse_prefill"](
            (self.heads // heads, self.tokens), 256, shared_bytes(heads, tile, 2, self.window + self.nc, False), self.q, self.kv,
            self.comp, self.ids, self.sinks, self.out, self.lse, self.heads, self.pos0, self.window, self.nc, self.ratio, SCALE)  # fmt: skip

    def reference(self, tokens):
        outs, lses = [], []
        for t in tokens:
            pos = self.pos0 + t
            keys = self.kv[max(0, pos + 1 - self.window) : pos + 1].double()
            ids = self.ids[t] if self.ids is not None else torch.arange(min((pos + 1) // self.ratio, self.nc), device=self.q.device)
            keys = torch.cat([keys, self.comp[ids[ids >= 0].long()].double()])
            z = torch.cat([self.q[t].double() @ keys.T * SCALE, self.sinks.double()[:, None]], 1)
            lse = torch.logsumexp(z, 1)
            outs.append(torch.exp(z - lse[:, None])[:, :-1] @ keys)
            lses.append(lse)
        return torch.stack(outs), torch.stack(lses)


def check(g, quick):
    cases = [("start", 6, 0, 2, 16, {})] if quick else [
        ("start", 300, 0, 75, 64, {}), ("later, 512 of 1000", 20, 4000, 1000, 512, {}), ("128 heads", 3, 500, 100, 64, {"heads": 128}),
        ("all visible, ratio 128", 40, 1000, 8, 8, {"ratio": 128, "all_visible": True}), ("2048 entries", 4, 9000, 2250, 2048, {})]  # fmt: skip
    for name, tokens, pos0, entries, nc, options in cases:
        p = Prefill(g, tokens, pos0, entries, nc, **options)
        some = list(range(0, tokens, max(1, tokens // 40)))
        out, lse = p.reference(some)
        for heads, tile in SHAPES:
            poison(p.out, p.lse)
            p.run(heads, tile)
            first = p.out.clone()
            poison(p.out, p.lse)
            p.run(heads, tile)
            error, off = rel_l2(p.out[some], out), (p.lse[some].double() - lse).abs().max().item()
            whole = torch.isfinite(p.out).all().item()
            ok = error < LIMIT and off < 1e-4 and whole and same_bits(first, p.out)
            yield f"prefill {name}, heads {heads}", ok, f"rel_l2 {error:.2e}, lse {off:.1e}"


def measure(g, sweep):
    p = Prefill(g, 2048, 8192, 2560, 512)
    some = list(range(0, 2048, 64))
    out, _ = p.reference(some)
    for heads, tile in SHAPES if sweep else SHAPES[:1]:
        us = time_us([lambda: p.run(heads, tile)], 3, 7)
        yield {
            "kernel": "sparse_prefill", "case": "2048 tokens, 128 + 512 keys", "choice": f"HEADS={heads} TILE={tile}", "us": us,
            "floor_us": floor_us(2048 * 64 * 512 * 4, 2048 * 640 * 64 * 512 * 4), "rel_l2": rel_l2(p.out[some], out),
        }  # fmt: skip
