//! `dsv4 merge`: the shards of a grid put together, as if it had been run in one piece.

use super::needle::files::{Files, Manifest, complete};
use super::needle::outcome::Outcome;
use super::{Globals, needle, write_json, write_text};
use crate::error::{Error, Result};
use std::io::Write;
use std::path::PathBuf;

/// Put the shards of `dsv4 needle --shard` together, to the bytes of a run in one piece
#[derive(Debug, Clone, clap::Args)]
pub struct MergeArgs {
    /// Run directories of all shards, in any order
    #[arg(required = true, value_name = "DIR")]
    pub dirs: Vec<PathBuf>,
    /// Run directory of the whole
    #[arg(long, value_name = "DIR")]
    pub out: PathBuf,
    /// Print one JSON object (schema dsv4.needle/1) instead of tables
    #[arg(long)]
    pub json: bool,
}

/// Runs the command; the result is the exit code.
pub fn run(args: &MergeArgs, _: &Globals, out: &mut dyn Write) -> Result<i32> {
    let mut parts: Vec<(usize, &PathBuf)> = Vec::new();
    let mut first: Option<(Manifest, &PathBuf)> = None;
    for dir in &args.dirs {
        let m = Manifest::read(dir)?;
        let Some(shard) = m.shard else {
            return Err(Error::input("this run is no shard")
                .file(dir)
                .hint("merge takes runs made with --shard I/N"));
        };
        if m.status != "complete" {
            return Err(Error::input(format!("shard {}/{} is not complete", shard.index, shard.of))
                .file(dir)
                .hint("complete it: the same command with --resume"));
        }
        if let Some((other, path)) = &first {
            other.same(&m.identity, dir)?;
            if other.shard.is_some_and(|s| s.of != shard.of) {
                return Err(Error::input(format!(
                    "shard {}/{} does not belong to the shards of {}",
                    shard.index,
                    shard.of,
                    path.display()
                ))
                .file(dir)
                .hint("merge shards of one --shard I/N only"));
            }
        }
        if let Some((_, twice)) = parts.iter().find(|(i, _)| *i == shard.index) {
            return Err(Error::input(format!("shard {}/{} is there twice", shard.index, shard.of))
                .file(dir)
                .hint(format!("it is in {} too; give each shard once", twice.display())));
        }
        parts.push((shard.index, dir));
        first.get_or_insert((m, dir));
    }
    let Some((manifest, _)) = first else { return Err(Error::usage("no shard was given")) };
    let of = manifest.shard.map_or(0, |s| s.of);
    let missing: Vec<String> =
        (1..=of).filter(|i| parts.iter().all(|(p, _)| p != i)).map(|i| format!("{i}/{of}")).collect();
    if !missing.is_empty() {
        return Err(Error::input(format!("shards are missing: {}", missing.join(", ")))
            .hint("run them, then merge all of them"));
    }
    parts.sort_unstable();
    let id = manifest.identity;
    let mut records = Vec::new();
    for (index, dir) in parts {
        let range = needle::files::Shard { index, of }.range(id.grid.documents());
        records.extend(complete(dir, &id, range)?);
    }
    let (files, _) = Files::open(&args.out, &id, None, false, |_| Vec::new())?;
    files.append(&records)?;
    let paths = id.paths();
    let outcome = Outcome::of(id, paths, records);
    outcome.write(&files)?;
    if args.json {
        write_json(out, &outcome.object)?;
    } else {
        write_text(out, &needle::view::text(&outcome, files.path()))?;
    }
    outcome.exit_code()
}
