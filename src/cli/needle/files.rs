//! The run directory of a grid: written document by document, completed by `--resume`, merged from shards.

use crate::cli::table::count;
use crate::error::{Error, Result};
use crate::needle::identity::Identity;
use crate::needle::record::{Record, Width};
use crate::needle::{Grid, Place};
use crate::report::needle::{NEEDLE, RANK, header, needle_rows, rank_rows, read};
use crate::report::run_dir::{RunDir, now};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::ops::Range;
use std::path::Path;

/// A part of a run: documents `from..to`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shard {
    /// Which one, from 1.
    pub index: usize,
    /// Of how many.
    pub of: usize,
}

impl Shard {
    /// Reads `I/N`.
    pub fn parse(text: &str) -> std::result::Result<Shard, String> {
        let parsed = text.split_once('/').and_then(|(i, n)| Some((i.parse().ok()?, n.parse().ok()?)));
        match parsed {
            Some((index, of)) if index >= 1 && index <= of => Ok(Shard { index, of }),
            _ => Err("it is I/N, for example 2/4: the second of four".into()),
        }
    }
    /// The documents of this part, out of `documents`.
    pub fn range(self, documents: usize) -> Range<usize> {
        documents * (self.index - 1) / self.of..documents * self.index / self.of
    }
}

/// The keys of the rows of `documents`, in the order of every file.
pub fn keys(
    grid: &Grid,
    documents: Range<usize>,
    paths: &[(String, Width)],
) -> impl Iterator<Item = (Place, String, Width)> {
    documents
        .flat_map(|d| grid.places(d))
        .flat_map(move |place| paths.iter().map(move |(name, width)| (place, name.clone(), *width)))
}

/// A run directory that is being filled.
pub struct Files {
    dir: RunDir,
    id: Identity,
    started: u64,
    shard: Option<Shard>,
}

impl Files {
    /// Opens `path` for a run. With `resume`, the records of an interrupted run that are whole come back; the run must
    /// be the same one.
    pub fn open(
        path: &Path,
        id: &Identity,
        shard: Option<Shard>,
        resume: bool,
        whole: impl Fn(&Path) -> Vec<Record>,
    ) -> Result<(Files, Vec<Record>)> {
        let mut kept = Vec::new();
        if resume {
            if !path.join("manifest.json").exists() {
                return Err(Error::usage("there is no run to resume")
                    .file(path)
                    .hint("leave out --resume, or name the directory of the interrupted run with --out"));
            }
            let old = Manifest::read(path)?;
            old.same(id, path)?;
            if old.shard != shard {
                let name =
                    |s: Option<Shard>| s.map_or("no shard".into(), |s| format!("{}/{}", s.index, s.of));
                return Err(Error::usage(format!(
                    "the run to resume is {}, this one {}",
                    name(old.shard),
                    name(shard)
                ))
                .file(path)
                .hint("give the --shard it was started with"));
            }
            kept = whole(path);
        }
        let files = Files { dir: RunDir::create(path)?, id: id.clone(), started: now(), shard };
        files.manifest("running")?;
        for (name, columns) in [("rank.csv", RANK), ("needle.csv", NEEDLE)] {
            files.dir.write(name, &header(columns))?;
        }
        files.append(&kept)?;
        Ok((files, kept))
    }

    /// Adds the records of whole documents. Ranks go first: a record that is there has its ranks.
    pub fn append(&self, records: &[Record]) -> Result<()> {
        self.dir.append("rank.csv", &rank_rows(records))?;
        self.dir.append("needle.csv", &needle_rows(self.id.grid.kind.name(), self.id.grid.seed, records))
    }

    /// Writes a finished run's summary and plots, and the manifest that says so.
    pub fn finish(&self, summary: &Value, plots: &[(String, String)]) -> Result<()> {
        if !plots.is_empty() {
            RunDir::create(&self.dir.path().join("plots"))?;
        }
        for (name, svg) in plots {
            self.dir.write(&format!("plots/{name}.svg"), svg.as_bytes())?;
        }
        self.dir.json("summary.json", summary)?;
        self.manifest("complete")
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    fn manifest(&self, status: &str) -> Result<()> {
        self.dir.json(
            "manifest.json",
            &json!({
                "schema": "dsv4.run/1",
                "command": "needle",
                "status": status,
                "arguments": std::env::args().skip(1).collect::<Vec<_>>(),
                "version": env!("CARGO_PKG_VERSION"),
                "started_unix": self.started,
                "finished_unix": (status == "complete").then(now),
                "device": "cpu",
                "threads": rayon::current_num_threads(),
                "shard": self.shard,
                "identity": self.id,
            }),
        )
    }
}

/// The part of a manifest that a later command needs.
#[derive(Debug, Clone, Deserialize)]
pub struct Manifest {
    /// Which command wrote it.
    pub command: String,
    /// `running` or `complete`.
    pub status: String,
    /// The part of the run, if it is one.
    pub shard: Option<Shard>,
    /// The run.
    pub identity: Identity,
}

impl Manifest {
    /// Reads the manifest of a run directory.
    pub fn read(dir: &Path) -> Result<Manifest> {
        let path = dir.join("manifest.json");
        let text = std::fs::read(&path).map_err(|e| {
            Error::io(&path, "read the manifest", &e).hint("is this the run directory of `dsv4 needle`?")
        })?;
        let m: Manifest = serde_json::from_slice(&text).map_err(|e| {
            Error::input(format!("not the manifest of a needle run: {e}"))
                .file(&path)
                .hint("is this the run directory of `dsv4 needle`, written by this version?")
        })?;
        if m.command != "needle" {
            return Err(Error::input(format!("this run is one of `dsv4 {}`", m.command))
                .file(&path)
                .hint("give run directories of `dsv4 needle`"));
        }
        Ok(m)
    }
    /// Fails, naming the field, if the run is another one.
    pub fn same(&self, id: &Identity, path: &Path) -> Result<()> {
        match self.identity.difference(id) {
            None => Ok(()),
            Some((field, old, new)) => Err(Error::usage(format!(
                "this is another run: `{field}` was {}, now it is {}",
                shortened(&old),
                shortened(&new)
            ))
            .file(path)
            .hint("give the same arguments as before, or another --out")),
        }
    }
}

fn shortened(text: &str) -> String {
    if text.chars().count() <= 60 {
        text.into()
    } else {
        format!("{}…", text.chars().take(60).collect::<String>())
    }
}

/// The records of `documents` in a finished directory; an error unless all are there.
pub fn complete(dir: &Path, id: &Identity, documents: Range<usize>) -> Result<Vec<Record>> {
    let paths = id.paths();
    let expected: usize = documents.clone().map(|d| id.grid.places(d).len()).sum::<usize>() * paths.len();
    let records = read(dir, keys(&id.grid, documents, &paths));
    if records.len() != expected {
        return Err(Error::input(format!(
            "the run is not complete: {} of {} are there",
            records.len(),
            count(expected, "record")
        ))
        .file(dir)
        .hint("complete it with --resume, or run that shard again"));
    }
    Ok(records)
}
