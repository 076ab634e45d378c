//! Golden prefill of the built-in model: tokens/s at several lengths, beside the arithmetic floor
//! (multiply-adds of the architecture at this machine's measured product rate).
//!
//! `cargo bench --bench prefill [-- LENGTH...]`

use dsv4::checkpoint::Checkpoint;
use dsv4::engine::{Loader, Quiet, Schedule, Session, forward};
use dsv4::kernels::gemm::{Packed, linear};
use dsv4::kernels::{Cpu, KnobPlan, Mat};
use dsv4::model::Silent;
use std::sync::Arc;
use std::time::Instant;

/// Best of several runs, in seconds.
fn best(runs: usize, mut f: impl FnMut()) -> f64 {
    (0..runs)
        .map(|_| {
            let t = Instant::now();
            f();
            t.elapsed().as_secs_f64()
        })
        .fold(f64::INFINITY, f64::min)
}

fn data(n: usize) -> Vec<f32> {
    (0..n).map(|i| ((i * 7919) % 1013) as f32 / 1013.0 - 0.5).collect()
}

/// Multiply-adds of one token at context `n` of the built-in model's architecture.
fn macs(c: &dsv4::checkpoint::Config, t: usize) -> f64 {
    use dsv4::checkpoint::LayerKind;
    let (d, h, dim, q) = (c.hidden_size, c.num_attention_heads, c.head_dim, c.q_lora_rank);
    let mut total = (c.hc_mult * c.hc_mult * d + c.vocab_size * d) as f64;
    for l in &c.layers {
        let mix = 2 * (2 + c.hc_mult) * c.hc_mult * c.hc_mult * d + 2 * (2 + c.hc_mult) * c.hc_mult * d;
        let proj = q * d + h * dim * q + dim * d + h * dim * c.o_lora_rank + d * c.o_groups * c.o_lora_rank;
        let moe = c.n_routed_experts * d + (c.num_experts_per_tok + 1) * 3 * d * c.moe_intermediate_size;
        let mut seen = c.sliding_window as f64;
        let mut extra = 0;
        let n = t as f64 / 2.0; // mean context of a prefill
        match l.kind {
            LayerKind::Window => {}
            LayerKind::Hca => {
                extra = 2 * dim * d;
                seen += n / l.ratio as f64;
            }
            LayerKind::Csa => {
                extra = 4 * dim * d + 4 * c.index_head_dim * d + c.index_n_heads * (c.index_head_dim * q + d);
                seen += (c.index_topk as f64).min(n / l.ratio as f64);
                total += n / l.ratio as f64 * (c.index_n_heads * (c.index_head_dim + 1)) as f64;
            }
        }
        total += (mix + proj + moe + extra) as f64 + 2.0 * seen * (h * dim) as f64;
    }
    total
}

fn main() {
    let lengths: Vec<usize> = std::env::args().filter_map(|a| a.parse().ok()).collect();
    let lengths = if lengths.is_empty() { vec![2048, 8192, 32768] } else { lengths };
    let ckpt = Arc::new(Checkpoint::open("builtin:pico").unwrap());
    let outer = Loader::new(Cpu, ckpt.clone()).outer().unwrap();

    // The rate of the product at the sizes this model has, both threads busy.
    let (m, n, k) = (2048, 512, 256);
    let (x, w) = (Mat::new(m, k, data(m * k)), Packed::new(n, k, &data(n * k)));
    let t = best(20, || drop(std::hint::black_box(linear(&x, &w))));
    let rate = 2.0 * (m * n * k) as f64 / t;
    println!(
        "threads {}, product rate {:.0} GFLOP/s ({m} x {n} x {k})",
        rayon::current_num_threads(),
        rate / 1e9
    );
    println!(
        "{:>8} {:>12} {:>10} {:>12} {:>14}",
        "tokens", "tokens/s", "seconds", "GFLOP/token", "time / floor"
    );
    for t in lengths {
        let tokens: Vec<u32> =
            (0..t).map(|i| if i == 0 { 0 } else { 4 + ((i * 7919) % 500) as u32 }).collect();
        let runs = if t <= 8192 { 5 } else { 2 };
        let s = best(runs, || {
            let session = Session::new(&Cpu, ckpt.config(), &tokens, Schedule::default()).unwrap();
            let l = forward(&session, &ckpt, &outer, &KnobPlan::default(), 0, &Quiet, &mut Silent).unwrap();
            std::hint::black_box(l);
        });
        let flop = 2.0 * macs(ckpt.config(), t);
        println!(
            "{t:>8} {:>12.0} {s:>10.3} {:>12.4} {:>14.2}",
            t as f64 / s,
            flop / 1e9,
            s / (t as f64 * flop / rate)
        );
    }
}
