//! `dsv4 selftest`: plants every fault and shows that each is found where it is.

use super::progress::Bar;
use super::prompt::PromptArgs;
use super::table::{Column, count, table};
use super::{Globals, write_json, write_text};
use crate::checkpoint::{BUILTINS, Checkpoint};
use crate::engine::Loader;
use crate::engine::compare::short;
use crate::engine::prompt_faults;
use crate::engine::selftest::{Selftest, SelftestOptions, Sensitivity, selftest};
use crate::error::{Error, ErrorKind, Result, exit};
use crate::kernels::Cpu;
use crate::report::run_dir::{RunDir, now};
use serde_json::{Value, json};
use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;

/// Plant faults and show that each one is found at its site and layer
#[derive(Debug, Clone, clap::Args)]
pub struct SelftestArgs {
    /// A directory with config.json and *.safetensors, or builtin:pico
    #[arg(long, value_name = "MODEL", default_value = BUILTINS[0])]
    pub model: String,
    /// Prompt.
    #[command(flatten)]
    pub prompt: PromptArgs,
    /// Tokens of the prompt that are used; above the identity horizon, or the indexer is idle
    #[arg(long, value_name = "N", default_value_t = 420)]
    pub tokens: usize,
    /// Only faults and controls whose name contains this
    #[arg(long, value_name = "NAME")]
    pub fault: Option<String>,
    /// Plant in every layer a fault applies to, not only the first and the last
    #[arg(long)]
    pub every_layer: bool,
    /// Runs of golden against itself
    #[arg(long, value_name = "N", default_value_t = 50)]
    pub aa_runs: usize,
    /// Seed of the prompts of these runs
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// Also write selftest.md and selftest.json to this directory
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// Print one JSON object (schema dsv4.selftest/1) instead of a table
    #[arg(long)]
    pub json: bool,
}

/// Runs the command; the result is the exit code.
pub fn run(args: &SelftestArgs, global: &Globals, out: &mut dyn Write) -> Result<i32> {
    let checkpoint = Arc::new(Checkpoint::open(&args.model)?);
    checkpoint.check()?;
    let mut prompt = args.prompt.load(&checkpoint)?;
    prompt.tokens.truncate(args.tokens.max(1));
    if let Some(h) = checkpoint.config().horizon().filter(|h| prompt.tokens.len() <= *h) {
        global.note(&format!(
            "{} tokens do not exceed the identity horizon of {h}: indexer faults stay invisible",
            prompt.tokens.len()
        ));
    }
    let outer = Loader::new(Cpu, checkpoint.clone()).outer()?;
    let options = SelftestOptions {
        only: args.fault.clone(),
        every_layer: args.every_layer,
        aa_runs: args.aa_runs,
        seed: args.seed,
    };
    let result = selftest(&Cpu, &checkpoint, &outer, &prompt.tokens, &options, &Bar::new(global.quiet))?
        .with_prompt(prompt_faults::rows(args.fault.as_deref())?);
    if result.rows.is_empty() && result.aa_runs == 0 {
        return Err(Error::new(ErrorKind::NothingCompared, "no fault has that name")
            .hint("`dsv4 kernels list` shows all faults"));
    }
    let mut object = serde_json::to_value(&result).map_err(|e| Error::bug(e.to_string()))?;
    object["schema"] = json!("dsv4.selftest/1");
    object["passed"] = json!(result.passed());
    object["model"] = json!(checkpoint.source());
    object["tokens"] = json!(prompt.tokens.len());
    if let Some(path) = &args.out {
        let dir = RunDir::create(path)?;
        dir.json("selftest.json", &object)?;
        dir.json("summary.json", &object)?;
        dir.csv("selftest.csv", COLUMNS, result.rows.iter().map(record))?;
        dir.write("selftest.md", markdown(&result).as_bytes())?;
        dir.json(
            "manifest.json",
            &json!({
                "schema": "dsv4.run/1",
                "command": "selftest",
                "version": env!("CARGO_PKG_VERSION"),
                "finished_unix": now(),
                "device": "cpu",
                "threads": rayon::current_num_threads(),
                "model": checkpoint.source(),
                "fingerprint": checkpoint.fingerprint(),
                "prompt": {"origin": prompt.origin, "hash": prompt.hash},
            }),
        )?;
    }
    if args.json {
        write_json(out, &object)?;
    } else {
        write_text(out, &text(&result, &object))?;
    }
    Ok(if result.passed() { exit::OK } else { exit::DIFFERENCE })
}

/// Columns of `selftest.csv`.
const COLUMNS: &[&str] = &[
    "fault",
    "class",
    "site",
    "layer",
    "control",
    "exercised",
    "passed",
    "status",
    "found_layer",
    "found_site",
    "tap",
    "signal",
    "size",
];

fn record(r: &Sensitivity) -> Vec<String> {
    let layer = |l: Option<usize>| l.map_or(String::new(), |l| l.to_string());
    vec![
        r.fault.clone(),
        r.class.to_string(),
        r.site.clone(),
        layer(r.layer),
        r.control.to_string(),
        r.exercised.to_string(),
        r.passed.to_string(),
        r.status.to_string(),
        layer(r.found_layer),
        r.found_site.clone().unwrap_or_default(),
        r.tap.clone().unwrap_or_default(),
        r.signal.clone(),
        format!("{:e}", r.size),
    ]
}

fn headline(r: &Selftest) -> String {
    let faults = r.rows.iter().filter(|r| !r.control);
    let missed = faults.clone().filter(|r| !r.passed && r.exercised).count();
    let idle = faults.clone().filter(|r| !r.exercised).count();
    let controls = r.rows.iter().filter(|r| r.control);
    let alarms = controls.clone().filter(|r| !r.passed).count();
    format!(
        "{}: {} of {} found at the right site and layer ({} plantings, {missed} missed, {idle} that this model cannot show); {alarms} alarms on {}, {} on {} A/A runs",
        if r.passed() { "PASSED" } else { "FAILED" },
        r.kinds_found,
        count(r.kinds, "fault kind"),
        faults.count(),
        count(controls.count(), "harmless control run"),
        r.aa_alarms,
        r.aa_runs,
    )
}

fn cells(r: &Sensitivity) -> Vec<String> {
    let found = match (r.control, r.passed, r.exercised) {
        (true, true, _) => "quiet",
        (true, false, _) => "ALARM",
        (false, true, _) => "yes",
        (false, false, true) => "NO",
        (false, false, false) => "no bit",
    };
    let at = r.tap.clone().unwrap_or_else(|| "-".into());
    let size = if r.tap.is_some() { short(r.size) } else { "-".into() };
    vec![
        r.fault.clone(),
        r.site.clone(),
        r.layer.map_or("-".into(), |l| l.to_string()),
        found.into(),
        at.replace("layers.", ""),
        size,
    ]
}

fn text(r: &Selftest, object: &Value) -> String {
    let mut t = super::table::wrapped(&headline(r), 0);
    t += &super::table::wrapped(
        &format!(
            "model {}, {} tokens; same fault on both sides: {}",
            object["model"].as_str().unwrap_or(""),
            object["tokens"],
            r.oracle
        ),
        0,
    );
    t.push('\n');
    t += &table(
        &[
            ("fault", Column::Word),
            ("site", Column::Word),
            ("layer", Column::Number),
            ("found", Column::Word),
            ("tap", Column::Word),
            ("size", Column::Number),
        ],
        r.rows.iter().map(cells),
    );
    t += "\nsize: error over the floor at that tap; for selections the share of entries lost,\n\
          for prompts the characters that differ.\n\
          no bit: this model and layer cannot show the fault; it is neither found nor missed.\n";
    t
}

/// The sensitivity table for a report.
fn markdown(r: &Selftest) -> String {
    let mut t = format!("# Selftest\n\n{}\n\nSame fault on both sides: {}.\n\n", headline(r), r.oracle);
    t += "| fault | class | site | layer | found | where | signal | size |\n|---|---|---|---|---|---|---|---|\n";
    for row in &r.rows {
        let c = cells(row);
        t += &format!(
            "| {} | {} | {} | {} | {} | {} | {} | {} |\n",
            c[0], row.class, c[1], c[2], c[3], c[4], row.signal, c[5]
        );
    }
    t
}
