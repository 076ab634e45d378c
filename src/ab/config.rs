//! `dsv4.toml`: what an A/B experiment runs and what must hold.

use super::gate::{Gate, GateConfig};
use super::toggles;
use crate::checkpoint::BUILTINS;
use crate::error::{Error, Result};
use crate::kernels::{Golden, Spec};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

/// The experiment that runs where no config is given: every site's fast kernels on the built-in model.
pub const DEFAULT: &str = include_str!("default.toml");

/// A file as written.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    model: Option<String>,
    #[serde(default)]
    golden: Option<String>,
    #[serde(default)]
    run: Run,
    #[serde(default)]
    prompt: Vec<PromptConfig>,
    #[serde(default)]
    needle: Option<NeedleConfig>,
    #[serde(default)]
    toggle: Vec<ToggleConfig>,
    #[serde(default)]
    gate: Vec<GateConfig>,
    #[serde(default)]
    baseline: Option<PathBuf>,
}

/// How prompts are fed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Run {
    /// Prefill chunk, 0 = in one go.
    pub chunk: usize,
    /// Positions at the end that run through the decode phase.
    pub decode_last: usize,
    /// Run every pair of toggles too.
    pub pairs: bool,
}

impl Default for Run {
    fn default() -> Self {
        Run { chunk: 0, decode_last: 16, pairs: false }
    }
}

/// A prompt: exactly one of its keys.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct PromptConfig {
    /// The text itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    /// A file with the text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<PathBuf>,
    /// A file with token ids.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token_ids: Option<PathBuf>,
}

/// Recall to be measured too.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct NeedleConfig {
    /// Context lengths, as `dsv4 needle --ctx` takes them.
    pub ctx: String,
    /// Trials a cell.
    #[serde(default)]
    pub trials: Option<usize>,
    /// Seed.
    #[serde(default)]
    pub seed: u64,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct ToggleConfig {
    name: Option<String>,
    kernels: String,
}

/// Something that can be switched on.
#[derive(Debug, Clone, PartialEq)]
pub struct Toggle {
    /// What reports call it.
    pub name: String,
    /// What it switches on.
    pub kernels: Spec,
}

/// An experiment, checked.
#[derive(Debug, Clone)]
pub struct Experiment {
    /// Checkpoint.
    pub model: String,
    /// Exact path.
    pub golden: Golden,
    /// How prompts are fed.
    pub run: Run,
    /// Prompts; none = the model's built-in one.
    pub prompts: Vec<PromptConfig>,
    /// Recall.
    pub needle: Option<NeedleConfig>,
    /// Toggles, in order.
    pub toggles: Vec<Toggle>,
    /// Gates, in order.
    pub gates: Vec<Gate>,
    /// A stored run that gates compare with.
    pub baseline: Option<PathBuf>,
}

const HINT: &str = "docs/ci.md describes dsv4.toml; `dsv4 ab --print-config` prints a working one";

impl Experiment {
    /// Reads a config file. Paths in it are relative to it.
    ///
    /// # Errors
    /// Exit 3 if the file cannot be read, exit 2 if it makes no sense.
    pub fn read(path: &Path) -> Result<Experiment> {
        let text =
            std::fs::read_to_string(path).map_err(|e| Error::io(path, "read the config", &e).hint(HINT))?;
        let dir = path.parent().unwrap_or(Path::new(""));
        Experiment::parse(&text, dir).map_err(|e| e.file(path))
    }

    /// Reads config text; relative paths are taken from `dir`.
    pub fn parse(text: &str, dir: &Path) -> Result<Experiment> {
        let f: File = toml::from_str(text)
            .map_err(|e| Error::usage(format!("not a config: {}", e.to_string().trim())).hint(HINT))?;
        let golden = f.golden.as_deref().map_or(Ok(Golden::default()), Golden::parse);
        let golden = golden.map_err(|e| Error::usage(format!("golden: {e}")).hint(HINT))?;
        let mut toggles: Vec<Toggle> = Vec::new();
        for t in &f.toggle {
            let kernels: Spec =
                t.kernels.parse().map_err(|e: Error| e.context(format!("toggle `{}`", t.kernels)))?;
            let name = t.name.clone().unwrap_or_else(|| t.kernels.clone());
            if name.is_empty() || toggles.iter().any(|o| o.name == name) {
                return Err(
                    Error::usage(format!("two toggles are called `{name}`, or one has no name")).hint(HINT)
                );
            }
            toggles.push(Toggle { name, kernels });
        }
        if toggles.is_empty() {
            return Err(Error::usage("no toggle: there is nothing to switch on").hint(HINT));
        }
        if toggles.len() > toggles::MOST {
            return Err(Error::usage(format!("{} toggles are more than {}", toggles.len(), toggles::MOST)));
        }
        let gates = f.gate.iter().map(Gate::new).collect::<Result<Vec<_>>>()?;
        if gates.is_empty() {
            return Err(Error::usage("no gate: nothing would ever fail").hint(HINT));
        }
        if let Some(g) = gates.iter().find(|g| g.needs_baseline() && f.baseline.is_none()) {
            return Err(Error::usage(format!(
                "gate `{}` compares with a baseline, but none is given",
                g.name
            ))
            .hint("set baseline = \"DIR\" in the config, or --baseline DIR"));
        }
        for p in &f.prompt {
            if [p.text.is_some(), p.file.is_some(), p.token_ids.is_some()].iter().filter(|x| **x).count() != 1
            {
                return Err(Error::usage("a prompt has one of text, file, token_ids").hint(HINT));
            }
        }
        let at = |p: &PathBuf| if p.is_absolute() { p.clone() } else { dir.join(p) };
        let prompts = f
            .prompt
            .iter()
            .map(|p| PromptConfig {
                text: p.text.clone(),
                file: p.file.as_ref().map(at),
                token_ids: p.token_ids.as_ref().map(at),
            })
            .collect();
        Ok(Experiment {
            model: f.model.unwrap_or_else(|| BUILTINS[0].into()),
            golden,
            run: f.run,
            prompts,
            needle: f.needle,
            toggles,
            gates,
            baseline: f.baseline.as_ref().map(at),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bad(text: &str) -> String {
        let e = Experiment::parse(text, Path::new("")).unwrap_err();
        assert_eq!(e.kind().exit_code(), 2, "{e}");
        e.to_string()
    }

    #[test]
    fn the_default_is_a_whole_experiment() {
        let e = Experiment::parse(DEFAULT, Path::new("")).unwrap();
        assert!(e.toggles.len() >= 4 && !e.gates.is_empty());
        assert_eq!(e.model, "builtin:pico");
    }

    /// Catches a typing error that silently switches a gate or a toggle off.
    #[test]
    fn mistakes_are_named() {
        let t = "[[toggle]]\nkernels = \"splitk-mma\"\n";
        let g = "[[gate]]\nrequire = \"excess <= 2\"\n";
        for (text, what) in [
            (format!("{t}{g}modle = 1\n"), "modle"),
            (format!("{t}[[gate]]\nrequires = \"excess <= 2\"\n"), "requires"),
            (format!("{t}{g}{t}"), "two toggles are called `splitk-mma`"),
            (g.to_string(), "no toggle"),
            (t.to_string(), "no gate"),
            (format!("[[toggle]]\nkernels = \"splitk-mm\"\n{g}"), "splitk-mma"),
            (format!("golden = \"exact\"\n{t}{g}"), "golden"),
            (format!("{t}[[gate]]\nrequire = \"excess <= baseline\"\n"), "none is given"),
            (format!("{t}{g}[[prompt]]\ntext = \"a\"\nfile = \"b\"\n"), "one of text, file, token_ids"),
            (format!("{t}{g}[run]\ndecode_last = -1\n"), "decode_last"),
        ] {
            assert!(bad(&text).contains(what), "{text}: {}", bad(&text));
        }
    }

    #[test]
    fn paths_are_relative_to_the_config() {
        let text = "baseline = \"base\"\n[[prompt]]\nfile = \"p.txt\"\n[[toggle]]\nkernels = \"mhc-bf16\"\n\
                    [[gate]]\nrequire = \"excess <= baseline\"\n";
        let e = Experiment::parse(text, Path::new("/x")).unwrap();
        assert_eq!(e.baseline.as_deref(), Some(Path::new("/x/base")));
        assert_eq!(e.prompts[0].file.as_deref(), Some(Path::new("/x/p.txt")));
    }
}
