//! JSON text as Python's `json.dumps(value, ensure_ascii=False)` writes it, and as wrong encoders do.

use serde_json::Value;

/// How JSON is written into the prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Style {
    /// Between items, and after a key.
    pub comma: &'static str,
    pub colon: &'static str,
    /// `\uXXXX` for everything beyond ASCII.
    pub ascii: bool,
    /// Keys in alphabetical order instead of their own.
    pub sorted: bool,
}

/// The official one.
pub(super) const PYTHON: Style = Style { comma: ", ", colon: ": ", ascii: false, sorted: false };

/// `value` in that style.
pub(super) fn dumps(value: &Value, style: Style) -> String {
    let mut out = String::new();
    write(value, style, &mut out);
    out
}

// Depth is bounded by what the JSON reader accepts.
fn write(value: &Value, style: Style, out: &mut String) {
    match value {
        Value::Null => out.push_str("null"),
        Value::Bool(b) => out.push_str(if *b { "true" } else { "false" }),
        Value::Number(n) => match n.as_f64() {
            Some(x) if n.is_f64() => out.push_str(&float(x)),
            _ => out.push_str(&n.to_string()),
        },
        Value::String(s) => string(s, style.ascii, out),
        Value::Array(list) => {
            out.push('[');
            for (i, v) in list.iter().enumerate() {
                if i > 0 {
                    out.push_str(style.comma);
                }
                write(v, style, out);
            }
            out.push(']');
        }
        Value::Object(map) => {
            let mut entries: Vec<_> = map.iter().collect();
            if style.sorted {
                entries.sort_by_key(|(k, _)| *k);
            }
            out.push('{');
            for (i, (k, v)) in entries.into_iter().enumerate() {
                if i > 0 {
                    out.push_str(style.comma);
                }
                string(k, style.ascii, out);
                out.push_str(style.colon);
                write(v, style, out);
            }
            out.push('}');
        }
    }
}

fn string(s: &str, ascii: bool, out: &mut String) {
    out.push('"');
    for c in s.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            c if c < ' ' || (ascii && !c.is_ascii()) => {
                for unit in c.encode_utf16(&mut [0; 2]) {
                    out.push_str(&format!("\\u{unit:04x}"));
                }
            }
            c => out.push(c),
        }
    }
    out.push('"');
}

/// Python's `repr`: the shortest digits that read back, with an exponent below 1e-4 and from 1e16 on.
fn float(x: f64) -> String {
    let text = format!("{x:e}");
    let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if (-4..16).contains(&exponent) {
        let plain = format!("{x}");
        return if plain.contains('.') { plain } else { plain + ".0" };
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{digits}e{sign}{:02}", exponent.abs())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// Expected texts come from CPython 3.12.
    #[test]
    fn it_writes_what_python_writes() {
        for (value, text) in [
            (
                json!({"b": 1, "a": [true, null, "é\n\u{1}\u{7f}\"\\/"]}),
                "{\"b\": 1, \"a\": [true, null, \"é\\n\\u0001\u{7f}\\\"\\\\/\"]}",
            ),
            (json!([]), "[]"),
            (json!({}), "{}"),
            (
                json!([1.0, -0.0, 0.1, 1e15, 1e16, 1e22, 0.0001, 0.00001, -1.5e-7, 123456789.125, 5e-324]),
                "[1.0, -0.0, 0.1, 1000000000000000.0, 1e+16, 1e+22, 0.0001, 1e-05, -1.5e-07, 123456789.125, 5e-324]",
            ),
            (
                json!([18446744073709551615u64, -9223372036854775808i64]),
                "[18446744073709551615, -9223372036854775808]",
            ),
        ] {
            assert_eq!(dumps(&value, PYTHON), text);
        }
        let escaped = Style { ascii: true, sorted: true, ..PYTHON };
        assert_eq!(dumps(&json!({"b": "é😀", "a": 1}), escaped), r#"{"a": 1, "b": "\u00e9\ud83d\ude00"}"#);
    }
}
