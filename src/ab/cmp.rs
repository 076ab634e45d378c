//! How a gate compares two values.

use std::fmt;

/// How two values are compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cmp {
    /// `=` or `==`
    Eq,
    /// `!=`
    Ne,
    /// `<`
    Lt,
    /// `<=` or `≤`
    Le,
    /// `>`
    Gt,
    /// `>=` or `≥`
    Ge,
}

impl Cmp {
    const ALL: [(&'static str, Cmp); 9] = [
        ("<=", Cmp::Le),
        (">=", Cmp::Ge),
        ("!=", Cmp::Ne),
        ("==", Cmp::Eq),
        ("≤", Cmp::Le),
        ("≥", Cmp::Ge),
        ("=", Cmp::Eq),
        ("<", Cmp::Lt),
        (">", Cmp::Gt),
    ];

    /// Splits `a OP b`.
    pub(super) fn split(s: &str) -> Option<(&str, Cmp, &str)> {
        let (at, text, op) = Cmp::ALL
            .iter()
            .filter_map(|(t, op)| s.find(t).map(|i| (i, *t, *op)))
            .min_by_key(|(i, t, _)| (*i, usize::MAX - t.len()))?;
        Some((s[..at].trim(), op, s[at + text.len()..].trim()))
    }

    /// A NaN on either side holds for nothing but `!=`.
    pub(super) fn holds(self, a: f64, b: f64) -> bool {
        match self {
            Cmp::Eq => a == b,
            Cmp::Ne => a != b,
            Cmp::Lt => a < b,
            Cmp::Le => a <= b,
            Cmp::Gt => a > b,
            Cmp::Ge => a >= b,
        }
    }
}

impl fmt::Display for Cmp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Cmp::Eq => "=",
            Cmp::Ne => "!=",
            Cmp::Lt => "<",
            Cmp::Le => "<=",
            Cmp::Gt => ">",
            Cmp::Ge => ">=",
        })
    }
}
