//! Section A: which kernels the runs are about, where they act and in which formats.

use super::Source;
use crate::ab::table::Table;
use crate::error::Result;
use crate::kernels::{Knobs, Site, Spec};
use serde::Serialize;
use serde_json::Value;

/// One site of one kernel choice.
#[derive(Debug, Clone, Serialize)]
pub struct Kernel {
    /// Site.
    pub site: String,
    /// What switches it on.
    pub kernels: String,
    /// Phases it acts in.
    pub phase: String,
    /// Number formats it declares.
    pub formats: String,
    /// Its other choices.
    pub choices: String,
    /// How the comparison judged the site, worst first; empty where it was not compared.
    pub status: String,
    /// The run.
    pub run: String,
}

/// The kernels of all runs, by site.
pub fn inventory(runs: &[Source]) -> Result<Vec<Kernel>> {
    let mut out: Vec<Kernel> = Vec::new();
    for run in runs {
        match run.command.as_str() {
            "diff-layers" => {
                if let Some(spec) = run.summary.get("kernels").and_then(Value::as_str) {
                    add(&mut out, spec, run, |site| {
                        status(run.table("layers"), |t, r| t.cell(r, "site") == site)
                    })?;
                }
            }
            "ab" => {
                for t in run.manifest.get("toggles").and_then(Value::as_array).into_iter().flatten() {
                    let get = |k: &str| t.get(k).and_then(Value::as_str).unwrap_or_default();
                    let name = get("name").to_owned();
                    add(&mut out, get("kernels"), run, |site| {
                        status(run.table("layers"), |t, r| {
                            t.cell(r, "run") == name && t.cell(r, "site") == site
                        })
                    })?;
                }
            }
            _ => {}
        }
    }
    let order = |k: &Kernel| Site::ALL.iter().position(|s| s.name() == k.site);
    out.sort_by(|a, b| order(a).cmp(&order(b)).then_with(|| a.kernels.cmp(&b.kernels)));
    out.dedup_by(|a, b| (&a.site, &a.kernels, &a.status) == (&b.site, &b.kernels, &b.status));
    Ok(out)
}

/// The worst status of the wanted rows.
fn status(t: Option<&Table>, want: impl Fn(&Table, &[String]) -> bool) -> String {
    let Some(t) = t else { return String::new() };
    let rank = |s: &str| ["ok", "elevated", "suspect"].iter().position(|x| *x == s);
    t.rows
        .iter()
        .filter(|r| want(t, r))
        .map(|r| t.cell(r, "status"))
        .max_by_key(|s| rank(s))
        .unwrap_or_default()
        .to_owned()
}

fn add(out: &mut Vec<Kernel>, text: &str, run: &Source, status: impl Fn(&str) -> String) -> Result<()> {
    let spec: Spec = text.parse()?;
    for site in spec.sites() {
        let (mut formats, mut choices, mut phases) = (Vec::new(), Vec::new(), Vec::new());
        for (path, value, phase) in spec.settings() {
            let Some((_, knob)) = path.split_once('.').filter(|(s, _)| *s == site.name()) else { continue };
            let list = if Knobs::declares_format(&path) { &mut formats } else { &mut choices };
            let text = format!("{knob}={value}");
            if !list.contains(&text) {
                list.push(text);
            }
            let phase = phase.map_or("prefill, decode".to_owned(), |p| p.to_string());
            if !phases.contains(&phase) {
                phases.push(phase);
            }
        }
        let phase = if phases.len() == 1 { phases.remove(0) } else { "prefill, decode".into() };
        out.push(Kernel {
            site: site.to_string(),
            kernels: text.into(),
            phase,
            formats: formats.join(", "),
            choices: choices.join(", "),
            status: status(site.name()),
            run: run.path.clone(),
        });
    }
    Ok(())
}
