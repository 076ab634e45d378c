"""Make fixtures/dumps: dumps of small runs, healthy and broken, and what a judge must say about each.

    python scripts/make_dumps.py [OUT_DIR]

Runs the NumPy model of reference/dsv4_ref.py on a model of fixtures/golden, with one function of it replaced or every
product rounded, and writes the taps under their documented names. Nothing here knows how the toolkit computes or
emulates anything. Needs NumPy only; the same bytes every time.

expectations.json: one entry a dump, `model` (a folder of fixtures/golden), `status` that the verdict must have, or
that it must not exceed (`at_most`), and `layer`, `site`, `tap` it must name.
"""
import json
import os
import sys

import numpy as np

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
sys.path.insert(0, os.path.join(ROOT, "reference"))
import dsv4_ref as ref  # noqa: E402
import safetensors_np as st  # noqa: E402

GOLDEN = os.path.join(ROOT, "fixtures", "golden")


# ---------------------------------------------------------------- running a changed model

class Swapped:
    """Functions of the reference replaced while a model runs."""

    def __init__(self, **functions):
        self.functions, self.kept = functions, {}

    def __enter__(self):
        for name, wrap in self.functions.items():
            self.kept[name] = getattr(ref, name)
            setattr(ref, name, wrap(self.kept[name]))

    def __exit__(self, *_):
        for name, f in self.kept.items():
            setattr(ref, name, f)


def run(model, qat=False, change=lambda m: None, **functions):
    """The taps of a float64 run, some functions of the reference replaced."""
    m = ref.Model(os.path.join(GOLDEN, model), np.float64, qat)
    change(m)
    with open(os.path.join(GOLDEN, model, "tokens.json")) as f:
        tokens = json.load(f)
    with Swapped(**functions):
        return ref.forward(m, tokens)


def in_layer(layer, broken):
    """Replaces `attention` so that `broken(original)` acts in one layer only."""
    def wrap(attention):
        def run_layer(m, i, x, tap):
            return broken(attention)(m, i, x, tap) if i == layer else attention(m, i, x, tap)
        return run_layer
    return wrap


def with_function(**functions):
    """A layer's attention with other functions of the reference in place."""
    def broken(attention):
        def run_layer(m, i, x, tap):
            with Swapped(**functions):
                return attention(m, i, x, tap)
        return run_layer
    return broken


# ---------------------------------------------------------------- arithmetic in bf16

def bf16(x):
    """Nearest bf16 value, ties to even."""
    if x.dtype.kind != "f":
        return x
    u = np.ascontiguousarray(x, dtype=np.float32).view(np.uint32).astype(np.uint64)
    u = (u + 0x7FFF + ((u >> 16) & 1)) & 0xFFFF0000
    return u.astype(np.uint32).view(np.float32).astype(np.float64)


def rounded(f):
    """A function whose result, or every part of it, is stored in bf16."""
    def g(*args, **kw):
        out = f(*args, **kw)
        return tuple(bf16(o) for o in out) if isinstance(out, tuple) else bf16(out)
    return g


# What an eager run in bf16 hands from one kernel to the next; LSE, router scores and index scores stay as they are.
BF16 = {name: rounded for name in ("linear", "rms", "rope", "hc_post", "expert", "compress")}


def attention_in_bf16(f):
    def g(q, keys, mask, sink):
        out, lse = f(q, keys, mask, sink)
        return bf16(out), lse
    return g


def bf16_run(model, **functions):
    def store(m):
        for name, a in m.w.items():
            m.w[name] = bf16(a)
    taps = run(model, change=store, **{**BF16, "sink_attention": attention_in_bf16, **functions})
    streams = {n: bf16(a) for n, a in taps.items() if n.endswith((".mid", ".out", "head.in", "logits", ".in"))}
    return {**taps, **streams}


# ---------------------------------------------------------------- broken parts

def no_sink(f):
    """The sink logit is missing from the softmax."""
    return lambda q, keys, mask, sink: f(q, keys, mask, np.full_like(sink, -1e4))


def comb_transposed(f):
    """Stream k receives what stream k sends."""
    return lambda y, X, post, comb: f(y, X, post, comb.swapaxes(1, 2))


def entries_by_index(f):
    """Entry j is rotated to position j instead of the first position of its window."""
    def g(x, positions, freq, inverse=False):
        ratio = positions[1] - positions[0] if len(positions) > 1 and not inverse else 1
        return f(x, positions // ratio if ratio > 1 else positions, freq, inverse)
    return g


def indexer_without_relu(f):
    """Negative products count: scores, and what they select, made anew from the indexer's own taps."""
    def g(m, p, x, qr, visible, ratio, freq, tap):
        seen = {}
        f(m, p, x, qr, visible, ratio, freq, seen.__setitem__)
        products = np.einsum("thc,nc->thn", seen["indexer.q"], seen["indexer.k"])
        scores = np.where(visible, np.einsum("thn,th->tn", products, seen["indexer.weights"]), -np.inf)
        top = ref.best(scores, seen["index.topk"].shape[1])
        valid = np.take_along_axis(visible, top, 1)
        selected = np.zeros_like(visible)
        np.put_along_axis(selected, top, valid, 1)
        seen["indexer.scores"], seen["index.topk"] = scores, np.where(valid, top, -1).astype(np.int32)
        for name, value in seen.items():
            tap(name, value)
        return selected
    return g


def halves_rotated(f):
    """Pairs (i, i + r/2) instead of neighbours."""
    def g(x, positions, freq, inverse=False):
        r = 2 * len(freq)
        order = np.concatenate([np.arange(x.shape[-1] - r), x.shape[-1] - r + np.arange(r).reshape(2, -1).T.ravel()])
        return f(x[..., order], positions, freq, inverse)[..., np.argsort(order)]
    return g


def unscaled(layer):
    """routed_scaling_factor is never applied in one layer."""
    def wrap(route):
        def g(m, i, x, tokens, tap):
            if i != layer:
                return route(m, i, x, tokens, tap)
            kept, m.cfg.route_scale = m.cfg.route_scale, 1.0
            try:
                return route(m, i, x, tokens, tap)
            finally:
                m.cfg.route_scale = kept
        return g
    return wrap


def stale_window(layer):
    """The window cache of one layer is read one row off; the tap shows what attention reads."""
    def broken(attention):
        def run_layer(m, i, x, tap):
            rope, calls = ref.rope, []

            def late(x, positions, freq, inverse=False):
                out = rope(x, positions, freq, inverse)
                calls.append(1)
                return np.concatenate([out[:1], out[:-1]]) if len(calls) == 2 else out  # the second call makes kv
            with Swapped(rope=lambda _: late):
                return attention(m, i, x, tap)
        return run_layer
    return in_layer(layer, broken)


def other_width(taps, width, order=None):
    """index.topk as an engine with wider rows, or another order, writes it: the same sets."""
    out = dict(taps)
    rng = np.random.default_rng(7)
    for name in [n for n in taps if n.endswith("index.topk")]:
        rows = []
        for row in taps[name]:
            ids = row[row >= 0]
            ids = rng.permutation(ids) if order == "shuffled" else ids
            rows.append(np.concatenate([ids, np.full(width - len(ids), -1)]))
        out[name] = np.array(rows, dtype=np.int32)
    return out


# ---------------------------------------------------------------- the dumps

SELECTION = ("indexer.scores", "index.topk")
INDEXER = ("indexer.q", "indexer.k", "indexer.weights", *SELECTION)
ATTENTION = ("attn.in", "attn.q", "attn.kv", "compressor.kv", *INDEXER, "attn.lse", "attn.out", "attn.proj")


def only(taps, *names):
    """Tokens, and the taps of these names in any layer or outside."""
    def suffix(n):
        return n.split(".", 2)[2] if n.startswith("layers.") else n
    return {n: a for n, a in taps.items() if n == "tokens" or suffix(n) in names}


def dumps():
    """(name, model, taps, shards, expectation)"""
    ok, suspect = {"at_most": "elevated"}, lambda layer, site, tap: {"status": "suspect", "layer": layer, "site": site, "tap": tap}
    healthy = run("csa-narrow")
    yield "healthy-f32", "four-tokens", run("four-tokens"), 1, {"status": "ok"}
    yield "healthy-sharded", "mixed", only(run("mixed"), "attn.lse", *SELECTION, "out", "logits"), 3, {"status": "ok"}
    yield "healthy-qat", "wide-heads", only(run("wide-heads", qat=True), "attn.kv", "compressor.kv", *INDEXER, "attn.lse", "out"), 1, ok
    yield "healthy-bf16", "csa-narrow", only(bf16_run("csa-narrow"), *ATTENTION, "mid", "ffn.out", "out", "logits"), 1, ok
    yield "topk-wider", "csa-narrow", only(other_width(healthy, 9), *SELECTION, "attn.lse", "out"), 1, {"status": "ok"}
    yield "topk-reordered", "csa-narrow", only(other_width(healthy, 4, "shuffled"), *SELECTION, "attn.lse", "out"), 1, {"status": "ok"}

    sink = run("window", attention=in_layer(1, with_function(sink_attention=no_sink)))
    yield "sink-dropped", "window", only(sink, "attn.q", "attn.kv", "attn.lse", "attn.out", "out"), 1, suspect(1, "attn", "layers.1.attn.lse")
    comb = run("mhc", sublayer=lambda f: lambda m, i, name, X, g, tap: comb_in(f, m, i, name, X, g, tap))
    yield "comb-transposed", "mhc", only(comb, "attn.mhc.post", "attn.mhc.comb", "attn.proj", "mid", "out"), 1, suspect(1, "mhc", "layers.1.mid")
    relu = run("csa-narrow", attention=in_layer(0, with_function(indexer=indexer_without_relu)))
    yield "relu-off", "csa-narrow", only(relu, *INDEXER, "attn.out", "out"), 1, suspect(0, "indexer", "layers.0.indexer.scores")
    index = run("csa-narrow", attention=in_layer(1, with_function(rope=entries_by_index)))
    yield "entry-position", "csa-narrow", only(index, "attn.in", "compressor.kv", "attn.lse", "out"), 2, \
        suspect(1, "compressor", "layers.1.compressor.kv")
    scale = run("mixed", route=unscaled(2))
    yield "scale-never", "mixed", only(scale, "router.logits", "router.topk", "router.weights", "out"), 1, \
        suspect(2, "router", "layers.2.router.weights")
    pairs = run("yarn-ramp", attention=in_layer(1, with_function(rope=halves_rotated)))
    yield "rope-pairing", "yarn-ramp", only(pairs, "attn.q", "attn.kv", "out"), 1, suspect(1, "linear", "layers.1.attn.q")
    stale = run("window", attention=stale_window(1))
    yield "cache-row-off", "window", only(stale, "attn.in", "attn.kv", "attn.out", "out"), 1, suspect(1, "kv_cache", "layers.1.attn.kv")
    coarse = bf16_run("csa-narrow", attention=in_layer(1, with_function(visible_entries=late_entries)))
    yield "bf16-entry-late", "csa-narrow", only(coarse, *ATTENTION, "mid", "ffn.out", "out", "logits"), 1, \
        suspect(1, "indexer", "layers.1.indexer.scores")
    future = run("csa-narrow")
    future["layers.0.index.topk"] = future["layers.0.index.topk"].copy()
    future["layers.0.index.topk"][40, 0] = 10 + 5  # ten entries are visible to token 40
    yield "future-entry", "csa-narrow", only(future, *SELECTION, "out"), 1, suspect(0, "topk", "layers.0.index.topk")


def comb_in(f, m, i, name, X, g, tap):
    if (i, name) != (1, "attn"):
        return f(m, i, name, X, g, tap)
    with Swapped(hc_post=comb_transposed):
        return f(m, i, name, X, g, tap)


def late_entries(f):
    """An entry is visible a token late: every fourth token lacks the newest, whose score is -inf there."""
    return lambda T, N, ratio: np.arange(N)[None] < (np.arange(T) // ratio)[:, None]


def write(out, name, taps, shards):
    meta = {"dsv4.first_position": "0"}
    taps = {n: a.astype(np.int32 if a.dtype.kind == "i" else np.float32) for n, a in taps.items()}
    if shards == 1:
        st.write(os.path.join(out, name + ".safetensors"), taps, meta)
        return name + ".safetensors"
    os.makedirs(os.path.join(out, name), exist_ok=True)
    names = sorted(taps)
    for s in range(shards):
        part = {n: taps[n] for n in names[s::shards]}
        st.write(os.path.join(out, name, f"dump-{s + 1:05d}-of-{shards:05d}.safetensors"), part, meta)
    return name


def main():
    out = sys.argv[1] if len(sys.argv) > 1 else os.path.join(ROOT, "fixtures", "dumps")
    os.makedirs(out, exist_ok=True)
    expectations = []
    for name, model, taps, shards, expected in dumps():
        expectations.append({"dump": write(out, name, taps, shards), "model": model, **expected})
    with open(os.path.join(out, "expectations.json"), "w") as f:
        json.dump(expectations, f, indent=1)
        f.write("\n")


if __name__ == "__main__":
    main()
