//! The worked examples, the constants, and the corners of the published rules.

use super::constants::*;
use super::*;
use serde_json::json;
use sha2::{Digest, Sha256};

const MODES: [Mode; 2] = [Mode::Chat, Mode::Thinking];

fn sha256(text: &str) -> String {
    Sha256::digest(text).iter().map(|b| format!("{b:02x}")).collect()
}

/// Catches a constant that is not byte for byte the published one.
#[test]
fn constants_have_their_published_hashes() {
    for (text, bytes, hash) in [
        (EFFORT_HIGH, 476, "f7a24f3b3050d4a83781e9b755b316aae2ec1d9dc87562541d90bcb04d7350f7"),
        (EFFORT_MAX, 528, "53fb31b8392ec5b4a926481943efc67636748f137c1a49d493a7af4d4fa55d2c"),
        (&tools_preamble(false), 890, "c7c9042638154a237b5d1bd48be772374a35a4d24c5cacfd1ffbd92703da329c"),
        (&tools_preamble(true), 884, "2ae2ff83edf990187ed419c4e2901bb9ea6ce2129eb503ac543b258e7de8231d"),
        (TOOLS_END, 99, "690702850fe256512cb1ee67c4e436ecb3e735c71ebee77ca45ff357a75fb5a7"),
    ] {
        assert_eq!((text.len(), sha256(text).as_str()), (bytes, hash));
    }
}

/// `B U A E T /T S` stand for tokens, everything else for itself; single spaces separate.
fn spelled_out(symbols: &str) -> String {
    let symbol = |s| match s {
        "B" => BOS,
        "U" => USER,
        "A" => ASSISTANT,
        "E" => EOS,
        "T" => THINK,
        "/T" => THINK_END,
        "S" => SYSTEM,
        other => other,
    };
    symbols.split(' ').map(symbol).collect()
}

fn text(messages: &[Message], options: &EncodeOptions) -> String {
    let r = render(messages, options).unwrap();
    let joined: String = r.spans.iter().map(|s| &r.text[s.range.clone()]).collect();
    assert_eq!(joined, r.text, "spans leave no gap");
    for c in &r.control {
        assert!(CONTROL.iter().any(|(t, _)| *t == &r.text[c.clone()]), "{c:?}");
    }
    r.text
}

pub(super) fn turns() -> Vec<Message> {
    vec![
        Message::system("sys"),
        Message::user("a1"),
        Message::assistant("b1").reasoning("r1"),
        Message::user("c1"),
    ]
}

pub(super) fn tool() -> serde_json::Value {
    json!({"name": "f", "description": "é", "parameters": {"type": "object", "properties": {"s": {"type": "string"}}}})
}

pub(super) fn with_tools() -> Vec<Message> {
    vec![
        Message::system("sys").tools(vec![tool()]),
        Message::user("a1"),
        Message::assistant("").reasoning("r1").call("1", "f", r#"{"s":"x","n":2}"#),
        Message::tool("1", "OUT"),
        Message::assistant("d1").reasoning("r2"),
        Message::user("e1"),
    ]
}

/// The worked examples of the published encoder.
#[test]
fn worked_examples() {
    let keep = EncodeOptions { drop_thinking: false, ..EncodeOptions::of(Mode::Thinking) };
    let (chat, thinking) = (EncodeOptions::of(Mode::Chat), EncodeOptions::of(Mode::Thinking));
    let hi = [Message::user("Hi")];
    for (messages, options, expected) in [
        (&hi[..], &chat, "B U Hi A /T"),
        (&hi, &thinking, "B U Hi A T"),
        (&turns(), &thinking, "B sys U a1 A /T b1 E U c1 A T"),
        (&turns(), &keep, "B sys U a1 A T r1 /T b1 E U c1 A T"),
        (&turns(), &chat, "B sys U a1 A /T b1 E U c1 A /T"),
    ] {
        assert_eq!(text(messages, options), spelled_out(expected), "{options:?}");
    }
    let tools = format!(
        "\n\n{}{}{TOOLS_END}",
        tools_preamble(false),
        r#"{"name": "f", "description": "é", "parameters": {"type": "object", "properties": {"s": {"type": "string"}}}}"#
    );
    let calls = "\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"f\">\n\
                 <｜DSML｜parameter name=\"s\" string=\"true\">x</｜DSML｜parameter>\n\
                 <｜DSML｜parameter name=\"n\" string=\"false\">2</｜DSML｜parameter>\n\
                 </｜DSML｜invoke>\n</｜DSML｜tool_calls>";
    let expected = spelled_out(
        "B sys TOOLS U a1 A T r1 /T CALLS E U <tool_result>OUT</tool_result> A T r2 /T d1 E U e1 A T",
    )
    .replace("TOOLS", &tools)
    .replace("CALLS", calls);
    assert_eq!(text(&with_tools(), &thinking), expected);
}

#[test]
fn v41_examples() {
    let o = |mode, effort| EncodeOptions { encoder: Encoder::V41, effort, ..EncodeOptions::of(mode) };
    let effort = |n: &str| {
        format!(
            "Reasoning Effort: {n} (range 1-100, the higher the value, the more thorough the reasoning)\n\n"
        )
    };
    let expected = spelled_out("B S EFFORT sys U a1 A /T b1 E U c1 A T").replace("EFFORT", &effort("75"));
    assert_eq!(text(&turns(), &o(Mode::Thinking, None)), expected);
    assert_eq!(text(&turns(), &o(Mode::Chat, None)), spelled_out("B S sys U a1 A /T b1 E U c1 A /T"));
    let hi = [Message::user("Hi")];
    for (e, n) in [(Effort::Low, "50"), (Effort::High, "75"), (Effort::Max, "100"), (Effort::Score(7), "7")] {
        let expected = spelled_out("B S EFFORT U Hi A T").replace("EFFORT", &effort(n));
        assert_eq!(text(&hi, &o(Mode::Thinking, Some(e))), expected);
    }
    // A system message within the conversation is asked like a user.
    let late = [turns(), vec![Message::system("late")]].concat();
    assert!(text(&late, &o(Mode::Chat, None)).ends_with(&spelled_out("U c1 S late A /T")));
    assert!(text(&late, &EncodeOptions::of(Mode::Chat)).ends_with(&spelled_out("U c1 late")));
    let calls = text(&with_tools(), &o(Mode::Chat, None));
    assert!(
        calls.contains("\n\n<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"f\">\n<｜DSML｜ parameter name=\"s\"")
    );
}

/// "high" changed its meaning between the encoders.
#[test]
fn effort_tiers() {
    let hi = [Message::system("s"), Message::user("Hi")];
    for (encoder, effort, paragraph) in [
        (Encoder::Preview, None, ""),
        (Encoder::Preview, Some(Effort::High), ""),
        (Encoder::Preview, Some(Effort::Max), EFFORT_HIGH),
        (Encoder::V0731, None, ""),
        (Encoder::V0731, Some(Effort::Low), ""),
        (Encoder::V0731, Some(Effort::High), EFFORT_HIGH),
        (Encoder::V0731, Some(Effort::Max), EFFORT_MAX),
    ] {
        let o = EncodeOptions { encoder, effort, ..EncodeOptions::of(Mode::Thinking) };
        assert_eq!(text(&hi, &o), format!("{BOS}{paragraph}s{USER}Hi{ASSISTANT}{THINK}"), "{o:?}");
        let o = EncodeOptions { mode: Mode::Chat, ..o };
        assert_eq!(text(&hi, &o), format!("{BOS}s{USER}Hi{ASSISTANT}{THINK_END}"), "{o:?}");
    }
    for (encoder, effort) in [
        (Encoder::Preview, Effort::Low),
        (Encoder::Preview, Effort::Score(5)),
        (Encoder::V0731, Effort::Score(100)),
        (Encoder::V41, Effort::Score(0)),
    ] {
        let o = EncodeOptions { encoder, effort: Some(effort), ..EncodeOptions::default() };
        assert_eq!(render(&hi, &o).unwrap_err().kind(), crate::ErrorKind::Usage);
    }
}

#[test]
fn tool_results_merge_and_take_the_order_of_the_calls() {
    let list = [
        Message::user("q"),
        Message::assistant("").call("x", "f", "{}").call("y", "g", "[1]").call("z", "h", "no json"),
        Message::tool("z", "3"),
        Message::tool("unknown", "u"),
        Message::user("and"),
        Message::tool("x", "1"),
        Message::tool("y", "2"),
        Message::user("now"),
    ];
    let r = |s: &str| format!("<tool_result>{s}</tool_result>");
    let turn = [r("u"), r("1"), "and".into(), r("2"), r("3"), "now".into()].join("\n\n");
    for mode in MODES {
        let t = text(&list, &EncodeOptions::of(mode));
        assert!(t.contains(&format!("{EOS}{USER}{turn}{ASSISTANT}")), "{t}");
        // No arguments leave an empty line; what is no object is one string.
        assert!(t.contains("<｜DSML｜invoke name=\"f\">\n\n</｜DSML｜invoke>\n"), "{t}");
        assert!(t.contains("<｜DSML｜parameter name=\"arguments\" string=\"true\">[1]</｜DSML｜parameter>"));
        assert!(
            t.contains("<｜DSML｜parameter name=\"arguments\" string=\"true\">no json</｜DSML｜parameter>")
        );
    }
    // Each piece knows the message it came from.
    let rendered = render(&list, &EncodeOptions::of(Mode::Chat)).unwrap();
    let range = rendered.range(5, Part::ToolResult).unwrap();
    assert_eq!(&rendered.text[range.clone()], r("1"));
    assert_eq!(rendered.at(range.start).unwrap().message, Some(5));
    assert_eq!(&rendered.text[rendered.range(7, Part::Content).unwrap()], "now");
}

#[test]
fn developers_are_forgotten_and_reminders_are_not() {
    let list = [
        Message::new(Role::LatestReminder, "today"),
        Message::new(Role::Developer, "dev1"),
        Message::assistant("b").reasoning("r"),
        Message::new(Role::Developer, "dev2").format(json!({"type": "object"})),
    ];
    let format = "\n\n## Response Format:\n\nYou MUST strictly adhere to the following schema to reply:\n{\"type\": \"object\"}";
    let o = EncodeOptions::of(Mode::Thinking);
    assert_eq!(text(&list, &o), format!("{BOS}{REMINDER}todayb{EOS}{USER}dev2{format}{ASSISTANT}{THINK}"));
    let o = EncodeOptions { drop_thinking: false, ..o };
    assert_eq!(
        text(&list, &o),
        format!(
            "{BOS}{REMINDER}today{USER}dev1{ASSISTANT}{THINK}r{THINK_END}b{EOS}{USER}dev2{format}{ASSISTANT}{THINK}"
        )
    );
}

#[test]
fn tasks_end_the_prompt_and_their_answers_do_not_reason() {
    let o = EncodeOptions::of(Mode::Thinking);
    let ask = |task| [Message::user("q").task(task)];
    assert_eq!(text(&ask(Task::Title), &o), format!("{BOS}{USER}q<｜title｜>"));
    assert_eq!(text(&ask(Task::Action), &o), format!("{BOS}{USER}q{ASSISTANT}{THINK}<｜action｜>"));
    let list =
        [Message::user("q").task(Task::Domain), Message::assistant("x").reasoning("r"), Message::user("n")];
    let keep = EncodeOptions { drop_thinking: false, ..o };
    assert_eq!(text(&list, &keep), format!("{BOS}{USER}q<｜domain｜>x{EOS}{USER}n{ASSISTANT}{THINK}"));
    // A turn with a task takes in no more text.
    let list = [Message::user("q").task(Task::Query), Message::user("n")];
    assert_eq!(text(&list, &o), format!("{BOS}{USER}q{USER}n{ASSISTANT}{THINK}"));
}

#[test]
fn an_unfinished_turn_stays_open() {
    let mut last = Message::assistant("The answer is").reasoning("r");
    last.unfinished = true;
    let list = [Message::user("q"), last];
    let t = text(&list, &EncodeOptions::of(Mode::Thinking));
    assert_eq!(t, format!("{BOS}{USER}q{ASSISTANT}{THINK}r{THINK_END}The answer is"));
}

#[test]
fn an_empty_conversation_is_refused() {
    assert!(render(&[], &EncodeOptions::default()).is_err());
    assert!(render(&[Message::new(Role::Developer, "")], &EncodeOptions::default()).is_err());
}

/// One vector: a conversation, and the hash of what another implementation makes of it.
fn vector(line: &str) -> (Request, EncodeOptions, serde_json::Value) {
    let v: serde_json::Value = serde_json::from_str(line).unwrap();
    let request = json!({"messages": v["messages"], "tools": v["tools"]});
    let named = |n: &serde_json::Value| *Encoder::ALL.iter().find(|e| e.name() == n).unwrap();
    let options = EncodeOptions {
        encoder: named(&v["encoder"]),
        drop_thinking: v["drop"].as_bool().unwrap_or(true),
        effort: v["effort"].as_str().map(|e| Effort::parse(e).unwrap()),
        ..EncodeOptions::of(if v["mode"] == "chat" { Mode::Chat } else { Mode::Thinking })
    };
    (Request::parse(request.to_string().as_bytes()).unwrap(), options, v)
}

/// Catches any deviation from two other implementations: DeepSeek's renderer, and a transcription to Python of the script
/// beside the weights (`fixtures/encoding/README.md`).
#[test]
fn other_implementations_agree() {
    let recipe = include_str!("../../fixtures/encoding/recipe.jsonl");
    let script = include_str!("../../fixtures/encoding/script.jsonl");
    assert_eq!((recipe.lines().count(), script.lines().count()), (240, 240));
    for line in recipe.lines().chain(script.lines()) {
        let (request, options, v) = vector(line);
        let r = render(&request.messages, &options).unwrap();
        let end: String = r.text.chars().rev().take(40).collect::<Vec<_>>().into_iter().rev().collect();
        assert_eq!(end, v["end"].as_str().unwrap(), "{line}");
        assert_eq!(sha256(&r.text), v["sha256"].as_str().unwrap(), "{line}\n{}", r.text);
        if let Some(n) = v["control"].as_u64() {
            assert_eq!(r.control.len() as u64, n, "{line}");
        }
    }
}

/// Prompts of a fault's case: official, and with the fault, as token streams.
fn planted(f: &PromptFault, case: Case) -> (Rendered, Rendered) {
    let (messages, options) = (case.messages(), case.options());
    let official = render(&messages, &options).unwrap();
    let wrong = render(&messages, &f.plant(&options).unwrap()).unwrap();
    let wrong = if f.setting == "spelled=control" { as_sent(&wrong.text) } else { wrong };
    (official, wrong)
}

/// Catches a fault that the comparison does not see, or blames on another part or message.
#[test]
fn every_fault_is_found_where_it_is() {
    let mut failed = String::new();
    for f in PROMPT_FAULTS {
        for case in f.cases {
            let (official, wrong) = planted(f, *case);
            let found = compare(&official, &wrong);
            let right = found
                .changes
                .first()
                .is_some_and(|c| (c.part, c.message, c.kind) == (f.part, f.message, f.kind));
            if !right {
                failed += &format!("{} {case:?}\n", f.name);
                for c in &found.changes {
                    failed += &format!(
                        "    {:?} {:?} {:?} -{} +{}\n",
                        c.part, c.message, c.kind, c.removed, c.inserted
                    );
                }
                failed += &format!("    {:?}\n", wrong.text.chars().take(200).collect::<String>());
            }
        }
    }
    assert!(failed.is_empty(), "{failed}");
}

/// Catches a difference reported between equal prompts, whatever the options.
#[test]
fn equal_prompts_are_quiet() {
    for f in PROMPT_FAULTS {
        for case in f.cases {
            for mode in MODES {
                let o = EncodeOptions { mode, ..f.plant(&case.options()).unwrap() };
                let r = render(&case.messages(), &o).unwrap();
                assert_eq!(compare(&r, &r.clone()), Comparison::default(), "{}", f.name);
                assert_eq!(compare(&as_logged(&r), &as_sent(&r.text)), Comparison::default(), "{}", f.name);
            }
        }
    }
}

/// Catches a fault whose very prompt is not recognised, or is taken for a harmless setting.
#[test]
fn the_prompt_of_a_fault_names_it() {
    for f in PROMPT_FAULTS {
        for case in f.cases {
            let (messages, options) = (case.messages(), case.options());
            let wrong = render(&messages, &f.plant(&options).unwrap()).unwrap();
            let found = attribute(&messages, &options, &wrong.text).matches;
            assert!(
                found.iter().any(|m| m.faults.len() == 1 && m.faults[0].setting == f.setting),
                "{} {case:?}: {found:?}",
                f.name
            );
            assert!(found.iter().all(|m| m.faults.len() + m.settings.len() == 1), "{}", f.name);
        }
    }
}

#[test]
fn other_settings_and_pairs_of_faults_are_recognised() {
    let (messages, options) = (Case::Thinking.messages(), Case::Thinking.options());
    let asked = EncodeOptions { effort: Some(Effort::Max), encoder: Encoder::Preview, ..options };
    let sent = render(&messages, &asked).unwrap().text;
    let found = attribute(&messages, &options, &sent).matches;
    // Its max is the other encoder's high.
    assert!(found.iter().any(|m| m.faults.is_empty() && m.settings == ["--effort high"]), "{found:?}");
    assert!(found.iter().all(|m| m.faults.len() + m.settings.len() == 1), "{found:?}");
    let two = ["bos_missing", "prior_turns_dropped"].map(|n| PromptFault::find(n).unwrap());
    let wrong = two[1].plant(&two[0].plant(&options).unwrap()).unwrap();
    let found = attribute(&messages, &options, &render(&messages, &wrong).unwrap().text).matches;
    let mut names: Vec<&str> = found[0].faults.iter().map(|f| f.name).collect();
    names.sort_unstable();
    assert_eq!(names, ["bos_missing", "prior_turns_dropped"]);
    assert_eq!(attribute(&messages, &options, "something else"), Attribution::default());
}

#[test]
fn a_prompt_cut_off_is_called_so() {
    let r = render(&Case::Chat.messages(), &Case::Chat.options()).unwrap();
    let n = r.text.chars().count();
    let end: String = r.text.chars().skip(100).collect();
    assert_eq!(compare(&as_logged(&r), &as_sent(&end)).cut, Some(Cut::Front(100)));
    let start: String = r.text.chars().take(100).collect();
    assert_eq!(compare(&as_logged(&r), &as_sent(&start)).cut, Some(Cut::End(n - 100)));
}

/// Catches knobs that do nothing, clash, or cannot be named.
#[test]
fn every_value_of_every_knob_but_the_first_is_a_fault() {
    for (knob, values) in KNOBS {
        for (i, value) in values.iter().enumerate() {
            let setting = format!("{knob}={value}");
            let listed = PROMPT_FAULTS.iter().any(|f| f.setting == setting);
            assert_eq!(listed, i > 0, "{setting}");
            PromptKnobs::default().set(knob, value).unwrap();
        }
    }
    assert!(
        PromptKnobs::default().set("bos", "thrice").unwrap_err().to_string().contains("once, missing, twice")
    );
    assert!(PromptKnobs::default().set("bs", "once").unwrap_err().to_string().contains("bos"));
    let mut names: Vec<&str> = PROMPT_FAULTS.iter().map(|f| f.name).collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), PROMPT_FAULTS.len());
}

mod properties {
    use super::super::reader::read;
    use super::*;
    use proptest::prelude::*;

    fn words() -> impl Strategy<Value = String> {
        // No control token, and nothing that ends in white space: what stands there is not told from what follows.
        "[a-z<>{}\"é|/ \n]{0,12}[a-zé]".prop_filter("control", |s| spelled_any(s))
    }

    fn spelled_any(s: &str) -> bool {
        super::super::lex::spelled(s).next().is_none() && !s.contains("tool_result")
    }

    type Turn = (String, Option<String>, String, Vec<(String, String)>);

    fn turns() -> impl Strategy<Value = (Option<String>, Vec<Turn>, String)> {
        let turn = (
            words(),
            proptest::option::of(words()),
            words(),
            proptest::collection::vec(("[a-z]{1,5}", words()), 0..3),
        );
        (proptest::option::of(words()), proptest::collection::vec(turn, 0..4), words())
    }

    fn conversation(system: Option<String>, turns: &[Turn], last: &str) -> Vec<Message> {
        let mut list: Vec<Message> = system.map(Message::system).into_iter().collect();
        for (user, reasoning, answer, calls) in turns {
            list.push(Message::user(user));
            let mut a = Message { reasoning: reasoning.clone(), ..Message::assistant(answer) };
            for (i, (name, value)) in calls.iter().enumerate() {
                a = a.call(&i.to_string(), name, &json!({"v": value}).to_string());
            }
            list.push(a);
            for (i, (_, value)) in calls.iter().enumerate() {
                list.push(Message::tool(i.to_string(), value));
            }
        }
        list.push(Message::user(last));
        list
    }

    /// Reads messages back: who said what.
    fn said(r: &Rendered) -> Vec<(Role, Part, String)> {
        let shown = [Part::Content, Part::Reasoning, Part::ToolResult, Part::ToolCalls];
        read(&r.text, &r.control)
            .into_iter()
            .filter(|p| shown.contains(&p.part))
            .map(|p| (p.role, p.part, r.text[p.range].to_owned()))
            .collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 256, ..ProptestConfig::default() })]

        /// Catches an encoder that loses or mixes what was said, and a reader that cannot tell.
        #[test]
        fn what_is_encoded_is_read_back((system, turns, last) in turns(), v41 in any::<bool>()) {
            let list = conversation(system.clone(), &turns, &last);
            let encoder = if v41 { Encoder::V41 } else { Encoder::V0731 };
            let o = EncodeOptions { encoder, drop_thinking: false, ..EncodeOptions::of(Mode::Thinking) };
            let r = render(&list, &o).unwrap();
            let mut expected: Vec<(Role, Part, String)> = Vec::new();
            for (i, m) in list.iter().enumerate() {
                match m.role {
                    Role::Tool => expected.push((Role::User, Part::ToolResult, format!("<tool_result>{}</tool_result>", m.text()))),
                    // The user speaks on behind results: one turn.
                    _ => {
                        if let Some(t) = &m.reasoning {
                            expected.push((Role::Assistant, Part::Reasoning, t.clone()));
                        }
                        expected.push((m.role, Part::Content, m.text()));
                        if !m.tool_calls.is_empty() {
                            expected.push((Role::Assistant, Part::ToolCalls, r.text[r.range(i, Part::ToolCalls).unwrap()].to_owned()));
                        }
                    }
                }
            }
            prop_assert_eq!(said(&r), expected, "{}", r.text);
        }

        /// Catches a comparison that misses any edit, or panics on one.
        #[test]
        fn any_edit_is_seen((system, turns, last) in turns(), at in any::<proptest::sample::Index>(), n in 0usize..30, put in "[a-z<｜> \n]{0,6}") {
            let list = conversation(system, &turns, &last);
            let r = render(&list, &EncodeOptions::of(Mode::Chat)).unwrap();
            let chars: Vec<char> = r.text.chars().collect();
            let a = at.index(chars.len());
            let b = (a + n).min(chars.len());
            let sent: String = chars[..a].iter().copied().chain(put.chars()).chain(chars[b..].iter().copied()).collect();
            let found = compare(&as_logged(&r), &as_sent(&sent));
            prop_assert_eq!(found.changes.is_empty(), sent == r.text);
            prop_assert_eq!(found.first.is_none(), sent == r.text);
        }

        /// Catches a panic on text that is no prompt at all.
        #[test]
        fn any_text_is_read(sent in "(<｜User｜>|<｜Assistant｜>|<think>|</think>|｜DSML｜|<tool_result>|</tool_result>|## Tools\n\nYou have access to a set of tools|Reasoning Effort: |[a-z\n<]){0,20}") {
            let r = render(&super::turns(), &EncodeOptions::of(Mode::Thinking)).unwrap();
            let s = as_sent(&sent);
            let pieces: String = read(&s.text, &s.control).iter().map(|p| &s.text[p.range.clone()]).collect();
            prop_assert_eq!(&pieces, &sent);
            prop_assert_eq!(compare(&as_logged(&r), &s).changes.is_empty(), sent == r.text);
        }
    }
}
