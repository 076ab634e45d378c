//! One pass over the weights, the next layer being fetched while this one runs.

use super::load::Loader;
use super::session::{Lane, Session};
use crate::checkpoint::Checkpoint;
use crate::error::{Error, Result};
use crate::kernels::{KnobPlan, Mat, Ops};
use crate::model::{LayerWeights, Observer, OuterWeights};
use rayon::ThreadPoolBuildError;
use std::ops::Range;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::thread::ScopedJoinHandle;
use std::time::Duration;

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
        let _reader = Reader(scope.spawn(move || {
            for i in read {
                // The receiver is gone when a layer failed: stop reading.
                if tx.send(loader.layer(i)).is_err() {
                    return;
                }
            }
        }));
        // Goes before the reader is waited for, which then stops.
        let rx = rx;
        for i in layers {
            each(i, &receive(&rx)??)?;
            progress.step();
        }
        Ok(())
    })
}

/// The reader thread. Whoever drops it, even because of a panic, works for the pool until it ends: it may be waiting
/// for the pool, and the dropping thread may be the only one the pool has.
struct Reader<'scope>(ScopedJoinHandle<'scope, ()>);

impl Drop for Reader<'_> {
    fn drop(&mut self) {
        while !self.0.is_finished() {
            rayon::yield_now();
            std::thread::sleep(MOMENT);
        }
    }
}

/// How long a thread sleeps before it looks for work of the pool.
const MOMENT: Duration = Duration::from_micros(200);

/// Waits for the reader. The reader decodes on the pool, and the waiting thread may be the only
/// one the pool has: it works for the pool while it waits.
fn receive<T>(rx: &Receiver<T>) -> Result<T> {
    loop {
        match rx.recv_timeout(MOMENT) {
            Ok(layer) => return Ok(layer),
            Err(RecvTimeoutError::Timeout) => drop(rayon::yield_now()),
            Err(RecvTimeoutError::Disconnected) => return Err(Error::bug("the reader thread stopped")),
        }
    }
}

/// Makes the calling thread one of the `threads` (`None`: as many as the machine has CPUs) workers of the pool: a
/// thread outside it would hand every operation over and be woken up for the next. Fails if the pool is running.
pub fn work_on_this_thread(threads: Option<usize>) -> std::result::Result<(), ThreadPoolBuildError> {
    rayon::ThreadPoolBuilder::new().num_threads(threads.unwrap_or(0)).use_current_thread().build_global()
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
    Ok(session.ops.retrieve(logits))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Catches a pool whose only thread waits for a reader that waits for the pool.
    #[test]
    fn the_only_thread_of_a_pool_works_while_it_waits() {
        let (done, finished) = sync_channel(1);
        std::thread::spawn(move || {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(1).build().unwrap();
            let got = pool.install(|| {
                let (tx, rx) = sync_channel(0);
                std::thread::scope(|s| {
                    // As a reader that decodes on the pool.
                    s.spawn(|| tx.send(pool.install(|| 7)));
                    receive(&rx).unwrap()
                })
            });
            done.send(got).unwrap();
        });
        assert_eq!(finished.recv_timeout(Duration::from_secs(20)), Ok(7));
    }
}
