//! A cheap identity of a checkpoint's content: FNV-1a, 128 bits. It tells models apart; it is no defence against forgery.

use super::Checkpoint;
use crate::fnv::Fnv;

/// Models up to this size are hashed whole, larger ones by header, size and samples.
const WHOLE: usize = 64 << 20;
const SAMPLES: usize = 256;
const SAMPLE_BYTES: usize = 4096;

pub(super) fn of(c: &Checkpoint) -> String {
    let mut h = Fnv::default();
    h.add(c.config_bytes.iter().copied());
    let total: usize = c.files.iter().map(|f| f.all().len()).sum();
    for file in &c.files {
        let all = file.all();
        h.add((all.len() as u64).to_le_bytes());
        if total <= WHOLE {
            h.add(all.iter().copied());
            continue;
        }
        h.add(file.header().iter().copied());
        let step = (all.len() / SAMPLES).max(SAMPLE_BYTES);
        for at in (0..all.len()).step_by(step) {
            h.add(all[at..(at + SAMPLE_BYTES).min(all.len())].iter().copied());
        }
    }
    h.hex()
}
