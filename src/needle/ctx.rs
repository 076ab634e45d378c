//! The grammar of `--ctx`: which context lengths a grid has.

use crate::error::{Error, Result};

/// More lengths than anybody wants to read.
const MAX_LENGTHS: usize = 4096;

/// How to write lengths.
const HINT: &str =
    "lengths are written 4k, 2k,8k (a list), 2k..32k (doubling) or 2k..32k:+2k (steps); k is 1024";

/// Parses `4k`, `2k,8k`, `2k..32k`, `2k..32k:+2k`; ascending and without repeats.
pub fn parse(text: &str) -> Result<Vec<usize>> {
    let mut all = Vec::new();
    for part in text.split(',').map(str::trim) {
        let bad = |what: &str| Error::usage(format!("'{part}' in --ctx {what}")).hint(HINT);
        match part.split_once("..") {
            None => all.push(length(part).ok_or_else(|| bad("is no length"))?),
            Some((from, rest)) => {
                let (to, step) = rest.split_once(':').map_or((rest, None), |(a, b)| (a, Some(b)));
                let from = length(from).ok_or_else(|| bad("does not begin with a length"))?;
                let to = length(to).ok_or_else(|| bad("does not end with a length"))?;
                if to < from {
                    return Err(bad("runs backwards"));
                }
                let step = match step {
                    None => None,
                    Some(s) => Some(
                        s.strip_prefix('+').and_then(length).ok_or_else(|| bad("has no step like +2k"))?,
                    ),
                };
                let mut n = from;
                while n <= to {
                    all.push(n);
                    if all.len() > MAX_LENGTHS {
                        return Err(bad("has too many lengths"));
                    }
                    n = match step {
                        Some(s) => n.saturating_add(s),
                        None => n.saturating_mul(2),
                    };
                }
            }
        }
    }
    all.sort_unstable();
    all.dedup();
    Ok(all)
}

/// `512`, `4k`, `1m`.
fn length(text: &str) -> Option<usize> {
    let text = text.trim();
    let (digits, factor) = match text.as_bytes().last()? {
        b'k' | b'K' => (&text[..text.len() - 1], 1 << 10),
        b'm' | b'M' => (&text[..text.len() - 1], 1 << 20),
        _ => (text, 1),
    };
    if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    digits.parse::<usize>().ok()?.checked_mul(factor).filter(|n| *n > 0)
}

/// Every length followed by the next ones, until all residues modulo `modulus` are there.
pub fn sweep(lengths: &[usize], modulus: usize) -> Vec<usize> {
    let mut all: Vec<usize> = lengths.iter().flat_map(|n| *n..n.saturating_add(modulus.max(1))).collect();
    all.sort_unstable();
    all.dedup();
    all
}

/// `2k` for 2048, `2,050` for what is no multiple of 1024.
pub fn short(n: usize) -> String {
    if n >= 1024 && n.is_multiple_of(1024) { format!("{}k", n / 1024) } else { n.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_and_ranges() {
        assert_eq!(parse("4k").unwrap(), [4096]);
        assert_eq!(parse("8k,2k, 2048").unwrap(), [2048, 8192]);
        assert_eq!(parse("2k..32k").unwrap(), [2048, 4096, 8192, 16384, 32768]);
        assert_eq!(parse("2k..31k").unwrap(), [2048, 4096, 8192, 16384]);
        assert_eq!(parse("2k..8k:+3k").unwrap(), [2048, 5120, 8192]);
        assert_eq!(parse("500,1k..2k:+512").unwrap(), [500, 1024, 1536, 2048]);
        for bad in
            ["", "k", "0", "-1", "2k..", "8k..2k", "2k..8k:2k", "2k..8k:+0", "1..9999999:+1", "4kb", "1e3"]
        {
            let e = parse(bad).unwrap_err();
            assert!(e.to_string().contains("hint:"), "{bad}");
        }
    }

    #[test]
    fn a_sweep_has_every_residue() {
        assert_eq!(sweep(&[8, 9], 4), [8, 9, 10, 11, 12]);
        let s = sweep(&[2048], 128);
        assert_eq!(s.len(), 128);
        assert_eq!((s[0], s[127]), (2048, 2175));
    }

    #[test]
    fn lengths_read_well() {
        assert_eq!(short(2048), "2k");
        assert_eq!(short(2050), "2050");
        assert_eq!(short(512), "512");
    }
}
