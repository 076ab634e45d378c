use super::*;
use crate::kernels::presets::PRESETS;
use crate::kernels::{Class, Knobs};

/// Catches a fault with a misspelt knob, a value it does not take, or no effect at all.
#[test]
fn every_fault_is_valid_and_moves_a_knob() {
    for f in FAULTS.iter().chain(CONTROLS) {
        let mut golden = Knobs::default();
        for (path, value) in f.both() {
            golden.set(&path, &value).unwrap_or_else(|e| panic!("{}: {e}", f.name));
        }
        let mut k = golden;
        for (path, value) in f.settings() {
            k.set(&path, &value).unwrap_or_else(|e| panic!("{}: {e}", f.name));
        }
        assert_eq!(f.settings().len(), f.settings.split(',').count(), "{}", f.name);
        assert!(k != golden, "{} is golden", f.name);
        assert!(
            !k.is_golden_at(f.guilty()) || !golden.is_golden_at(f.guilty()),
            "{} does not touch {}",
            f.name,
            f.guilty()
        );
        assert!(('A'..='K').contains(&f.class) || f.class == 'N');
    }
}

/// Catches a fault that the floor pays for: one made of declared formats alone can never be
/// told from a quantised kernel.
#[test]
fn a_fault_is_more_than_a_declared_format() {
    let only: Vec<&str> = FAULTS
        .iter()
        .filter(|f| {
            let mut golden = Knobs::default();
            f.both().iter().for_each(|(p, v)| golden.set(p, v).unwrap());
            let mut k = golden;
            f.settings().iter().for_each(|(p, v)| k.set(p, v).unwrap());
            let turned = k.diff(&golden);
            Knobs::defs()
                .iter()
                .filter(|d| turned.iter().any(|t| t.starts_with(&format!("{}.{}=", d.site, d.name))))
                .all(|d| d.class == Class::Format)
        })
        .map(|f| f.name)
        .collect();
    assert!(only.is_empty(), "{only:?}");
}

/// Catches a fault that was dropped from the list: those that no release may miss.
#[test]
fn the_faults_that_matter_most_are_here() {
    for name in [
        "hadamard_q_only",
        "relu_off",
        "idx_rope_pairing_swap",
        "idxk_layout_interleaved",
        "causal_limit_q_div_r",
        "early_exit_one_block_early",
        "oob_sentinel_zero",
        "coarse_fp16_cap",
        "width_silently_512",
        "idx_pool_not_carried",
        "window_ring_stale_on_hit",
        "compressed_branch_masked",
        "lse_base_mismatch",
        "sink_per_split",
        "lanes_beyond_length",
        "theta_swap_ratio0",
        "comp_rope_pos_index",
        "overlap_off_in_decode",
        "comb_transposed",
        "scale_0x",
        "scale_2x",
        "scale_hash_layers_only",
        "tid2eid_bf16",
        "clamp_off_shared",
        "quant_then_ceil",
        "ue8m0_byte_as_value",
        "kv_layout_interleaved",
    ] {
        assert!(FAULTS.iter().any(|f| f.name == name), "{name}");
    }
}

/// Catches a name that means two things in a kernel spec.
#[test]
fn names_are_unique() {
    let mut names: Vec<&str> = FAULTS.iter().chain(CONTROLS).map(|f| f.name).collect();
    names.extend(PRESETS.iter().map(|p| p.name));
    names.extend(Site::ALL.iter().map(|s| s.name()));
    names.extend(["all", "none", "prefill", "decode"]);
    let n = names.len();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), n);
}
