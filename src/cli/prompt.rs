//! Where the tokens come from: text through the checkpoint's own tokenizer, or ids.

use crate::checkpoint::{BUILTINS, Checkpoint};
use crate::error::{Error, Result};
use crate::fnv::Fnv;
use serde_json::Value;
use std::io::Read;
use std::path::{Path, PathBuf};
use tokenizers::Tokenizer;

/// The prompt that `builtin:pico` answers when none is given: 2,032 tokens, well above its
/// identity horizon of 256, ending in a question about a fact in the middle.
const PICO_PROMPT: &str = include_str!("../../fixtures/pico/default_prompt.txt");

/// A prompt of any length a model can take is smaller than this.
const MAX_BYTES: u64 = 256 << 20;

/// The flags that choose a prompt.
#[derive(Debug, Clone, Default, clap::Args)]
#[group(id = "prompt_source", multiple = false)]
pub struct PromptArgs {
    /// Prompt text, tokenised by the checkpoint's tokenizer.json
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true, help_heading = "Prompt")]
    pub prompt: Option<String>,
    /// File with the prompt text, taken byte for byte (a newline at its end is part of it); - reads stdin
    #[arg(long, value_name = "FILE", help_heading = "Prompt")]
    pub prompt_file: Option<PathBuf>,
    /// File with the token ids as one JSON array; - reads stdin
    #[arg(long, value_name = "FILE", help_heading = "Prompt")]
    pub token_ids: Option<PathBuf>,
}

/// A prompt, tokenised.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Prompt {
    /// Token ids.
    pub tokens: Vec<u32>,
    /// The text, if it came as text.
    pub text: Option<String>,
    /// Where it came from, in words.
    pub origin: String,
    /// Identity of the token ids (128-bit FNV-1a of their little-endian bytes).
    pub hash: String,
    /// Things the user should hear before believing a result.
    pub notes: Vec<String>,
}

impl PromptArgs {
    /// Reads and tokenises the prompt for `checkpoint`.
    pub fn load(&self, checkpoint: &Checkpoint) -> Result<Prompt> {
        if let Some(text) = &self.prompt {
            return of_text(checkpoint, text.clone(), "--prompt".into());
        }
        if let Some(path) = &self.prompt_file {
            let text = String::from_utf8(read(path)?).map_err(|e| {
                Error::input("the prompt is not UTF-8 text")
                    .file(path)
                    .offset(e.utf8_error().valid_up_to() as u64)
                    .hint("give the token ids with --token-ids to run exact bytes")
            })?;
            return of_text(checkpoint, text, path.display().to_string()).map_err(|e| e.file(path));
        }
        if let Some(path) = &self.token_ids {
            let tokens = ids(&read(path)?).map_err(|e| e.file(path))?;
            return Ok(Prompt {
                hash: hash(&tokens),
                tokens,
                text: None,
                origin: path.display().to_string(),
                notes: Vec::new(),
            });
        }
        if checkpoint.source() == BUILTINS[0] {
            return of_text(checkpoint, PICO_PROMPT.into(), "built-in prompt of builtin:pico".into());
        }
        Err(Error::usage("no prompt was given")
            .hint("give --prompt TEXT, --prompt-file FILE or --token-ids FILE; only builtin:pico has a built-in prompt"))
    }
}

/// Reads a small file, or standard input for `-`.
pub(super) fn read(path: &Path) -> Result<Vec<u8>> {
    let failed = |e: std::io::Error| Error::io(path, "read the prompt", &e);
    let mut bytes = Vec::new();
    if path == Path::new("-") {
        std::io::stdin().lock().take(MAX_BYTES + 1).read_to_end(&mut bytes).map_err(failed)?;
    } else {
        let file = std::fs::File::open(path).map_err(failed)?;
        file.take(MAX_BYTES + 1).read_to_end(&mut bytes).map_err(failed)?;
    }
    if bytes.len() as u64 > MAX_BYTES {
        return Err(Error::input(format!("the prompt is larger than {MAX_BYTES} bytes")).file(path));
    }
    Ok(bytes)
}

fn empty() -> Error {
    Error::input("the prompt is empty").hint("give at least one token")
}

fn of_text(checkpoint: &Checkpoint, text: String, origin: String) -> Result<Prompt> {
    if text.is_empty() {
        return Err(empty());
    }
    let json = checkpoint.tokenizer_json()?.ok_or_else(|| {
        Error::input("the checkpoint has no tokenizer.json, so text cannot become tokens")
            .hint("give the token ids with --token-ids FILE, or put tokenizer.json beside the weights")
    })?;
    let bad = |what: &str, e: &dyn std::fmt::Display| {
        Error::input(format!("{what}: {e}")).hint("give the token ids with --token-ids FILE")
    };
    let mut tokenizer =
        Tokenizer::from_bytes(&json).map_err(|e| bad("the checkpoint's tokenizer.json is unusable", &e))?;
    // A prompt is never cut or filled up behind the user's back.
    tokenizer.with_padding(None);
    tokenizer.with_truncation(None).map_err(|e| bad("the checkpoint's tokenizer.json is unusable", &e))?;
    let encoding = tokenizer
        .encode(text.as_str(), true)
        .map_err(|e| bad("the tokenizer cannot encode the prompt", &e))?;
    let tokens = encoding.get_ids().to_vec();
    if tokens.is_empty() {
        return Err(empty());
    }
    let unknown = unknown_token(&json).and_then(|t| Some((tokenizer.token_to_id(&t)?, t)));
    let mut notes = Vec::new();
    if let Some((id, name)) = unknown {
        let n = tokens.iter().filter(|t| **t == id).count();
        if n > 0 {
            notes.push(format!(
                "{n} of {} tokens of the prompt are {name}: words the tokenizer does not know",
                tokens.len()
            ));
        }
    }
    Ok(Prompt { hash: hash(&tokens), tokens, text: Some(text), origin, notes })
}

/// What a word-level tokenizer writes for a word it does not know.
fn unknown_token(json: &[u8]) -> Option<String> {
    let v: Value = serde_json::from_slice(json).ok()?;
    v.get("model")?.get("unk_token")?.as_str().map(str::to_owned)
}

/// A JSON array of token ids.
pub(super) fn ids(bytes: &[u8]) -> Result<Vec<u32>> {
    const HINT: &str = "token ids are one JSON array of whole numbers, like [0, 17, 42]";
    let value: Value =
        serde_json::from_slice(bytes).map_err(|e| Error::input(format!("not JSON: {e}")).hint(HINT))?;
    let Value::Array(list) = value else {
        return Err(Error::input("the token ids are not a JSON array").hint(HINT));
    };
    if list.is_empty() {
        return Err(empty());
    }
    list.iter()
        .enumerate()
        .map(|(i, v)| {
            let what = match v {
                Value::Number(n) => match n.as_u64().map(u32::try_from) {
                    Some(Ok(id)) => return Ok(id),
                    Some(Err(_)) => format!("{n} is too large for a token id"),
                    None if n.as_i64().is_some() => format!("{n} is negative"),
                    None => format!("{n} is not a whole number"),
                },
                Value::Array(_) => "another array".into(),
                Value::Object(_) => "an object".into(),
                Value::String(_) => "a string".into(),
                Value::Bool(_) => "a truth value".into(),
                Value::Null => "null".into(),
            };
            let hint = if matches!(v, Value::Array(_)) {
                "one sequence a file: take one inner array, like [0, 17, 42]"
            } else {
                HINT
            };
            Err(Error::input(format!("element {i} of the token ids is no token id: {what}")).hint(hint))
        })
        .collect()
}

/// 128-bit FNV-1a.
pub fn hash(tokens: &[u32]) -> String {
    hash_bytes(tokens.iter().flat_map(|t| t.to_le_bytes()))
}

/// 128-bit FNV-1a in hex: an identity, not a cryptographic one.
pub fn hash_bytes(bytes: impl IntoIterator<Item = u8>) -> String {
    Fnv::of(bytes).hex()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pico() -> Checkpoint {
        Checkpoint::open(BUILTINS[0]).unwrap()
    }

    /// Catches a built-in prompt that ends below the horizon, or a tokenizer that lost its BOS.
    #[test]
    fn the_built_in_prompt_is_long_and_starts_with_bos() {
        let p = PromptArgs::default().load(&pico()).unwrap();
        assert_eq!(p.tokens.len(), 2032);
        assert_eq!(p.tokens[0], 0);
        assert!(p.notes.is_empty(), "{:?}", p.notes);
        assert!(p.text.unwrap().ends_with("answer:"));
    }

    #[test]
    fn unknown_words_are_mentioned() {
        let args = PromptArgs { prompt: Some("the zyzzyva is velvet".into()), ..Default::default() };
        let p = args.load(&pico()).unwrap();
        assert_eq!(p.notes.len(), 1);
        assert!(p.notes[0].starts_with("1 of 5 tokens of the prompt are [UNK]"), "{}", p.notes[0]);
    }

    #[test]
    fn ids_are_whole_numbers_in_one_array() {
        assert_eq!(ids(b" [0, 17,42]\n").unwrap(), [0, 17, 42]);
        for (text, what) in [
            ("", "not JSON"),
            ("[1,", "not JSON"),
            ("{\"tokens\":[1]}", "not a JSON array"),
            ("[]", "empty"),
            ("[1.0]", "element 0 of the token ids is no token id: 1.0 is not a whole number"),
            ("[1,-2]", "element 1 of the token ids is no token id: -2 is negative"),
            ("[4294967296]", "too large"),
            ("[1e3]", "not a whole number"),
            ("[[1,2]]", "another array"),
            ("[\"1\"]", "a string"),
            ("[null]", "null"),
        ] {
            let e = ids(text.as_bytes()).unwrap_err();
            assert!(e.message().contains(what), "{text}: {e}");
            assert!(e.to_string().contains("hint:"), "{text}");
        }
    }

    /// Catches a hash that changes between versions: it is written into reports.
    #[test]
    fn the_hash_is_stable() {
        assert_eq!(hash(&[]), "6c62272e07bb014262b821756295c58d");
        assert_ne!(hash(&[1, 2]), hash(&[2, 1]));
    }
}
