//! Between prompts and token ids, with a checkpoint's own tokenizer.

use super::constants::CONTROL;
use super::knobs::Spelled;
use super::rendered::Rendered;
use crate::error::{Error, Result};
use std::collections::HashMap;
use std::ops::Range;
use tokenizers::Tokenizer;

/// A tokenizer that knows control tokens from characters that spell them.
pub struct ChatTokenizer {
    full: Tokenizer,
    /// Without added tokens: what a message says is never a control token.
    plain: Tokenizer,
    control: HashMap<&'static str, u32>,
}

/// Token ids, and the bytes of the prompt each stands for.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Tokens {
    /// The ids.
    pub ids: Vec<u32>,
    /// Bytes of the prompt, one range a token.
    pub ranges: Vec<Range<usize>>,
}

impl Tokens {
    /// Tokens that hold any byte of `bytes`.
    pub fn covering(&self, bytes: &Range<usize>) -> Range<usize> {
        let start = self.ranges.partition_point(|r| r.end <= bytes.start);
        let end = self.ranges.partition_point(|r| r.start < bytes.end);
        start..end.max(start)
    }
}

fn unusable(e: impl std::fmt::Display) -> Error {
    Error::input(format!("the checkpoint's tokenizer.json is unusable: {e}"))
}

impl ChatTokenizer {
    /// From the text of a `tokenizer.json`.
    pub fn new(json: &[u8]) -> Result<Self> {
        let mut full = Tokenizer::from_bytes(json).map_err(unusable)?;
        // A prompt is never cut or filled up behind the user's back.
        full.with_padding(None);
        full.with_truncation(None).map_err(unusable)?;
        let mut plain = full.clone();
        plain.with_added_vocabulary(tokenizers::AddedVocabulary::new());
        let added = full.get_added_vocabulary().get_vocab();
        let control = CONTROL.iter().filter_map(|(t, _)| Some((*t, *added.get(*t)?))).collect();
        Ok(ChatTokenizer { control, full, plain })
    }

    /// Control tokens whose ids are not those of the released tokenizers: token, id here, id there.
    pub fn unusual(&self) -> Vec<(&'static str, u32, u32)> {
        let odd = |(t, id): &(&'static str, Option<u32>)| {
            let (here, there) = (*self.control.get(t)?, (*id)?);
            (here != there).then_some((*t, here, there))
        };
        CONTROL.iter().filter_map(odd).collect()
    }

    /// The ids of a prompt.
    pub fn encode(&self, prompt: &Rendered, spelled: Spelled) -> Result<Tokens> {
        let mut out = Tokens::default();
        let mut at = 0;
        for c in &prompt.control {
            self.text(&prompt.text, at..c.start, spelled, &mut out)?;
            let token = &prompt.text[c.clone()];
            let id = self.control.get(token).ok_or_else(|| {
                Error::input(format!("the tokenizer has no control token {token}")).hint(
                    "this checkpoint was not trained on DeepSeek-V4's chat encoding; without --ids and --against-ids no \
                     tokenizer is needed",
                )
            })?;
            out.ids.push(*id);
            out.ranges.push(c.clone());
            at = c.end;
        }
        self.text(&prompt.text, at..prompt.text.len(), spelled, &mut out)?;
        Ok(out)
    }

    fn text(&self, text: &str, range: Range<usize>, spelled: Spelled, out: &mut Tokens) -> Result<()> {
        if range.is_empty() {
            return Ok(());
        }
        let tokenizer = if spelled == Spelled::Control { &self.full } else { &self.plain };
        let e = tokenizer
            .encode(&text[range.clone()], false)
            .map_err(|e| Error::input(format!("the tokenizer cannot encode the prompt: {e}")))?;
        out.ids.extend(e.get_ids());
        out.ranges.extend(e.get_offsets().iter().map(|(a, b)| range.start + a..range.start + b));
        Ok(())
    }

    /// The prompt that `ids` are: text, and which bytes of it are control tokens.
    pub fn decode(&self, ids: &[u32]) -> Result<Rendered> {
        let by_id: HashMap<u32, &str> = self.control.iter().map(|(t, id)| (*id, *t)).collect();
        let mut out = Rendered::default();
        let mut i = 0;
        while i < ids.len() {
            if let Some(token) = by_id.get(&ids[i]) {
                let start = out.text.len();
                out.text.push_str(token);
                out.control.push(start..out.text.len());
                i += 1;
                continue;
            }
            let n = ids[i..].iter().take_while(|id| !by_id.contains_key(id)).count();
            if let Some(bad) = ids[i..i + n].iter().find(|id| self.full.id_to_token(**id).is_none()) {
                return Err(Error::input(format!("the tokenizer has no token {bad}"))
                    .hint("the ids belong to another tokenizer; name its checkpoint with --model"));
            }
            let text = self
                .full
                .decode(&ids[i..i + n], false)
                .map_err(|e| Error::input(format!("the tokenizer cannot decode the ids: {e}")))?;
            out.text.push_str(&text);
            i += n;
        }
        Ok(out)
    }
}
