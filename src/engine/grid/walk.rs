//! The attention half of one layer, down the tree of a document.

use super::rank::Ranks;
use super::run::{Grid, phase, pieces, reuses};
use super::tree::{Class, Tree};
use crate::checkpoint::LayerKind;
use crate::engine::interrupt;
use crate::engine::session::{BLOCK_TOKENS, KNOB_TOKENS};
use crate::error::Result;
use crate::kernels::{Index, KnobPlan, Knobs, Ops, Phase};
use crate::model::layer::attention_half;
use crate::model::{Block, LayerCache, LayerCtx, LayerWeights, Observer, Silent};
use std::ops::Range;

/// The attention half of one layer, down the tree.
pub(super) struct Walk<'a, O: Ops> {
    pub grid: &'a Grid<'a, O>,
    pub w: &'a LayerWeights<O>,
    pub ctx: LayerCtx<'a>,
    pub last: bool,
    pub tree: &'a Tree,
    pub plan: &'a KnobPlan,
    pub steady: bool,
    pub x: &'a mut O::T,
    pub ranks: Ranks<'a>,
    pub chosen: Option<Index>,
}

impl<O: Ops + Clone + Send + 'static> Walk<'_, O> {
    /// A node and all below it, from the cache before it. The largest continuation takes the cache over, the others
    /// get copies one after the other: few copies live at once.
    pub fn visit(&mut self, mut node: usize, cache: Option<LayerCache<O>>) -> Result<()> {
        let mut cache = match cache {
            Some(c) => c,
            None => {
                let mut c = LayerCache::new(self.grid.ops, self.grid.config);
                if reuses(self.plan) {
                    c.reuse(self.chosen.take());
                }
                c
            }
        };
        loop {
            let tree = self.tree;
            node = self.run(node, &mut cache)?;
            let Some((next, others)) = tree.nodes[node].children.split_last() else { break };
            for other in others {
                self.visit(*other, Some(cache.fork()))?;
            }
            node = *next;
        }
        if reuses(self.plan) {
            self.chosen = cache.selection();
        }
        Ok(())
    }

    /// One node, together with the nodes that follow it alone where a path is steady; returns the last of them.
    fn run(&mut self, mut node: usize, cache: &mut LayerCache<O>) -> Result<usize> {
        let first = &self.tree.nodes[node];
        let read = |c: Class| !self.last || c != Class::Prompt;
        let (reads, mut rows) = (read(first.class), first.rows.clone());
        let position = first.from;
        while let ([only], true) = (&self.tree.nodes[node].children[..], self.steady) {
            let only = *only;
            let next = &self.tree.nodes[only];
            if read(next.class) != reads || (first.class == Class::Prompt && rows.len() > BLOCK_TOKENS) {
                break;
            }
            rows.end = next.rows.end;
            node = only;
        }
        let phase = if self.steady { Phase::Prefill } else { phase(first.class) };
        let most = match (self.steady, phase) {
            (true, _) => BLOCK_TOKENS * rayon::current_num_threads(),
            (false, Phase::Prefill) => KNOB_TOKENS.0,
            (false, Phase::Decode) => 1,
        };
        let k = self.plan.at(Some(self.ctx.layer), phase);
        for r in pieces(rows.clone(), most) {
            interrupt::check()?;
            let from = position + r.start - rows.start;
            let b = Block {
                from,
                to: from + r.len(),
                phase,
                chunk_start: from == 0 || phase == Phase::Decode,
                read: reads,
            };
            self.block(&b, r, cache, &k)?;
        }
        Ok(node)
    }

    fn block(&mut self, b: &Block, r: Range<usize>, cache: &mut LayerCache<O>, k: &Knobs) -> Result<()> {
        let (ops, csa) = (self.grid.ops, self.grid.config.layers[self.ctx.layer].kind == LayerKind::Csa);
        let ranked = csa && self.ranks.wanted(&r);
        let mut silent = Silent;
        let obs: &mut dyn Observer<O> = if ranked { &mut self.ranks } else { &mut silent };
        let rows = ops.slice(self.x, r.start, r.end);
        let y = attention_half(ops, self.w, &self.ctx, cache, rows, b, k, obs)?;
        if ranked {
            self.ranks.measure(ops, r.start, cache.compressed(), k.topk.width);
        }
        if b.read {
            ops.write(self.x, r.start, &y);
        }
        Ok(())
    }
}
