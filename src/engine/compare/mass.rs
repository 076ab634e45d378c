//! Golden's attention, kept to tell what a selection that drops entries costs.

use crate::kernels::Mat;
use crate::model::Tap;

/// What golden attends with in the current layer.
#[derive(Default)]
pub(super) struct Attention {
    /// Queries of the block `[n, H·C]`.
    q: Mat,
    /// Natural log-sum-exp of the block `[n, H]`, sink included.
    lse: Mat,
    /// Compressed entries so far `[N, C]`.
    entries: Mat,
}

impl Attention {
    /// Takes a tap of golden's lane, if it is one of the three.
    pub fn see(&mut self, tap: Tap, m: &Mat) {
        match tap {
            Tap::AttnQ => self.q = m.clone(),
            Tap::AttnLse => self.lse = m.clone(),
            Tap::CompressorKv => self.entries.append(m),
            _ => {}
        }
    }

    /// Golden's attention at row `r` of the block, by entry, of the entries in `golden` that `measured`
    /// lacks; 0 for all others. The share of entry `j` at one head is `exp(q·k_j/√C − lse)`, where `lse`
    /// sums over all that golden attended to: the window, its selection and the sink. Heads are averaged.
    pub fn dropped(&self, r: usize, golden: &[i32], measured: &[i32], visible: usize) -> Vec<f32> {
        let mut mass = vec![0f32; visible];
        let (heads, dim) = (self.lse.cols, self.entries.cols);
        let mut have = measured.to_vec();
        have.sort_unstable();
        for j in golden.iter().filter(|j| have.binary_search(j).is_err()) {
            let Some(j) = usize::try_from(*j).ok().filter(|j| *j < visible.min(self.entries.rows)) else {
                continue;
            };
            let k = self.entries.row(j);
            let share = |(q, lse): (&[f32], &f32)| {
                let s: f64 = q.iter().zip(k).map(|(a, b)| *a as f64 * *b as f64).sum();
                (s / (dim as f64).sqrt() - *lse as f64).exp()
            };
            let sum: f64 = self.q.row(r).chunks_exact(dim).zip(self.lse.row(r)).map(share).sum();
            mass[j] = (sum / heads as f64) as f32;
        }
        mass
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Catches a wrong scale, a forgotten head, and mass of entries that were not dropped. Two heads of
    /// 4 dims, three entries; the window and the sink hold the rest of the attention.
    #[test]
    fn mass_of_dropped_entries_by_hand() {
        let mut a = Attention::default();
        a.see(Tap::AttnQ, &Mat::new(1, 8, vec![2.0, 0.0, 0.0, 0.0, 0.0, 4.0, 0.0, 0.0]));
        a.see(Tap::CompressorKv, &Mat::new(2, 4, vec![1.0, 0.0, 9.0, 9.0, 0.0, 1.0, 9.0, 9.0]));
        a.see(Tap::CompressorKv, &Mat::new(1, 4, vec![0.0; 4]));
        // Logits q·k/2: head 0 has 1, 0, 0; head 1 has 0, 2, 0. Denominators 4 and 16.
        a.see(Tap::AttnLse, &Mat::new(1, 2, vec![4f32.ln(), 16f32.ln()]));
        let share = |j: usize| [(1f64.exp() / 4.0 + 1.0 / 16.0), (1.0 / 4.0 + 2f64.exp() / 16.0)][j] / 2.0;
        let near = |a: f32, b: f64| (a as f64 - b).abs() < 1e-6;
        let m = a.dropped(0, &[0, 1, -1], &[1, 2, -1], 3);
        assert!(near(m[0], share(0)) && m[1..] == [0.0, 0.0], "{m:?}");
        let m = a.dropped(0, &[0, 1], &[-1, -1], 3);
        assert!(near(m[0], share(0)) && near(m[1], share(1)) && m[2] == 0.0, "{m:?}");
        assert_eq!(a.dropped(0, &[0, 1], &[1, 0], 3), [0.0; 3]);
    }
}
