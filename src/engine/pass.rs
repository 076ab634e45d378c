//! One pass over the weights, the next layer being fetched while this one runs.

use super::load::Loader;
use super::session::{Lane, Session};
use crate::checkpoint::Checkpoint;
use crate::error::{Error, Result};
use crate::kernels::{KnobPlan, Mat, Ops};
use crate::model::{LayerWeights, Observer, OuterWeights};
use std::ops::Range;
use std::sync::Arc;
use std::sync::mpsc::sync_channel;

/// Told how far a pass is; the engine itself prints nothing.
pub trait Progress: Sync {
    /// A pass of `steps` steps begins.
    fn begin(&self, what: &str, steps: usize);
    /// One step is done.
    fn step(&self);
    /// The pass is over.
    fn end(&self);
}

/// Tells nobody.
pub struct Quiet;

impl Progress for Quiet {
    fn begin(&self, _: &str, _: usize) {}
    fn step(&self) {}
    fn end(&self) {}
}

/// Calls `each(layer, weights)` for every layer in order. A reader thread decodes layer `i+1`
/// while `each` works on layer `i`; at most two layers are in memory.
pub fn for_each_layer<O: Ops + Clone + Send + 'static>(
    ops: &O,
    ckpt: &Arc<Checkpoint>,
    progress: &dyn Progress,
    each: impl FnMut(usize, &LayerWeights<O>) -> Result<()>,
) -> Result<()> {
    for_layers(ops, ckpt, 0..ckpt.config().num_hidden_layers, progress, each)
}

/// [`for_each_layer`] over some layers only.
pub fn for_layers<O: Ops + Clone + Send + 'static>(
    ops: &O,
    ckpt: &Arc<Checkpoint>,
    layers: Range<usize>,
    progress: &dyn Progress,
    mut each: impl FnMut(usize, &LayerWeights<O>) -> Result<()>,
) -> Result<()> {
    let loader = Loader::new(ops.clone(), ckpt.clone());
    std::thread::scope(|scope| {
        let (tx, rx) = sync_channel(0);
        let read = layers.clone();
        scope.spawn(move || {
            for i in read {
                // The receiver is gone when a layer failed: stop reading.
                if tx.send(loader.layer(i)).is_err() {
                    return;
                }
            }
        });
        for i in layers {
            let w = rx.recv().map_err(|_| Error::bug("the reader thread stopped"))??;
            each(i, &w)?;
            progress.step();
        }
        Ok(())
    })
}

/// Logits of the positions `from..` of one path over one sequence.
pub fn forward<O: Ops + Clone + Send + 'static>(
    session: &Session<O>,
    ckpt: &Arc<Checkpoint>,
    outer: &OuterWeights<O>,
    plan: &KnobPlan,
    from: usize,
    progress: &dyn Progress,
    obs: &mut dyn Observer<O>,
) -> Result<Mat> {
    progress.begin("layers", ckpt.config().num_hidden_layers);
    let mut lane = Lane::new(plan.clone(), session.embed(outer, plan, obs)?);
    for_each_layer(session.ops, ckpt, progress, |i, w| session.layer(w, i, &mut lane, obs))?;
    let logits = session.head(outer, &lane.x, from, plan, obs)?;
    progress.end();
    Ok(session.ops.download(&logits))
}
