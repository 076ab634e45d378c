//! The dense host tensor every CPU op works on, and the row-parallel loop.

use rayon::prelude::*;

/// A row-major f32 matrix `[rows, cols]`. Higher-rank tensors are stored with their trailing
/// axes flattened: streams `[T, S*D]`, heads `[T, H*C]`.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Mat {
    /// Number of rows (tokens or compressed entries).
    pub rows: usize,
    /// Number of columns.
    pub cols: usize,
    /// `rows * cols` values, row-major.
    pub data: Vec<f32>,
}

impl Mat {
    /// A matrix of zeros.
    pub fn zeros(rows: usize, cols: usize) -> Self {
        Mat { rows, cols, data: vec![0.0; rows * cols] }
    }
    /// Wraps `data`, which must hold exactly `rows * cols` values.
    pub fn new(rows: usize, cols: usize, data: Vec<f32>) -> Self {
        assert_eq!(data.len(), rows * cols, "a [{rows}, {cols}] matrix needs {} values", rows * cols);
        Mat { rows, cols, data }
    }
    /// Row `r`.
    pub fn row(&self, r: usize) -> &[f32] {
        &self.data[r * self.cols..(r + 1) * self.cols]
    }
    /// Row `r`, mutable.
    pub fn row_mut(&mut self, r: usize) -> &mut [f32] {
        &mut self.data[r * self.cols..(r + 1) * self.cols]
    }
    /// Rows `from..to` copied out.
    pub fn slice(&self, from: usize, to: usize) -> Mat {
        Mat::new(to - from, self.cols, copied(&self.data[from * self.cols..to * self.cols]))
    }
    /// Appends the rows of `other`.
    pub fn append(&mut self, other: &Mat) {
        if self.rows == 0 {
            self.cols = other.cols;
        }
        assert_eq!(self.cols, other.cols, "appending rows of another width");
        self.data.extend_from_slice(&other.data);
        self.rows += other.rows;
    }
    /// Drops the first `n` rows.
    pub fn forget_rows(&mut self, n: usize) {
        self.data.drain(..n * self.cols);
        self.rows -= n;
    }
    /// Overwrites the rows starting at `at` with those of `src`.
    pub fn write_rows(&mut self, at: usize, src: &Mat) {
        assert_eq!(self.cols, src.cols);
        let to = &mut self.data[at * self.cols..(at + src.rows) * self.cols];
        if to.len() < PAR_COPY {
            to.copy_from_slice(&src.data);
        } else {
            let piece = to.len().div_ceil(rayon::current_num_threads());
            (to.par_chunks_mut(piece).zip(src.data.par_chunks(piece)))
                .for_each(|(a, b)| a.copy_from_slice(b));
        }
    }
}

/// Values from which a copy is worth dividing.
const PAR_COPY: usize = 1 << 16;

/// A copy made by all threads, without writing zeros first.
fn copied(data: &[f32]) -> Vec<f32> {
    match data.as_chunks::<64>() {
        (blocks, []) if data.len() >= PAR_COPY => {
            blocks.par_iter().with_min_len(PAR_COPY / 256).copied().collect::<Vec<_>>().into_flattened()
        }
        _ => data.to_vec(),
    }
}

/// Selected index sets, one per token: `ids[t*k..][..k]`, `-1` = none, valid ids first.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Index {
    /// Number of tokens.
    pub rows: usize,
    /// Slots per token.
    pub k: usize,
    /// `rows * k` ids, `-1` where a slot is empty.
    pub ids: Vec<i32>,
}

impl Index {
    /// An index set of `rows` tokens with `k` empty slots each.
    pub fn empty(rows: usize, k: usize) -> Self {
        Index { rows, k, ids: vec![-1; rows * k] }
    }
    /// The slots of token `r`.
    pub fn row(&self, r: usize) -> &[i32] {
        &self.ids[r * self.k..(r + 1) * self.k]
    }
    /// The slots of token `r`, mutable.
    pub fn row_mut(&mut self, r: usize) -> &mut [i32] {
        &mut self.ids[r * self.k..(r + 1) * self.k]
    }
}

/// Rows one task works on. Fixed, so that nothing depends on the number of threads; every op is
/// row-local, so the value changes speed only, never a bit.
pub const TASK_ROWS: usize = 48;

/// Runs `f(first_row, rows_of_out)` over blocks of [`TASK_ROWS`] rows of `out`, in parallel.
pub fn par_rows(out: &mut Mat, f: impl Fn(usize, &mut [f32]) + Sync) {
    let cols = out.cols;
    if out.rows == 0 || cols == 0 {
        return;
    }
    if out.rows <= TASK_ROWS {
        f(0, &mut out.data);
        return;
    }
    out.data.par_chunks_mut(TASK_ROWS * cols).enumerate().for_each(|(i, chunk)| f(i * TASK_ROWS, chunk));
}
