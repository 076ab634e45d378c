//! JSON as a [`Value`], refusing duplicate keys: the last one winning silently is how a config lies.
//! Depth is bounded by serde_json's own recursion limit.

use std::fmt;

use serde::de::{Deserialize, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

use crate::error::{Error, Result};

/// Parses `bytes`; an error names the byte offset.
pub(super) fn parse(bytes: &[u8]) -> Result<Value> {
    serde_json::from_slice::<Strict>(bytes).map(|s| s.0).map_err(|e| json_error(&e, bytes, 0, "the file"))
}

/// A JSON error with the byte it happened at, `base` bytes into the file. `what` names the piece of JSON.
pub(super) fn json_error(e: &serde_json::Error, bytes: &[u8], base: u64, what: &str) -> Error {
    let lines = bytes.split(|b| *b == b'\n').take(e.line().saturating_sub(1));
    let at: usize = lines.map(|l| l.len() + 1).sum::<usize>() + e.column().saturating_sub(1);
    let is = if e.is_data() { "is malformed" } else { "is not valid JSON" };
    let mut text = e.to_string();
    if let Some(i) = text.rfind(" at line ") {
        text.truncate(i);
    }
    // The text repeats names from the file; keep a hostile one short.
    let text: String = text.chars().take(200).collect();
    Error::input(format!("{what} {is}: {text}"))
        .offset(base + at.min(bytes.len()) as u64)
        .hint("the file is damaged or was edited by hand; download it again")
}

struct Strict(Value);

impl<'de> Deserialize<'de> for Strict {
    fn deserialize<D: Deserializer<'de>>(d: D) -> std::result::Result<Self, D::Error> {
        d.deserialize_any(StrictVisitor).map(Strict)
    }
}

struct StrictVisitor;

impl<'de> Visitor<'de> for StrictVisitor {
    type Value = Value;
    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("JSON")
    }
    fn visit_bool<E>(self, v: bool) -> std::result::Result<Value, E> {
        Ok(Value::Bool(v))
    }
    fn visit_i64<E>(self, v: i64) -> std::result::Result<Value, E> {
        Ok(v.into())
    }
    fn visit_u64<E>(self, v: u64) -> std::result::Result<Value, E> {
        Ok(v.into())
    }
    fn visit_f64<E>(self, v: f64) -> std::result::Result<Value, E> {
        Ok(Number::from_f64(v).map_or(Value::Null, Value::Number))
    }
    fn visit_str<E>(self, v: &str) -> std::result::Result<Value, E> {
        Ok(Value::String(v.to_owned()))
    }
    fn visit_unit<E>(self) -> std::result::Result<Value, E> {
        Ok(Value::Null)
    }
    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> std::result::Result<Value, A::Error> {
        let mut out = Vec::new();
        while let Some(Strict(v)) = seq.next_element()? {
            out.push(v);
        }
        Ok(Value::Array(out))
    }
    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> std::result::Result<Value, A::Error> {
        let mut out = Map::new();
        while let Some(key) = map.next_key::<String>()? {
            let Strict(v) = map.next_value()?;
            if out.contains_key(&key) {
                return Err(A::Error::custom(format_args!("the key `{key}` appears twice")));
            }
            out.insert(key, v);
        }
        Ok(Value::Object(out))
    }
}
