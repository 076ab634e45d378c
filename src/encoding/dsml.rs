//! Tool calls in the assistant's turn.

use super::constants::DSML;
use super::knobs::Calls;
use super::message::{Role, ToolCall};
use super::options::{EncodeOptions, Encoder};
use super::python_json::{PYTHON, Style, dumps};
use super::rendered::{Part, Writer};
use serde_json::{Map, Value, json};

/// Tag names: the block, a call, a parameter.
pub(super) fn tags(v41: bool) -> [&'static str; 3] {
    if v41 { [" calls", " invoke", " parameter"] } else { ["tool_calls", "invoke", "parameter"] }
}

/// The arguments by name. What is no JSON object becomes one string named `arguments`.
pub(super) fn arguments(text: &str) -> Map<String, Value> {
    match serde_json::from_str(text) {
        Ok(Value::Object(map)) => map,
        _ => Map::from_iter([("arguments".to_owned(), text.into())]),
    }
}

/// Writes the block of `calls`.
pub(super) fn write(w: &mut Writer, from: Option<(usize, Role)>, calls: &[ToolCall], o: &EncodeOptions) {
    let rule = o.knobs.calls;
    let v41 = (o.encoder == Encoder::V41) != (rule == Calls::OtherTags);
    let [block, invoke, parameter] = tags(v41);
    w.span(from, Part::ToolCalls, |w| {
        w.text("\n\n");
        if rule == Calls::Json {
            let list = calls.iter().map(|c| json!({"name": c.name, "arguments": arguments(&c.arguments)}));
            return w.text(&dumps(&list.collect(), PYTHON));
        }
        let tag = |w: &mut Writer, open: &str, name: &str, rest: &str| {
            w.text(open);
            w.control(DSML);
            w.text(name);
            w.text(rest);
        };
        tag(w, "<", block, ">\n");
        for call in calls {
            tag(w, "<", invoke, &format!(" name=\"{}\">\n", call.name));
            let list = match rule {
                Calls::Wrapped => Map::from_iter([("arguments".to_owned(), call.arguments.clone().into())]),
                _ => arguments(&call.arguments),
            };
            for (i, (key, value)) in list.iter().enumerate() {
                w.text(if i > 0 { "\n" } else { "" });
                let style = match rule {
                    Calls::Compact => Style { comma: ",", colon: ":", ..PYTHON },
                    _ => PYTHON,
                };
                let (string, text) = match value.as_str() {
                    Some(s) => (true, s.to_owned()),
                    None => (rule == Calls::Strings, dumps(value, style)),
                };
                tag(w, "<", parameter, &format!(" name=\"{key}\" string=\"{string}\">"));
                w.text(&text);
                tag(w, "</", parameter, ">");
            }
            w.text("\n");
            tag(w, "</", invoke, ">\n");
        }
        tag(w, "</", block, ">");
    });
}
