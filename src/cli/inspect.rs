//! `dsv4 inspect`: what a checkpoint is, what it holds, and whether that is what its config calls for.
//!
//! Exit 0 if every expected tensor is there and usable (extra ones do no harm), 1 if any is missing, of the wrong shape or
//! type, or a hash table names an expert that does not exist; 3 if the checkpoint cannot be opened at all.

mod json;
mod questions;
mod text;

use std::io::Write;
use std::path::{Path, PathBuf};

use questions::{HashTables, Question, questions};

use crate::checkpoint::{Checkpoint, Config, Inventory};
use crate::error::{Error, Result, exit};
use crate::report::run_dir::{RunDir, now};

/// Describe a checkpoint and check it against its config.
#[derive(Debug, Clone, clap::Args)]
pub struct InspectArgs {
    /// A directory with config.json and *.safetensors, or builtin:pico.
    #[arg(value_name = "MODEL", default_value = "builtin:pico")]
    pub model: String,
    /// Print one JSON object (schema dsv4.inspect/1) instead of text.
    #[arg(long)]
    pub json: bool,
    /// Write summary.json, inspect.csv (tensors by role and format) and manifest.json here.
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
}

/// Runs the command; the result is the exit code.
pub fn run(args: &InspectArgs, out: &mut dyn Write) -> Result<i32> {
    let checkpoint = Checkpoint::open(&args.model)?;
    let facts = Facts::gather(&checkpoint);
    if let Some(path) = &args.out {
        facts.save(path)?;
    }
    let text = if args.json {
        let mut text = serde_json::to_string_pretty(&facts.json()).map_err(|e| Error::bug(e.to_string()))?;
        text.push('\n');
        text
    } else {
        facts.text()
    };
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        // The reader of a pipe may have seen enough.
        Err(e) if e.kind() != std::io::ErrorKind::BrokenPipe => {
            Err(Error::input(format!("cannot write the report: {e}")))
        }
        _ => Ok(if facts.ok() { exit::OK } else { exit::DIFFERENCE }),
    }
}

impl Facts<'_> {
    /// Writes the run directory.
    fn save(&self, path: &Path) -> Result<()> {
        let dir = RunDir::create(path)?;
        let rows = self.inventory.roles.iter().flat_map(|r| {
            r.formats.iter().map(|(f, s)| {
                let stored = f.map_or("unusable".into(), |f| f.to_string());
                let number = |n: u64| n.to_string();
                [r.role.name().into(), stored, number(s.tensors as u64), number(s.params), number(s.bytes)]
            })
        });
        dir.csv("inspect.csv", &["role", "stored", "tensors", "params", "bytes"], rows)?;
        dir.json("summary.json", &self.json())?;
        dir.json(
            "manifest.json",
            &serde_json::json!({
                "schema": "dsv4.run/1",
                "command": "inspect",
                "version": env!("CARGO_PKG_VERSION"),
                "finished_unix": now(),
                "model": self.checkpoint.source(),
                "fingerprint": self.checkpoint.fingerprint(),
            }),
        )
    }
}

/// Everything both writers say.
struct Facts<'a> {
    checkpoint: &'a Checkpoint,
    config: &'a Config,
    inventory: Inventory,
    hash: HashTables,
    questions: Vec<Question>,
}

impl<'a> Facts<'a> {
    fn gather(checkpoint: &'a Checkpoint) -> Self {
        let config = checkpoint.config();
        let inventory = checkpoint.inventory();
        let hash = HashTables::read(checkpoint);
        let questions = questions(checkpoint, &inventory, &hash);
        Facts { checkpoint, config, inventory, hash, questions }
    }

    fn ok(&self) -> bool {
        self.inventory.ok() && self.hash.bad.is_empty()
    }

    fn verdict(&self) -> String {
        let inv = &self.inventory;
        let mut parts = Vec::new();
        if inv.missing.0 > 0 {
            parts.push(format!("{} missing", count(inv.missing.0, "tensor")));
        }
        if inv.wrong.0 > 0 {
            parts.push(format!("{} unusable", count(inv.wrong.0, "tensor")));
        }
        if inv.wrong.0 == 0 && !self.hash.bad.is_empty() {
            parts.push(format!("{} out of range", count(self.hash.bad.len(), "hash table")));
        }
        if parts.is_empty() {
            parts.push("ok: nothing missing, nothing of the wrong shape".into());
        }
        if inv.extra.0 > 0 {
            parts.push(format!("{} extra (ignored)", inv.extra.0));
        }
        parts.join(", ")
    }
}

fn count(n: usize, what: &str) -> String {
    format!("{n} {what}{}", if n == 1 { "" } else { "s" })
}

/// Ascending numbers, with even steps folded: `0-3`, `2,4..42`.
fn runs(list: &[usize]) -> String {
    let mut out = Vec::new();
    let mut i = 0;
    while i < list.len() {
        let step = list.get(i + 1).map_or(1, |n| n - list[i]);
        let mut j = i;
        while j + 1 < list.len() && list[j + 1] - list[j] == step {
            j += 1;
        }
        match (j - i, step) {
            (0, _) => out.push(list[i].to_string()),
            (_, 1) => out.push(format!("{}-{}", list[i], list[j])),
            (1, _) => {
                out.push(list[i].to_string());
                j = i;
            }
            _ => out.push(format!("{},{}..{}", list[i], list[i + 1], list[j])),
        }
        i = j + 1;
    }
    out.join(",")
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    #[test]
    fn a_schedule_folds_into_something_else() {
        assert_eq!(runs(&[]), "");
        assert_eq!(runs(&[3]), "3");
        assert_eq!(runs(&[0, 1]), "0-1");
        assert_eq!(runs(&[2, 4, 6, 42]), "2,4..6,42");
        assert_eq!(runs(&[0, 1, 2, 7, 9]), "0-2,7,9");
        assert_eq!(runs(&[1, 5]), "1,5");
    }

    #[test]
    fn the_built_in_model_is_described_wrongly() {
        let mut out = Vec::new();
        let code =
            run(&InspectArgs { model: "builtin:pico".into(), json: false, out: None }, &mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        assert_eq!(code, 0);
        assert!(text.starts_with("ok: nothing missing"), "{text}");
        assert!(text.contains("identity horizon 256 tokens = index_topk 64 x ratio 4"), "{text}");
        assert!(text.lines().all(|l| l.chars().count() <= 80), "{text}");
        let mut out = Vec::new();
        run(&InspectArgs { model: "builtin:pico".into(), json: true, out: None }, &mut out).unwrap();
        let v: Value = serde_json::from_slice(&out).unwrap();
        assert_eq!(v["schema"], "dsv4.inspect/1");
        assert_eq!(v["verdict"]["status"], "ok");
        assert_eq!(v["config"]["hc_eps"], 1e-6);
        assert_eq!(v["schedule"][2]["ratio"], 128);
    }
}
