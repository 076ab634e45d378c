//! Positive controls of the prompt: every encoding fault is planted in a conversation that shows it, and the comparison with
//! the official encoder must name the part and the message first; harmless ways to write the same request stay quiet.

use super::selftest::{Selftest, Sensitivity};
use crate::encoding::{
    Change, Comparison, EncodeOptions, Mode, PROMPT_FAULTS, PromptFault, Rendered, Request, as_sent, compare,
    render,
};
use crate::error::Result;
use crate::metrics::Status;

/// The site of these rows: what the model reads.
const SITE: &str = "prompt";
/// What finds them.
const SIGNAL: &str = "token diff against the official encoder";

/// Two ways to write one request: name, one way, the other.
const CONTROLS: &[(&str, Mode, &str, &str)] = &[
    (
        "prompt_key_order",
        Mode::Thinking,
        r#"[{"role":"system","content":"s"},{"role":"user","content":"q"},{"role":"assistant","content":"a","reasoning_content":"r"},{"role":"user","content":"n"}]"#,
        r#"[{"content":"s","role":"system"},{"content":"q","role":"user"},{"reasoning_content":"r","content":"a","role":"assistant"},{"content":"n","role":"user"}]"#,
    ),
    (
        "prompt_no_tools_or_empty_tools",
        Mode::Thinking,
        r#"{"messages":[{"role":"user","content":"q"},{"role":"assistant","content":"a","reasoning_content":"r"},{"role":"user","content":"n"}]}"#,
        r#"{"messages":[{"role":"user","content":"q"},{"role":"assistant","content":"a","reasoning_content":"r","tool_calls":[]},{"role":"user","content":"n"}],"tools":[]}"#,
    ),
    (
        "prompt_string_or_one_block",
        Mode::Chat,
        r#"[{"role":"user","content":"q"}]"#,
        r#"[{"role":"user","content":[{"type":"text","text":"q"}]}]"#,
    ),
    (
        "prompt_null_or_empty_content",
        Mode::Chat,
        r#"[{"role":"user","content":"q"},{"role":"assistant","content":null,"tool_calls":[{"id":"1","function":{"name":"f","arguments":"{\"a\":1}"}}]},{"role":"tool","tool_call_id":"1","content":"o"}]"#,
        r#"[{"role":"user","content":"q"},{"role":"assistant","content":"","tool_calls":[{"id":"1","function":{"name":"f","arguments":"{\"a\":1}"}}]},{"role":"tool","tool_call_id":"1","content":"o"}]"#,
    ),
    (
        "prompt_spacing_of_arguments",
        Mode::Chat,
        r#"[{"role":"user","content":"q"},{"role":"assistant","content":"","tool_calls":[{"id":"1","function":{"name":"f","arguments":"{\"a\":[1,2]}"}}]}]"#,
        r#"[{"role":"user","content":"q"},{"role":"assistant","content":"","tool_calls":[{"id":"1","function":{"name":"f","arguments":"{ \"a\" : [1, 2] }"}}]}]"#,
    ),
    (
        "prompt_order_of_results",
        Mode::Chat,
        r#"[{"role":"user","content":"q"},{"role":"assistant","tool_calls":[{"id":"1","function":{"name":"f","arguments":"{}"}},{"id":"2","function":{"name":"g","arguments":"{}"}}]},{"role":"tool","tool_call_id":"1","content":"one"},{"role":"tool","tool_call_id":"2","content":"two"}]"#,
        r#"[{"role":"user","content":"q"},{"role":"assistant","tool_calls":[{"id":"1","function":{"name":"f","arguments":"{}"}},{"id":"2","function":{"name":"g","arguments":"{}"}}]},{"role":"tool","tool_call_id":"2","content":"two"},{"role":"tool","tool_call_id":"1","content":"one"}]"#,
    ),
    (
        "prompt_escapes_in_json",
        Mode::Chat,
        "[{\"role\":\"user\",\"content\":\"é\\u4e2d\"}]",
        "[{\"role\":\"user\",\"content\":\"\\u00e9\u{4e2d}\"}]",
    ),
    (
        "prompt_reasoning_that_is_dropped",
        Mode::Thinking,
        r#"[{"role":"user","content":"q"},{"role":"assistant","content":"a","reasoning_content":"r"},{"role":"user","content":"n"}]"#,
        r#"[{"role":"user","content":"q"},{"role":"assistant","content":"a"},{"role":"user","content":"n"}]"#,
    ),
];

/// Plants the faults and the controls whose name contains `only`.
pub fn rows(only: Option<&str>) -> Result<Vec<Sensitivity>> {
    let wanted = |name: &str| only.is_none_or(|o| name.contains(o));
    let mut out = Vec::new();
    for fault in PROMPT_FAULTS.iter().filter(|f| wanted(f.name)) {
        for case in fault.cases {
            let (messages, options) = (case.messages(), case.options());
            let official = render(&messages, &options)?;
            let wrong = render(&messages, &fault.plant(&options)?)?;
            // What a spelled token becomes is decided when the text is tokenised, not before.
            let wrong = if fault.setting == "spelled=control" { as_sent(&wrong.text) } else { wrong };
            out.push(judge(fault, &official, &wrong));
        }
    }
    for (name, mode, one, other) in CONTROLS.iter().filter(|c| wanted(c.0)) {
        let prompt =
            |text: &str| render(&Request::parse(text.as_bytes())?.messages, &EncodeOptions::of(*mode));
        let found = compare(&prompt(one)?, &prompt(other)?);
        let row = row(name, true, one != other, &found);
        out.push(Sensitivity { passed: found.changes.is_empty() && found.first.is_none(), ..row });
    }
    Ok(out)
}

/// Where a change is, in words.
fn place(c: &Change) -> String {
    let part = c.part.map_or("message", |p| p.name());
    match c.message {
        Some(m) => format!("messages[{m}] {part}"),
        None => part.into(),
    }
}

fn row(name: &str, control: bool, exercised: bool, found: &Comparison) -> Sensitivity {
    let first = found.changes.first();
    Sensitivity {
        fault: name.into(),
        class: PromptFault::CLASS,
        site: SITE.into(),
        layer: None,
        control,
        exercised,
        passed: false,
        status: if found.first.is_none() { Status::Ok } else { Status::Suspect },
        found_layer: None,
        found_site: first.map(|_| SITE.into()),
        tap: first.map(place),
        signal: if first.is_some() { SIGNAL.into() } else { String::new() },
        size: found.changes.iter().map(|c| (c.removed + c.inserted) as f64).sum(),
    }
}

fn judge(fault: &PromptFault, official: &Rendered, wrong: &Rendered) -> Sensitivity {
    let found = compare(official, wrong);
    let named = found.changes.first().map(|c| (c.part, c.message, c.kind));
    let exercised = official.text != wrong.text || official.control != wrong.control;
    Sensitivity {
        passed: named == Some((fault.part, fault.message, fault.kind)),
        ..row(fault.name, false, exercised, &found)
    }
}

impl Selftest {
    /// Adds the rows of the prompt.
    pub fn with_prompt(mut self, rows: Vec<Sensitivity>) -> Self {
        let mut kinds: Vec<&str> = rows.iter().filter(|r| !r.control).map(|r| r.fault.as_str()).collect();
        kinds.dedup();
        self.kinds += kinds.len();
        let found = |k: &&&str| rows.iter().filter(|r| r.fault == ***k).all(|r| r.passed);
        self.kinds_found += kinds.iter().filter(found).count();
        self.rows.extend(rows);
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Catches a fault of the prompt that the selftest misses or cannot show, and an alarm on a harmless request.
    #[test]
    fn every_row_passes() {
        let rows = rows(None).unwrap();
        let failed: Vec<_> = rows.iter().filter(|r| !r.passed || !r.exercised).collect();
        assert!(failed.is_empty(), "{failed:#?}");
        assert_eq!(rows.iter().filter(|r| r.control).count(), CONTROLS.len());
        assert!(rows.iter().filter(|r| !r.control).count() > PROMPT_FAULTS.len());
    }

    #[test]
    fn a_name_chooses_rows() {
        let rows = rows(Some("effort_tier_shift")).unwrap();
        assert_eq!(rows.len(), 2);
        assert!(super::rows(Some("no such fault")).unwrap().is_empty());
    }
}
