"""DeepSeek-V4 in NumPy, once and plainly: the whole-prompt forward pass, every step a function.

    python reference/dsv4_ref.py MODEL_DIR TOKENS.json OUT.safetensors [--dtype f64|f32] [--qat]

Nothing is quantised ("ideal"); with --qat the points where the official script fakes its cache formats are rounded too:
window and compressed KV to FP8, indexer queries and keys to FP4 after a Hadamard rotation. TOKENS.json holds a list of
token ids. OUT holds every tap.

Letters: T tokens, D hidden, S streams, H heads, C head dim, r rope dims, N compressed entries, E experts, V vocabulary.
A linear layer is y = x W^T with W [out, in]; none has a bias.
"""
import argparse
import json
import os
import re
import sys

import numpy as np

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import safetensors_np as st  # noqa: E402


# ---------------------------------------------------------------- configuration

class Config:
    """Both dialects: the official release's keys, and the ones transformers writes."""

    def __init__(self, c):
        self.layers = c["num_hidden_layers"]
        self.heads = c["num_attention_heads"]
        self.head_dim = c["head_dim"]
        self.groups = c["o_groups"]
        self.window = c["sliding_window"]
        self.streams = c["hc_mult"]
        self.sinkhorn = c["hc_sinkhorn_iters"]
        self.hc_eps = c["hc_eps"]
        self.eps = c["rms_norm_eps"]
        self.experts = c["n_routed_experts"]
        self.top_experts = c["num_experts_per_tok"]
        self.route_scale = c["routed_scaling_factor"]
        self.limit = c["swiglu_limit"]
        self.index_heads, self.index_dim, self.index_topk = c["index_n_heads"], c["index_head_dim"], c["index_topk"]
        self.kinds = self._kinds(c)
        if "mlp_layer_types" in c:
            self.hashed = [t == "hash_moe" for t in c["mlp_layer_types"]]
        else:
            self.hashed = [i < c["num_hash_layers"] for i in range(self.layers)]
        self.rope_main, self.rope_compress = self._ropes(c)
        self.rope_dim = c.get("qk_rope_head_dim") or round(self.head_dim * self._partial(c))

    def _kinds(self, c):
        """One (kind, ratio) a layer; ratio 4 is the overlapping, indexed kind."""
        if c.get("layer_types"):
            names = {"sliding_attention": "window", "compressed_sparse_attention": "csa", "heavily_compressed_attention": "hca"}
            return [(names[t], c["compress_rates"][t] if t in c["compress_rates"] else 0) for t in c["layer_types"]]
        return [({0: "window", 4: "csa"}.get(r, "hca"), r) for r in c["compress_ratios"][:self.layers]]

    def _partial(self, c):
        return c.get("partial_rotary_factor") or c["rope_parameters"]["main"]["partial_rotary_factor"]

    def _ropes(self, c):
        p = c.get("rope_parameters") or {}
        if "main" in p:
            return p["main"], p["compress"]
        scaling = c.get("rope_scaling") or {"type": "default"}
        return {"rope_theta": c["rope_theta"]}, {"rope_theta": c["compress_rope_theta"], **scaling}


# ---------------------------------------------------------------- weights

RENAMES = [  # any of the three namings -> the official one
    (r"^model\.", ""), (r"^embed_tokens\.", "embed."), (r"^lm_head\.", "head."), (r"^hc_head\.(hc_)?", "hc_head_"),
    (r"\.self_attn\.", ".attn."), (r"\.mlp\.", ".ffn."), (r"\.input_layernorm\.", ".attn_norm."),
    (r"\.post_attention_layernorm\.", ".ffn_norm."), (r"\.(attn|ffn)_hc\.", r".hc_\1_"),
    (r"\.compressor\.indexer\.(q_b_proj|scorer\.weights_proj)\.", r".indexer.\1."),
    (r"\.compressor\.indexer\.", ".indexer.compressor."), (r"\.scorer\.", "."),
    (r"\.compressor\.kv_norm\.", ".compressor.norm."), (r"\.compressor\.gate_proj\.", ".compressor.wgate."),
    (r"\.position_bias$", ".ape"), (r"\.attn\.norm\.", ".attn.kv_norm."), (r"\.sinks$", ".attn_sink"),
    (r"\.q_a_norm\.", ".q_norm."), (r"\.q_a_proj\.", ".wq_a."), (r"\.q_b_proj\.", ".wq_b."), (r"\.kv_proj\.", ".wkv."),
    (r"\.o_a_proj\.", ".wo_a."), (r"\.o_b_proj\.", ".wo_b."), (r"\.e_score_correction_bias$", ".bias"),
    (r"\.gate_proj\.", ".w1."), (r"\.up_proj\.", ".w3."), (r"\.down_proj\.", ".w2."),
]


class Model:
    def __init__(self, path, dtype=np.float64, qat=False):
        with open(os.path.join(path, "config.json")) as f:
            self.cfg = Config(json.load(f))
        self.dtype, self.qat = dtype, qat
        self.w = {}
        for file in sorted(os.listdir(path)):
            if re.fullmatch(r"model(-\d+-of-\d+)?\.safetensors", file):
                for name, a in st.read(os.path.join(path, file)).items():
                    self._add(name, a)

    def _add(self, name, a):
        for pattern, to in RENAMES:
            name = re.sub(pattern, to, name)
        a = a if a.dtype.kind == "i" else a.astype(self.dtype)
        if name.endswith(".experts.gate_up_proj"):  # [E, 2I, D]: w1 rows, then w3 rows
            for e, m in enumerate(a):
                self.w[name.replace("gate_up_proj", f"{e}.w1.weight")], self.w[name.replace("gate_up_proj", f"{e}.w3.weight")] = np.split(m, 2)
        elif name.endswith(".experts.down_proj"):
            for e, m in enumerate(a):
                self.w[name.replace("down_proj", f"{e}.w2.weight")] = m
        else:
            self.w[name] = a


# ---------------------------------------------------------------- small pieces

def linear(x, w):
    return x @ w.T


def rms(x, eps):
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + eps)


def sigmoid(x):
    with np.errstate(over="ignore"):
        return 1 / (1 + np.exp(-x))


def softmax(x, axis):
    e = np.exp(x - x.max(axis=axis, keepdims=True))
    return e / e.sum(axis=axis, keepdims=True)


def best(scores, k):
    """Indices of the k largest of each row: higher score first, then the lower index; -0 equals +0."""
    return np.argsort(-scores, axis=-1, kind="stable")[..., :k]


# ---------------------------------------------------------------- rotary positions

def rope_frequencies(spec, r):
    """f_i = theta^(-2i/r) in float32; YaRN blends f_i and f_i/factor over a ramp. There is no mscale."""
    one = np.float32(1)
    exponent = np.arange(0, r, 2, dtype=np.float32) / np.float32(r)
    f = one / (float(spec["rope_theta"]) ** exponent.astype(np.float64)).astype(np.float32)
    if (spec.get("rope_type") or spec.get("type") or "default") == "default":
        return f
    theta, length = spec["rope_theta"], spec["original_max_position_embeddings"]

    def corr(turns):
        return r * np.log(length / (turns * 2 * np.pi)) / (2 * np.log(theta))

    low = max(np.floor(corr(spec.get("beta_fast", 32))), 0)
    high = min(np.ceil(corr(spec.get("beta_slow", 1))), r - 1)
    high += 0.001 if low == high else 0
    ramp = np.clip((np.arange(r // 2, dtype=np.float32) - np.float32(low)) / np.float32(high - low), 0, 1).astype(np.float32)
    smooth = one - ramp
    return f / np.float32(spec["factor"]) * (one - smooth) + f * smooth


def rope(x, positions, freq, inverse=False):
    """Rotate adjacent pairs of the last r dims of x [T, ..., C]; the float32 angle is the definition."""
    r = 2 * len(freq)
    angle = (positions.astype(np.float32)[:, None] * freq[None, :]).astype(np.float64)
    shape = (len(positions),) + (1,) * (x.ndim - 2) + (r // 2,)
    c, s = np.cos(angle).astype(x.dtype).reshape(shape), np.sin(angle).astype(x.dtype).reshape(shape)
    s = -s if inverse else s
    u, v = x[..., -r::2], x[..., x.shape[-1] - r + 1::2]
    out = x.copy()
    out[..., -r::2] = u * c - v * s
    out[..., x.shape[-1] - r + 1::2] = u * s + v * c
    return out


# ---------------------------------------------------------------- fake quantisation (only with --qat)

def power_of_two_at_least(v):
    m, e = np.frexp(v)
    return np.ldexp(1.0, np.where(m == 0.5, e - 1, e))


def to_grid(x, mantissa_bits, smallest_exponent, largest):
    """Nearest value (ties to even) of a small float format, saturating."""
    _, e = np.frexp(x)
    step = np.ldexp(1.0, np.maximum(e - 1, smallest_exponent) - mantissa_bits)
    return np.clip(np.rint(x / step) * step, -largest, largest)


def fake_quant(x, group, largest, floor, mantissa_bits, smallest_exponent):
    out = x.copy()
    for a in range(0, x.shape[-1], group):
        part = x[..., a:a + group].astype(np.float64)
        amax = np.maximum(np.abs(part).max(axis=-1, keepdims=True), floor)
        s = power_of_two_at_least(amax / largest)
        out[..., a:a + group] = to_grid(part / s, mantissa_bits, smallest_exponent, largest) * s
    return out


def fake_fp8(x):
    """E4M3, groups of 64, scale 2^ceil(log2(amax/448))."""
    return fake_quant(x, 64, 448.0, 1e-4, 3, -6)


def fake_fp4(x):
    """E2M1, groups of 32, scale 2^ceil(log2(amax/6))."""
    return fake_quant(x, 32, 6.0, 6 * 2.0 ** -126, 1, 0)


def hadamard(x):
    """x H n^-1/2 with Sylvester's H[i][j] = (-1)^popcount(i & j)."""
    n = x.shape[-1]
    if n & (n - 1):
        raise ValueError(f"the Hadamard rotation needs a power of two, not {n}")
    h = np.ones((1, 1))
    while len(h) < n:
        h = np.block([[h, h], [h, -h]])
    return x @ (h * n ** -0.5).astype(x.dtype)


# ---------------------------------------------------------------- manifold-constrained hyper-connections

def hc_logits(X, fn, eps):
    """mu = (fn x) / rms(x) over the flattened streams x [S*D]; no learned norm weight."""
    x = X.reshape(len(X), -1)
    return linear(x, fn) / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + eps)


def sinkhorn(C, iters, eps):
    """Towards a doubly stochastic matrix: row softmax + eps, columns, then (rows, columns) iters-1 times."""
    C = softmax(C, -1) + eps
    C = C / (C.sum(-2, keepdims=True) + eps)
    for _ in range(iters - 1):
        C = C / (C.sum(-1, keepdims=True) + eps)
        C = C / (C.sum(-2, keepdims=True) + eps)
    return C


def hc_pre(X, fn, base, scale, cfg):
    """The sub-layer's input and how its output returns: y [T,D], pre [T,S], post [T,S], comb [T,S,S]."""
    S = cfg.streams
    mu = hc_logits(X, fn, cfg.eps)
    pre = sigmoid(mu[:, :S] * scale[0] + base[:S]) + cfg.hc_eps
    post = 2 * sigmoid(mu[:, S:2 * S] * scale[1] + base[S:2 * S])
    comb = sinkhorn((mu[:, 2 * S:] * scale[2] + base[2 * S:]).reshape(-1, S, S), cfg.sinkhorn, cfg.hc_eps)
    return np.einsum("ts,tsd->td", pre, X), pre, post, comb


def hc_post(y, X, post, comb):
    """X'_k = post_k y + sum_j comb[j,k] X_j"""
    return post[:, :, None] * y[:, None, :] + np.einsum("tjk,tjd->tkd", comb, X)


def hc_head(X, fn, base, scale, cfg):
    pre = sigmoid(hc_logits(X, fn, cfg.eps) * scale[0] + base) + cfg.hc_eps
    return np.einsum("ts,tsd->td", pre, X)


# ---------------------------------------------------------------- attention

def compress(x, w, prefix, ratio, overlap, freq, eps):
    """One entry a complete window: a per-channel softmax over the window's tokens, norm, rope at its first position.

    Overlap: the projections hold two series; entry j pools series a of window j-1 with series b of window j.
    """
    n = len(x) // ratio
    if n == 0:
        return np.zeros((0, len(w[prefix + "norm.weight"])), x.dtype)
    k = linear(x, w[prefix + "wkv.weight"])[:n * ratio].reshape(n, ratio, -1)
    g = linear(x, w[prefix + "wgate.weight"])[:n * ratio].reshape(n, ratio, -1) + w[prefix + "ape"]
    if overlap:
        d = k.shape[-1] // 2
        before_k = np.concatenate([np.zeros_like(k[:1, :, :d]), k[:-1, :, :d]])
        before_g = np.concatenate([np.full_like(g[:1, :, :d], -np.inf), g[:-1, :, :d]])
        k = np.concatenate([before_k, k[:, :, d:]], axis=1)
        g = np.concatenate([before_g, g[:, :, d:]], axis=1)
    pooled = (softmax(g, 1) * k).sum(1)
    return rope(rms(pooled, eps) * w[prefix + "norm.weight"], ratio * np.arange(n), freq)


def visible_entries(T, N, ratio):
    """Entry j is visible to token t iff its window has closed: j < (t+1) // ratio."""
    return np.arange(N)[None, :] < ((np.arange(T) + 1) // ratio)[:, None]


def indexer(m, p, x, qr, visible, ratio, freq, tap):
    """score_j = sum_h relu(q_h . k_j) w_h; the index_topk best visible entries. Returns the selection mask [T,N]."""
    cfg, w = m.cfg, m.w
    T, N = visible.shape
    q = rope(linear(qr, w[p + "indexer.wq_b.weight"]).reshape(T, cfg.index_heads, cfg.index_dim), np.arange(T), freq)
    k = compress(x, w, p + "indexer.compressor.", ratio, True, freq, cfg.eps)
    if m.qat:
        q, k = fake_fp4(hadamard(q)), fake_fp4(hadamard(k))
    weights = linear(x, w[p + "indexer.weights_proj.weight"]) * (cfg.index_dim ** -0.5 * cfg.index_heads ** -0.5)
    scores = np.einsum("thn,th->tn", np.maximum(np.einsum("thc,nc->thn", q, k), 0), weights)
    scores = np.where(visible, scores, -np.inf)
    top = best(scores, min(cfg.index_topk, N))
    valid = np.take_along_axis(visible, top, 1)
    selected = np.zeros_like(visible)
    np.put_along_axis(selected, top, valid, 1)
    tap("indexer.q", q), tap("indexer.k", k), tap("indexer.weights", weights), tap("indexer.scores", scores)
    tap("index.topk", np.where(valid, top, -1).astype(np.int32))
    return selected


def sink_attention(q, keys, mask, sink):
    """softmax over the allowed keys and the head's sink logit; the sink adds to the denominator only. Keys are values."""
    z = np.where(mask[:, None, :], np.einsum("thc,kc->thk", q, keys) * q.shape[-1] ** -0.5, -np.inf)
    top = np.maximum(z.max(-1), sink[None, :])
    e = np.exp(z - top[:, :, None])
    total = e.sum(-1) + np.exp(sink[None, :] - top)
    return np.einsum("thk,kc->thc", e / total[:, :, None], keys), top + np.log(total)


def attention(m, i, x, tap):
    cfg, w, p = m.cfg, m.w, f"layers.{i}.attn."
    kind, ratio = cfg.kinds[i]
    T, C, r = len(x), cfg.head_dim, cfg.rope_dim
    freq = rope_frequencies(cfg.rope_main if kind == "window" else cfg.rope_compress, r)
    t = np.arange(T)

    qr = rms(linear(x, w[p + "wq_a.weight"]), cfg.eps) * w[p + "q_norm.weight"]
    q = rope(rms(linear(qr, w[p + "wq_b.weight"]).reshape(T, cfg.heads, C), cfg.eps), t, freq)
    kv = rope(rms(linear(x, w[p + "wkv.weight"]), cfg.eps) * w[p + "kv_norm.weight"], t, freq)
    if m.qat:
        kv[:, :C - r] = fake_fp8(kv[:, :C - r])
    tap("attn.q", q), tap("attn.kv", kv)

    keys, mask = kv, (t[None, :] <= t[:, None]) & (t[None, :] > t[:, None] - cfg.window)
    if kind != "window":
        entries = compress(x, w, p + "compressor.", ratio, kind == "csa", freq, cfg.eps)
        if m.qat:
            entries[:, :C - r] = fake_fp8(entries[:, :C - r])
        tap("compressor.kv", entries)
        allowed = visible_entries(T, len(entries), ratio)
        if kind == "csa":
            allowed = indexer(m, p, x, qr, allowed, ratio, freq, tap)
        keys, mask = np.concatenate([kv, entries]), np.concatenate([mask, allowed], axis=1)

    o, lse = sink_attention(q, keys, mask, w[p + "attn_sink"])
    o = rope(o, t, freq, inverse=True)
    groups = o.reshape(T, cfg.groups, -1)
    wo_a = w[p + "wo_a.weight"].reshape(cfg.groups, -1, groups.shape[-1])
    y = linear(np.einsum("tgc,goc->tgo", groups, wo_a).reshape(T, -1), w[p + "wo_b.weight"])
    tap("attn.lse", lse), tap("attn.out", o), tap("attn.proj", y)
    return y


# ---------------------------------------------------------------- mixture of experts

def expert(x, w, p, limit):
    """w2 (silu(gate) * up); gate is clamped from above only, up from both sides."""
    gate = np.minimum(linear(x, w[p + "w1.weight"]), limit)
    up = np.clip(linear(x, w[p + "w3.weight"]), -limit, limit)
    return linear(gate * sigmoid(gate) * up, w[p + "w2.weight"])


def route(m, i, x, tokens, tap):
    """sqrt(softplus) scores; chosen by token id (hash layers) or by score + bias; weighted by the score without bias."""
    cfg, w, p = m.cfg, m.w, f"layers.{i}.ffn.gate."
    logits = linear(x, w[p + "weight"])
    s = np.sqrt(np.logaddexp(logits, 0))
    chosen = w[p + "tid2eid"][tokens] if cfg.hashed[i] else best(s + w[p + "bias"], cfg.top_experts)
    weights = np.take_along_axis(s, chosen, 1)
    weights = weights / weights.sum(-1, keepdims=True) * cfg.route_scale
    tap("router.logits", logits), tap("router.topk", chosen.astype(np.int32)), tap("router.weights", weights)
    return chosen, weights


def moe(m, i, x, tokens, tap):
    chosen, weights = route(m, i, x, tokens, tap)
    routed = np.zeros_like(x)
    for e in np.unique(chosen):
        rows, slot = np.nonzero(chosen == e)
        np.add.at(routed, rows, weights[rows, slot, None] * expert(x[rows], m.w, f"layers.{i}.ffn.experts.{e}.", m.cfg.limit))
    shared = expert(x, m.w, f"layers.{i}.ffn.shared_experts.", m.cfg.limit)
    tap("experts.out", routed), tap("shared.out", shared), tap("ffn.out", routed + shared)
    return routed + shared


# ---------------------------------------------------------------- the model

def sublayer(m, i, name, X, f, tap):
    """X' = hc_post(f(norm(hc_pre(X))), X)"""
    hc = [m.w[f"layers.{i}.hc_{name}_{part}"] for part in ("fn", "base", "scale")]
    y, pre, post, comb = hc_pre(X, *hc, m.cfg)
    x = rms(y, m.cfg.eps) * m.w[f"layers.{i}.{name}_norm.weight"]
    tap(f"{name}.mhc.pre", pre), tap(f"{name}.mhc.post", post), tap(f"{name}.mhc.comb", comb), tap(f"{name}.in", x)
    return hc_post(f(x), X, post, comb)


def forward(m, tokens):
    tokens = np.asarray(tokens, dtype=np.int64)
    taps = {"tokens": tokens.astype(np.int32), "embed.out": m.w["embed.weight"][tokens]}
    X = np.repeat(taps["embed.out"][:, None, :], m.cfg.streams, axis=1)
    for i in range(m.cfg.layers):
        def tap(name, value):
            if value.size:  # a prompt shorter than one window has no compressed entries
                taps[f"layers.{i}.{name}"] = value
        X = sublayer(m, i, "attn", X, lambda x: attention(m, i, x, tap), tap)
        tap("mid", X)
        X = sublayer(m, i, "ffn", X, lambda x: moe(m, i, x, tokens, tap), tap)
        tap("out", X)
    head = [m.w[f"hc_head_{part}"] for part in ("fn", "base", "scale")]
    taps["head.in"] = rms(hc_head(X, *head, m.cfg), m.cfg.eps) * m.w["norm.weight"]
    taps["logits"] = linear(taps["head.in"], m.w["head.weight"])
    return taps


def main():
    a = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    a.add_argument("model_dir"), a.add_argument("tokens"), a.add_argument("out")
    a.add_argument("--dtype", choices=["f64", "f32"], default="f64")
    a.add_argument("--qat", action="store_true", help="fake-quantise KV and the indexer as the official script does")
    a = a.parse_args()
    with open(a.tokens) as f:
        tokens = json.load(f)
    model = Model(a.model_dir, {"f64": np.float64, "f32": np.float32}[a.dtype], a.qat)
    st.write(a.out, forward(model, tokens), {"dsv4.first_position": 0, "dsv4.golden": "qat" if a.qat else "ideal"})


if __name__ == "__main__":
    main()
