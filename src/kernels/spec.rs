//! The language of `--kernels`: which knobs a candidate path turns.
//!
//! A spec is a comma list, read from left to right, later words winning:
//!
//! | word | meaning |
//! |---|---|
//! | `splitk-mma` | a preset (or, in the same way, a fault) |
//! | `all` | every performance preset |
//! | `none` | forgets everything before it |
//! | `-mhc` | that site back to golden, for the words before it |
//! | `-splitk-mma` | takes a preset out again |
//! | `attn.splits=8` | one knob |
//!
//! `@3`, `@0+2-5` confine a word to layers, `@prefill` and `@decode` to a phase:
//! `splitk-mma@3@decode`. [`Spec`] prints back in a canonical form that parses to itself.

use super::faults::{CONTROLS, FAULTS, Fault, Where};
use super::knobs::{KnobPlan, Knobs, Phase, Site, nearest};
use super::presets::{Golden, PRESETS, Preset, PresetKind, sites};
use crate::checkpoint::LayerSpec;
use crate::error::{Error, Result};
use std::fmt;
use std::str::FromStr;

/// Layers and phase that a word is confined to.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct Scope {
    /// Inclusive ranges, ascending, not touching; empty = all layers, embedding and head.
    layers: Vec<(usize, usize)>,
    phase: Option<Phase>,
}

#[derive(Debug, Clone, PartialEq)]
enum What {
    Preset(&'static Preset),
    Fault(&'static Fault),
    Knob(String, String),
    /// Knobs of the site that earlier words set go back to golden.
    Drop(Site),
}

#[derive(Debug, Clone, PartialEq)]
struct Term {
    what: What,
    scope: Scope,
}

/// A parsed kernel spec.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Spec {
    terms: Vec<Term>,
}

impl What {
    fn settings(&self) -> Vec<(String, String)> {
        match self {
            What::Preset(p) => p.settings(),
            What::Fault(f) => f.settings(),
            What::Knob(path, value) => vec![(path.clone(), value.clone())],
            What::Drop(_) => Vec::new(),
        }
    }
    fn named(&self, name: &str) -> bool {
        match self {
            What::Preset(p) => p.name == name,
            What::Fault(f) => f.name == name,
            _ => false,
        }
    }
}

impl Spec {
    /// True if it leaves golden as it is.
    pub fn is_none(&self) -> bool {
        self.terms.is_empty()
    }

    /// The sites whose knobs it sets, in site order.
    pub fn sites(&self) -> Vec<Site> {
        let all: Vec<_> = self.terms.iter().flat_map(|t| t.what.settings()).collect();
        sites(&all)
    }

    /// Every setting in the order it is made, with the phase it is made for.
    pub fn settings(&self) -> Vec<(String, String, Option<Phase>)> {
        let of = |t: &Term| {
            let phase = match &t.what {
                What::Preset(p) => p.phase,
                What::Fault(f) => f.phase,
                _ => None,
            };
            let phase = t.scope.phase.or(phase);
            t.what.settings().into_iter().map(move |(p, v)| (p, v, phase)).collect::<Vec<_>>()
        };
        self.terms.iter().flat_map(of).collect()
    }

    /// The knob settings for a model with these layers, starting from `golden`.
    pub fn plan(&self, golden: Golden, layers: &[LayerSpec]) -> Result<KnobPlan> {
        let mut plan = KnobPlan::default();
        if golden != Golden::Ideal {
            plan.push(None, None, &golden.settings())?;
        }
        let own = plan.overrides.len();
        for term in &self.terms {
            let (settings, kind, phase) = match &term.what {
                What::Drop(site) => {
                    let base = golden.knobs();
                    let mut back: Vec<(String, String)> = Vec::new();
                    for (path, _) in plan.overrides[own..].iter().flat_map(|o| &o.settings) {
                        if path.split('.').next() == Some(site.name()) && !back.iter().any(|(p, _)| p == path)
                        {
                            back.push((path.clone(), base.get(path).unwrap_or_default()));
                        }
                    }
                    (back, Where::Any, term.scope.phase)
                }
                What::Fault(f) => (f.settings(), f.layers, term.scope.phase.or(f.phase)),
                What::Preset(p) => (p.settings(), Where::Any, term.scope.phase.or(p.phase)),
                What::Knob(..) => (term.what.settings(), Where::Any, term.scope.phase),
            };
            plan.push(term.scope.resolve(kind, layers, term)?, phase, &settings)?;
        }
        Ok(plan)
    }

    fn drop_site(&mut self, site: Site, scope: Scope, word: &str) -> Result<()> {
        if !self.sites().contains(&site) {
            return Err(Error::usage(format!("nothing before '{word}' sets a knob of {site}"))
                .hint("`-site` takes back what stands to its left, as in `all,-mhc`"));
        }
        if scope == Scope::default() {
            self.terms.retain(|t| {
                matches!(t.what, What::Drop(s) if s != site)
                    || t.what.settings().iter().any(|(p, _)| p.split('.').next() != Some(site.name()))
            });
        }
        if self.sites().contains(&site) {
            self.terms.push(Term { what: What::Drop(site), scope });
        }
        Ok(())
    }

    fn word(&mut self, word: &str) -> Result<()> {
        let (head, scope) = Scope::split(word)?;
        let unscoped = |what: &str| {
            if scope == Scope::default() {
                return Ok(());
            }
            Err(Error::usage(format!("'{word}': {what} cannot be confined with '@'"))
                .hint("use `-site@layers` to set a site back to golden in some layers"))
        };
        if let Some((path, value)) = head.split_once('=') {
            let mut k = Knobs::default();
            k.set(path.trim(), value.trim())?;
            let value = k.get(path.trim()).unwrap_or_default();
            self.terms.push(Term { what: What::Knob(path.trim().into(), value), scope });
        } else if head == "none" || head == "-all" {
            unscoped("this")?;
            self.terms.clear();
        } else if head == "all" {
            for p in PRESETS.iter().filter(|p| p.kind == PresetKind::Performance) {
                self.terms.push(Term { what: What::Preset(p), scope: scope.clone() });
            }
        } else if let Some(name) = head.strip_prefix('-') {
            if let Some(site) = Site::parse(name) {
                return self.drop_site(site, scope, word);
            }
            if Preset::find(name).is_none() && Fault::find(name).is_none() {
                return Err(unknown(name, true));
            }
            unscoped("taking out a preset")?;
            let before = self.terms.len();
            self.terms.retain(|t| !t.what.named(name));
            if self.terms.len() == before {
                return Err(Error::usage(format!("'{word}' takes out what is not there"))
                    .hint("it takes back what stands to its left, as in `all,-splitk-mma`"));
            }
        } else if let Some(p) = Preset::find(head) {
            self.terms.push(Term { what: What::Preset(p), scope });
        } else if let Some(f) = Fault::find(head) {
            if let (Some(a), Some(b)) = (f.phase, scope.phase)
                && a != b
            {
                return Err(Error::usage(format!("'{word}': the fault exists in {a} only")));
            }
            self.terms.push(Term { what: What::Fault(f), scope });
        } else {
            return Err(unknown(head, false));
        }
        Ok(())
    }
}

impl FromStr for Spec {
    type Err = Error;
    fn from_str(text: &str) -> Result<Spec> {
        let mut spec = Spec::default();
        for word in text.split(',').map(str::trim).filter(|w| !w.is_empty()) {
            spec.word(word)?;
        }
        Ok(spec)
    }
}

fn unknown(word: &str, removal: bool) -> Error {
    let mut names: Vec<String> = PRESETS.iter().map(|p| p.name.into()).collect();
    names.extend(FAULTS.iter().chain(CONTROLS).map(|f| f.name.into()));
    if removal {
        names.extend(Site::ALL.iter().map(|s| s.name().into()));
    } else {
        names.extend(["all".into(), "none".into()]);
        names.extend(Knobs::defs().iter().map(|d| format!("{}.{}", d.site, d.name)));
    }
    let list = "`dsv4 kernels list` shows every name";
    let e = Error::usage(format!("unknown kernel '{word}'"));
    let knob = Knobs::default().get(word).is_some();
    match nearest(word, &names) {
        _ if knob => e.hint(format!("a knob needs a value: '{word}=…'; {list}")),
        _ if Site::parse(word).is_some() => {
            e.hint(format!("'{word}' is a site; name a preset or '{word}.KNOB=VALUE'; {list}"))
        }
        Some(n) => e.hint(format!("did you mean '{}{n}'? {list}", if removal { "-" } else { "" })),
        None => e.hint(list),
    }
}

impl Scope {
    /// Splits `word@scope@scope`.
    fn split(word: &str) -> Result<(&str, Scope)> {
        let mut parts = word.split('@').map(str::trim);
        let head = parts.next().unwrap_or_default();
        let mut scope = Scope::default();
        for part in parts {
            let bad = || {
                Error::usage(format!("'@{part}' in '{word}' is neither layers nor a phase"))
                    .hint("layers are written @3, @1-2 or @0+2-5; phases @prefill or @decode")
            };
            let phase = [Phase::Prefill, Phase::Decode].into_iter().find(|p| p.to_string() == part);
            match phase {
                Some(p) if scope.phase.is_none() => scope.phase = Some(p),
                None if scope.layers.is_empty() => scope.layers = ranges(part).ok_or_else(bad)?,
                _ => return Err(bad()),
            }
        }
        Ok((head, scope))
    }

    /// The layers by number; an error if there are none such.
    fn resolve(&self, kind: Where, layers: &[LayerSpec], term: &Term) -> Result<Option<Vec<usize>>> {
        if let Some((_, last)) = self.layers.last().filter(|(_, b)| *b >= layers.len()) {
            return Err(Error::usage(format!("'{term}' names layer {last}, the model has {}", layers.len()))
                .hint(format!("layers count from 0 to {}", layers.len().saturating_sub(1))));
        }
        if self.layers.is_empty() && kind == Where::Any {
            return Ok(None);
        }
        let named =
            |l: usize| self.layers.is_empty() || self.layers.iter().any(|(a, b)| (*a..=*b).contains(&l));
        let found: Vec<usize> = (0..layers.len()).filter(|l| named(*l) && kind.holds(&layers[*l])).collect();
        if found.is_empty() {
            return Err(Error::usage(format!("'{term}' has no layer to be planted in")).hint(format!(
                "it needs a layer of kind '{}'; `dsv4 inspect` shows the schedule",
                kind.name()
            )));
        }
        Ok(Some(found))
    }
}

/// `0+2-5` as merged ranges.
fn ranges(text: &str) -> Option<Vec<(usize, usize)>> {
    let mut all = Vec::new();
    for part in text.split('+') {
        let (a, b) = part.split_once('-').unwrap_or((part, part));
        let number = |s: &str| s.bytes().all(|c| c.is_ascii_digit()).then(|| s.parse::<usize>().ok())?;
        let (a, b) = (number(a)?, number(b)?);
        if a > b || b == usize::MAX {
            return None;
        }
        all.push((a, b));
    }
    all.sort_unstable();
    let mut merged: Vec<(usize, usize)> = Vec::new();
    for (a, b) in all {
        match merged.last_mut() {
            Some((_, end)) if a <= *end + 1 => *end = b.max(*end),
            _ => merged.push((a, b)),
        }
    }
    Some(merged)
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, (a, b)) in self.layers.iter().enumerate() {
            f.write_str(if i == 0 { "@" } else { "+" })?;
            if a == b { write!(f, "{a}")? } else { write!(f, "{a}-{b}")? }
        }
        self.phase.map_or(Ok(()), |p| write!(f, "@{p}"))
    }
}

impl fmt::Display for Term {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.what {
            What::Preset(p) => f.write_str(p.name)?,
            What::Fault(x) => f.write_str(x.name)?,
            What::Knob(path, value) => write!(f, "{path}={value}")?,
            What::Drop(site) => write!(f, "-{site}")?,
        }
        write!(f, "{}", self.scope)
    }
}

impl fmt::Display for Spec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.terms.is_empty() {
            return f.write_str("none");
        }
        for (i, t) in self.terms.iter().enumerate() {
            write!(f, "{}{t}", if i == 0 { "" } else { "," })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
