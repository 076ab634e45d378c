"""Tokens per second of transformers' eager fp32 forward of a model directory, beside `cargo bench --bench prefill`.

    python scripts/bench_transformers.py [MODEL_DIR] [--tokens 2048] [--runs 3] [--threads 2]

Same tokens as the benchmark, eager attention and eager experts, no gradients, no cache, logits of every position. The first
run only warms up; wall and CPU seconds are the least of the others. Runs in the environment of scripts/make_golden.sh.
"""
import argparse
import os
import resource
import time

import torch
import transformers

PICO = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "fixtures", "pico")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default=PICO)
    parser.add_argument("--tokens", type=int, default=2048)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    model = transformers.AutoModelForCausalLM.from_pretrained(
        args.model, dtype=torch.float32, attn_implementation="eager", experts_implementation="eager").eval()
    tokens = torch.tensor([[0] + [4 + (i * 7919) % 500 for i in range(1, args.tokens)]])
    walls, cpus = [], []
    with torch.no_grad():
        for _ in range(args.runs + 1):
            wall, cpu = time.perf_counter(), time.process_time()
            logits = model(tokens, use_cache=False).logits
            walls.append(time.perf_counter() - wall)
            cpus.append(time.process_time() - cpu)
            assert logits.shape[:2] == tokens.shape and torch.isfinite(logits).all()
    wall, cpu = min(walls[1:]), min(cpus[1:])
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"transformers {transformers.__version__}, torch {torch.__version__}, {args.threads} threads, eager, fp32")
    print(f"{args.tokens} tokens: {args.tokens / wall:.1f} tokens/s ({wall:.2f} s wall, {cpu:.2f} s CPU), peak memory {peak:.0f} MiB")


if __name__ == "__main__":
    main()
