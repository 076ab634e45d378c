//! `dsv4 needle`: recall of planted facts by context length, depth and `index_topk`, and why a fact is lost.

mod args;
pub mod files;
pub mod outcome;
mod plan;
mod prepare;
pub mod view;

use super::progress::Bar;
use super::{Globals, write_json, write_text};
use crate::engine::{Loader, Progress};
use crate::error::Result;
use crate::kernels::Cpu;
use crate::needle::identity::Identity;
use crate::needle::record::{Record, Width};
use crate::needle::work::{self, Path};
use crate::report::needle::read;
pub use args::NeedleArgs;
use files::{Files, Shard, keys};
use outcome::Outcome;
use prepare::{Prepared, prepare};
use std::io::Write;
use std::path::PathBuf;

/// Runs the command; the result is the exit code.
pub fn run(args: &NeedleArgs, global: &Globals, out: &mut dyn Write) -> Result<i32> {
    let p = prepare(args)?;
    if args.plan {
        let loaded = plan::speed(&p)?;
        if args.json {
            write_json(out, &plan::json(&p, loaded))?;
        } else {
            write_text(out, &plan::text(&p, loaded))?;
        }
        return Ok(crate::error::exit::OK);
    }
    let path = args.out.clone().unwrap_or_else(|| default_dir(&p.identity, args.shard));
    let names: Vec<(String, Width)> = p.paths.iter().map(|p| (p.name.clone(), p.width)).collect();
    let (files, mut records) =
        Files::open(&path, &p.identity, args.shard, args.resume, |dir| whole(&p, &names, dir))?;
    if args.resume {
        let per: usize = p.documents.clone().map(|d| p.identity.grid.places(d).len() * names.len()).sum();
        global.note(&format!("resuming: {} of {per} records are there", records.len()));
    }
    let outer = Loader::new(Cpu, p.checkpoint.clone()).outer()?;
    let done = documents_of(&records, &names, &p);
    let bar = Bar::new(global.quiet);
    let left: Vec<_> =
        p.plan.passes.iter().map(|r| r.start.max(done)..r.end).filter(|r| !r.is_empty()).collect();
    let steps: usize = left.iter().map(|r| r.len()).sum::<usize>() * p.paths.len();
    let progress = Whole::new(&bar, steps * p.checkpoint.config().num_hidden_layers);
    for pass in left {
        let grid = &p.identity.grid;
        let graded = work::pass(&Cpu, &p.checkpoint, &outer, &p.language, grid, pass, &p.paths, &progress)?;
        for document in graded {
            files.append(&document)?;
            records.extend(document);
        }
    }
    let mut all = names.clone();
    if args.confirm {
        confirm(&p, &files, &outer, &mut records, &mut all, &progress)?;
    }
    drop(progress);
    drop(bar);
    let outcome = Outcome::of(p.identity, all, records);
    outcome.write(&files)?;
    if args.json {
        write_json(out, &outcome.object)?;
    } else {
        write_text(out, &view::text(&outcome, files.path()))?;
    }
    outcome.exit_code()
}

/// The width a confirmation runs at: the smallest that would do, unless it was run already.
fn confirm_width(p: &Prepared, records: &[Record], names: &[(String, Width)]) -> Option<Width> {
    let summary = crate::needle::summary::summarise(&p.identity, names, records);
    let (_, k) = summary.width_needed.into_iter().find(|(n, _)| n == "golden")?;
    let width = Width::Fixed(k?);
    let known = names.iter().any(|(n, w)| {
        n == "golden" && w.entries(p.identity.index_topk) == width.entries(p.identity.index_topk)
    });
    (!known).then_some(width)
}

fn confirm(
    p: &Prepared,
    files: &Files,
    outer: &crate::model::OuterWeights<Cpu>,
    records: &mut Vec<Record>,
    names: &mut Vec<(String, Width)>,
    progress: &dyn Progress,
) -> Result<()> {
    let first: usize =
        p.documents.clone().map(|d| p.identity.grid.places(d).len()).sum::<usize>() * names.len();
    let Some(width) = confirm_width(p, &records[..first], names) else { return Ok(()) };
    let path = [Path::new("golden", &p.golden, width)?];
    names.push(("golden".into(), width));
    let mut there = records.len() - first;
    for d in p.documents.clone() {
        let n = p.identity.grid.places(d).len();
        if there >= n {
            there -= n;
            continue;
        }
        let grid = &p.identity.grid;
        let graded = work::pass(&Cpu, &p.checkpoint, outer, &p.language, grid, d..d + 1, &path, progress)?;
        for document in graded {
            files.append(&document)?;
            records.extend(document);
        }
    }
    Ok(())
}

/// The records of whole documents in an interrupted run.
fn whole(p: &Prepared, names: &[(String, Width)], dir: &std::path::Path) -> Vec<Record> {
    let grid = &p.identity.grid;
    let mut records = read(dir, keys(grid, p.documents.clone(), names));
    let mut fits = 0;
    for d in p.documents.clone() {
        let n = grid.places(d).len() * names.len();
        if fits + n > records.len() {
            records.truncate(fits);
            return records;
        }
        fits += n;
    }
    if p.identity.confirm
        && let Some(width) = confirm_width(p, &records, names)
    {
        let second = [("golden".to_string(), width)];
        let all = keys(grid, p.documents.clone(), names).chain(keys(grid, p.documents.clone(), &second));
        records = read(dir, all);
        for d in p.documents.clone() {
            let n = grid.places(d).len();
            if fits + n > records.len() {
                break;
            }
            fits += n;
        }
        records.truncate(fits);
    }
    records
}

/// The first document that is not there yet.
fn documents_of(records: &[Record], names: &[(String, Width)], p: &Prepared) -> usize {
    let mut left = records.len();
    for d in p.documents.clone() {
        let n = p.identity.grid.places(d).len() * names.len();
        if left < n {
            return d;
        }
        left -= n;
    }
    p.documents.end
}

fn default_dir(id: &Identity, shard: Option<Shard>) -> PathBuf {
    let text = serde_json::to_string(id).unwrap_or_default();
    let key = super::prompt::hash_bytes(text.into_bytes());
    let part = shard.map_or(String::new(), |s| format!("-{}-of-{}", s.index, s.of));
    PathBuf::from("dsv4-runs").join(format!("needle-{}{part}", &key[..8]))
}

/// One bar over all passes.
struct Whole<'a> {
    bar: &'a Bar,
}

impl<'a> Whole<'a> {
    fn new(bar: &'a Bar, steps: usize) -> Self {
        bar.begin("grading prompts", steps);
        Whole { bar }
    }
}

impl Drop for Whole<'_> {
    fn drop(&mut self) {
        self.bar.end();
    }
}

impl Progress for Whole<'_> {
    fn begin(&self, _: &str, _: usize) {}
    fn step(&self) {
        self.bar.step();
    }
    fn end(&self) {}
}
