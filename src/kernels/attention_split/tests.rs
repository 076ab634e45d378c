use super::*;
use crate::kernels::attention;
use crate::kernels::values::Window;
use proptest::prelude::*;

fn data(rows: usize, cols: usize, seed: u64) -> Mat {
    let mut s = seed;
    let v = (0..rows * cols)
        .map(|_| {
            s = s.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            ((s >> 40) as f32 / (1u64 << 24) as f32 - 0.5) * 4.0
        })
        .collect();
    Mat::new(rows, cols, v)
}

const RULES: [SplitRule; 3] = [SplitRule::Even, SplitRule::Chunk, SplitRule::Page];
const BASES: [Base; 2] = [Base::E, Base::Two];

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]
    /// Catches a split, tile, pass, base or merge that changes more than the order of sums, with masked slots and empty
    /// splits among them. Each output is a convex combination of values |v| <= 2; splits and tiles change only how exp
    /// arguments and sums round: exp has relative error 1.5u plus |z − m| u from its argument (twice that to base 2,
    /// whose argument is rounded once more), a sum of n terms n·u. With |z| <= 4·dim^½ <= 16 and n <= 18 that is below
    /// (2·16 + 3 + 18)·2u·|v| per side.
    #[test]
    fn splits_and_tiles_change_summation_order_only(
        splits in 1u32..33, tile in 0u32..70, chunk in 1u32..20, t in 0usize..40, seed in 0u64..1000,
        rule in 0usize..3, two in 0usize..2, exp2 in 0usize..2, lse2 in 0usize..2, in_max in any::<bool>(),
        holes in 0usize..6
    ) {
        let (h, c) = (2, 16);
        let (kv, comp, q) = (data(40, c, seed), data(10, c, seed + 1), data(1, h * c, seed + 2));
        let sinks = [0.3, -2.0];
        let s = AttnShape { heads: h, dim: c, window: 8, ratio: 4, sinks: &sinks };
        let k = AttnKnobs {
            splits, tile, chunk, split_rule: RULES[rule], exp_base: BASES[exp2], lse_base: BASES[lse2],
            passes: [Passes::One, Passes::Two][two], sink_in_max: in_max, ..AttnKnobs::default()
        };
        let seen = (t + 1) / 4;
        let mut ids: Vec<i32> = (0..seen.min(6) as i32).collect();
        ids.resize(seen.min(6) + holes, -1);
        let index = Index { rows: 1, k: ids.len(), ids };
        let bound = 2.0 * (2.0 * 16.0 + 3.0 + 18.0) * 2.0 * 2f32.powi(-24) * 2.0;
        for index in [None, Some(&index)] {
            let (a, la) = attention::attention(&q, &kv, &comp, index, t, &s, Window::Exact, true);
            let (b, lb) = attention(&q, &kv, &comp, index, t, &s, &k);
            for (x, y) in a.data.iter().zip(&b.data).chain(la.data.iter().zip(&lb.data)) {
                prop_assert!((x - y).abs() <= bound, "{} vs {}", x, y);
            }
        }
    }

    /// Catches a cut that loses a slot, doubles one, or puts slots out of order.
    #[test]
    fn cuts_cover_every_slot_once(
        n in 0usize..400, window in 0usize..200, splits in 1u32..20, chunk in 1u32..100, rule in 0usize..3,
        two in any::<bool>()
    ) {
        let passes = if two { Passes::Two } else { Passes::One };
        let k = AttnKnobs { splits, chunk, split_rule: RULES[rule], passes, ..AttnKnobs::default() };
        let mut at = 0;
        for c in cuts(n, window.min(n), &k) {
            prop_assert_eq!(c.start, at);
            at = c.end;
        }
        prop_assert_eq!(at, n);
    }
}

/// Catches a sink fault that leaves the LSE alone, and a per-split sink that is not counted.
#[test]
fn sink_faults_show_in_the_lse() {
    let (kv, q) = (data(8, 4, 1), data(1, 8, 2));
    let sinks = [1.0, 3.0];
    let s = AttnShape { heads: 2, dim: 4, window: 8, ratio: 0, sinks: &sinks };
    let at = |k: AttnKnobs, h: usize| attention(&q, &kv, &Mat::default(), None, 7, &s, &k).1.data[h] as f64;
    let g = AttnKnobs::default();
    for h in 0..2 {
        let none = at(AttnKnobs { sink: Sink::Dropped, ..g }, h);
        let sum = |n: f64, sink: f64| (none.exp() + n * sink.exp()).ln();
        let own = sinks[h] as f64;
        assert!((at(g, h) - sum(1.0, own)).abs() < 1e-6);
        assert!((at(AttnKnobs { sink: Sink::Twice, ..g }, h) - sum(2.0, own)).abs() < 1e-6);
        assert!((at(AttnKnobs { sink: Sink::PerSplit, splits: 3, ..g }, h) - sum(3.0, own)).abs() < 1e-6);
        assert!((at(AttnKnobs { sink: Sink::RankSlice, ..g }, h) - sum(1.0, 1.0)).abs() < 1e-6);
    }
}

/// Catches an empty-split marker, a masked slot or a garbage lane that is handled like a right one.
#[test]
fn slots_without_keys_show_where_they_take_part() {
    let (kv, comp, q) = (data(8, 4, 1), data(2, 4, 3), data(1, 4, 2));
    let sinks = [1.0];
    let s = AttnShape { heads: 1, dim: 4, window: 4, ratio: 4, sinks: &sinks };
    let index = Index { rows: 1, k: 8, ids: vec![1, -1, -1, -1, -1, -1, -1, -1] };
    let at = |k: AttnKnobs| attention(&q, &kv, &comp, Some(&index), 7, &s, &k).1.data[0];
    let g = AttnKnobs::default();
    let right = at(g);
    assert!((at(AttnKnobs { splits: 3, ..g }) - right).abs() < 1e-6);
    assert!(!at(AttnKnobs { splits: 3, empty: Empty::PosInf, ..g }).is_finite());
    let zero = at(AttnKnobs { splits: 3, empty: Empty::Zero, ..g }) as f64;
    assert!((zero - ((right as f64).exp() + 1.0).ln()).abs() < 1e-5);
    assert!(at(AttnKnobs { invalid: Invalid::EntryZero, ..g }) > right + 0.1);
    // 12 slots in tiles of 5: three lanes of the last tile repeat what the tile before held.
    assert!(at(AttnKnobs { tile: 5, lanes: Lanes::Garbage, ..g }) != right);
}
