//! A progress bar on standard error: on a terminal only, and only for what takes its time.

use crate::engine::Progress;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::IsTerminal;
use std::sync::Mutex;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

/// Nothing is shown before this.
const PATIENCE: Duration = Duration::from_secs(1);

/// Shows passes as bars, one after the other.
pub struct Bar {
    shown: bool,
    running: Mutex<Option<Running>>,
}

struct Running {
    bar: ProgressBar,
    stop: Sender<()>,
    waiter: JoinHandle<()>,
}

impl Bar {
    /// Shows nothing if `quiet` or standard error is no terminal.
    pub fn new(quiet: bool) -> Bar {
        Bar { shown: !quiet && std::io::stderr().is_terminal(), running: Mutex::new(None) }
    }
    fn take(&self) -> Option<Running> {
        self.running.lock().unwrap_or_else(|e| e.into_inner()).take()
    }
}

impl Progress for Bar {
    fn begin(&self, what: &str, steps: usize) {
        self.end();
        if !self.shown {
            return;
        }
        let bar = ProgressBar::with_draw_target(Some(steps as u64), ProgressDrawTarget::hidden());
        let style = ProgressStyle::with_template("{msg} {pos}/{len} [{bar:30}] {elapsed} (about {eta} left)");
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()).progress_chars("=> "));
        bar.set_message(what.to_owned());
        let (stop, stopped) = channel();
        let late = bar.clone();
        let waiter = std::thread::spawn(move || {
            if stopped.recv_timeout(PATIENCE) == Err(RecvTimeoutError::Timeout) {
                late.set_draw_target(ProgressDrawTarget::stderr());
                late.enable_steady_tick(Duration::from_millis(250));
            }
        });
        *self.running.lock().unwrap_or_else(|e| e.into_inner()) = Some(Running { bar, stop, waiter });
    }
    fn step(&self) {
        if let Some(r) = &*self.running.lock().unwrap_or_else(|e| e.into_inner()) {
            r.bar.inc(1);
        }
    }
    fn end(&self) {
        if let Some(r) = self.take() {
            drop(r.stop);
            let _ = r.waiter.join();
            r.bar.finish_and_clear();
        }
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        self.end();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Catches a bar that waits for its second when the work is done, or that hangs.
    #[test]
    fn a_short_pass_ends_at_once() {
        let b = Bar { shown: true, running: Mutex::new(None) };
        let t = std::time::Instant::now();
        for _ in 0..20 {
            b.begin("layers", 2);
            b.step();
            b.end();
        }
        b.begin("left open", 1);
        drop(b);
        assert!(t.elapsed() < PATIENCE);
    }
}
