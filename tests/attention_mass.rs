//! Golden's attention that a selection loses, against a computation of its own from the taps.

use dsv4::checkpoint::Checkpoint;
use dsv4::engine::compare::{CandidateOptions, against_candidate};
use dsv4::engine::session::Lane;
use dsv4::engine::{Loader, Quiet, Schedule, Session, for_each_layer};
use dsv4::kernels::{Cpu, Golden, Index, KnobPlan, Mat, Spec};
use dsv4::metrics::{Limits, Status};
use dsv4::model::{Observer, OuterWeights, TapAt};
use std::collections::HashMap;
use std::sync::Arc;

const TOKENS: usize = 300;

/// Every row of every tap that is asked for.
#[derive(Default)]
struct Taps {
    numbers: HashMap<String, Mat>,
    ids: HashMap<String, Vec<Vec<i32>>>,
}

impl Observer<Cpu> for Taps {
    fn tensor(&mut self, _: &Cpu, at: TapAt, t: &mut Mat) -> dsv4::Result<()> {
        self.numbers.entry(at.id.to_string()).or_default().append(t);
        Ok(())
    }
    fn index(&mut self, at: TapAt, ids: &mut Index) -> dsv4::Result<()> {
        let rows = (0..ids.rows).map(|r| ids.row(r).to_vec());
        self.ids.entry(at.id.to_string()).or_default().extend(rows);
        Ok(())
    }
}

struct Model {
    ckpt: Arc<Checkpoint>,
    outer: OuterWeights<Cpu>,
    tokens: Vec<u32>,
}

impl Model {
    fn new() -> Model {
        let ckpt = Arc::new(Checkpoint::open("builtin:pico").unwrap());
        let outer = Loader::new(Cpu, ckpt.clone()).outer().unwrap();
        let tokens =
            (0..TOKENS).map(|i| if i == 0 { 0 } else { 4 + (i * 7919 + i * i) as u32 % 500 }).collect();
        Model { ckpt, outer, tokens }
    }
    fn plan(&self, spec: &str) -> KnobPlan {
        let spec: Spec = spec.parse().unwrap();
        spec.plan(Golden::Ideal, &self.ckpt.config().layers).unwrap()
    }
    fn taps(&self, plan: &KnobPlan) -> Taps {
        let s = Session::new(&Cpu, self.ckpt.config(), &self.tokens, Schedule::default()).unwrap();
        let mut taps = Taps::default();
        let mut lane = Lane::new(plan.clone(), s.embed(&self.outer, plan, &mut taps).unwrap());
        for_each_layer(&Cpu, &self.ckpt, &Quiet, |i, w| s.layer(w, i, &mut lane, &mut taps)).unwrap();
        taps
    }
}

/// Catches mass of the wrong layer, row, entry or head, and mass that nobody is told of: a width that
/// is too narrow in the last layer, so that both runs rank the same scores.
#[test]
fn a_narrow_width_loses_the_attention_golden_pays_there() {
    let model = Model::new();
    let (golden, narrow) = (model.plan("none"), model.plan("topk.width=32@3"));
    let (g, n) = (model.taps(&golden), model.taps(&narrow));
    let (q, k, lse) = (
        &g.numbers["layers.3.attn.q"],
        &g.numbers["layers.3.compressor.kv"],
        &g.numbers["layers.3.attn.lse"],
    );
    let c = model.ckpt.config();
    let (heads, dim) = (c.num_attention_heads, c.head_dim);
    let (mut sum, mut most, mut ranked) = (0f64, 0f64, 0);
    for t in 0..TOKENS {
        let (want, have) = (&g.ids["layers.3.index.topk"][t], &n.ids["layers.3.index.topk"][t]);
        let mut row = 0f64;
        for j in want.iter().filter(|j| **j >= 0 && !have.contains(j)) {
            for h in 0..heads {
                let q = &q.row(t)[h * dim..(h + 1) * dim];
                let dot: f64 = q.iter().zip(k.row(*j as usize)).map(|(a, b)| *a as f64 * *b as f64).sum();
                row += (dot / (dim as f64).sqrt() - lse.row(t)[h] as f64).exp() / heads as f64;
            }
        }
        // Ranking decides only where more entries are visible than may be chosen.
        if (t + 1) / 4 > c.index_topk {
            (sum, ranked) = (sum + row, ranked + 1);
        }
        most = most.max(row);
        assert!((0.0..1.0).contains(&row), "{t}: {row}");
    }
    assert!(ranked > 0 && sum > 0.0, "nothing was lost: the fault is idle");

    let options = CandidateOptions {
        golden,
        candidate: narrow,
        schedule: Schedule::default(),
        limits: Limits::default(),
        config: None,
    };
    let found = against_candidate(&Cpu, &model.ckpt, &model.outer, &model.tokens, &options, &Quiet).unwrap();
    let row = found.rows.iter().find(|r| r.tap == "layers.3.index.topk").unwrap();
    let index = row.index.as_ref().unwrap();
    // The engine keeps each share as f32.
    let near = |a: Option<f64>, b: f64| (a.unwrap() / b - 1.0).abs() < 1e-5;
    assert!(near(index.mass_lost, sum / ranked as f64), "{index:?} {}", sum / ranked as f64);
    assert!(near(index.local_mass_lost, sum / ranked as f64), "{index:?}");
    assert!(near(index.max_mass_lost, most), "{index:?} {most}");
    assert_eq!(found.verdict.status, Status::Suspect);
    assert!(found.verdict.why.contains("% of its attention"), "{}", found.verdict.why);
    // What agrees loses nothing, and experts attend to nothing.
    let of = |tap: &str| found.rows.iter().find(|r| r.tap == tap).unwrap().index.clone().unwrap();
    assert_eq!(of("layers.1.index.topk").mass_lost, Some(0.0));
    assert_eq!(of("layers.3.router.topk").mass_lost, None);
}
