//! State that no right kernel has: what a ring held a lap ago, what was written where another slot is read, whose
//! selection is used in place of one's own. Empty unless a knob asks for it.

use crate::kernels::values::Reuse;
use crate::kernels::{Index, Mat, Ops};

/// See the module.
pub(super) struct Stray<O: Ops> {
    /// First position of the current chunk or decode step.
    pub chunk_from: usize,
    /// Selection of the CSA layer before this one.
    pub previous: Option<Index>,
    /// Selection of this layer so far, if the next one may ask for it.
    pub own: Option<Index>,
    /// True if selections are to be kept.
    pub keep: bool,
    /// What the last token of the block before would have chosen by itself.
    last: Vec<i32>,
    /// Window entries as written, where they are read elsewhere.
    written: O::T,
}

// Derived, it would ask the backend itself to be `Clone`.
impl<O: Ops> Clone for Stray<O> {
    fn clone(&self) -> Self {
        Stray {
            chunk_from: self.chunk_from,
            previous: self.previous.clone(),
            own: self.own.clone(),
            keep: self.keep,
            last: self.last.clone(),
            written: self.written.clone(),
        }
    }
}

impl<O: Ops> Stray<O> {
    pub fn new(ops: &O) -> Self {
        let written = ops.upload(Mat::default());
        Stray { chunk_from: 0, previous: None, own: None, keep: false, last: Vec::new(), written }
    }

    /// What a reader finds that looks `shift` slots before the one a window entry was written to; `read` is the cache
    /// before the rows `kv`. Slots before the first hold zeros.
    pub fn shifted(&mut self, ops: &O, read: &O::T, kv: O::T, shift: usize, dim: usize) -> O::T {
        if ops.rows(&self.written) != ops.rows(read) {
            self.written = read.clone();
        }
        let n = ops.rows(&kv);
        ops.append(&mut self.written, &kv);
        let end = ops.rows(&self.written);
        let (a, b) = ((end - n).saturating_sub(shift), end.saturating_sub(shift));
        let mut out = ops.upload(Mat::zeros(n - (b - a), dim));
        ops.append(&mut out, &ops.slice(&self.written, a, b));
        out
    }

    /// Replaces a selection by the previous token's or the previous layer's.
    pub fn reuse(&mut self, ids: &mut Index, pos0: usize, reuse: Reuse) {
        match reuse {
            Reuse::None => {}
            Reuse::Token if ids.rows > 0 && ids.k > 0 => {
                let last = ids.row(ids.rows - 1).to_vec();
                ids.ids.rotate_right(ids.k);
                // The first token has no token before it: it keeps what it saw, which is nothing.
                self.last.resize(ids.k, -1);
                ids.row_mut(0).copy_from_slice(&self.last);
                self.last = last;
            }
            Reuse::Layer => {
                let Some(p) = &self.previous else { return };
                for r in (0..ids.rows).filter(|r| pos0 + r < p.rows) {
                    let (k, row) = (ids.k.min(p.k), p.row(pos0 + r));
                    ids.row_mut(r).fill(-1);
                    ids.row_mut(r)[..k].copy_from_slice(&row[..k]);
                }
            }
            Reuse::Token => {}
        }
    }

    /// Keeps a block's selection for the next CSA layer.
    pub fn keep(&mut self, ids: &Index) {
        if self.keep {
            let own = self.own.get_or_insert_with(|| Index::empty(0, ids.k));
            if own.k == ids.k {
                own.ids.extend(&ids.ids);
                own.rows += ids.rows;
            }
        }
    }
}

/// Puts the last window of `kv` before position `from` back to what the ring held a lap earlier.
pub(super) fn lose_lap<O: Ops>(ops: &O, kv: &mut O::T, from: usize, window: usize, dim: usize) {
    let first = from.saturating_sub(window);
    let zeros = window.saturating_sub(first).min(from - first);
    let mut out = ops.slice(kv, 0, first);
    if zeros > 0 {
        ops.append(&mut out, &ops.upload(Mat::zeros(zeros, dim)));
    }
    if first + zeros < from {
        let lap = ops.slice(kv, first + zeros - window, from - window);
        ops.append(&mut out, &lap);
    }
    *kv = out;
}
