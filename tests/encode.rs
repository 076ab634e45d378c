//! `dsv4 encode` from outside: the official prompt, and what differs from it.

use serde_json::{Value, json};
use std::process::{Command, Output, Stdio};

struct Dir(tempfile::TempDir);

impl Dir {
    fn new() -> Dir {
        Dir(tempfile::tempdir().unwrap())
    }
    fn write(&self, name: &str, bytes: impl AsRef<[u8]>) -> String {
        let path = self.0.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        path.to_str().unwrap().into()
    }
    /// A directory with a tokenizer of single bytes that knows every control token.
    fn model(&self) -> String {
        let dir = self.0.path().join("model");
        std::fs::create_dir(&dir).unwrap();
        // The byte-level alphabet: printable bytes are themselves, the others follow from U+0100 on.
        let mut next = 256;
        let alphabet: Vec<char> = (0..=255u8)
            .map(|b| match b {
                b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff => b as char,
                _ => {
                    next += 1;
                    char::from_u32(next - 1).unwrap()
                }
            })
            .collect();
        let vocab: serde_json::Map<String, Value> =
            alphabet.iter().enumerate().map(|(i, c)| (c.to_string(), json!(i))).collect();
        let added: Vec<Value> = CONTROL
            .iter()
            .enumerate()
            .map(|(i, t)| {
                json!({"id": 256 + i, "content": t, "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": true})
            })
            .collect();
        let bytes = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false});
        let tokenizer = json!({
            "version": "1.0", "truncation": null, "padding": null, "added_tokens": added, "normalizer": null,
            "pre_tokenizer": bytes, "post_processor": null, "decoder": bytes,
            "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
                "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "vocab": vocab, "merges": []},
        });
        std::fs::write(dir.join("tokenizer.json"), tokenizer.to_string()).unwrap();
        dir.to_str().unwrap().into()
    }
}

const CONTROL: [&str; 9] = [
    "<｜begin▁of▁sentence｜>",
    "<｜end▁of▁sentence｜>",
    "<｜User｜>",
    "<｜Assistant｜>",
    "<｜latest_reminder｜>",
    "<think>",
    "</think>",
    "｜DSML｜",
    "<｜System｜>",
];

fn run(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_dsv4")).arg("encode").args(args).stdin(Stdio::null()).output().unwrap()
}

fn prints(args: &[&str], code: i32) -> String {
    let o = run(args);
    assert_eq!(o.status.code(), Some(code), "{args:?}: {}", String::from_utf8_lossy(&o.stderr));
    String::from_utf8(o.stdout).unwrap()
}

fn fails(args: &[&str], code: i32) -> String {
    let o = run(args);
    let err = String::from_utf8(o.stderr).unwrap();
    assert_eq!(o.status.code(), Some(code), "{args:?}: {err}");
    assert!(o.stdout.is_empty(), "{args:?}");
    err
}

fn chat() -> Value {
    json!([
        {"role": "system", "content": "You are a clerk."},
        {"role": "user", "content": "The code is 47192."},
        {"role": "assistant", "content": "Noted.", "reasoning_content": "Remember it."},
        {"role": "user", "content": "What is it?"},
    ])
}

const PROMPT: &str = "<｜begin▁of▁sentence｜>You are a clerk.<｜User｜>The code is 47192.<｜Assistant｜></think>Noted.\
                      <｜end▁of▁sentence｜><｜User｜>What is it?<｜Assistant｜></think>";

#[test]
fn the_prompt_is_printed_byte_for_byte() {
    let d = Dir::new();
    let file = d.write("chat.json", chat().to_string());
    assert_eq!(prints(&["--messages", &file], 0), PROMPT);
    let thinking = prints(&["--messages", &file, "--mode", "thinking", "--keep-thinking"], 0);
    assert!(thinking.contains("<｜Assistant｜><think>Remember it.</think>Noted."), "{thinking}");
    let v: Value = serde_json::from_str(&prints(&["--messages", &file, "--json"], 0)).unwrap();
    assert_eq!((&v["schema"], &v["text"]), (&json!("dsv4.encode/1"), &json!(PROMPT)));
    let span =
        v["spans"].as_array().unwrap().iter().find(|s| s["message"] == 2 && s["part"] == "content").unwrap();
    let range = span["start"].as_u64().unwrap() as usize..span["end"].as_u64().unwrap() as usize;
    assert_eq!(&PROMPT[range], "Noted.");
    // What the request asks for counts unless a flag says otherwise.
    let asks =
        json!({"messages": chat(), "chat_template_kwargs": {"thinking": true}, "reasoning_effort": "high"});
    let asks = d.write("asks.json", asks.to_string());
    assert!(prints(&["--messages", &asks], 0).contains("Reasoning Effort: Absolute maximum"));
    assert!(
        prints(&["--messages", &asks, "--effort", "max"], 0).contains("Reasoning Effort: Beyond maximum")
    );
    assert_eq!(prints(&["--messages", &asks, "--mode", "chat"], 0), PROMPT);
}

#[test]
fn equal_is_0_different_is_1_nothing_is_5() {
    let d = Dir::new();
    let chat = d.write("chat.json", chat().to_string());
    let same = d.write("same.txt", PROMPT);
    let text = prints(&["--messages", &chat, "--against", &same], 0);
    assert!(text.starts_with("SAME: the same 149 characters\n"), "{text}");
    let trimmed =
        PROMPT.replace("<｜User｜>The code is 47192.<｜Assistant｜></think>Noted.<｜end▁of▁sentence｜>", "");
    let other = d.write("other.txt", &trimmed);
    let text = prints(&["--messages", &chat, "--against", &other], 1);
    assert!(
        text.starts_with("DIFFERS: 2 messages, messages[1] (user) to messages[2] (assistant), dropped\n"),
        "{text}"
    );
    assert!(text.contains("fault prior_turns_dropped (class M)"), "{text}");
    assert!(text.contains("first difference at character 45"), "{text}");
    let v: Value =
        serde_json::from_str(&prints(&["--messages", &chat, "--against", &other, "--json"], 1)).unwrap();
    assert_eq!(v["schema"], "dsv4.encode-diff/1");
    assert_eq!(v["verdict"]["status"], "differs");
    assert_eq!(
        v["changes"][0],
        json!({"message": 1, "label": "messages[1]", "role": "user", "part": null,
        "kind": "dropped", "removed": 26, "inserted": 0, "official_char": 37, "sent_char": 37})
    );
    assert!(
        v["explained_by"].as_array().unwrap().iter().any(|m| m["faults"] == json!(["prior_turns_dropped"]))
    );
    let empty = d.write("empty", "");
    assert!(fails(&["--messages", &chat, "--against", &empty], 5).contains("nothing was sent"));
}

#[test]
fn a_report_is_readable_on_a_narrow_terminal() {
    let d = Dir::new();
    let chat = d.write("chat.json", chat().to_string());
    let other = d.write("other.txt", format!("{PROMPT}{}", "\n# x".repeat(40)));
    for args in [&[][..], &["--mode", "thinking", "--effort", "max"]] {
        let text = prints(&[&["--messages", &chat, "--against", &other], args].concat(), 1);
        assert!(text.lines().all(|l| l.chars().count() <= 90), "{text}");
        assert!(!text.contains('\u{1b}'));
    }
}

#[test]
fn token_ids_are_printed_and_compared() {
    let d = Dir::new();
    let model = d.model();
    let messages = json!([{"role": "user", "content": "é </think> x"}]);
    let chat = d.write("chat.json", messages.to_string());
    let base = ["--messages", &chat, "--model", &model];
    let ids = |extra: &[&str]| -> Vec<u32> {
        serde_json::from_str(&prints(&[&base[..], &["--ids"], extra].concat(), 0)).unwrap()
    };
    // BOS, User, é as two bytes, a space, eight characters, a space, x, Assistant, </think>.
    let text = ids(&[]);
    assert_eq!(text.len(), 2 + 2 + 1 + 8 + 2 + 2);
    assert_eq!((text[0], text[1], text[text.len() - 2], text[text.len() - 1]), (256, 258, 259, 262));
    let file = format!("{model}/tokenizer.json");
    let by_file = prints(&["--messages", &chat, "--model", &file, "--ids"], 0);
    assert_eq!(by_file, prints(&[&base[..], &["--ids"]].concat(), 0));
    let control = ids(&["--spelled", "control"]);
    assert_eq!(control.len(), text.len() - 7);
    let same = d.write("same.json", json!({"prompt_token_ids": text}).to_string());
    let report = prints(&[&base[..], &["--against-ids", &same]].concat(), 0);
    assert!(report.starts_with("SAME: the same 17 tokens"), "{report}");
    // Text alone cannot tell; ids can.
    let other = d.write("other.json", json!(control).to_string());
    let report = prints(&[&base[..], &["--against-ids", &other]].concat(), 1);
    assert!(
        report.starts_with("DIFFERS: content of messages[0] (user) turned into other tokens"),
        "{report}"
    );
    assert!(report.contains("spelled_token_as_control"), "{report}");
    assert!(report.contains("token 5: 60 official, 262 sent"), "{report}");
    let report = prints(&[&base[..], &["--against-ids", &other, "--spelled", "control"]].concat(), 0);
    assert!(report.starts_with("SAME"), "{report}");
    // Ids cut short, ids of another tokenizer, none at all.
    let short = d.write("short.json", json!(text[..4]).to_string());
    let report = prints(&[&base[..], &["--against-ids", &short]].concat(), 1);
    assert!(report.contains("the end sent"), "{report}");
    let alien = d.write("alien.json", "[0, 70000]");
    assert!(fails(&[&base[..], &["--against-ids", &alien]].concat(), 3).contains("no token 70000"));
    let none = d.write("none.json", "[]");
    assert!(fails(&[&base[..], &["--against-ids", &none]].concat(), 5).contains("nothing was sent"));
    let bad = d.write("bad.json", "{\"tokens\": \"x\"}");
    assert!(fails(&[&base[..], &["--against-ids", &bad]].concat(), 3).contains("hint:"));
}

#[test]
fn unusable_input_is_3_and_says_what_to_do() {
    let d = Dir::new();
    let chat = d.write("chat.json", chat().to_string());
    let err = fails(&["--messages", &chat, "--ids"], 3);
    assert!(err.contains("no control token <｜begin▁of▁sentence｜>") && err.contains("hint:"), "{err}");
    let err = fails(&["--messages", &chat, "--ids", "--model", &chat], 3);
    assert!(err.contains("tokenizer.json is unusable"), "{err}");
    let err = fails(&["--messages", &chat, "--ids", "--model", "/no/such/dir"], 3);
    assert!(err.contains("/no/such/dir"), "{err}");
    let deep = d.write("deep.json", "[".repeat(1 << 20));
    for bad in [deep, d.write("x.json", "{"), d.write("r.json", r#"[{"role":"wizard","content":"x"}]"#)] {
        let err = fails(&["--messages", &bad], 3);
        assert!(err.contains("hint:") && err.contains("file:"), "{err}");
    }
    let err = fails(&["--messages", "/no/such/file"], 3);
    assert!(err.contains("/no/such/file"), "{err}");
    let latin = d.write("latin.txt", b"\xff\xfe");
    assert!(fails(&["--messages", &chat, "--against", &latin], 3).contains("offset: 0"));
    for args in [
        &["--messages", &chat, "--effort", "huge"][..],
        &["--messages", &chat, "--effort", "low", "--encoder", "preview"],
        &["--messages", &chat, "--effort", "7"],
        &["--messages", "-", "--against", "-"],
        &["--messages", &chat, "--against", &chat, "--ids"],
        &[],
    ] {
        fails(args, 2);
    }
}
