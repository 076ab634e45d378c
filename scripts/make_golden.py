"""Make fixtures/golden: tiny random DeepSeek-V4 models and what Hugging Face transformers computes for them.

    python scripts/make_golden.py OUT_DIR [NAME ...]

Needs torch (CPU) and transformers 5.24.0; scripts/make_golden.sh makes such an environment. Every parameter is random,
so that any term an implementation leaves out shows. A folder holds config.json and model.safetensors (as
save_pretrained writes them), tokens.json and expected.safetensors: taps of an fp32 run, and `f64.*` of a float64 run.
"""
import contextlib
import json
import os
import shutil
import sys
import zlib

import torch
from safetensors.torch import load_file, save_file
from transformers import DeepseekV4Config, DeepseekV4ForCausalLM, __version__
from transformers.models.deepseek_v4 import modeling_deepseek_v4 as hf

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "reference"))
import safetensors_np as st  # noqa: E402  (it writes the same bytes every time)

WINDOW, CSA, HCA = "sliding_attention", "compressed_sparse_attention", "heavily_compressed_attention"
LETTER = {"s": WINDOW, "c": CSA, "h": HCA}
MIN_MARGIN = 1e-5

# layers: s window, c ratio-4 with indexer, h ratio-`hca`; hash: number of leading hash-routed layers; T: tokens.
BASE = dict(layers="s", hash=0, T=40, hca=128, D=32, heads=4, head_dim=16, rope=8, q_lora=16, groups=2, o_lora=8, window=8,
            ih=8, idim=16, itopk=4, experts=6, top=2, inter=8, scale=1.5, limit=10.0, hc=4, iters=20, hc_eps=1e-6,
            eps=1e-6, vocab=48, yarn=None, theta=10000.0, ctheta=160000.0, gain=1.0, hc_gain=1.0, ties=False)
YARN = dict(factor=16.0, original_max_position_embeddings=64, beta_fast=32.0, beta_slow=1.0)
VECTORS = {
    "window": dict(layers="ss", T=30, about="two window layers, no compression"),
    "csa-narrow": dict(layers="cc", T=71, hc=2, vocab=24, about="ratio 4 alone, index_topk 4 of 17 entries, T not a multiple of 4"),
    "csa-wide": dict(layers="cc", T=42, itopk=64, heads=3, groups=3, experts=5, top=3, hc=2, scale=2.5,
                     about="index_topk wider than the context, 3 heads in 3 groups, 5 experts top-3, 2 streams"),
    "csa-320": dict(layers="c", T=320, itopk=4, hc=2, vocab=24, hash=1, top=1, experts=7, about="index_topk 4 of 80 entries, hash routing top-1 of 7"),
    "ties": dict(layers="c", T=40, hc=2, vocab=24, ih=1, itopk=3, ties=True,
                 about="one index head: many scores are exactly zero and tie at the cut; transformers made to take the lower index"),
    "hca": dict(layers="h", T=300, hc=2, vocab=24, window=16, about="ratio 128 alone, two entries and an incomplete window"),
    "wide-heads": dict(layers="ch", hca=8, T=45, hc=2, vocab=24, heads=2, head_dim=88, idim=64, ih=4, itopk=5, about="88-wide heads, index heads of 64 "
                       "(several quantisation groups, the last of the KV ones shorter), a non-overlapping ratio of 8"),
    "mixed": dict(layers="schc", hash=2, T=131, itopk=6, hc=2, vocab=32, yarn=YARN, from_seed=4, about="every layer kind, two hash layers, YaRN"),
    "exact-128": dict(layers="ch", T=128, hc=2, vocab=24, itopk=16, scale=2.5, about="T = 128: the entry closing at t is visible to t, here to the last token only"),
    "yarn": dict(layers="c", T=110, hc=2, vocab=24, rope=12, yarn=YARN, itopk=8, about="YaRN factor 16 over 64 original positions, rope 12 of 16 dims"),
    "yarn-ramp": dict(layers="cs", T=90, vocab=24, rope=16, head_dim=32, heads=2, hc=2, itopk=5, ctheta=10000.0, theta=500.0,
                      yarn=dict(factor=4.0, original_max_position_embeddings=512, beta_fast=16.0, beta_slow=0.5),
                      about="YaRN with a long ramp (four blended frequencies), other thetas"),
    "one-token": dict(layers="sch", hash=1, T=1, hc=2, full=True, about="T = 1: no compressed entry anywhere"),
    "three-tokens": dict(layers="csh", hash=2, T=3, hc=2, full=True, about="T = 3: one short of the first ratio-4 entry"),
    "four-tokens": dict(layers="ch", hca=2, hash=1, T=4, itopk=2, full=True, about="T = 4: the first entry, visible to its last token only"),
    "clamp": dict(layers="sc", T=22, hc=2, gain=6.0, full=True, about="gate and up go far beyond +-10: the clamp acts (gate only from above)"),
    "clamp-tight": dict(layers="h", hca=6, T=21, limit=0.75, hash=1, top=3, about="swiglu_limit 0.75"),
    "odd": dict(layers="chs", hca=5, T=19, D=40, heads=5, groups=5, head_dim=24, rope=6, q_lora=12, o_lora=6, ih=5, idim=12, itopk=3, experts=7,
                top=3, inter=12, scale=0.7, window=5, hc=3, vocab=37, full=True,
                about="odd counts everywhere: 5 heads, 5 groups, 7 experts, 3 streams, 5 index heads of 12"),
    "mhc": dict(layers="ss", T=24, iters=3, hc_eps=1e-3, eps=1e-2, hc_gain=3.0, full=True,
                about="3 Sinkhorn steps, large hc_eps and rms_norm_eps, strong mixing"),
}
DIALECTS_OF = "mixed"  # also saved with the official names (mixed-official) and the live module names (mixed-live)


def make_config(v):
    partial = v["rope"] / v["head_dim"]
    compress = dict(rope_type="default", rope_theta=v["ctheta"], partial_rotary_factor=partial)
    if v["yarn"]:
        compress.update(rope_type="yarn", attention_factor=1.0, **v["yarn"])
    n = len(v["layers"])
    return DeepseekV4Config(
        vocab_size=v["vocab"], hidden_size=v["D"], moe_intermediate_size=v["inter"], num_hidden_layers=n, num_attention_heads=v["heads"],
        head_dim=v["head_dim"], q_lora_rank=v["q_lora"], num_experts_per_tok=v["top"], n_routed_experts=v["experts"],
        routed_scaling_factor=v["scale"], swiglu_limit=v["limit"], max_position_embeddings=1024, rope_theta=v["theta"], compress_rope_theta=v["ctheta"],
        layer_types=[LETTER[c] for c in v["layers"]], mlp_layer_types=["hash_moe" if i < v["hash"] else "moe" for i in range(n)],
        compress_rates={CSA: 4, HCA: v["hca"]}, hc_mult=v["hc"], hc_sinkhorn_iters=v["iters"], hc_eps=v["hc_eps"], rms_norm_eps=v["eps"],
        sliding_window=v["window"], o_groups=v["groups"], o_lora_rank=v["o_lora"], index_n_heads=v["ih"], index_head_dim=v["idim"],
        index_topk=v["itopk"], partial_rotary_factor=partial, num_nextn_predict_layers=0,
        rope_parameters={"main": dict(rope_type="default", rope_theta=v["theta"], partial_rotary_factor=partial), "compress": compress})


@torch.no_grad()
def randomise(model, v, gen):
    """Every parameter and buffer of the state dict, at a scale that keeps activations near 1 and attention far from flat."""
    for name, p in model.state_dict().items():
        def normal(std):
            return torch.randn(p.shape, generator=gen) * std
        if name.endswith("tid2eid"):
            new = torch.stack([torch.randperm(v["experts"], generator=gen)[:v["top"]] for _ in range(v["vocab"])])
        elif "norm" in name:
            new = 1 + normal(0.3)
        elif name.endswith(("sinks", "hc_base", ".base")):
            new = normal(0.7)
        elif name.endswith("position_bias"):
            new = normal(1.0)
        elif name.endswith("e_score_correction_bias"):
            new = normal(0.3)
        elif name.endswith(("hc_scale", ".scale")):
            new = v["hc_gain"] * (1 + normal(0.3))
        elif name.endswith("embed_tokens.weight"):
            new = normal(1.0)
        elif "gate_up_proj" in name or "shared_experts.gate" in name or "shared_experts.up" in name:
            new = normal(1.5 * v["gain"] * p.shape[-1] ** -0.5)
        else:
            new = normal(1.2 * p.shape[-1] ** -0.5)
        p.copy_(new)


class Lifted:
    """torch, except that its float32 is float64."""
    float32 = float = torch.float64

    def __getattr__(self, name):
        return getattr(torch, name)


@contextlib.contextmanager
def truly_float64():
    """transformers casts to fp32 inside norms, rope, mHC, compressor softmax and indexer; lift these casts to float64.

    The rope angle stays the fp32 product it is by definition; only its cosine and sine are evaluated in float64.
    """
    def rope(self, x, position_ids, layer_type=None):
        angle = (position_ids[..., None].to(torch.float32) * getattr(self, f"{layer_type}_inv_freq").to(torch.float32)).double()
        return angle.cos().to(x.dtype), angle.sin().to(x.dtype)

    saved = torch.Tensor.float, hf.DeepseekV4RotaryEmbedding.forward
    torch.Tensor.float, hf.DeepseekV4RotaryEmbedding.forward, hf.torch = torch.Tensor.double, rope, Lifted()
    try:
        yield
    finally:
        torch.Tensor.float, hf.DeepseekV4RotaryEmbedding.forward = saved
        hf.torch = torch


@contextlib.contextmanager
def ties_to_lower_index():
    """Tensor.topk leaves the order of equal scores open; the indexer's exact zeros tie often in trained models."""
    saved = torch.Tensor.topk

    def topk(x, k, dim=-1):
        values, indices = x.sort(dim=dim, descending=True, stable=True)
        return torch.return_types.topk((values.narrow(dim, 0, k), indices.narrow(dim, 0, k)))

    torch.Tensor.topk = topk
    try:
        yield
    finally:
        torch.Tensor.topk = saved


@torch.no_grad()
def run(model, tokens):
    """Forward hooks -> taps, under the names the project's dumps use."""
    taps, hooks, cfg = {}, [], model.config

    def put(name, x):
        taps[name] = x.detach()[0].clone() if x.shape[0] == 1 and name != "logits" else x.detach().clone()

    def on(module, f):
        def hook(m, inputs, output):
            f(inputs, output)  # and return None, or the hook would replace the output
        hooks.append(module.register_forward_hook(hook))

    def scorer(p, i, o):
        q, k, _ = i
        put(p + "indexer.q", q), put(p + "indexer.k", k)
        T, N = o.shape[1:]
        hidden = torch.arange(N)[None] >= ((torch.arange(T) + 1) // 4)[:, None]
        put(p + "indexer.scores", o.masked_fill(hidden[None], float("-inf")))

    def moe(p, o):
        taps[p + "router.logits"], taps[p + "router.weights"], taps[p + "router.topk"] = o[0], o[1], o[2].to(torch.int32)

    for n, layer in enumerate(model.model.layers):
        p = f"layers.{n}."
        on(layer, lambda i, o, p=p: put(p + "out", o))
        on(layer.ffn_hc, lambda i, o, p=p: (put(p + "mid", i[0]), put(p + "ffn.mhc.post", o[0]), put(p + "ffn.mhc.comb", o[1])))
        on(layer.attn_hc, lambda i, o, p=p: (put(p + "attn.mhc.post", o[0]), put(p + "attn.mhc.comb", o[1])))
        on(layer.input_layernorm, lambda i, o, p=p: put(p + "attn.in", o))
        on(layer.post_attention_layernorm, lambda i, o, p=p: put(p + "ffn.in", o))
        on(layer.self_attn, lambda i, o, p=p: put(p + "attn.proj", o[0]))
        on(layer.self_attn.o_a_proj, lambda i, o, p=p: put(p + "attn.out", i[0].reshape(1, -1, cfg.num_attention_heads, cfg.head_dim)))
        on(layer.mlp.gate, lambda i, o, p=p: moe(p, o))
        on(layer.mlp.experts, lambda i, o, p=p: taps.__setitem__(p + "experts.out", o))
        on(layer.mlp.shared_experts, lambda i, o, p=p: put(p + "shared.out", o))
        on(layer.mlp, lambda i, o, p=p: put(p + "ffn.out", o))
        if cfg.layer_types[n] == CSA:
            indexer = layer.self_attn.compressor.indexer
            on(indexer.scorer, lambda i, o, p=p: scorer(p, i, o))
            on(indexer.scorer.weights_proj,
               lambda i, o, p=p: put(p + "indexer.weights", o * (cfg.index_head_dim ** -0.5 * cfg.index_n_heads ** -0.5)))
            on(indexer, lambda i, o, p=p: put(p + "index.topk", o.to(torch.int32)))
    on(model.model.embed_tokens, lambda i, o: put("embed.out", o))
    on(model.model.norm, lambda i, o: put("head.in", o))

    original = hf.eager_attention_forward

    def attend(module, query, key, value, mask, scaling, **kw):
        p, T = f"layers.{module.layer_idx}.", query.shape[2]
        put(p + "attn.q", query.transpose(1, 2)), put(p + "attn.kv", key[:, 0, :T]), put(p + "compressor.kv", key[:, 0, T:])
        z = query @ key.transpose(2, 3) * scaling + (0 if mask is None else mask)
        sink = module.sinks.reshape(1, -1, 1, 1).expand(-1, -1, T, -1)
        put(p + "attn.lse", torch.cat([z, sink], -1).logsumexp(-1).transpose(1, 2))
        return original(module, query, key, value, mask, scaling=scaling, **kw)

    hf.eager_attention_forward = attend
    try:
        taps["logits"] = model(torch.tensor([tokens]), use_cache=False).logits[0].clone()
    finally:
        hf.eager_attention_forward = original
        for h in hooks:
            h.remove()
    T = len(tokens)
    for name, x in taps.items():  # a batch axis of one was dropped; with T == 1 make sure that only one was
        if not name.endswith(("indexer.k", "compressor.kv")):
            assert x.shape[0] == T, (name, x.shape)
    return {k: x.contiguous() for k, x in taps.items() if x.numel()}


def margins(model, taps, ties):
    """Smallest gap between the last chosen and the first rejected score, over the indexers and the routers.

    `ties`: exact ties of the indexer are wanted, and do not count.
    """
    index = router = float("inf")
    for n in range(model.config.num_hidden_layers):
        s, k = taps.get(f"layers.{n}.indexer.scores"), model.config.index_topk
        if s is not None and s.shape[1] > k:
            top = s.sort(-1, descending=True).values
            gap = (top[:, k - 1] - top[:, k])[torch.isfinite(top[:, k])]
            index = min([index, *gap[gap > 0 if ties else gap >= 0].tolist()])
        gate = model.model.layers[n].mlp.gate
        if hasattr(gate, "e_score_correction_bias") and gate.top_k < gate.num_experts:
            s = gate.score_fn(taps[f"layers.{n}.router.logits"]) + gate.e_score_correction_bias
            top = s.sort(-1, descending=True).values
            router = min(router, (top[:, gate.top_k - 1] - top[:, gate.top_k]).min().item())
    return index, router


def load(path, dtype=torch.float32):
    return DeepseekV4ForCausalLM.from_pretrained(path, dtype=dtype, attn_implementation="eager", experts_implementation="eager").eval()


def same_sets(a, b):
    return all(torch.equal(a[k].sort(-1).values, b[k].sort(-1).values) for k in a if k.endswith("topk"))


def make(name, v, out):
    v = {**BASE, **v}
    path = os.path.join(out, name)
    for seed in range(v.get("from_seed", 1), 400):
        gen = torch.Generator().manual_seed(zlib.crc32(name.encode()) + seed)
        model = DeepseekV4ForCausalLM(make_config(v))
        randomise(model, v, gen)
        tokens = torch.randint(v["vocab"], (v["T"],), generator=gen).tolist()
        shutil.rmtree(path, ignore_errors=True)
        model.save_pretrained(path)
        model = load(path)
        with ties_to_lower_index() if v["ties"] else contextlib.nullcontext():
            taps = run(model, tokens)
            plain = run(model.double(), tokens)  # transformers as it is: fp32 islands inside a float64 model
            with truly_float64():
                exact = run(model, tokens)
        index, router = margins(model, exact, v["ties"])
        if min(index, router) >= MIN_MARGIN and same_sets(taps, exact) and all(torch.isfinite(x).all() for k, x in exact.items() if "scores" not in k):
            break
    else:
        raise SystemExit(f"{name}: no seed without a near tie")
    for extra in os.listdir(path):
        if extra not in ("config.json", "model.safetensors"):
            os.remove(os.path.join(path, extra))
    with open(os.path.join(path, "tokens.json"), "w") as f:
        json.dump(tokens, f)
    small, last = v["T"] < 64, f"layers.{len(v['layers']) - 1}.out"
    kept = {k: x for k, x in taps.items() if v.get("full") or k == "logits" or k.endswith(("topk", "head.in", "router.weights", "attn.lse"))
            or (k.endswith(".out") and (small or k.count(".") == 2)) or (small and k.endswith(("mid", "attn.in")))}
    for k, x in exact.items():
        if k == "logits" or (k == last and v["T"] < 200) or (small and k.startswith("layers.") and k.count(".") == 2 and k.endswith(".out")):
            kept["f64." + k] = x
    rotary = model.model.rotary_emb
    for label in ("main", "compress"):
        kept[f"hf.inv_freq.{label}"] = getattr(rotary, f"{label}_inv_freq").float()
    kept["tokens"] = torch.tensor(tokens, dtype=torch.int32)

    def rel(a, b):
        return ((a.double() - b).norm() / b.norm()).item()

    meta = {"made_by": f"transformers {__version__}, torch {torch.__version__}, eager, CPU", "about": v["about"], "seed": seed,
            "min_index_margin": index, "min_router_margin": router, "dsv4.first_position": 0,
            "rel_l2_logits_fp32_vs_f64": rel(taps["logits"], exact["logits"]),
            "rel_l2_logits_plain_double_vs_f64": rel(plain["logits"], exact["logits"])}
    st.write(os.path.join(path, "expected.safetensors"), {k: x.numpy() for k, x in kept.items()}, meta)
    gate = max(exact[k].abs().max().item() for k in exact if k.endswith("layers.0.out"))
    for file in os.listdir(path):
        os.chmod(os.path.join(path, file), 0o644)
    print(f"{name:13s} seed {seed:3d} T {v['T']:3d} margins {index:.1e} {router:.1e} fp32-f64 {meta['rel_l2_logits_fp32_vs_f64']:.1e} "
          f"plain double-f64 {meta['rel_l2_logits_plain_double_vs_f64']:.1e} max|layer 0| {gate:.1f} "
          f"lse spread {exact['layers.0.attn.lse'].std():.2f}", flush=True)
    if name == DIALECTS_OF:
        dialects(path, model.float(), v, taps, tokens)


def official_name(name):
    name = name.removeprefix("model.")
    for a, b in [("embed_tokens.", "embed."), ("hc_head.hc_", "hc_head_"), (".attn.norm.", ".attn.kv_norm.")]:
        name = name.replace(a, b)
    return name


def dialects(path, model, v, taps, tokens):
    """The same weights under the official names and keys, and under the live module names (packed experts)."""
    with open(os.path.join(path, "config.json")) as f:
        config = json.load(f)
    ratio = {"s": 0, "c": 4, "h": v["hca"]}
    official = {k: x for k, x in config.items() if k not in ("layer_types", "mlp_layer_types", "compress_rates", "rope_parameters", "partial_rotary_factor")}
    official.update(compress_ratios=[ratio[c] for c in v["layers"]] + [0], num_hash_layers=v["hash"], qk_rope_head_dim=v["rope"],
                    rope_theta=v["theta"], compress_rope_theta=v["ctheta"], num_nextn_predict_layers=1)
    if v["yarn"]:
        official["rope_scaling"] = dict(type="yarn", **v["yarn"])
    saved = {official_name(k): x for k, x in load_file(os.path.join(path, "model.safetensors")).items()}
    live = {k: x.contiguous() for k, x in model.state_dict().items()}
    for suffix, tensors, c in (("official", saved, official), ("live", live, config)):
        d = f"{path}-{suffix}"
        os.makedirs(d, exist_ok=True)
        save_file(tensors, os.path.join(d, "model.safetensors"), {"format": "pt"})
        with open(os.path.join(d, "config.json"), "w") as f:
            json.dump(c, f, indent=2)
        shutil.copy(os.path.join(path, "tokens.json"), d)
        st.write(os.path.join(d, "expected.safetensors"), {"logits": taps["logits"].numpy()}, {"about": f"the weights of {os.path.basename(path)} under {suffix} names"})
        for file in os.listdir(d):
            os.chmod(os.path.join(d, file), 0o644)
        off = (run(load(d), tokens)["logits"] - taps["logits"]).abs().max()
        print(f"{os.path.basename(d)}: transformers reads it back; logits differ by at most {off:.1e}", flush=True)
        assert off < 1e-5


def main():
    torch.set_num_threads(1)
    out, only = sys.argv[1], sys.argv[2:]
    for name, v in VECTORS.items():
        if not only or name in only:
            make(name, v, out)


if __name__ == "__main__":
    main()
