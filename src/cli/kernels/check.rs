//! `dsv4 kernels check`: every operation of a path alone, against golden.

use super::super::progress::Bar;
use super::super::table::{Column, count, table, wrapped};
use super::super::{Globals, write_json, write_text};
use crate::engine::check::{
    Case, Check, CheckOptions, CheckPath, CheckRow, LAYERS, PathResult, Sizes, check,
};
use crate::engine::compare::short;
use crate::error::{Error, Result, exit};
use crate::kernels::presets::{PRESETS, Preset};
use crate::kernels::{Cpu, Golden, Spec};
use crate::metrics::{Limits, Status};
use crate::report::run_dir::RunDir;
use serde_json::{Value, json};
use std::io::Write;
use std::path::PathBuf;

/// Options of `kernels check`.
#[derive(Debug, Clone, clap::Args)]
pub struct CheckArgs {
    /// One path: presets, faults and single knobs; `none` is golden itself
    #[arg(long, value_name = "SPEC", conflicts_with = "preset", allow_hyphen_values = true)]
    kernels: Option<Spec>,
    /// These presets, each as a path of its own [default: all presets]
    #[arg(long, value_name = "NAME", num_args = 1.., value_delimiter = ',')]
    preset: Vec<String>,
    /// Seed of weights and data
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Sizes of DeepSeek-V4-Flash (real), or ones for a quick look (small)
    #[arg(long, value_name = "real|small", default_value = "real", value_parser = Sizes::parse)]
    sizes: Sizes,
    /// Only these cases [default: all]
    #[arg(long, value_name = "NAME", num_args = 1.., value_delimiter = ',', value_parser = Case::parse)]
    cases: Vec<Case>,
    /// Also write check.json and check.csv to this directory
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Print one JSON object (schema dsv4.kernels-check/1) instead of tables
    #[arg(long)]
    json: bool,
}

/// Runs the command; the result is the exit code.
pub fn run(args: &CheckArgs, global: &Globals, out: &mut dyn Write) -> Result<i32> {
    let cases = Case::ALL.iter().copied().filter(|c| args.cases.is_empty() || args.cases.contains(c));
    let options = CheckOptions {
        paths: paths(args)?,
        seed: args.seed,
        sizes: args.sizes,
        cases: cases.collect(),
        limits: Limits::default(),
    };
    let dir = args.out.as_deref().map(RunDir::create).transpose()?;
    let result = check(&Cpu, &options, &Bar::new(global.quiet))?;
    let object = as_json(&result, &options)?;
    if let Some(dir) = dir {
        dir.json("check.json", &object)?;
        dir.csv("check.csv", CSV, result.paths.iter().flat_map(|p| p.rows.iter().map(|r| csv_row(p, r))))?;
    }
    if args.json {
        write_json(out, &object)?;
    } else {
        write_text(out, &text(&result, &options))?;
    }
    Ok(if result.status == Status::Suspect { exit::DIFFERENCE } else { exit::OK })
}

fn paths(args: &CheckArgs) -> Result<Vec<CheckPath>> {
    let path = |name: &str, spec: &Spec| {
        let known = Preset::find(name).map_or(&[][..], |p| p.known);
        Ok(CheckPath { name: name.into(), plan: spec.plan(Golden::Ideal, &LAYERS)?, known })
    };
    if let Some(spec) = &args.kernels {
        let name = spec.to_string();
        let layered = |w: &str| w.split('@').skip(1).any(|s| s.starts_with(|c: char| c.is_ascii_digit()));
        if let Some(word) = name.split(',').find(|w| layered(w)) {
            return Err(Error::usage(format!("'{word}': an operation alone is in no layer"))
                .hint("leave '@layers' out here; `dsv4 diff-layers` takes it"));
        }
        return Ok(vec![path(&name, spec)?]);
    }
    let named = PRESETS.iter().map(|p| p.name.to_owned());
    let names: Vec<String> = if args.preset.is_empty() { named.collect() } else { args.preset.clone() };
    names
        .iter()
        .map(|n| {
            if Preset::find(n).is_none() {
                let all: Vec<String> = PRESETS.iter().map(|p| p.name.to_owned()).collect();
                let hint = crate::kernels::knobs::nearest(n, &all).map_or_else(
                    || format!("they are {}", all.join(", ")),
                    |x| format!("did you mean '{x}'?"),
                );
                return Err(Error::usage(format!("there is no preset '{n}'")).hint(hint));
            }
            path(n, &n.parse()?)
        })
        .collect()
}

fn as_json(r: &Check, o: &CheckOptions) -> Result<Value> {
    let mut v = json!({
        "schema": "dsv4.kernels-check/1",
        "seed": o.seed,
        "sizes": o.sizes.name(),
        "cases": o.cases.iter().map(|c| c.name()).collect::<Vec<_>>(),
        "limits": o.limits,
    });
    let body = serde_json::to_value(r).map_err(|e| Error::bug(e.to_string()))?;
    if let (Some(v), Value::Object(body)) = (v.as_object_mut(), body) {
        v.extend(body);
    }
    Ok(v)
}

const CSV: &[&str] = &[
    "path",
    "site",
    "op",
    "case",
    "rel_l2",
    "max_rel",
    "floor",
    "format",
    "excess",
    "row_excess",
    "overlap",
    "near_tie_flips",
    "real_flips",
    "n",
    "identical",
    "status",
    "findings",
    "known",
];

fn csv_row(p: &PathResult, r: &CheckRow) -> Vec<String> {
    let n = |v: Option<f64>| v.map_or(String::new(), |v| format!("{v:e}"));
    let findings: Vec<String> = r.findings.iter().map(ToString::to_string).collect();
    vec![
        p.name.clone(),
        r.site.clone(),
        r.op.clone(),
        r.case.clone(),
        n(r.rel_l2),
        n(r.max_rel),
        n(r.floor),
        n(r.format),
        n(r.excess),
        n(r.row_excess),
        n(r.overlap),
        r.near_tie_flips.to_string(),
        r.real_flips.to_string(),
        r.n.to_string(),
        r.identical.to_string(),
        r.status.to_string(),
        findings.join("; "),
        r.known.clone().unwrap_or_default(),
    ]
}

fn text(r: &Check, o: &CheckOptions) -> String {
    let verdict = r.status.to_string().to_uppercase();
    let mut t = wrapped(&format!("{verdict}: {}", r.why), 0);
    t += &wrapped(
        &format!("{} on the CPU, sizes {}, seed {}", count(r.paths.len(), "path"), o.sizes, o.seed),
        0,
    );
    for p in &r.paths {
        t.push('\n');
        t += &wrapped(&format!("{}: {}", p.name, p.status), 0);
        if p.identical {
            t += &wrapped("bit-identical to golden", 2);
        } else if !p.unread.is_empty() {
            t += &wrapped(&format!("changed no bit of an operation alone: {}", p.unread.join(", ")), 2);
        }
        t.push('\n');
        t += &table(
            &[
                ("op", Column::Word),
                ("case", Column::Word),
                ("rel_l2", Column::Number),
                ("max_rel", Column::Number),
                ("floor", Column::Number),
                ("excess", Column::Number),
                ("overlap", Column::Number),
                ("status", Column::Word),
            ],
            p.rows.iter().map(cells),
        );
        t.push('\n');
        if let Some(cost) = format_cost(p) {
            t += &wrapped(&cost, 2);
        }
        for r in p.rows.iter().filter(|r| r.status != Status::Ok) {
            if let Some(why) = remark(r) {
                t += &wrapped(&format!("{} {}: {why}", r.op, r.case), 2);
            }
        }
    }
    t.push('\n');
    t += &wrapped(
        "rel_l2: |x-g|/|g|. max_rel: max|x-g|/max|g|. floor: the rel_l2 that the declared formats explain. \
         excess: rel_l2 over floor. overlap: share of golden's ids chosen. known: suspect, and known to be.",
        0,
    );
    t
}

fn cells(r: &CheckRow) -> Vec<String> {
    let e = |v: Option<f64>| match v {
        None => "-".into(),
        Some(0.0) => "0".into(),
        Some(v) => format!("{v:.1e}"),
    };
    vec![
        r.op.clone(),
        r.case.clone(),
        e(r.rel_l2),
        e(r.max_rel),
        e(r.floor),
        r.excess.map_or("-".into(), short),
        r.overlap.map_or("-".into(), |v| format!("{v:.4}")),
        if r.known.is_some() { "known".into() } else { r.status.to_string() },
    ]
}

/// What f32 inputs cost on top, where the same operation was also handed numbers that bf16 holds.
fn format_cost(p: &PathResult) -> Option<String> {
    let on = |case: Case| p.rows.iter().filter(move |r| r.case == case.name());
    let costs: Vec<String> = on(Case::F32Inputs)
        .filter_map(|f| {
            let r = on(Case::Random).find(|r| r.op == f.op)?;
            let (f32, bf16) = (f.rel_l2?, r.rel_l2?);
            // Below that it is another draw of the same rounding errors.
            (f32 > 1.1 * bf16 && f32 > 1e-6).then(|| format!("{} {f32:.1e} instead of {bf16:.1e}", f.op))
        })
        .collect();
    (!costs.is_empty()).then(|| format!("format cost of f32 inputs (rel_l2): {}", costs.join(", ")))
}

/// What the numbers of a row do not say.
fn remark(r: &CheckRow) -> Option<String> {
    if let Some(why) = &r.known {
        return Some(format!("suspect, as known: {why}"));
    }
    if !r.findings.is_empty() {
        let all: Vec<String> = r.findings.iter().map(ToString::to_string).collect();
        return Some(all.join("; "));
    }
    if r.overlap.is_some() {
        return Some(format!("{} real flips, {} near ties", r.real_flips, r.near_tie_flips));
    }
    let alone = r.row_excess.filter(|x| *x > 4.0 * r.excess.unwrap_or(0.0).max(1.0));
    alone.map(|x| format!("one row is {} times over its floor", short(x)))
}
