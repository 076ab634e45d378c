//! Attention of decode steps: window, chosen entries, sinks; output after the inverse rotation.

use super::data::{Gen, channel0, handed, outliers};
use super::sizes::{Case, Dims, rope};
use super::{Bench, Run, Tap};
use crate::error::Result;
use crate::kernels::ops::AttnShape;
use crate::kernels::rope::RopeTable;
use crate::kernels::{Index, Mat, Ops};
use crate::numeric::bf16;

/// Logits of case `offset` lie around plus or minus this, beyond what `exp` takes in f32: a
/// kernel that does not subtract the maximum, or merges splits without one, overflows.
const OFFSET: f32 = 128.0;

pub(super) struct Attention {
    d: Dims,
    data: Gen,
}

/// Consecutive tokens and the entries they attend to.
struct Block {
    pos0: usize,
    ids: Index,
}

impl Attention {
    pub fn new(d: &Dims, data: Gen) -> Self {
        Attention { d: *d, data: data.of("attention") }
    }

    /// `n` tokens from `pos0`, each with as many visible entries as it may choose, spread evenly.
    fn block(&self, pos0: usize, n: usize) -> Block {
        let mut ids = Index::empty(n, self.d.topk);
        for r in 0..n {
            let visible = (pos0 + r + 1) / self.d.ratios[0];
            let take = visible.min(self.d.topk);
            ids.row_mut(r)[..take].iter_mut().enumerate().for_each(|(i, id)| {
                *id = (i * visible / take) as i32;
            });
        }
        Block { pos0, ids }
    }

    fn blocks(&self, case: Case) -> Option<Vec<Block>> {
        let far = self.d.far();
        Some(match case {
            Case::Random | Case::F32Inputs | Case::Offset | Case::Outliers => vec![self.block(far, 4)],
            // The window alone; one entry; a few; empty slots among valid ones.
            Case::Masked => {
                let mut b = self.block(far, 4);
                let keep = |r: usize, i: usize| match r {
                    0 => false,
                    1 => i == 0,
                    2 => i < 5,
                    _ => i.is_multiple_of(2),
                };
                for r in 0..4 {
                    let row = b.ids.row_mut(r);
                    row.iter_mut().enumerate().filter(|(i, _)| !keep(r, *i)).for_each(|(_, id)| *id = -1);
                }
                vec![b]
            }
            Case::EmptySplits => vec![self.block(0, 7)],
            Case::Short => {
                let (w, full) = (self.d.window, self.d.topk * self.d.ratios[0]);
                vec![self.block(2, 3), self.block(w - 2, 4), self.block(full - 2, 4)]
            }
            Case::Ties | Case::BeyondClamp => return None,
        })
    }
}

impl<O: Ops + 'static> Bench<O> for Attention {
    fn case(&self, ops: &O, case: Case) -> Result<Option<Run<'_, O>>> {
        let Some(blocks) = self.blocks(case) else { return Ok(None) };
        let d = self.d;
        let data = self.data.of(case.name());
        let rows: usize = blocks.iter().map(|b| b.ids.rows).sum();
        let tokens = blocks.iter().map(|b| b.pos0 + b.ids.rows).max().unwrap_or(0);
        let mut q = data.of("q").mat(rows, d.heads * d.dim, 1.0);
        let mut kv = data.of("kv").mat(tokens, d.dim, 1.0);
        let mut comp = data.of("comp").mat(tokens / d.ratios[0], d.dim, 1.0);
        match case {
            // One channel carries the offset, in numbers that bf16 holds exactly: it punishes the
            // softmax, not the formats. Odd heads get a negative one, where the sink dominates.
            Case::Offset => {
                let z = bf16::round(OFFSET * (d.dim as f32).sqrt());
                channel0(&mut q, d.dim, |i| if (i % d.heads).is_multiple_of(2) { z } else { -z });
                channel0(&mut kv, d.dim, |_| 1.0);
                channel0(&mut comp, d.dim, |_| 1.0);
            }
            Case::Outliers => {
                outliers(&mut kv, d.dim);
                outliers(&mut comp, d.dim);
            }
            _ => {}
        }
        [&mut q, &mut kv, &mut comp].into_iter().for_each(|m| handed(m, case));
        let sinks = data.of("sinks").vec(d.heads, 1.0);
        let table = RopeTable::new(&rope(), d.rope, tokens);
        let (q, kv, comp) = (ops.upload(q), ops.upload(kv), ops.upload(comp));
        Ok(Some(Box::new(move |ops, k| {
            let s =
                AttnShape { heads: d.heads, dim: d.dim, window: d.window, ratio: d.ratios[0], sinks: &sinks };
            let (mut out, mut lse, mut row) = (Mat::default(), Mat::default(), 0);
            for b in &blocks {
                let qb = ops.slice(&q, row, row + b.ids.rows);
                row += b.ids.rows;
                let (o, l) = ops.attention(&qb, &kv, &comp, Some(&b.ids), b.pos0, &s, &k.attn);
                out.append(&ops.download(&ops.derope(o, d.heads, &table, b.pos0, &k.attn)));
                lse.append(&ops.download(&l));
            }
            let sum = d.dim.max(d.window + d.topk);
            Ok(vec![Tap::tensor("attn.out", sum, out), Tap::tensor("attn.lse", sum, lse)])
        })))
    }
}
