//! Runs one path and hands the wanted taps on as they come: nothing is collected.

use super::load::Loader;
use super::pass::{Progress, for_layers};
use super::session::{Lane, Session};
use super::{interrupt, tap_shape};
use crate::checkpoint::Checkpoint;
use crate::error::Result;
use crate::kernels::{Index, KnobPlan, Mat, Ops};
use crate::model::{Observer, Tap, TapAt, TapId, outer};
use std::collections::HashMap;
use std::sync::Arc;

/// Tokens whose logits are in memory at once.
const HEAD_TOKENS: usize = 256;

/// Takes rows of taps.
pub trait TapSink {
    /// Rows `row0..` of tap number `tap`, `cols` values each.
    fn numbers(&mut self, tap: usize, row0: usize, cols: usize, data: &[f32]) -> Result<()>;
    /// The same for ids.
    fn ids(&mut self, tap: usize, row0: usize, cols: usize, data: &[i32]) -> Result<()>;
}

struct Forward<'a> {
    wanted: HashMap<TapId, usize>,
    from: usize,
    sink: &'a mut dyn TapSink,
}

impl Forward<'_> {
    /// The number of a wanted tap, how many leading rows of the block to leave out, and the row
    /// of the cut tap that the rest starts at.
    fn place(&self, at: &TapAt, rows: usize) -> Option<(usize, usize, usize)> {
        let tap = *self.wanted.get(&at.id)?;
        let from = if tap_shape::by_token(at.id.tap) { self.from } else { 0 };
        let skip = from.saturating_sub(at.row0).min(rows);
        (skip < rows).then(|| (tap, skip, at.row0 + skip - from))
    }
}

impl<O: Ops> Observer<O> for Forward<'_> {
    fn wants_scores(&self, layer: usize) -> bool {
        self.wanted.contains_key(&TapId { layer: Some(layer), tap: Tap::IndexerScores })
    }
    fn tensor(&mut self, ops: &O, at: TapAt, t: &mut O::T) -> Result<()> {
        let Some((tap, skip, row)) = self.place(&at, ops.rows(t)) else { return Ok(()) };
        let Mat { cols, data, .. } = ops.download(t);
        self.sink.numbers(tap, row, cols, &data[skip * cols..])
    }
    fn index(&mut self, at: TapAt, ids: &mut Index) -> Result<()> {
        let Some((tap, skip, row)) = self.place(&at, ids.rows) else { return Ok(()) };
        self.sink.ids(tap, row, ids.k, &ids.ids[skip * ids.k..])
    }
}

/// Runs `session` along `plan` and gives `sink` the rows of `wanted` (numbered as listed); of
/// token taps those of the positions `from..`. Stops after the last layer that is wanted.
pub fn stream<O: Ops + Clone + Send + 'static>(
    session: &Session<O>,
    ckpt: &Arc<Checkpoint>,
    plan: &KnobPlan,
    wanted: &[TapId],
    from: usize,
    progress: &dyn Progress,
    sink: &mut dyn TapSink,
) -> Result<()> {
    let head = wanted.iter().any(|id| matches!(id.tap, Tap::HeadIn | Tap::Logits));
    let last = wanted.iter().filter_map(|id| id.layer).max().map_or(0, |l| l + 1);
    let layers = if head { session.config.num_hidden_layers } else { last };
    let mut obs = Forward { wanted: wanted.iter().enumerate().map(|(i, id)| (*id, i)).collect(), from, sink };

    progress.begin("layers", layers);
    let outer_weights = Loader::new(session.ops.clone(), ckpt.clone()).outer()?;
    let mut lane = Lane::new(plan.clone(), session.embed(&outer_weights, plan, &mut obs)?);
    for_layers(session.ops, ckpt, 0..layers, progress, |i, w| session.layer(w, i, &mut lane, &mut obs))?;
    if head {
        for b in session.blocks().into_iter().filter(|b| b.to > from) {
            let k = plan.at(None, b.phase);
            for p in (b.from.max(from)..b.to).step_by(HEAD_TOKENS) {
                interrupt::check()?;
                let rows = session.ops.slice(&lane.x, p, (p + HEAD_TOKENS).min(b.to));
                outer::head(session.ops, &outer_weights, session.config, &rows, p, b.phase, &k, &mut obs)?;
            }
        }
    }
    progress.end();
    Ok(())
}
