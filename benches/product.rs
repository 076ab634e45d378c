//! The matrix product of this crate beside the `gemm` crate, at the sizes of the built-in model
//! and of larger ones.
//!
//! `gemm` gets the weight as it is stored and packs it inside the call, as a caller of it would
//! have to; ours is packed once a layer, outside the call, as the engine does.
//!
//! `cargo bench --bench product`

use dsv4::kernels::Mat;
use dsv4::kernels::gemm::{Packed, linear};
use gemm::Parallelism;
use std::time::Instant;

fn data(n: usize) -> Vec<f32> {
    (0..n).map(|i| ((i * 7919) % 1013) as f32 / 1013.0 - 0.5).collect()
}

/// GFLOP/s of the fastest of several rounds.
fn rate(flop: f64, mut f: impl FnMut()) -> f64 {
    let repeats = (2e8 / flop).ceil().max(1.0) as usize;
    f();
    let seconds = (0..12)
        .map(|_| {
            let t = Instant::now();
            (0..repeats).for_each(|_| f());
            t.elapsed().as_secs_f64() / repeats as f64
        })
        .fold(f64::INFINITY, f64::min);
    flop / seconds / 1e9
}

/// `y [m, n] = x [m, k] · w [n, k]ᵀ` by the `gemm` crate, all threads.
fn other(y: &mut [f32], x: &[f32], w: &[f32], m: usize, n: usize, k: usize) {
    assert!(y.len() == m * n && x.len() == m * k && w.len() == n * k);
    let (n_, k_) = (n as isize, k as isize);
    // SAFETY: strides and sizes describe exactly the three slices, whose lengths are checked.
    unsafe {
        gemm::gemm(
            m,
            n,
            k,
            y.as_mut_ptr(),
            1,
            n_,
            false,
            x.as_ptr(),
            1,
            k_,
            w.as_ptr(),
            k_,
            1,
            0.0,
            1.0,
            false,
            false,
            false,
            Parallelism::Rayon(0),
        );
    }
}

fn main() {
    println!("{} threads", rayon::current_num_threads());
    println!("{:>6} {:>6} {:>6} {:>14} {:>14} {:>7}", "m", "n", "k", "ours GFLOP/s", "gemm GFLOP/s", "ratio");
    let sizes = [
        (2048, 24, 1024),
        (2048, 128, 256),
        (2048, 512, 128),
        (2048, 64, 256),
        (2048, 256, 128),
        (2048, 512, 256),
        (512, 128, 256),
        (1, 512, 256),
        (2048, 4096, 4096),
    ];
    for (m, n, k) in sizes {
        let (x, w) = (data(m * k), data(n * k));
        let flop = 2.0 * (m * n * k) as f64;
        let (xm, packed) = (Mat::new(m, k, x.clone()), Packed::new(n, k, &w));
        let ours = rate(flop, || drop(std::hint::black_box(linear(&xm, &packed))));
        let mut y = vec![0f32; m * n];
        let theirs = rate(flop, || {
            other(&mut y, &x, &w, m, n, k);
            std::hint::black_box(&y);
        });
        println!("{m:>6} {n:>6} {k:>6} {ours:>14.1} {theirs:>14.1} {:>7.2}", ours / theirs);
    }
}
