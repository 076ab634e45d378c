//! The router: logits, choice of experts, their weights; by score and by table.

use super::data::{Gen, channel0, handed, outliers};
use super::sizes::{Case, Dims};
use super::{Bench, Run, Selection, Tap, Value};
use crate::error::Result;
use crate::kernels::knobs::RouterKnobs;
use crate::kernels::moe::score;
use crate::kernels::ops::MoeShape;
use crate::kernels::{Index, Mat, Ops};

/// Tokens.
const TOKENS: usize = 16;
/// Added to every logit in case `offset`: `sqrt(softplus)` is flat there, so scores lie close.
const OFFSET: f32 = 30.0;
/// Different gate rows in case `ties`.
const DISTINCT: usize = 10;

/// `routed_scaling_factor` and clamp of the released model, for a call of `batch` tokens.
pub(super) fn shape(d: &Dims, batch: usize) -> MoeShape {
    MoeShape { limit: Some(10.0), factor: 1.5, topk: d.active, batch }
}

/// Routing by score.
pub(super) struct Router {
    d: Dims,
    data: Gen,
}

impl Router {
    pub fn new<O: Ops>(_: &O, d: &Dims, data: Gen) -> Self {
        Router { d: *d, data: data.of("router") }
    }
}

impl<O: Ops + 'static> Bench<O> for Router {
    fn case(&self, ops: &O, case: Case) -> Result<Option<Run<'_, O>>> {
        let d = self.d;
        let n = match case {
            Case::Random | Case::F32Inputs | Case::Offset | Case::Ties | Case::Outliers => TOKENS,
            Case::Short => 1,
            _ => return Ok(None),
        };
        let data = self.data.of(case.name());
        let experts = d.experts[0];
        let mut gate = data.of("gate").mat(experts, d.hidden, 1.0 / (d.hidden as f32).sqrt());
        let mut bias = data.of("bias").vec(experts, 0.1);
        let mut x = data.of("x").mat(n, d.hidden, 1.0);
        match case {
            Case::Offset => {
                channel0(&mut gate, d.hidden, |_| OFFSET);
                channel0(&mut x, d.hidden, |_| 1.0);
            }
            Case::Outliers => outliers(&mut x, d.hidden),
            Case::Ties => {
                for e in DISTINCT..experts {
                    let from = gate.row(e % DISTINCT).to_vec();
                    gate.row_mut(e).copy_from_slice(&from);
                    bias[e] = bias[e % DISTINCT];
                }
            }
            _ => {}
        }
        handed(&mut x, case);
        let (x, gate) = (ops.upload(x), ops.weight(experts, d.hidden, &gate.data));
        let s = shape(&d, n);
        let g = RouterKnobs::default();
        let golden = ops.router_logits(&x, &gate, &g);
        let golden = ops.router_select(&golden, Some(&bias), None, &s, &g);
        Ok(Some(Box::new(move |ops, k| {
            let logits = ops.router_logits(&x, &gate, &k.router);
            let ids = ops.router_select(&logits, Some(&bias), None, &s, &k.router);
            // Weights of the experts golden chose, so that both sides have the same ones.
            let weights = ops.router_weights(&logits, &golden, Some(&bias), &s, &k.router);
            let logits = ops.download(&logits);
            let mut scores = logits.clone();
            for row in scores.data.chunks_exact_mut(experts) {
                row.iter_mut().zip(&bias).for_each(|(v, b)| *v = score(*v) + b);
            }
            let picked = Selection { ids, scores: Some(scores), visible: vec![experts; n], width: d.active };
            Ok(vec![
                Tap::tensor("router.logits", d.hidden, logits),
                Tap { op: "router.topk", sum: d.hidden, value: Value::Chosen(picked) },
                Tap::tensor("router.weights", d.hidden, ops.download(&weights)),
            ])
        })))
    }
}

/// Routing by the table of token ids.
pub(super) struct Hash {
    d: Dims,
    data: Gen,
}

impl Hash {
    pub fn new<O: Ops>(_: &O, d: &Dims, data: Gen) -> Self {
        Hash { d: *d, data: data.of("hash") }
    }
}

impl<O: Ops + 'static> Bench<O> for Hash {
    fn case(&self, ops: &O, case: Case) -> Result<Option<Run<'_, O>>> {
        if case != Case::Random {
            return Ok(None);
        }
        let d = self.d;
        let experts = d.experts[1];
        let logits: Mat = self.data.of("logits").mat(TOKENS, experts, 1.0);
        let logits = ops.upload(logits);
        // Different experts for every token, and every expert for some token.
        let table: Vec<i32> = (0..experts * d.active)
            .map(|i| ((i % d.active * experts / d.active + i) % experts) as i32)
            .collect();
        let tokens: Vec<u32> = (0..TOKENS).map(|t| (t * experts / TOKENS) as u32).collect();
        let s = shape(&d, TOKENS);
        Ok(Some(Box::new(move |ops, k| {
            let ids: Index = ops.router_select(&logits, None, Some((&table, &tokens)), &s, &k.router);
            let weights = ops.download(&ops.router_weights(&logits, &ids, None, &s, &k.router));
            let picked = Selection { ids, scores: None, visible: vec![experts; TOKENS], width: d.active };
            Ok(vec![
                Tap { op: "router.table", sum: 1, value: Value::Chosen(picked) },
                Tap::tensor("router.by_table", d.active, weights),
            ])
        })))
    }
}
