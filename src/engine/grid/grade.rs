//! Grading of one answer token from the logits that predict it.

use super::TokenGrade;

/// Grades `expected` by the logits of the position before it. A logit that is no number is never chosen and never
/// beats anything; an expected token whose logit is none is lost to every other.
pub(super) fn token_grade(logits: &[f32], position: usize, expected: u32) -> TokenGrade {
    let value = |i: usize| if logits[i].is_nan() { f32::NEG_INFINITY } else { logits[i] };
    let e = expected as usize;
    let own = value(e);
    let lost = logits[e].is_nan();
    let (mut rank, mut top, mut other) = (0, 0, f32::NEG_INFINITY);
    for i in 0..logits.len() {
        let v = value(i);
        if v > value(top) {
            top = i;
        }
        if i != e {
            other = other.max(v);
            rank += (v > own || (v == own && (i < e || lost))) as u32;
        }
    }
    let most = f64::from(value(top));
    let sum: f64 = (0..logits.len()).map(|i| (f64::from(value(i)) - most).exp()).sum();
    TokenGrade {
        position,
        expected,
        top: top as u32,
        rank,
        logprob: f64::from(own) - most - sum.ln(),
        margin: f64::from(own) - f64::from(other),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Catches a tie that is won by the higher id, and a rank that counts the token itself.
    #[test]
    fn ranks_count_larger_logits_and_earlier_equals() {
        let l = [1.0, 3.0, 3.0, 2.0];
        let g = |e| token_grade(&l, 7, e);
        assert_eq!((g(1).rank, g(2).rank, g(3).rank, g(0).rank), (0, 1, 2, 3));
        assert_eq!((g(1).top, g(2).top), (1, 1));
        assert_eq!((g(1).margin, g(3).margin, g(0).margin), (0.0, -1.0, -2.0));
        let p: f64 = (0..4).map(|e| g(e).logprob.exp()).sum();
        assert!((p - 1.0).abs() < 1e-12);
        assert_eq!(g(3).position, 7);
    }

    /// Catches a NaN that counts as an exact match.
    #[test]
    fn a_logit_that_is_no_number_is_lost() {
        assert_eq!(token_grade(&[f32::NAN, 0.0, f32::NAN], 0, 0).rank, 2);
        assert_eq!(token_grade(&[f32::NAN, 0.0], 0, 1).rank, 0);
        assert_eq!(token_grade(&[f32::NAN, f32::NAN], 0, 1).rank, 1);
    }
}
