//! `dsv4 ab`: kernel toggles alone, together and left out, judged by gates.

mod junit;
mod store;
mod text;

use super::progress::Bar;
use super::prompt::PromptArgs;
use super::{Globals, write_json, write_text};
use crate::ab::config::{DEFAULT, Experiment};
use crate::ab::judge::{self, Conclusion};
use crate::ab::measure::{self, Prompt, Run};
use crate::ab::recall;
use crate::ab::table::Table;
use crate::ab::toggles::{self, Set};
use crate::checkpoint::Checkpoint;
use crate::engine::Loader;
use crate::error::{Error, Result, exit};
use crate::kernels::Cpu;
use serde_json::{Value, json};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Switch kernels on one by one, together and all but one, and judge the runs by gates
#[derive(Debug, Clone, clap::Args)]
pub struct AbArgs {
    /// The experiment [default: dsv4.toml if it is there, else the built-in one]
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Print the built-in experiment and stop
    #[arg(long)]
    pub print_config: bool,
    /// Run every pair of toggles too
    #[arg(long)]
    pub pairs: bool,
    /// Look for the smallest set of toggles that breaks a gate
    #[arg(long)]
    pub bisect: bool,
    /// Judge a stored run again under the gates of the config, without computing anything
    #[arg(long, value_name = "RUN", conflicts_with_all = ["pairs", "bisect"])]
    pub judge: Option<PathBuf>,
    /// A stored run that gates with `baseline` compare with
    #[arg(long, value_name = "RUN")]
    pub baseline: Option<PathBuf>,
    /// Run directory [default: dsv4-runs/ab-HASH, a hash of the experiment]
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// Write JUnit XML here too (it is always in the run directory)
    #[arg(long, value_name = "FILE")]
    pub junit: Option<PathBuf>,
    /// Append a Markdown summary to this file
    #[arg(long, value_name = "FILE", env = "GITHUB_STEP_SUMMARY")]
    pub summary: Option<PathBuf>,
    /// Print one JSON object (schema dsv4.ab/1) instead of tables
    #[arg(long)]
    pub json: bool,
}

/// The config that is looked for where none is named.
const CONFIG: &str = "dsv4.toml";

/// Everything that is known about a run, fresh or stored.
pub(super) struct Record {
    pub manifest: Value,
    pub names: Vec<String>,
    pub kernels: Vec<String>,
    pub runs: Vec<Run>,
    pub tables: Vec<Table>,
}

/// Runs the command; the result is the exit code.
pub fn run(args: &AbArgs, global: &Globals, out: &mut dyn Write) -> Result<i32> {
    if args.print_config {
        write_text(out, DEFAULT)?;
        return Ok(exit::OK);
    }
    let (mut exp, origin) = experiment(args)?;
    exp.run.pairs |= args.pairs;
    if args.baseline.is_some() {
        exp.baseline.clone_from(&args.baseline);
    }
    let (record, found) = match &args.judge {
        Some(dir) => (store::read(dir)?, None),
        None => fresh(args, global, &exp)?,
    };
    let conclusion = conclude(&exp, &record, found)?;
    let object = object(&record, &conclusion);
    let dir = save(args, global, &record, &object, &conclusion)?;
    for (path, append, bytes) in [
        (&args.junit, false, junit::xml(&conclusion)?),
        (&args.summary, true, text::markdown(&conclusion).into_bytes()),
    ] {
        if let Some(path) = path {
            store::put(path, append, &bytes)?;
        }
    }
    if std::env::var_os("GITHUB_ACTIONS").is_some_and(|v| v == "true") {
        text::annotations(&conclusion).iter().for_each(|a| eprintln!("{a}"));
    }
    if args.json {
        write_json(out, &object)?;
    } else {
        let again = match (&args.judge, &origin) {
            (Some(d), _) => format!("dsv4 ab --judge {}", d.display()),
            (None, Some(c)) => format!("dsv4 ab --config {}", c.display()),
            (None, None) => "dsv4 ab".into(),
        };
        let dir = dir.map(|d| d.display().to_string());
        write_text(out, &text::text(&conclusion, &again, dir.as_deref()))?;
    }
    Ok(if conclusion.passed { exit::OK } else { exit::DIFFERENCE })
}

fn experiment(args: &AbArgs) -> Result<(Experiment, Option<PathBuf>)> {
    match &args.config {
        Some(path) => Ok((Experiment::read(path)?, Some(path.clone()))),
        None if Path::new(CONFIG).is_file() => {
            Ok((Experiment::read(Path::new(CONFIG))?, Some(CONFIG.into())))
        }
        None => Ok((Experiment::parse(DEFAULT, Path::new(""))?, None)),
    }
}

/// Runs the experiment, and the bisect if one was asked for.
fn fresh(args: &AbArgs, global: &Globals, exp: &Experiment) -> Result<(Record, Option<Set>)> {
    let ckpt = Arc::new(Checkpoint::open(&exp.model)?);
    ckpt.check()?;
    let mut prompts = Vec::new();
    let mut origins = Vec::new();
    let sources = if exp.prompts.is_empty() {
        vec![PromptArgs::default()]
    } else {
        exp.prompts
            .iter()
            .map(|p| PromptArgs {
                prompt: p.text.clone(),
                prompt_file: p.file.clone(),
                token_ids: p.token_ids.clone(),
            })
            .collect()
    };
    for (i, p) in sources.iter().enumerate() {
        let p = p.load(&ckpt)?;
        p.notes.iter().for_each(|n| global.note(n));
        origins.push(json!({"tokens": p.tokens.len(), "hash": p.hash}));
        prompts.push(Prompt { name: i.to_string(), tokens: p.tokens });
    }
    let outer = Loader::new(Cpu, ckpt.clone()).outer()?;
    let names: Vec<String> = exp.toggles.iter().map(|t| t.name.clone()).collect();
    let n = names.len();
    let mut runs = measure::runs(exp, &toggles::sets(n, exp.run.pairs), true)?;
    let mut tables = measure::no_tables();
    let grid = recall::grid(exp, ckpt.config().max_position_embeddings)?;
    if grid.is_some() {
        tables.push(recall::no_table());
    }
    let bar = Bar::new(global.quiet);
    let go = |runs: &[Run], tables: &mut [Table], first: bool| {
        measure::measure(&Cpu, &ckpt, &outer, exp, &prompts, runs, tables, &bar)?;
        match (&grid, tables.iter_mut().find(|t| t.name == "recall")) {
            (Some(g), Some(t)) => recall::measure(&Cpu, &ckpt, &outer, exp, g, runs, first, t, &bar),
            _ => Ok(()),
        }
    };
    go(&runs, &mut tables, true)?;
    let mut found = None;
    if args.bisect {
        let baseline = baseline(exp, None)?;
        let judged = judge::gates(&exp.gates, &runs, &tables, baseline.as_deref())?;
        let known = judge::failing(&runs, &judged);
        found = toggles::bisect(n, &known, |sets: &[Set]| -> Result<Vec<bool>> {
            let new = measure::runs(exp, sets, false)?;
            go(&new, &mut tables, false)?;
            runs.extend(new.clone());
            let judged = judge::gates(&exp.gates, &new, &tables, baseline.as_deref())?;
            let fails = judge::failing(&new, &judged);
            Ok(sets.iter().map(|s| fails[s]).collect())
        })?;
    }
    let capture = tables[1].rows.iter().filter(|r| tables[1].cell(r, "run") == measure::AA).count();
    let manifest = json!({
        "schema": "dsv4.run/1",
        "command": "ab",
        "version": env!("CARGO_PKG_VERSION"),
        "model": ckpt.source(),
        "fingerprint": ckpt.fingerprint(),
        "golden": exp.golden.name(),
        "prompts": origins,
        "run": {"chunk": exp.run.chunk, "decode_last": exp.run.decode_last},
        "toggles": exp.toggles.iter().map(|t| json!({"name": t.name, "kernels": t.kernels.to_string()})).collect::<Vec<_>>(),
        "runs": runs.iter().map(|r| json!({"name": r.name, "set": r.set, "kernels": r.kernels})).collect::<Vec<_>>(),
        "needle": exp.needle,
        "capture_points": capture,
    });
    let kernels = exp.toggles.iter().map(|t| t.kernels.to_string()).collect();
    Ok((Record { manifest, names, kernels, runs, tables }, found))
}

/// The stored tables that gates compare with, if there are such gates. They must come from the same experiment.
fn baseline(exp: &Experiment, manifest: Option<&Value>) -> Result<Option<Vec<Table>>> {
    let Some(dir) = exp.baseline.as_ref().filter(|_| exp.gates.iter().any(|g| g.needs_baseline())) else {
        return Ok(None);
    };
    let stored = store::read(dir)?;
    if let Some(m) = manifest {
        store::same_experiment(m, &stored.manifest).map_err(|e| e.file(dir))?;
    }
    Ok(Some(stored.tables))
}

fn conclude(exp: &Experiment, r: &Record, found: Option<Set>) -> Result<Conclusion> {
    let baseline = baseline(exp, Some(&r.manifest))?;
    let judged = judge::gates(&exp.gates, &r.runs, &r.tables, baseline.as_deref())?;
    judge::conclude(&r.names, &r.kernels, &r.runs, &r.tables, judged, found)
}

fn object(r: &Record, c: &Conclusion) -> Value {
    let mut v = json!({"schema": "dsv4.ab/1", "headline": text::headline(c)});
    for key in ["model", "fingerprint", "golden", "prompts", "run", "needle", "toggles", "runs"] {
        v[key] = r.manifest[key].clone();
    }
    v["conclusion"] = serde_json::to_value(c).unwrap_or_default();
    v
}

/// Writes the run directory. The default one is a convenience: where it cannot be written the result is still printed.
fn save(
    args: &AbArgs,
    global: &Globals,
    r: &Record,
    object: &Value,
    c: &Conclusion,
) -> Result<Option<PathBuf>> {
    // A run that is judged again is not written again unless it is asked for.
    if args.judge.is_some() && args.out.is_none() {
        return Ok(None);
    }
    let path = args.out.clone().unwrap_or_else(|| {
        let keys = ["fingerprint", "prompts", "golden", "run", "needle", "toggles", "runs"];
        let key = super::prompt::hash_bytes(keys.iter().flat_map(|k| object[*k].to_string().into_bytes()));
        PathBuf::from("dsv4-runs").join(format!("ab-{}", &key[..8]))
    });
    match store::write(&path, r, object, &junit::xml(c)?, &text::markdown(c)) {
        Ok(()) => Ok(Some(path)),
        Err(e) if args.out.is_some() => Err(e),
        Err(e) => {
            global.note(&format!("no run directory was written: {}", e.message()));
            Ok(None)
        }
    }
}

/// A value that must be there in a stored run.
pub(super) fn field<'a>(v: &'a Value, name: &str) -> Result<&'a Value> {
    v.get(name).ok_or_else(|| {
        Error::input(format!("the manifest has no `{name}`"))
            .hint("is this the directory of a `dsv4 ab` run?")
    })
}
