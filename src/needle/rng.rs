//! Seeded choices. The generator is written out here, so that a seed means the same prompts in every version.

/// splitmix64 (Steele, Lea, Flood 2014).
#[derive(Debug, Clone)]
pub struct Rng(u64);

fn finish(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

impl Rng {
    /// A stream that depends on every one of `words`, and on their order.
    pub fn of(words: &[u64]) -> Rng {
        Rng(words.iter().fold(0x9e37_79b9_7f4a_7c15, |s, w| {
            finish(s.wrapping_mul(0x2545_f491_4f6c_dd1d).wrapping_add(*w).wrapping_add(1))
        }))
    }
    /// The next 64 bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        finish(self.0)
    }
    /// A number below `n`; `n` must not be 0. The bias of the multiplication is below n / 2^64.
    pub fn below(&mut self, n: usize) -> usize {
        ((u128::from(self.bits()) * n as u128) >> 64) as usize
    }
    /// One of `list`.
    pub fn pick<'a, T: ?Sized>(&mut self, list: &[&'a T]) -> &'a T {
        list[self.below(list.len())]
    }
    /// A random order.
    pub fn shuffle<T>(&mut self, list: &mut [T]) {
        for i in (1..list.len()).rev() {
            list.swap(i, self.below(i + 1));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Catches a generator whose prompts change between versions, or that ignores a part of its seed.
    #[test]
    fn a_seed_keeps_its_meaning() {
        let mut r = Rng::of(&[1, 2]);
        let first: Vec<usize> = (0..8).map(|_| r.below(10)).collect();
        assert_eq!(first, [7, 9, 4, 3, 8, 1, 1, 5]);
        assert_ne!(Rng::of(&[1, 2]).bits(), Rng::of(&[2, 1]).bits());
        assert_ne!(Rng::of(&[1]).bits(), Rng::of(&[1, 0]).bits());
    }

    #[test]
    fn choices_are_even() {
        let mut r = Rng::of(&[7]);
        let mut n = [0u32; 6];
        (0..6000).for_each(|_| n[r.below(6)] += 1);
        // Five standard deviations of a binomial count, √(6000·1/6·5/6) = 28.9.
        assert!(n.iter().all(|n| n.abs_diff(1000) < 145), "{n:?}");
        let mut list: Vec<usize> = (0..50).collect();
        r.shuffle(&mut list);
        assert_ne!(list, (0..50).collect::<Vec<_>>());
        list.sort_unstable();
        assert_eq!(list, (0..50).collect::<Vec<_>>());
    }
}
