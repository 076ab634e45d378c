//! Golden prefill of the built-in model: tokens/s at several lengths, beside the arithmetic floor
//! (multiply-adds of the architecture at this machine's measured product rate).
//!
//! Wall and CPU time are both given: CPU time (all threads) hardly depends on what else runs on
//! the machine, wall time shows how well the threads are used. Each is compared with the same
//! kind of time of the product. `--once LENGTH` runs once and prints the peak memory.
//!
//! `cargo bench --bench prefill [-- [--once] LENGTH...]`

use dsv4::checkpoint::Checkpoint;
use dsv4::engine::{Loader, Quiet, Schedule, Session, forward};
use dsv4::kernels::gemm::{Packed, linear};
use dsv4::kernels::{Cpu, KnobPlan, Mat};
use dsv4::model::Silent;
use std::sync::Arc;
use std::time::Instant;

/// Least wall and CPU seconds of several runs.
fn best(runs: usize, mut f: impl FnMut()) -> (f64, f64) {
    let mut least = (f64::INFINITY, f64::INFINITY);
    for _ in 0..runs {
        let (wall, cpu) = (Instant::now(), cpu_seconds());
        f();
        least = (least.0.min(wall.elapsed().as_secs_f64()), least.1.min(cpu_seconds() - cpu));
    }
    least
}

/// User and system time of all threads of this process so far.
fn cpu_seconds() -> f64 {
    let t = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    t.tv_sec as f64 + t.tv_nsec as f64 * 1e-9
}

/// Peak resident memory of this process in MiB, where the system tells.
fn peak_mib() -> Option<f64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find(|l| l.starts_with("VmHWM:"))?;
    line.split_whitespace().nth(1)?.parse::<f64>().ok().map(|kib| kib / 1024.0)
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
    dsv4::engine::work_on_this_thread(None).expect("the pool was not started yet");
    let once = std::env::args().any(|a| a == "--once");
    let lengths: Vec<usize> = std::env::args().filter_map(|a| a.parse().ok()).collect();
    let lengths = if lengths.is_empty() { vec![2048, 8192, 32768] } else { lengths };
    let ckpt = Arc::new(Checkpoint::open("builtin:pico").unwrap());
    let outer = Loader::new(Cpu, ckpt.clone()).outer().unwrap();
    let run = |t: usize| {
        let tokens: Vec<u32> =
            (0..t).map(|i| if i == 0 { 0 } else { 4 + ((i * 7919) % 500) as u32 }).collect();
        let session = Session::new(&Cpu, ckpt.config(), &tokens, Schedule::default()).unwrap();
        let l = forward(&session, &ckpt, &outer, &KnobPlan::default(), 0, &Quiet, &mut Silent).unwrap();
        std::hint::black_box(l);
    };
    if once {
        for t in lengths {
            run(t);
            println!("{t} tokens, peak memory {:.0} MiB", peak_mib().unwrap_or(f64::NAN));
        }
        return;
    }

    // The rate of the product at the sizes this model has, all threads busy.
    let (m, n, k) = (2048, 512, 256);
    let (x, w) = (Mat::new(m, k, data(m * k)), Packed::new(n, k, &data(n * k)));
    let flop = 2.0 * (m * n * k) as f64;
    let product = || {
        let (wall, cpu) = best(10, || (0..10).for_each(|_| drop(std::hint::black_box(linear(&x, &w)))));
        (wall / 10.0 / flop, cpu / 10.0 / flop)
    };
    println!("{} threads; the product is [{m}, {k}] x [{n}, {k}]T", rayon::current_num_threads());
    println!(
        "{:>7} {:>9} {:>8} {:>8} {:>12} {:>15} {:>12} {:>11}",
        "tokens",
        "tokens/s",
        "wall s",
        "CPU s",
        "GFLOP/token",
        "product GFLOP/s",
        "wall / floor",
        "CPU / floor"
    );
    for t in lengths {
        let before = product();
        let (wall, cpu) = best(if t <= 8192 { 7 } else { 3 }, || run(t));
        // The machine's speed drifts: the faster of the rates around the run is its floor.
        let after = product();
        let (per_wall, per_cpu) = (before.0.min(after.0), before.1.min(after.1));
        let total = t as f64 * 2.0 * macs(ckpt.config(), t);
        println!(
            "{t:>7} {:>9.0} {wall:>8.3} {cpu:>8.3} {:>12.5} {:>15.0} {:>12.2} {:>11.2}",
            t as f64 / wall,
            total / t as f64 / 1e9,
            1e-9 / per_wall,
            wall / (total * per_wall),
            cpu / (total * per_cpu)
        );
    }
}
