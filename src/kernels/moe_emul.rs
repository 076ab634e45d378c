//! Router and expert arithmetic as it goes wrong, or merely differs, in fast kernels.

use super::gemm::Packed;
use super::knobs::{ExpertsKnobs, RouterKnobs};
use super::ops::MoeShape;
use super::round::round_row;
use super::values::{Alpha, Scale, Softplus, TableDtype};
use crate::numeric::{bf16, f16, scale};

/// Router score with softplus evaluated and rounded as `k` says.
pub fn score(logit: f32, k: &RouterKnobs) -> f32 {
    let s = match k.softplus {
        Softplus::Stable => super::moe::score(logit),
        Softplus::Naive => (1.0 + logit.exp()).ln().sqrt(),
        Softplus::NaiveF16 => f16::round(f16::round(1.0 + f16::round(logit.exp())).ln()).sqrt(),
    };
    let mut s = [s];
    round_row(&mut s, k.score_dtype);
    s[0]
}

/// Expert ids as read back from a table that went through another type.
pub fn read_ids(ids: &mut [i32], experts: usize, table: TableDtype) {
    for id in ids {
        *id = match table {
            TableDtype::Int => continue,
            TableDtype::Bf16 => bf16::round(*id as f32) as i32,
            // Spacing 2 from half the experts on, odd ids to the even neighbour whose half is even.
            TableDtype::Coarse if *id as usize * 2 >= experts => *id + [0, -1, 0, 1][(*id % 4) as usize],
            TableDtype::Coarse => continue,
        }
        .min(experts as i32 - 1);
    }
}

/// The SwiGLU limit in force.
pub fn limit(s: &MoeShape, k: &ExpertsKnobs) -> Option<f32> {
    s.limit.map(|l| if k.limit_percent == 100 { l } else { l * k.limit_percent as f32 / 100.0 })
}

/// What the runner multiplies the routed sum by, beyond what the weights carry.
pub fn runner_factor(s: &MoeShape, k: &ExpertsKnobs) -> f32 {
    match k.scale {
        _ if s.batch <= k.scale_above as usize => 1.0,
        Scale::Once => 1.0,
        Scale::Never => 1.0 / s.factor,
        Scale::Twice => s.factor,
    }
}

/// Factors on the gate and up products of one expert that wrong per-tensor scales leave behind.
pub struct AlphaFactors {
    swap: f32,
    input: bool,
}

impl AlphaFactors {
    /// Those of `alpha` for gate and up weights; `None` if there are none.
    pub fn new(w1: &Packed, w3: &Packed, alpha: Alpha) -> Option<AlphaFactors> {
        let global = |w: &Packed| scale::amax(&w.unpack().data).max(f32::MIN_POSITIVE);
        match alpha {
            Alpha::Exact => None,
            Alpha::Swapped => Some(AlphaFactors { swap: global(w3) / global(w1), input: false }),
            Alpha::InputScaleTwice => Some(AlphaFactors { swap: 1.0, input: true }),
        }
    }
    /// Applies them to the products of the input row `x`.
    pub fn apply(&self, x: &[f32], g: &mut [f32], u: &mut [f32]) {
        let input = if self.input { scale::amax(x) / (6.0 * 448.0) } else { 1.0 };
        g.iter_mut().for_each(|v| *v *= self.swap * input);
        u.iter_mut().for_each(|v| *v *= input / self.swap);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::knobs::Knobs;

    /// Catches a coarse table that merges no ids, or ids of the exact half.
    #[test]
    fn a_coarse_table_merges_odd_ids_of_the_upper_half() {
        let read = |mut v: Vec<i32>, e, t| {
            read_ids(&mut v, e, t);
            v
        };
        let ids: Vec<i32> = (0..8).collect();
        assert_eq!(read(ids.clone(), 8, TableDtype::Coarse), [0, 1, 2, 3, 4, 4, 6, 7]);
        assert_eq!(read(ids.clone(), 8, TableDtype::Bf16), ids);
        // With 512 experts the coarse table is bfloat16's.
        let big: Vec<i32> = (0..512).collect();
        assert_eq!(read(big.clone(), 512, TableDtype::Coarse), read(big, 512, TableDtype::Bf16));
    }

    /// Catches an overflow that does not happen where it should, and a threshold that is off by one.
    #[test]
    fn naive_softplus_overflows_and_runners_choose_by_size() {
        let by = |x, softplus| score(x, &RouterKnobs { softplus, ..Knobs::default().router });
        assert!(by(89.0, Softplus::Naive).is_infinite() && by(89.0, Softplus::Stable).is_finite());
        assert!(by(12.0, Softplus::NaiveF16).is_infinite() && by(11.0, Softplus::NaiveF16).is_finite());
        let k = ExpertsKnobs { scale: Scale::Never, scale_above: 8, ..Knobs::default().experts };
        let s = |batch| MoeShape { limit: None, factor: 1.5, topk: 2, batch };
        assert_eq!((runner_factor(&s(8), &k), runner_factor(&s(9), &k)), (1.0, 1.0 / 1.5));
        assert_eq!(runner_factor(&s(1), &ExpertsKnobs { scale_above: 0, ..k }), 1.0 / 1.5);
    }
}
