//! Which wrong encoder, or which other setting of the right one, makes exactly the prompt that was sent.

use super::faults::{PROMPT_FAULTS, PromptFault};
use super::message::Message;
use super::options::{Effort, EncodeOptions, Encoder, Mode};
use super::render::render;

/// A point of the encoder whose prompt is byte for byte the one that was sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Match {
    /// Faults planted, at most two.
    pub faults: Vec<&'static PromptFault>,
    /// The options, faults included.
    pub options: EncodeOptions,
    /// Settings that differ from those asked for, as flags.
    pub settings: Vec<String>,
}

/// What explains a prompt.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Attribution {
    /// The explanations with the fewest deviations.
    pub matches: Vec<Match>,
    /// Nothing was found, and the prompt is so long that not every pair of deviations was tried.
    pub gave_up: bool,
}

/// Bytes all attempts together may render: enough for every single deviation of the longest prompt a model takes.
const BUDGET: usize = 2 << 30;

/// Every nearest explanation of `sent`: other settings, or one fault; failing that one fault at other settings; failing
/// that two faults. Of a class of explanations all are named, since this conversation cannot tell them apart.
pub fn attribute(messages: &[Message], options: &EncodeOptions, sent: &str) -> Attribution {
    within(BUDGET, messages, options, sent)
}

fn within(mut budget: usize, messages: &[Message], options: &EncodeOptions, sent: &str) -> Attribution {
    let matches = search(messages, options, sent, &mut budget);
    Attribution { gave_up: matches.is_empty() && budget < sent.len(), matches }
}

fn search(messages: &[Message], options: &EncodeOptions, sent: &str, budget: &mut usize) -> Vec<Match> {
    let mut fits = |o: &EncodeOptions| {
        if *budget < sent.len() {
            return false;
        }
        let Ok(r) = render(messages, o) else { return false };
        *budget = budget.saturating_sub(r.text.len() + (1 << 12));
        r.text == sent
    };
    let planted = |o: &EncodeOptions| -> Vec<(&'static PromptFault, EncodeOptions)> {
        // Two names may stand for one setting, seen in different conversations.
        let first = |i: usize| PROMPT_FAULTS[..i].iter().all(|f| f.setting != PROMPT_FAULTS[i].setting);
        (0..PROMPT_FAULTS.len())
            .filter(|i| first(*i))
            .filter_map(|i| Some((&PROMPT_FAULTS[i], PROMPT_FAULTS[i].plant(o).ok()?)))
            .collect()
    };
    // The same text can only be tokenised otherwise.
    let spelled = PROMPT_FAULTS.iter().filter(|f| f.setting == "spelled=control");
    if fits(options) {
        let of = |f| Match { faults: vec![f], options: *options, settings: Vec::new() };
        return spelled.map(of).collect();
    }
    let mut out = Vec::new();
    for (f, o) in planted(options) {
        if fits(&o) {
            out.push(Match { faults: vec![f], options: o, settings: Vec::new() });
        }
    }
    let others = others(options);
    for (settings, o) in &others {
        if fits(o) {
            out.push(Match { faults: Vec::new(), options: *o, settings: settings.clone() });
        }
    }
    if !out.is_empty() {
        return nearest(out);
    }
    for (settings, o) in &others {
        for (f, o) in planted(o) {
            if fits(&o) {
                out.push(Match { faults: vec![f], options: o, settings: settings.clone() });
            }
        }
    }
    if !out.is_empty() {
        return nearest(out);
    }
    let single = planted(options);
    for (i, (f, o)) in single.iter().enumerate() {
        for (g, o) in planted(o) {
            let later = single.iter().position(|(x, _)| x.name == g.name).is_some_and(|j| j > i);
            let knob = |f: &PromptFault| f.setting.split('=').next().unwrap_or("").to_owned();
            if later && knob(f) != knob(g) && fits(&o) {
                out.push(Match { faults: vec![f, g], options: o, settings: Vec::new() });
            }
        }
    }
    nearest(out)
}

/// Those with the fewest deviations.
fn nearest(list: Vec<Match>) -> Vec<Match> {
    let cost = |m: &Match| m.faults.len() + m.settings.len();
    let least = list.iter().map(cost).min().unwrap_or(0);
    list.into_iter().filter(|m| cost(m) == least).collect()
}

/// The right encoder, asked otherwise.
fn others(options: &EncodeOptions) -> Vec<(Vec<String>, EncodeOptions)> {
    let efforts = [None, Some(Effort::Low), Some(Effort::High), Some(Effort::Max)];
    let mut out = Vec::new();
    for encoder in Encoder::ALL {
        for mode in [Mode::Chat, Mode::Thinking] {
            for effort in efforts {
                for drop_thinking in [true, false] {
                    let o = EncodeOptions { encoder, mode, effort, drop_thinking, ..*options };
                    let mut settings = Vec::new();
                    let mut say = |differs: bool, flag: String| {
                        if differs {
                            settings.push(flag);
                        }
                    };
                    say(encoder != options.encoder, format!("--encoder {}", encoder.name()));
                    say(mode != options.mode, format!("--mode {}", mode.name()));
                    let asked = effort.map_or("no --effort".into(), |e| format!("--effort {}", e.name()));
                    say(effort != options.effort, asked);
                    let keep = if drop_thinking { "no --keep-thinking" } else { "--keep-thinking" };
                    say(drop_thinking != options.drop_thinking, keep.into());
                    if o != *options && o.check().is_ok() {
                        out.push((settings, o));
                    }
                }
            }
        }
    }
    out.sort_by_key(|(s, _)| s.len());
    out
}

#[cfg(test)]
mod tests {
    use super::super::faults::Case;
    use super::*;

    /// Catches a search that ends early and speaks as if it had not.
    #[test]
    fn giving_up_is_said() {
        let (messages, options) = (Case::Chat.messages(), Case::Chat.options());
        let sent = "no prompt of any encoder";
        assert!(!within(1 << 30, &messages, &options, sent).gave_up);
        let short = within(100_000, &messages, &options, sent);
        assert!(short.gave_up && short.matches.is_empty());
    }
}
