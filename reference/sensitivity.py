"""Do the golden vectors notice? Break the reference in one place at a time and see which logits move.

    python reference/sensitivity.py [GOLDEN_DIR]

Prints, for every break, the largest rel_l2 of the logits and in how many vectors it exceeds 1e-4; fails if none does.
"""
import json
import os
import re
import sys

import numpy as np

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import dsv4_ref as ref  # noqa: E402


def fill(pattern, value):
    """Set every matching weight to a constant."""
    def change(m):
        for name in m.w:
            if re.search(pattern, name):
                m.w[name] = np.full_like(m.w[name], value)
    return change


def setting(**kw):
    return lambda m: m.cfg.__dict__.update({k: f(getattr(m.cfg, k)) for k, f in kw.items()})


def gate_clamped_below(x, w, p, limit):
    gate, up = (np.clip(ref.linear(x, w[p + n]), -limit, limit) for n in ("w1.weight", "w3.weight"))
    return ref.linear(gate * ref.sigmoid(gate) * up, w[p + "w2.weight"])


MODEL_BREAKS = {
    "no sink": fill("attn_sink", -1e4), "no ape": fill(r"attn\.compressor\.ape", 0), "no ape in the indexer": fill(r"indexer\.compressor\.ape", 0),
    "q norm weight": fill("q_norm", 1), "kv norm weight": fill("kv_norm", 1), "compressor norm weight": fill(r"attn\.compressor\.norm", 1),
    "index key norm weight": fill(r"indexer\.compressor\.norm", 1), "attn norm weight": fill("attn_norm", 1), "ffn norm weight": fill("ffn_norm", 1),
    "final norm weight": fill("^norm", 1), "no router bias": fill(r"gate\.bias", 0), "no mHC base": fill(r"layers.*hc_.*_base", 0),
    "mHC scale 1": fill(r"layers.*hc_.*scale", 1), "no head mHC base": fill("hc_head_base", 0), "head mHC scale 1": fill("hc_head_scale", 1),
    "index weights 1": fill("weights_proj", 1), "no shared expert": fill("shared_experts", 0), "window + 1": setting(window=lambda v: v + 1),
    "index_topk + 1": setting(index_topk=lambda v: v + 1), "one Sinkhorn step fewer": setting(sinkhorn=lambda v: v - 1),
    "no routed scaling": setting(route_scale=lambda v: 1.0), "hc_eps 0": setting(hc_eps=lambda v: 0.0), "rms eps 0": setting(eps=lambda v: 0.0),
}
FUNCTION_BREAKS = {
    "comb transposed": ("hc_post", lambda f: lambda y, X, post, comb: f(y, X, post, comb.swapaxes(1, 2))),
    "Sinkhorn columns first": ("sinkhorn", lambda f: lambda C, n, eps: f(C.swapaxes(1, 2), n, eps).swapaxes(1, 2)),
    "entry visible a token late": ("visible_entries", lambda f: lambda T, N, ratio: np.arange(N)[None] < (np.arange(T) // ratio)[:, None]),
    "no inverse rope": ("rope", lambda f: lambda x, t, freq, inverse=False: x if inverse else f(x, t, freq)),
    "no YaRN": ("rope_frequencies", lambda f: lambda spec, r: f({"rope_theta": spec["rope_theta"]}, r)),
    "gate clamped from below": ("expert", lambda f: gate_clamped_below),
    "no clamp": ("expert", lambda f: lambda x, w, p, limit: f(x, w, p, np.inf)),
    "no clamp in the shared expert": ("expert", lambda f: lambda x, w, p, limit: f(x, w, p, np.inf if "shared" in p else limit)),
    "ties to the higher index": ("best", lambda f: lambda s, k: s.shape[-1] - 1 - f(s[..., ::-1], k)),
}


def logits(root, names, change=lambda m: None):
    out = {}
    for name in names:
        m = ref.Model(os.path.join(root, name))
        change(m)
        with open(os.path.join(root, name, "tokens.json")) as f:
            out[name] = ref.forward(m, json.load(f))["logits"]
    return out


def main():
    root = sys.argv[1] if len(sys.argv) > 1 else os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "fixtures", "golden")
    names = sorted(n for n in os.listdir(root) if os.path.exists(os.path.join(root, n, "reference.safetensors")))
    good, unseen = logits(root, names), []

    def report(label, broken):
        moved = {n: np.linalg.norm(broken[n] - good[n]) / np.linalg.norm(good[n]) for n in names}
        seen = sum(v > 1e-4 for v in moved.values())
        print(f"{label:30s} {max(moved.values()):.1e} in {max(moved, key=moved.get):12s} above 1e-4 in {seen} of {len(names)}")
        if not seen:
            unseen.append(label)

    for label, change in MODEL_BREAKS.items():
        report(label, logits(root, names, change))
    for label, (name, wrap) in FUNCTION_BREAKS.items():
        original = getattr(ref, name)
        setattr(ref, name, wrap(original))
        report(label, logits(root, names))
        setattr(ref, name, original)
    if unseen:
        raise SystemExit(f"no vector notices: {', '.join(unseen)}")


if __name__ == "__main__":
    main()
