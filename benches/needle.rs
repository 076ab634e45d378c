//! A needle grid of the built-in model: how many tokens shared beginnings save, and how fast the rest is computed.
//!
//! One haystack, every length from 2k to 32k at five depths with three questions each, golden at its native width:
//! `cargo bench --bench needle`

use dsv4::checkpoint::Checkpoint;
use dsv4::engine::grid::{GridPath, Job, cost, grade};
use dsv4::engine::{Loader, Quiet};
use dsv4::kernels::{Cpu, KnobPlan};
use dsv4::needle::{Grid, Kind, Language, ctx};
use std::sync::Arc;
use std::time::Instant;

fn main() {
    dsv4::engine::work_on_this_thread(None).expect("the pool was not started yet");
    let ckpt = Arc::new(Checkpoint::open("builtin:pico").unwrap());
    let outer = Loader::new(Cpu, ckpt.clone()).outer().unwrap();
    let language = Language::of(&ckpt).unwrap();
    let grid = Grid {
        kind: Kind::Passkey,
        ctx: ctx::parse("2k..32k").unwrap(),
        depths: vec![0.1, 0.3, 0.5, 0.7, 0.9],
        trials: 3,
        questions: 3,
        seed: 1,
        custom: None,
    };
    let trials = grid.trials_of(&language, 0, false).unwrap();
    let jobs: Vec<Job> = trials.iter().filter_map(|t| Some(t.asked.as_ref().ok()?.job.clone())).collect();
    let c = cost(ckpt.config(), &jobs, 1);
    let path = [GridPath { name: "golden".into(), plan: KnobPlan::default() }];
    let started = Instant::now();
    let graded = grade(&Cpu, &ckpt, &outer, &jobs, &path, &Quiet).unwrap();
    let seconds = started.elapsed().as_secs_f64();
    let right = graded.iter().filter(|g| g[0].exact()).count();
    println!(
        "{} prompts, {} tokens, {} computed: {:.1} % saved by shared beginnings",
        jobs.len(),
        c.tokens,
        c.computed,
        100.0 * (1.0 - c.computed as f64 / c.tokens as f64)
    );
    println!(
        "{seconds:.2} s on {} threads: {:.0} computed tokens/s, {:.0} prompt tokens/s; {right} of {} right",
        rayon::current_num_threads(),
        c.computed as f64 / seconds,
        c.tokens as f64 / seconds,
        jobs.len()
    );
}
