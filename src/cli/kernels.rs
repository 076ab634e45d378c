//! `dsv4 kernels`: every site, knob, preset and fault, explained; each operation checked alone.

mod check;

use super::table::{Column, table, wrapped};
use super::{Globals, write_json, write_text};
use crate::error::{Result, exit};
use crate::kernels::faults::{CONTROLS, FAULTS, Fault};
use crate::kernels::knobs::{Class, KnobDef};
use crate::kernels::presets::{PRESETS, Preset};
use crate::kernels::values::{Fmt, KnobValue};
use crate::kernels::{Golden, Knobs, Site};
use serde_json::{Value, json};
use std::io::Write;

/// Explain the kernels (sites, knobs, presets, faults) and check each one alone
#[derive(Debug, Clone, clap::Args)]
pub struct KernelsArgs {
    #[command(subcommand)]
    command: KernelsCommand,
}

#[derive(Debug, Clone, clap::Subcommand)]
enum KernelsCommand {
    /// List sites, knobs, presets and faults
    #[command(after_help = super::help::KERNELS)]
    List {
        /// Print one JSON object (schema dsv4.kernels/1) instead of tables
        #[arg(long)]
        json: bool,
    },
    /// Test operations alone against golden at the real model's sizes, on synthetic data that punishes
    #[command(after_help = super::help::KERNELS_CHECK)]
    Check(check::CheckArgs),
}

/// Runs the command; the result is the exit code.
pub fn run(args: &KernelsArgs, global: &Globals, out: &mut dyn Write) -> Result<i32> {
    match &args.command {
        KernelsCommand::Check(a) => return check::run(a, global, out),
        KernelsCommand::List { json: true } => write_json(out, &as_json())?,
        KernelsCommand::List { json: false } => write_text(out, &as_text())?,
    }
    Ok(exit::OK)
}

fn class(c: Class) -> &'static str {
    match c {
        Class::Format => "format",
        Class::Internal => "internal",
        Class::Semantic => "semantic",
    }
}

fn as_json() -> Value {
    let knob = |d: &KnobDef| {
        let values: Vec<&str> = d.values.split(", ").collect();
        json!({
            "name": format!("{}.{}", d.site, d.name), "site": d.site.name(), "class": class(d.class),
            "golden": d.golden, "values": values, "doc": d.doc, "source": d.source,
        })
    };
    let preset = |p: &Preset| {
        json!({
            "name": p.name, "kind": p.kind.name(), "phase": p.phase.map(|p| p.to_string()),
            "sites": p.sites().iter().map(|s| s.name()).collect::<Vec<_>>(),
            "settings": p.settings().iter().map(|(k, v)| format!("{k}={v}")).collect::<Vec<_>>(),
            "doc": p.doc, "source": p.source,
            "known": p.known.iter().map(|k| json!({
                "op": k.op, "cases": k.cases, "why": k.why, "source": k.source,
            })).collect::<Vec<_>>(),
        })
    };
    let fault = |f: &Fault| {
        json!({
            "name": f.name, "class": f.class.to_string(), "site": f.site().name(), "layers": f.layers.name(),
            "phase": f.phase.map(|p| p.to_string()), "needs": f.needs.name(),
            "settings": f.settings().iter().map(|(k, v)| format!("{k}={v}")).collect::<Vec<_>>(),
            "looks": f.looks,
        })
    };
    let golden = |g: &Golden| {
        let settings: Vec<String> = g.settings().iter().map(|(k, v)| format!("{k}={v}")).collect();
        json!({"name": g.name(), "settings": settings, "doc": g.doc()})
    };
    json!({
        "schema": "dsv4.kernels/1",
        "golden": Golden::ALL.iter().map(golden).collect::<Vec<_>>(),
        "sites": Site::ALL.iter().map(|s| s.name()).collect::<Vec<_>>(),
        "knobs": Knobs::defs().iter().map(knob).collect::<Vec<_>>(),
        "presets": PRESETS.iter().map(preset).collect::<Vec<_>>(),
        "faults": FAULTS.iter().map(fault).collect::<Vec<_>>(),
        "controls": CONTROLS.iter().map(fault).collect::<Vec<_>>(),
    })
}

fn as_text() -> String {
    let mut t = String::from("KNOBS\n\n");
    t.push_str(&wrapped(
        "Every numerics choice, by site. At the golden values the exact result comes out bit for bit. Class: \
         format = a declared number format, whose cost the floor grants; internal = order, tiling or intermediate \
         precision, which the floor does not grant; semantic = other values compute something else than the model.",
        0,
    ));
    t.push_str(&wrapped(&format!("FMT is one of {}.", Fmt::choices()), 0));
    t.push('\n');
    let knobs = Knobs::defs();
    let rows = knobs.iter().map(|d| {
        let values = match d.values.as_str() {
            v if v == Fmt::choices() => "FMT".into(),
            v if v == u32::choices() => "number".into(),
            v => v.to_owned(),
        };
        let what = format!("{}: {values}", d.doc);
        vec![format!("{}.{}", d.site, d.name), d.golden.clone(), class(d.class).into(), what]
    });
    t.push_str(&table(
        &[
            ("knob", Column::Word),
            ("golden", Column::Word),
            ("class", Column::Word),
            ("what it does: values", Column::Prose),
        ],
        rows,
    ));
    t.push_str("\n\nGOLDEN (--golden)\n\n");
    for g in Golden::ALL {
        let settings: Vec<String> = g.settings().iter().map(|(k, v)| format!("{k}={v}")).collect();
        block(&mut t, g.name(), g.doc(), &settings, None);
    }
    t.push_str("PRESETS (--kernels)\n\n");
    t.push_str(&wrapped("`all` is every preset of kind performance.", 0));
    t.push('\n');
    for p in PRESETS {
        let settings: Vec<String> = p.settings().iter().map(|(k, v)| format!("{k}={v}")).collect();
        let head = match p.phase {
            Some(phase) => format!("{} ({}, {phase} only)", p.name, p.kind.name()),
            None => format!("{} ({})", p.name, p.kind.name()),
        };
        block(&mut t, &head, p.doc, &settings, Some(p.source));
    }
    t.push_str("FAULTS (--kernels, too)\n\n");
    t.push_str(&wrapped(
        "Wrong on purpose: positive controls for whoever believes a quiet report. Class letters: A index scoring, \
         B top-k, C cache layout, D state, E attention masks, merge and sink, F rotation, G compressor, \
         H hyper-connections, I routing, J clamp, K formats, N configuration.",
        0,
    ));
    t.push('\n');
    t.push_str(&faults(FAULTS));
    t.push_str("\n\nCONTROLS (--kernels, too)\n\nHarmless on purpose: these must stay quiet.\n\n");
    t.push_str(&faults(CONTROLS));
    t.push('\n');
    t
}

fn block(t: &mut String, head: &str, doc: &str, settings: &[String], source: Option<&str>) {
    t.push_str(&format!("{head}\n{}", wrapped(doc, 2)));
    if !settings.is_empty() {
        t.push_str(&wrapped(&settings.join(", "), 2));
    }
    if let Some(s) = source {
        t.push_str(&wrapped(&format!("source: {s}"), 2));
    }
    t.push('\n');
}

fn faults(list: &[Fault]) -> String {
    let rows = list.iter().map(|f| {
        let mut what = f.looks.to_owned();
        if f.needs.name() != "nothing" {
            what = format!("{what} [needs {}]", f.needs.name());
        }
        vec![f.name.into(), f.class.to_string(), f.site().name().into(), what]
    });
    table(
        &[
            ("name", Column::Word),
            ("", Column::Word),
            ("site", Column::Word),
            ("what it looks like", Column::Prose),
        ],
        rows,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Catches a list that a terminal would wrap, colour codes, and a name left out.
    #[test]
    fn the_list_fits_80_columns_and_is_complete() {
        let t = as_text();
        for line in t.lines() {
            assert!(line.chars().count() <= 80, "{line}");
            assert!(line.is_ascii() || !line.contains('\u{1b}'), "{line}");
        }
        for d in Knobs::defs() {
            assert!(t.contains(&format!("{}.{}", d.site, d.name)));
        }
        for n in PRESETS.iter().map(|p| p.name).chain(FAULTS.iter().chain(CONTROLS).map(|f| f.name)) {
            assert!(t.contains(n), "{n}");
        }
    }
}
