//! Typed access to the config's JSON, with errors that name the key.

use serde_json::{Map, Value};

use crate::error::{Error, Result};

pub(super) fn missing(key: &str) -> Error {
    let hint = format!(
        "`{key}` changes the result, so it has no default here; copy it from the model's original config.json"
    );
    missing_because(key, &hint)
}

pub(super) fn missing_because(key: &str, hint: &str) -> Error {
    Error::input(format!("the config has no `{key}`")).hint(hint)
}

pub(super) fn refused(key: &str, value: &Value, only: &str) -> Error {
    Error::input(format!("`{key}`: {} is not supported", brief(value)))
        .hint(format!("only {only} is known for DeepSeek-V4"))
}

pub(super) fn contradiction(
    a: &str,
    va: &dyn std::fmt::Display,
    b: &str,
    vb: &dyn std::fmt::Display,
) -> Error {
    Error::input(format!("the config contradicts itself: `{a}` says {va}, `{b}` says {vb}"))
        .hint("keep the one the weights were trained with and remove the other")
}

/// A value as a short piece of JSON; a config is untrusted and may be long.
pub(super) fn brief(v: &Value) -> String {
    let s = v.to_string();
    if s.chars().count() <= 80 { s } else { s.chars().take(77).chain("...".chars()).collect() }
}

/// Typed access to a JSON object with errors that name the key.
pub(super) struct Keys<'a> {
    pub(super) map: &'a Map<String, Value>,
}

impl<'a> Keys<'a> {
    /// The first of several names for one number; if more than one is present they must agree. `null` counts as absent.
    pub(super) fn opt<'n>(&self, names: &[&'n str]) -> Result<Option<(&'n str, &'a Value)>> {
        let mut found: Option<(&'n str, &'a Value)> = None;
        for name in names {
            let Some(v) = self.map.get(*name).filter(|v| !v.is_null()) else { continue };
            match found {
                None => found = Some((name, v)),
                Some((first, w)) if !same(v, w) => {
                    return Err(contradiction(first, &brief(w), name, &brief(v)));
                }
                Some(_) => {}
            }
        }
        Ok(found)
    }

    pub(super) fn opt_size(&self, names: &[&str], min: usize, max: usize) -> Result<Option<usize>> {
        let Some((name, v)) = self.opt(names)? else { return Ok(None) };
        match as_size(v) {
            Some(n) if (min..=max).contains(&n) => Ok(Some(n)),
            _ => Err(Error::input(format!("`{name}`: {} is not an integer from {min} to {max}", brief(v)))
                .hint("compare with the model's original config.json")),
        }
    }

    pub(super) fn size(&self, names: &[&str], min: usize, max: usize) -> Result<usize> {
        self.opt_size(names, min, max)?.ok_or_else(|| missing(names[0]))
    }

    pub(super) fn opt_float(&self, names: &[&str], min: f64, max: f64) -> Result<Option<f64>> {
        let Some((name, v)) = self.opt(names)? else { return Ok(None) };
        match v.as_f64() {
            Some(x) if x >= min && x <= max => Ok(Some(x)),
            _ => Err(Error::input(format!("`{name}`: {} is not a number from {min:e} to {max:e}", brief(v)))
                .hint("compare with the model's original config.json")),
        }
    }

    pub(super) fn float(&self, names: &[&str], min: f64, max: f64) -> Result<f64> {
        self.opt_float(names, min, max)?.ok_or_else(|| missing(names[0]))
    }

    pub(super) fn object(&self, name: &str) -> Result<Option<&'a Map<String, Value>>> {
        match self.map.get(name) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::Object(m)) => Ok(Some(m)),
            Some(v) => Err(refused(name, v, "an object")),
        }
    }

    /// A list with one entry a layer. Longer is normal: drafter layers follow the trunk.
    pub(super) fn list(&self, name: &str, n: usize) -> Result<Option<&'a [Value]>> {
        match self.map.get(name) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::Array(a)) if a.len() >= n => Ok(Some(&a[..n])),
            Some(Value::Array(a)) => {
                Err(contradiction("num_hidden_layers", &n, name, &format!("{} entries", a.len())))
            }
            Some(v) => Err(refused(name, v, "a list with one entry a layer")),
        }
    }
}

pub(super) fn as_size(v: &Value) -> Option<usize> {
    v.as_u64().and_then(|n| usize::try_from(n).ok())
}

/// Equality that does not tell 10000 from 10000.0.
pub(super) fn same(a: &Value, b: &Value) -> bool {
    match (a.as_f64(), b.as_f64()) {
        (Some(x), Some(y)) => x == y,
        _ => a == b,
    }
}
