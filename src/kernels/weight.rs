//! Weights as the CPU backend keeps them.

use super::gemm::Packed;
use super::round::round;
use super::values::Fmt;
use std::sync::{Arc, Mutex};

/// A packed weight and its rounded copies, made once per format.
#[derive(Debug, Default)]
pub struct Weight {
    exact: Arc<Packed>,
    rounded: Mutex<Vec<(Fmt, Arc<Packed>)>>,
}

impl Weight {
    /// Packs a row-major `[n, k]` weight.
    pub fn new(n: usize, k: usize, data: &[f32]) -> Weight {
        Weight { exact: Arc::new(Packed::new(n, k, data)), rounded: Mutex::default() }
    }
    /// The weight rounded to `f` along its rows.
    pub fn at(&self, f: Fmt) -> Arc<Packed> {
        if f == Fmt::F32 {
            return self.exact.clone();
        }
        let mut cache = self.rounded.lock().expect("no thread panics while rounding");
        if let Some((_, w)) = cache.iter().find(|(g, _)| *g == f) {
            return w.clone();
        }
        let mut m = self.exact.unpack();
        round(&mut m, f);
        let w = Arc::new(Packed::new(m.rows, m.cols, &m.data));
        cache.push((f, w.clone()));
        w
    }
}
