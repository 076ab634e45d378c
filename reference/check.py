"""Run the NumPy reference on every golden vector and compare it with transformers.

    python reference/check.py [GOLDEN_DIR] [--write]

Asserts: rel_l2 of every residual stream and of the logits at most 2e-6 against the fp32 run and 1e-9 against the float64
run; index and expert sets equal. --write also writes reference.safetensors (F64) beside each vector, and
reference_qat.safetensors for QAT_VECTORS.
"""
import json
import os
import sys

import numpy as np

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import dsv4_ref as ref  # noqa: E402
import safetensors_np as st  # noqa: E402

QAT_VECTORS = ["clamp", "csa-narrow", "four-tokens", "mixed", "wide-heads", "yarn-ramp"]
FP32_LIMIT, F64_LIMIT = 2e-6, 1e-9


def rel_l2(x, g):
    return np.linalg.norm(x.astype(np.float64) - g) / np.linalg.norm(g)


def compare(taps, expected, prefix, names):
    return {k: rel_l2(expected[prefix + k].reshape(taps[k].shape), taps[k]) for k in names if prefix + k in expected}


def same_set(a, b):
    return np.array_equal(np.sort(a, axis=-1), np.sort(b, axis=-1))


def outputs(taps):
    return {k: v for k, v in taps.items() if k == "logits" or (k.startswith("layers.") and k.count(".") == 2 and k.endswith(".out"))}


def finite(taps, expected):
    """Compared everywhere except where a score is not visible."""
    for k in [k for k in taps if k.endswith("indexer.scores")]:
        hidden = np.isneginf(taps[k])
        taps[k] = np.where(hidden, 0, taps[k])
        if k in expected:
            assert np.array_equal(np.isneginf(expected[k]), hidden), k
            expected[k] = np.where(hidden, 0, expected[k])
    return taps


def index_margin(model, taps):
    """Smallest gap at the cut of an indexer selection."""
    gaps, k = [np.inf], model.cfg.index_topk
    for name, s in taps.items():
        if name.endswith("indexer.scores") and s.shape[1] > k:
            top = -np.sort(-s, axis=-1)
            top = top[np.isfinite(top[:, k])]
            gaps += list(top[:, k - 1] - top[:, k])
    return min(gaps)


def check(path, write):
    name = os.path.basename(path)
    expected = st.read(os.path.join(path, "expected.safetensors"))
    with open(os.path.join(path, "tokens.json")) as f:
        tokens = json.load(f)
    model = ref.Model(path)
    taps = ref.forward(model, tokens)
    streams = list(outputs(taps))
    for k, v in expected.items():
        if k.endswith("topk"):
            assert same_set(taps[k], v), f"{name}: {k} differs"
    for label, spec in (("main", model.cfg.rope_main), ("compress", model.cfg.rope_compress)):
        if f"hf.inv_freq.{label}" in expected:
            ours, theirs = ref.rope_frequencies(spec, model.cfg.rope_dim), expected[f"hf.inv_freq.{label}"]
            ulp = np.abs(ours.view(np.int32) - theirs.view(np.int32)).max()
            if ulp:
                print(f"{name}: rope {label} frequencies differ from transformers by {ulp} ulp")
    qat = None
    if write and len(expected) > 1:  # a second naming of a vector's weights holds its logits only
        st.write(os.path.join(path, "reference.safetensors"), outputs(taps))
    if name in QAT_VECTORS:
        model.qat = True
        q = ref.forward(model, tokens)
        margin = index_margin(model, q)
        q32 = ref.forward(ref.Model(path, np.float32, True), tokens)
        qat = (f"qat: {rel_l2(q['logits'], taps['logits']):.1e} from ideal, float32 arithmetic {rel_l2(q32['logits'], q['logits']):.1e}, "
               f"index margin {margin:.1e}, sets {'equal' if all(same_set(q[k], q32[k]) for k in q if k.endswith('topk')) else 'DIFFER'}")
        if write:
            st.write(os.path.join(path, "reference_qat.safetensors"), outputs(q), {"min_index_margin": margin})
    taps = finite(taps, expected)
    fp32, f64 = compare(taps, expected, "", streams), compare(taps, expected, "f64.", streams)
    rest = compare(taps, expected, "", [k for k in taps if k not in streams and not k.endswith(("tokens", "topk", "router.logits", "router.weights"))])
    order = {k: np.argsort(v, axis=-1, kind="stable") for k, v in expected.items() if k.endswith("router.topk")}
    for k, o in order.items():  # weights in the order of the expert ids
        w = k.replace("topk", "weights")
        mine = np.take_along_axis(taps[w], np.argsort(taps[k], axis=-1, kind="stable"), -1)
        rest[w] = rel_l2(np.take_along_axis(expected[w], o, -1), mine)
    worst = max(rest, key=rest.get) if rest else "-"
    print(f"{name:15s} fp32 " + " ".join(f"{v:.1e}" for v in fp32.values()) + " | f64 " + " ".join(f"{v:.0e}" for v in f64.values())
          + (f" | {len(rest)} other taps, worst {rest[worst]:.1e} {worst}" if rest else ""))
    if qat:
        print(f"{'':15s} {qat}")
    assert fp32 and max(fp32.values()) <= FP32_LIMIT, f"{name}: fp32 {max(fp32.values()):.2e}"
    assert not f64 or max(f64.values()) <= F64_LIMIT, f"{name}: f64 {max(f64.values()):.2e}"
    assert not rest or rest[worst] <= FP32_LIMIT, f"{name}: {worst} {rest[worst]:.2e}"
    return max(fp32.values()), max(f64.values(), default=0)


def main():
    args = [a for a in sys.argv[1:] if not a.startswith("--")]
    root = args[0] if args else os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "fixtures", "golden")
    names = sorted(n for n in os.listdir(root) if os.path.exists(os.path.join(root, n, "expected.safetensors")))
    if not names:
        raise SystemExit(f"no vectors in {root}")
    print("rel_l2 of transformers against NumPy float64, layer by layer, logits last")
    results = [check(os.path.join(root, n), "--write" in sys.argv) for n in names]
    print(f"{len(results)} vectors: worst fp32 {max(r[0] for r in results):.1e}, worst f64 {max(r[1] for r in results):.1e}")


if __name__ == "__main__":
    main()
