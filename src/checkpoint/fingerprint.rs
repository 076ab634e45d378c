//! A cheap identity of a checkpoint's content: FNV-1a, 128 bits. It tells models apart; it is no defence against forgery.

use super::Checkpoint;

/// Models up to this size are hashed whole, larger ones by header, size and samples.
const WHOLE: usize = 64 << 20;
const SAMPLES: usize = 256;
const SAMPLE_BYTES: usize = 4096;

struct Fnv(u128);

impl Fnv {
    fn add(&mut self, bytes: &[u8]) {
        for b in bytes {
            self.0 = (self.0 ^ u128::from(*b)).wrapping_mul(0x0000_0000_0100_0000_0000_0000_0000_013b);
        }
    }
}

pub(super) fn of(c: &Checkpoint) -> String {
    let mut h = Fnv(0x6c62_272e_07bb_0142_62b8_2175_6295_c58d);
    h.add(&c.config_bytes);
    let total: usize = c.files.iter().map(|f| f.all().len()).sum();
    for file in &c.files {
        let all = file.all();
        h.add(&(all.len() as u64).to_le_bytes());
        if total <= WHOLE {
            h.add(all);
            continue;
        }
        h.add(file.header());
        let step = (all.len() / SAMPLES).max(SAMPLE_BYTES);
        for at in (0..all.len()).step_by(step) {
            h.add(&all[at..(at + SAMPLE_BYTES).min(all.len())]);
        }
    }
    format!("{:032x}", h.0)
}
