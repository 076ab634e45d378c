"""sparse_mla_decode.cu: split-K decode of sparse latent attention on the paged fp8 cache."""

import torch
from driver import floor_us, module, poison, rel_l2, same_bits, time_us
from formats import PAGE, fields, random_pages, read_pages, write_pages

FILE = "sparse_mla_decode.cu"
SHAPES = [(64, 64, 1), (64, 32, 2), (32, 64, 1), (32, 32, 2), (16, 64, 2), (16, 32, 2), (16, 32, 1)]  # heads, tile, buffers
# The same with the splits of a row in one cluster (compute capability 9.0 and later), so many splits.
CLUSTERS = [(64, 64, 1, 2), (64, 64, 1, 8), (64, 32, 2, 2), (32, 64, 1, 8), (32, 32, 2, 8), (16, 64, 2, 8), (16, 32, 2, 4),
            (16, 32, 2, 8), (16, 64, 2, 4), (32, 64, 1, 4)]


def clusters():
    return CLUSTERS if torch.cuda.get_device_capability() >= (9, 0) else []

SCALE = 512**-0.5
LIMIT = 2.5e-3  # rel_l2 against f64 on the same bytes: bf16 output costs 1.7e-3, bf16 probabilities the rest


def variants(quick):
    return [(FILE, macros(*s)) for s in SHAPES + clusters()]


def macros(heads, tile, buffers, cluster=1):
    return {"HEADS": heads, "TILE": tile, "K_BUFFERS": buffers, **({"CLUSTER": cluster} if cluster > 1 else {})}


def shared_bytes(heads, tile, buffers, keys, paged=True):
    """As mla.cuh lays it out."""
    wm = heads // (32 if heads >= 32 else 16)
    wk = 8 // (wm * (tile // 32))
    size = heads * 1024 + buffers * tile * 1024 + (tile * 592 if paged else 0)
    size += wk * heads * (tile + 8) * 4 + heads * (2 * tile + 16) + heads * 8
    return size + 4 * (-(-keys // tile) * tile)


class Problem:
    """Inputs and outputs of one call; `tables` sends logical ids through page tables."""

    def __init__(self, window, comp, window_ids, comp_ids, window_table, comp_table, q, sinks):
        self.window, self.comp, self.sinks, self.q = window, comp, sinks, q
        self.window_ids, self.comp_ids = window_ids, comp_ids
        self.window_table, self.comp_table = window_table, comp_table
        self.batch, self.heads = q.shape[:2]
        self.out = torch.empty_like(q)
        self.lse = torch.empty(self.batch, self.heads, device=q.device)
        self.part = torch.empty(self.batch * 32 * self.heads * 512, device=q.device)
        self.part_lse = torch.empty(self.batch * 32 * self.heads, device=q.device)

    def run(self, heads, tile, buffers, splits, cluster=False):
        m = module(FILE, **macros(heads, tile, buffers, splits if cluster else 1))
        nw, nc = self.window_ids.shape[1], self.comp_ids.shape[1]
        pages = [t.shape[1] if t is not None else 0 for t in (self.window_table, self.comp_table)]
        m["sparse_mla_decode"](
            (self.heads // heads, splits, self.batch), 256, shared_bytes(heads, tile, buffers, -(-(nw + nc) // splits)),
            self.q, self.window, self.window_table, self.window_ids, self.comp, self.comp_table, self.comp_ids,
            self.sinks, self.out, self.lse, self.part, self.part_lse, self.heads, nw, nc, *pages, SCALE,
        )  # fmt: skip
        if splits > 1 and not cluster:
            m["sparse_mla_merge"]((self.heads, self.batch), 128, 0, self.part, self.part_lse, self.sinks, self.out,
                                  self.lse, self.heads, splits)  # fmt: skip

    def reference(self):
        """f64 output and LSE."""
        outs, lses = [], []
        for b in range(self.batch):
            rows = []
            for pages, ids, table in (
                (self.window, self.window_ids[b], self.window_table),
                (self.comp, self.comp_ids[b], self.comp_table),
            ):
                ids = ids[ids >= 0].long()
                if table is not None:
                    ids = table[b].long()[ids // PAGE] * PAGE + ids % PAGE
                rows.append(read_pages(pages, ids))
            keys = torch.cat(rows)
            z = self.q[b].double() @ keys.T * SCALE
            if self.sinks is not None:
                z = torch.cat([z, self.sinks.double()[:, None]], 1)
            lse = torch.logsumexp(z, 1) if z.shape[1] else torch.full((self.heads,), -torch.inf, device=z.device).double()
            p = torch.exp(z - lse[:, None])[:, : len(keys)]
            outs.append(p @ keys if len(keys) else torch.zeros(self.heads, 512, device=z.device).double())
            lses.append(lse)
        return torch.stack(outs), torch.stack(lses)


def ids_of(batch, length, valid, entries, g, holes=False):
    """[batch, length] distinct ids below `entries`: `valid` of them, then −1; `holes` scatters the −1."""
    ids = torch.full((batch, length), -1, dtype=torch.int32, device=g.device)
    for b in range(batch):
        some = torch.randperm(entries, generator=g, device=g.device)[:valid].int()
        at = torch.randperm(length, generator=g, device=g.device)[:valid] if holes else torch.arange(valid, device=g.device)
        ids[b, at] = some
    return ids


def problem(g, batch, nw, vw, nc, vc, wild=False, holes=False, tables=True, sinks=True, gain=1.0, heads=64):
    device = g.device
    window, comp = random_pages(batch * 3, g, wild), random_pages(batch * 34, g, wild)
    table = lambda pages, each: torch.randperm(pages, generator=g, device=device)[: batch * each].view(batch, each).int()
    q = (torch.randn(batch, heads, 512, generator=g, device=device) * gain).bfloat16()
    limits = (3 * PAGE, 33 * PAGE)
    return Problem(
        window, comp, ids_of(batch, nw, vw, limits[0], g, holes), ids_of(batch, nc, vc, limits[1], g, holes),
        table(batch * 3, 3) if tables else None, table(batch * 34, 33) if tables else None,
        q, torch.randn(heads, generator=g, device=device) * 2 if sinks else None,
    )  # fmt: skip


def verdict(p, shape, splits, ref=None, cluster=False):
    """(passed, detail): error, LSE error, poison overwritten, two launches alike."""
    out, lse = ref or p.reference()
    poison(p.out, p.lse, p.part, p.part_lse)
    p.run(*shape, splits, cluster)
    first = p.out.clone(), p.lse.clone()
    poison(p.out, p.lse, p.part, p.part_lse)
    p.run(*shape, splits, cluster)
    repeated = same_bits(first[0], p.out) and same_bits(first[1], p.lse)
    finite = torch.isfinite(lse)
    error = rel_l2(p.out, out) if out.norm() > 0 else p.out.double().abs().max().item()
    lse_error = (p.lse.double() - lse)[finite].abs().max().item() if finite.any() else 0.0
    marks = torch.equal(p.lse[~finite].double(), lse[~finite])
    # f32 scores of magnitude |z| carry errors of a few |z| u.
    bound = 1e-5 + 2e-6 * lse[finite].abs().max().item() if finite.any() else 0.0
    ok = error <= LIMIT and lse_error <= bound and marks and repeated
    return ok, f"rel_l2 {error:.2e}, lse {lse_error:.1e}{'' if repeated else ', NOT REPEATABLE'}{'' if marks else ', LSE MARKS'}"


def check(g, quick):
    shapes = [SHAPES[0], SHAPES[1], SHAPES[6]] if quick else SHAPES
    # (name, nw, valid, nc, valid, options)
    lists = [("window + 512", 128, 128, 512, 512, {}), ("holes", 128, 77, 512, 301, {"holes": True})]
    if not quick:
        lists += [(f"{n} keys", 128, min(n, 128), 2048, max(n - 128, 0), {}) for n in
                  (1, 15, 31, 32, 33, 63, 64, 65, 127, 128, 129, 191, 640, 2047, 2049, 2050, 2176)]  # fmt: skip
        lists += [
            ("no window", 0, 0, 512, 500, {}),
            ("no entries", 128, 100, 0, 0, {}),
            ("slots without tables", 128, 128, 512, 512, {"tables": False}),
            ("no sinks", 128, 128, 512, 400, {"sinks": False}),
            ("any scale", 128, 128, 512, 512, {"wild": True, "gain": 1e-6}),
            ("peaked", 128, 128, 512, 512, {"gain": 8.0}),
            ("128 heads", 128, 128, 512, 512, {"heads": 128}),
        ]
    lists += [("all masked", 128, 0, 512, 0, {}), ("all masked, no sinks", 128, 0, 64, 0, {"sinks": False})]
    for name, nw, vw, nc, vc, options in lists:
        p = problem(g, 2, nw, vw, nc, vc, **options)
        ref = p.reference()
        for shape in shapes:
            bad, worst = [], ""
            for splits in (1, 7, 32) if quick else (1, 2, 3, 8, 17, 32):
                ok, detail = verdict(p, shape, splits, ref)
                worst = max(worst, detail) if ok else detail
                if not ok:
                    bad.append(f"{splits} splits: {detail}")
            yield f"mla {name}, heads, tile, buffers {shape}", not bad, "; ".join(bad) or worst
        for *shape, splits in clusters()[:: 3 if quick else 1]:
            yield f"mla {name}, heads, tile, buffers {shape}, cluster of {splits}", *verdict(p, shape, splits, ref, True)
    # Values written by the encoder, outliers in a block, a wholly masked sequence among others.
    p = problem(g, 4, 128, 128, 512, 512, tables=False)
    rows = torch.randn(4 * 34 * PAGE, 512, generator=g, device=g.device)
    rows[torch.rand(rows.shape, generator=g, device=g.device) < 1e-3] *= 300
    write_pages(rows, p.comp, torch.arange(len(rows), device=g.device))
    p.comp_ids[2], p.window_ids[2] = -1, -1
    for splits in (1, 2, 16):
        yield f"mla outliers, one masked sequence, {splits} splits", *verdict(p, shapes[1], splits)
    # A code that is no number, and scales beyond 2^7, where the fast path does not hold.
    p = problem(g, 2, 128, 128, 512, 512, tables=False, gain=1e-6)
    data, scales = fields(p.comp)
    scales[:, 5, :7], scales[:, 6, 3] = 140, 200
    for shape in shapes:
        yield f"mla large scales {shape}", *verdict(p, shape, 3)
    at = int(p.comp_ids[1, 7])
    data[at // PAGE, at % PAGE, 70] = 0xFF
    for shape in shapes:
        p.run(*shape, 3)
        lost = p.out.isnan().any(-1).any(-1).tolist()
        yield f"mla NaN code {shape}", lost == ([True, True] if (p.comp_ids[0] == at).any() else [False, True]), str(lost)
    if not quick:
        # Byte offsets beyond 2^32: ids of the last pages of a cache of 4.6 GB.
        p = problem(g, 1, 128, 128, 512, 512, tables=False)
        far = torch.zeros(123_000, 37440, dtype=torch.uint8, device=g.device)
        far[-34:] = p.comp
        p.comp, p.comp_ids = far, p.comp_ids + (123_000 - 34) * PAGE
        yield "mla offsets beyond 4 GiB", *verdict(p, SHAPES[1], 5)


def measure(g, sweep):
    pool = random_pages(8192, g)
    for batch, sets in ((1, 200), (8, 40), (64, 6)):
        problems = []
        for _ in range(sets):
            ids = lambda n: torch.randint(0, 8192 * PAGE, (batch, n), generator=g, device=g.device, dtype=torch.int32)
            q = torch.randn(batch, 64, 512, generator=g, device=g.device).bfloat16()
            problems.append(Problem(pool, pool, ids(128), ids(512), None, None, q, torch.zeros(64, device=g.device)))
            # The partial results may be shared: one call is done with them before the next begins.
            problems[-1].part, problems[-1].part_lse = problems[0].part, problems[0].part_lse
        choices = {
            1: ((16, 32, 2), (16, 64, 2), (16, 32, 1), (32, 32, 2)),
            8: ((64, 64, 1), (64, 32, 2), (32, 32, 2), (32, 64, 1), (16, 64, 2), (16, 32, 2)),
            64: ((64, 64, 1), (64, 32, 2), (32, 32, 2), (32, 64, 1)),
        }[batch]
        found = []
        for shape in choices:
            blocks = batch * 64 // shape[0]
            for splits in {1: (10, 20)}.get(batch) or (max(1, min(32, 128 // blocks)),):
                found.append((time_us([lambda p=p: p.run(*shape, splits) for p in problems], 200 if batch == 1 else 40), *shape, splits, False))
        for *shape, splits in clusters():
            if batch * (64 // shape[0]) * splits <= 264:
                found.append((time_us([lambda p=p: p.run(*shape, splits, True) for p in problems], 200 if batch == 1 else 40), *shape, splits, True))
        out, _ = problems[0].reference()
        moved = batch * (640 * 584 + 640 * 4 + 2 * 64 * 512 * 2)
        for us, *shape, splits, cluster in found if sweep else [min(found)]:
            problems[0].run(*shape, splits, cluster)
            yield {
                "kernel": "sparse_mla_decode", "case": f"batch {batch}, 128 + 512 keys",
                "choice": "HEADS={} TILE={} K_BUFFERS={}".format(*shape) + f", {splits} splits{' in a cluster' if cluster else ''}", "us": us,
                "floor_us": floor_us(moved, batch * 640 * 64 * 512 * 4), "rel_l2": rel_l2(problems[0].out, out),
            }  # fmt: skip
