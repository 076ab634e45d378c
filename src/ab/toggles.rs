//! Which sets of toggles are run, and what their results say about each toggle.

use std::collections::BTreeMap;

/// A set of toggles, as bits by number.
pub type Set = u64;

/// The most toggles an experiment may have.
pub const MOST: usize = 32;

/// All of `n` toggles.
pub fn all(n: usize) -> Set {
    (1u64 << n) - 1
}

/// The sets an experiment runs besides golden and A/A: each toggle alone, all together, all but one, and pairs when
/// asked for. No set twice, in this order.
pub fn sets(n: usize, pairs: bool) -> Vec<Set> {
    let mut out: Vec<Set> = (0..n).map(|i| 1 << i).collect();
    let mut add = |s: Set| {
        if s != 0 && !out.contains(&s) {
            out.push(s);
        }
    };
    add(all(n));
    (0..n).for_each(|i| add(all(n) & !(1 << i)));
    if pairs {
        for i in 0..n {
            (i + 1..n).for_each(|j| add(1 << i | 1 << j));
        }
    }
    out
}

/// The toggles of a set.
pub fn members(s: Set) -> impl Iterator<Item = usize> {
    (0..64).filter(move |i| s >> i & 1 == 1)
}

/// What a set is called: its toggles' names, `all` and `all but NAME` where that is shorter.
pub fn name(s: Set, names: &[String]) -> String {
    let n = names.len();
    let missing: Vec<usize> = members(all(n) & !s).collect();
    match missing[..] {
        _ if s == 0 => "golden".into(),
        [] if n > 1 => "all".into(),
        [one] if n > 2 => format!("all but {}", names[one]),
        _ => members(s).map(|i| names[i].as_str()).collect::<Vec<_>>().join(" + "),
    }
}

/// Pairs that fail although neither fails alone. `fails` holds what was run.
pub fn interactions(fails: &BTreeMap<Set, bool>) -> Vec<(usize, usize)> {
    let alone = |i: usize| fails.get(&(1 << i)).copied().unwrap_or(true);
    let mut out = Vec::new();
    for (s, failed) in fails {
        let m: Vec<usize> = members(*s).collect();
        if let [a, b] = m[..]
            && *failed
            && !alone(a)
            && !alone(b)
        {
            out.push((a, b));
        }
    }
    out
}

/// Looks for a smallest set of toggles that fails, asking for as few new sets as it can. `ask` gets the sets that are
/// needed at once (they share a pass) and answers which fail; `known` is what was run before.
///
/// Sizes one and two are searched whole, so a set of at most two is a smallest one. A larger result is found by
/// halving what is left (delta debugging): each of its toggles is needed, but another set might be smaller.
pub fn bisect<E>(
    n: usize,
    known: &BTreeMap<Set, bool>,
    mut ask: impl FnMut(&[Set]) -> Result<Vec<bool>, E>,
) -> Result<Option<Set>, E> {
    let mut known = known.clone();
    let mut test = |sets: &[Set], known: &mut BTreeMap<Set, bool>| -> Result<Option<Set>, E> {
        let mut new: Vec<Set> = Vec::new();
        for s in sets.iter().filter(|s| !known.contains_key(s)) {
            // Halves of a set are each other's rest.
            if !new.contains(s) {
                new.push(*s);
            }
        }
        if !new.is_empty() {
            for (s, f) in new.iter().zip(ask(&new)?) {
                known.insert(*s, f);
            }
        }
        Ok(sets.iter().copied().find(|s| known[s]))
    };
    let singles: Vec<Set> = (0..n).map(|i| 1 << i).collect();
    if let Some(s) = test(&singles, &mut known)? {
        return Ok(Some(s));
    }
    if test(&[all(n)], &mut known)?.is_none() {
        return Ok(None);
    }
    let pairs: Vec<Set> = (0..n).flat_map(|i| (i + 1..n).map(move |j| 1 << i | 1 << j)).collect();
    if let Some(s) = test(&pairs, &mut known)? {
        return Ok(Some(s));
    }
    // Nothing of one or two fails, everything together does.
    let mut set = all(n);
    let mut parts = 2;
    loop {
        let m: Vec<usize> = members(set).collect();
        let cut: Vec<Set> =
            m.chunks(m.len().div_ceil(parts)).map(|c| c.iter().fold(0, |s, i| s | 1 << i)).collect();
        let rest: Vec<Set> = cut.iter().map(|c| set & !c).filter(|s| *s != 0).collect();
        let tried: Vec<Set> = cut.iter().copied().filter(|c| *c != set).chain(rest).collect();
        match test(&tried, &mut known)? {
            Some(s) => {
                set = s;
                parts = 2;
            }
            None if parts >= m.len() => return Ok(Some(set)),
            None => parts = (2 * parts).min(m.len()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::convert::Infallible;

    fn names(n: usize) -> Vec<String> {
        (0..n).map(|i| ["a", "b", "c", "d"][i].to_string()).collect()
    }

    #[test]
    fn sets_and_their_names() {
        let of = |n, pairs| sets(n, pairs).iter().map(|s| name(*s, &names(n))).collect::<Vec<_>>();
        assert_eq!(of(1, true), ["a"]);
        assert_eq!(of(2, false), ["a", "b", "all"]);
        assert_eq!(of(3, false), ["a", "b", "c", "all", "all but a", "all but b", "all but c"]);
        assert_eq!(of(3, true).len(), 7, "pairs of three are all but one");
        assert_eq!(of(4, true).len(), 4 + 1 + 4 + 6);
        assert_eq!(name(0, &names(2)), "golden");
    }

    /// Catches a pair blamed for what one of it does alone.
    #[test]
    fn interactions_need_two() {
        let fails = BTreeMap::from([(1, false), (2, false), (4, true), (3, true), (5, true), (6, false)]);
        assert_eq!(interactions(&fails), [(0, 1)]);
    }

    /// Catches a search that ends too large, finds nothing, or asks twice.
    #[test]
    fn bisect_finds_every_smallest_set() {
        for n in 1..7 {
            for culprit in 1..=all(n) {
                let mut asked: Vec<Set> = Vec::new();
                let found = bisect::<Infallible>(n, &BTreeMap::new(), |s| {
                    asked.extend(s);
                    Ok(s.iter().map(|s| s & culprit == culprit).collect())
                });
                assert_eq!(found, Ok(Some(culprit)), "{n} {culprit:b}");
                let mut unique = asked.clone();
                unique.sort_unstable();
                unique.dedup();
                assert_eq!(unique.len(), asked.len());
            }
            let none = bisect::<Infallible>(n, &BTreeMap::new(), |s| Ok(vec![false; s.len()]));
            assert_eq!(none, Ok(None));
        }
    }

    /// Catches a search that runs again what is known.
    #[test]
    fn what_is_known_is_not_asked_again() {
        let known: BTreeMap<Set, bool> = [(1, false), (2, true), (3, true)].into();
        let found = bisect::<Infallible>(2, &known, |_| panic!("nothing to ask"));
        assert_eq!(found, Ok(Some(2)));
    }
}
