"""The NumPy reference against transformers on one prompt of any small model directory.

    python scripts/compare_with_transformers.py MODEL_DIR PROMPTS.jsonl [INDEX]

A line of PROMPTS.jsonl has "prompt" (text, for MODEL_DIR/tokenizer.json) and optionally "answer".
Runs in the environment of scripts/make_golden.sh.
"""
import json
import os
import sys

import numpy as np
import torch
from tokenizers import Tokenizer

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, "..", "reference")]
import dsv4_ref as ref  # noqa: E402
import make_golden as golden  # noqa: E402


def main():
    path, prompts, index = sys.argv[1], sys.argv[2], int(sys.argv[3]) if len(sys.argv) > 3 else 0
    with open(prompts) as f:
        row = [json.loads(line) for line in f][index]
    tokenizer = Tokenizer.from_file(os.path.join(path, "tokenizer.json"))
    tokens = tokenizer.encode(row["prompt"]).ids
    torch.set_num_threads(2)
    model = golden.load(path)
    torch_runs = {"transformers fp32": golden.run(model, tokens)}
    with golden.ties_to_lower_index():
        torch_runs["transformers fp32, ties by index"] = golden.run(model, tokens)
        with golden.truly_float64():
            torch_runs["transformers f64, ties by index"] = golden.run(model.double(), tokens)
    ref_model = ref.Model(path)
    runs = {"NumPy f64": ref.forward(ref_model, tokens), "NumPy f32": ref.forward(ref.Model(path, np.float32), tokens),
            "NumPy f64 qat": ref.forward(ref.Model(path, np.float64, True), tokens)}
    runs |= {label: {k: v.numpy() for k, v in taps.items()} for label, taps in torch_runs.items()}
    base = runs["NumPy f64"]
    names = [k for k in base if k == "logits" or (k.count(".") == 2 and k.endswith(".out") and k.startswith("layers."))]
    ties = 0
    for s in (base[k] for k in base if k.endswith("indexer.scores")):
        k = ref_model.cfg.index_topk
        if s.shape[1] > k:
            top = -np.sort(-s, axis=1)
            ties += (np.isfinite(top[:, k]) & (top[:, k - 1] == top[:, k])).sum()
    print(f"{ties} (token, layer) pairs have equal index scores on both sides of the cut")
    print(f"{row.get('id', index)}: {len(tokens)} tokens; rel_l2 against NumPy f64: {', '.join(names)}")
    for label, taps in runs.items():
        errors = [np.linalg.norm(taps[k].astype(np.float64) - base[k]) / np.linalg.norm(base[k]) for k in names]
        overlap = {k: np.mean([len(set(a[a >= 0]) & set(b[b >= 0])) / (b >= 0).sum() for a, b in zip(taps[k], base[k]) if (b >= 0).any()])
                   for k in base if k.endswith("index.topk")}
        experts = all(np.array_equal(np.sort(taps[k]), np.sort(base[k])) for k in base if k.endswith("router.topk"))
        print(f"{label:33s} " + " ".join(f"{e:.1e}" for e in errors) + f"; next token {taps['logits'][-1].argmax()}"
              + f"; index overlap {' '.join(f'{v:.6f}' for v in overlap.values())}; experts {'equal' if experts else 'differ'}")


if __name__ == "__main__":
    main()
