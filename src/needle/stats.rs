//! Rates with their intervals, paired comparisons, and how many more trials would settle them.

use crate::metrics::interval::{mcnemar_exact, wilson95};
use serde::Serialize;

/// Where the search for the number of trials that would settle something stops.
const MANY: u64 = 1_000_000;
/// Two-sided significance of a paired comparison.
pub const ALPHA: f64 = 0.05;

/// A success rate with Wilson's 95 % interval.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Rate {
    /// Successes.
    pub hits: u64,
    /// Trials.
    pub n: u64,
    /// `hits / n`; null without trials.
    pub rate: Option<f64>,
    /// Lower end of the interval.
    pub low: f64,
    /// Upper end of the interval.
    pub high: f64,
}

impl Rate {
    /// Counts `true`.
    pub fn of(outcomes: impl IntoIterator<Item = bool>) -> Rate {
        let (mut hits, mut n) = (0, 0);
        outcomes.into_iter().for_each(|o| {
            hits += u64::from(o);
            n += 1;
        });
        Rate::new(hits, n)
    }
    /// `hits` of `n`.
    pub fn new(hits: u64, n: u64) -> Rate {
        let (low, high) = wilson95(hits, n);
        Rate { hits, n, rate: (n > 0).then(|| hits as f64 / n as f64), low, high }
    }
    /// Surely at or above `limit`.
    pub fn reaches(&self, limit: f64) -> bool {
        self.n > 0 && self.low >= limit
    }
    /// Surely below `limit`.
    pub fn fails(&self, limit: f64) -> bool {
        self.n > 0 && self.high < limit
    }
    /// Trials beyond these that would put the interval on one side of `limit`, the rate staying what it is; 0 if it
    /// already is there, `None` if the rate is the limit (or nearly).
    pub fn more_to_settle(&self, limit: f64) -> Option<u64> {
        let p = self.rate?;
        let mut n = self.n;
        while n < MANY {
            let (low, high) = wilson95((p * n as f64).round() as u64, n);
            if low >= limit || high < limit {
                return Some(n - self.n);
            }
            n += (n / 20).max(1);
        }
        None
    }
}

/// Two paths on the same trials.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Pair {
    /// Trials both were run on.
    pub n: u64,
    /// Right on the first path only.
    pub only_first: u64,
    /// Right on the second path only.
    pub only_second: u64,
    /// McNemar's exact two-sided p.
    pub p: f64,
    /// Trials beyond these that would make a difference of this size significant; 0 if it is, null if there is none.
    pub more: Option<u64>,
}

impl Pair {
    /// Counts pairs `(first right, second right)`.
    pub fn of(pairs: impl IntoIterator<Item = (bool, bool)>) -> Pair {
        let (mut n, mut b, mut c) = (0, 0, 0);
        for (first, second) in pairs {
            n += 1;
            b += u64::from(first && !second);
            c += u64::from(second && !first);
        }
        let p = mcnemar_exact(b, c);
        Pair { n, only_first: b, only_second: c, p, more: more_pairs(n, b, c) }
    }
    /// The second path is worse, and not by chance.
    pub fn second_is_worse(&self) -> bool {
        self.only_first > self.only_second && self.p < ALPHA
    }
    /// Shows a difference that is not significant yet.
    pub fn undecided(&self) -> bool {
        self.only_first != self.only_second && self.p >= ALPHA
    }
}

fn more_pairs(n: u64, b: u64, c: u64) -> Option<u64> {
    if b == c {
        return None;
    }
    let mut total = n;
    while total < MANY {
        let grown = |x: u64| (x as f64 * total as f64 / n as f64).round() as u64;
        if mcnemar_exact(grown(b), grown(c)) < ALPHA {
            return Some(total - n);
        }
        total += (total / 20).max(1);
    }
    None
}

/// How far recall is reliable.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Reliable {
    /// The rate asked for.
    pub limit: f64,
    /// Largest context at which, and at every shorter one, the lower end of the interval reaches the limit.
    pub surely_to: Option<usize>,
    /// Largest context at which, and at every shorter one, the upper end does: more trials may bring it this far.
    pub perhaps_to: Option<usize>,
    /// Trials beyond these at the first undecided context that would decide it.
    pub more: Option<u64>,
}

impl Reliable {
    /// From rates in ascending order of context; contexts without trials end the range.
    pub fn of(rates: &[(usize, Rate)], limit: f64) -> Reliable {
        let to = |good: &dyn Fn(&Rate) -> bool| {
            rates.iter().take_while(|(_, r)| r.n > 0 && good(r)).last().map(|(c, _)| *c)
        };
        let undecided = rates.iter().find(|(_, r)| !r.reaches(limit)).filter(|(_, r)| !r.fails(limit));
        Reliable {
            limit,
            surely_to: to(&|r| r.reaches(limit)),
            perhaps_to: to(&|r| !r.fails(limit)),
            more: undecided.and_then(|(_, r)| r.more_to_settle(limit)),
        }
    }
}

/// The element at quantile `q` of a sorted list (the nearest rank).
pub fn quantile<T: Copy>(sorted: &[T], q: f64) -> Option<T> {
    let i = ((q * sorted.len() as f64).ceil() as usize).max(1);
    sorted.get(i - 1).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reliable_range_ends_at_the_first_doubt() {
        let rates =
            [(1, Rate::new(60, 60)), (2, Rate::new(56, 60)), (3, Rate::new(60, 60)), (4, Rate::new(10, 60))];
        let r = Reliable::of(&rates, 0.9);
        assert_eq!((r.surely_to, r.perhaps_to), (Some(1), Some(3)));
        // 56 of 60 is 0.933: the lower end passes 0.9 after some hundred trials.
        let more = r.more.unwrap();
        let n = 60 + more;
        assert!(wilson95((n as f64 * 56.0 / 60.0).round() as u64, n).0 >= 0.9);
        let fewer = n * 9 / 10;
        assert!(wilson95((fewer as f64 * 56.0 / 60.0).round() as u64, fewer).0 < 0.9);
        assert_eq!(Reliable::of(&[(1, Rate::new(0, 0))], 0.9).surely_to, None);
    }

    #[test]
    fn pairs_count_only_what_differs() {
        let p = Pair::of([(true, true), (true, false), (false, false), (true, false), (false, true)]);
        assert_eq!((p.n, p.only_first, p.only_second), (5, 2, 1));
        assert!(p.undecided() && !p.second_is_worse());
        let n = p.n + p.more.unwrap();
        let grown = |x: f64| (x * n as f64 / 5.0).round() as u64;
        assert!(mcnemar_exact(grown(2.0), grown(1.0)) < ALPHA);
        assert_eq!(Pair::of([(true, true); 4]).more, None);
        assert!(Pair::of([(true, false); 10]).second_is_worse());
    }

    #[test]
    fn quantiles_are_members() {
        let v = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10];
        assert_eq!(quantile(&v, 0.5), Some(5));
        assert_eq!(quantile(&v, 0.9), Some(9));
        assert_eq!(quantile(&v, 0.0), Some(1));
        assert_eq!(quantile(&v, 1.0), Some(10));
        assert_eq!(quantile::<u32>(&[], 0.5), None);
    }
}
