//! `needle.csv` and `rank.csv`: written row by row, and read back to complete or merge a run. Columns are documented in
//! `docs/formats.md`; numbers are written so that reading them gives the same bits.

use crate::engine::grid::{FactRank, TokenGrade};
use crate::needle::Place;
use crate::needle::record::{Outcome, Record, Width};
use csv::StringRecord;
use std::path::Path;
use std::str::FromStr;

/// Columns of `needle.csv`.
pub const NEEDLE: &[&str] = &[
    "kind",
    "document",
    "ctx",
    "depth",
    "question",
    "seed",
    "path",
    "topk",
    "status",
    "why",
    "depth_actual",
    "prompt_tokens",
    "needle_from",
    "needle_to",
    "answer_from",
    "answer_to",
    "source",
    "exact",
    "first_lost",
    "expected",
    "top",
    "rank",
    "logprob",
    "margin",
    "ranks",
];

/// Columns of `rank.csv`.
pub const RANK: &[&str] = &[
    "document",
    "ctx",
    "depth",
    "question",
    "path",
    "topk",
    "layer",
    "answer",
    "rank",
    "visible",
    "quantile",
    "width",
    "selected",
    "mass",
    "potential",
];

fn join<T: ToString>(values: impl Iterator<Item = T>) -> String {
    values.map(|v| v.to_string()).collect::<Vec<_>>().join(" ")
}

fn bytes(rows: impl Iterator<Item = Vec<String>>) -> Vec<u8> {
    let mut w = csv::WriterBuilder::new().has_headers(false).from_writer(Vec::new());
    for row in rows {
        // Writing into memory cannot fail, and every row has the same number of fields.
        w.write_record(row).unwrap_or_default();
    }
    w.into_inner().unwrap_or_default()
}

/// A header line.
pub fn header(columns: &[&str]) -> Vec<u8> {
    bytes(std::iter::once(columns.iter().map(|c| c.to_string()).collect()))
}

/// Lines of `needle.csv`.
pub fn needle_rows(kind: &str, seed: u64, records: &[Record]) -> Vec<u8> {
    bytes(records.iter().map(|r| needle_row(kind, seed, r)))
}

/// Lines of `rank.csv`.
pub fn rank_rows(records: &[Record]) -> Vec<u8> {
    bytes(records.iter().flat_map(|r| {
        r.outcome.iter().flat_map(|o| &o.ranks).map(move |f| {
            let p = &r.place;
            vec![
                p.document.to_string(),
                p.ctx.to_string(),
                p.depth.to_string(),
                p.question.to_string(),
                r.path.clone(),
                r.width.label(),
                f.layer.to_string(),
                f.answer.to_string(),
                f.rank.to_string(),
                f.visible.to_string(),
                (f64::from(f.rank) / f64::from(f.visible.max(1))).to_string(),
                f.width.to_string(),
                f.selected.to_string(),
                f.mass.to_string(),
                f.potential.to_string(),
            ]
        })
    }))
}

fn needle_row(kind: &str, seed: u64, r: &Record) -> Vec<String> {
    let p = &r.place;
    let mut row = vec![
        kind.to_string(),
        p.document.to_string(),
        p.ctx.to_string(),
        p.depth.to_string(),
        p.question.to_string(),
        seed.to_string(),
        r.path.clone(),
        r.width.label(),
    ];
    match &r.outcome {
        Err(why) => {
            row.extend(["not_run".into(), why.clone()]);
            row.resize(NEEDLE.len(), String::new());
        }
        Ok(o) => row.extend([
            "run".into(),
            String::new(),
            (o.needle.start as f64 / p.ctx as f64).to_string(),
            o.prompt_tokens.to_string(),
            o.needle.start.to_string(),
            o.needle.end.to_string(),
            o.prompt_tokens.to_string(),
            (o.prompt_tokens + o.tokens.len()).to_string(),
            join(o.sources.iter()),
            o.exact().to_string(),
            o.first_lost().map_or(String::new(), |i| i.to_string()),
            join(o.tokens.iter().map(|t| t.expected)),
            join(o.tokens.iter().map(|t| t.top)),
            join(o.tokens.iter().map(|t| t.rank)),
            join(o.tokens.iter().map(|t| t.logprob)),
            join(o.tokens.iter().map(|t| t.margin)),
            o.ranks.len().to_string(),
        ]),
    }
    row
}

/// A row of one of the files; `None` for any field that is not what was written.
struct Fields<'a> {
    columns: &'a [&'a str],
    row: &'a StringRecord,
}

impl Fields<'_> {
    fn text(&self, column: &str) -> Option<&str> {
        self.row.get(self.columns.iter().position(|c| *c == column)?)
    }
    fn get<T: FromStr>(&self, column: &str) -> Option<T> {
        self.text(column)?.parse().ok()
    }
    fn list<T: FromStr>(&self, column: &str) -> Option<Vec<T>> {
        self.text(column)?.split_whitespace().map(|v| v.parse().ok()).collect()
    }
    fn key(&self) -> Option<(Place, String, Width)> {
        let place = Place {
            ctx: self.get("ctx")?,
            depth: self.get("depth")?,
            document: self.get("document")?,
            question: self.get("question")?,
        };
        Some((place, self.text("path")?.to_string(), Width::parse(self.text("topk")?)?))
    }
}

fn rank_of(f: &Fields) -> Option<FactRank> {
    Some(FactRank {
        layer: f.get("layer")?,
        answer: f.get("answer")?,
        rank: f.get("rank")?,
        visible: f.get("visible")?,
        width: f.get("width")?,
        selected: f.get("selected")?,
        mass: f.get("mass")?,
        potential: f.get("potential")?,
    })
}

/// The record of a row, and how many rows of `rank.csv` belong to it.
fn record_of(f: &Fields) -> Option<(Record, usize)> {
    let (place, path, width) = f.key()?;
    if f.text("status")? == "not_run" {
        return Some((Record { place, path, width, outcome: Err(f.text("why")?.to_string()) }, 0));
    }
    let (expected, top) = (f.list::<u32>("expected")?, f.list::<u32>("top")?);
    let (rank, logprob, margin) =
        (f.list::<u32>("rank")?, f.list::<f64>("logprob")?, f.list::<f64>("margin")?);
    let from: usize = f.get("answer_from")?;
    let n = expected.len();
    if [top.len(), rank.len(), logprob.len(), margin.len()] != [n; 4]
        || f.get::<usize>("answer_to")? != from + n
    {
        return None;
    }
    let tokens = (0..n)
        .map(|i| TokenGrade {
            position: (from + i).saturating_sub(1),
            expected: expected[i],
            top: top[i],
            rank: rank[i],
            logprob: logprob[i],
            margin: margin[i],
        })
        .collect();
    let outcome = Outcome {
        prompt_tokens: f.get("prompt_tokens")?,
        needle: f.get("needle_from")?..f.get("needle_to")?,
        sources: f.list("source")?,
        tokens,
        ranks: Vec::new(),
    };
    Some((Record { place, path, width, outcome: Ok(outcome) }, f.get("ranks")?))
}

/// Rows of a file up to the first that is torn or not CSV; the header must be `columns`.
fn rows(path: &Path, columns: &[&str]) -> Vec<StringRecord> {
    let Ok(mut bytes) = std::fs::read(path) else { return Vec::new() };
    // A line without its end was being written when the run stopped.
    bytes.truncate(bytes.iter().rposition(|b| *b == b'\n').map_or(0, |i| i + 1));
    let mut reader = csv::ReaderBuilder::new().has_headers(false).from_reader(&bytes[..]);
    let mut rows = reader.records().map_while(Result::ok);
    if rows.next().is_none_or(|h| h != *columns) {
        return Vec::new();
    }
    rows.filter(|r| r.len() == columns.len()).collect()
}

/// Reads the records of a run directory as far as they are whole and are the `expected` ones in order.
pub fn read(dir: &Path, expected: impl Iterator<Item = (Place, String, Width)>) -> Vec<Record> {
    let mut ranks = rows(&dir.join("rank.csv"), RANK).into_iter();
    let mut out = Vec::new();
    for (row, key) in rows(&dir.join("needle.csv"), NEEDLE).iter().zip(expected) {
        let f = Fields { columns: NEEDLE, row };
        let Some((mut record, n)) = record_of(&f).filter(|_| f.key().as_ref() == Some(&key)) else { break };
        let found: Vec<FactRank> = ranks
            .by_ref()
            .take(n)
            .map_while(|row| {
                let f = Fields { columns: RANK, row: &row };
                rank_of(&f).filter(|_| f.key().as_ref() == Some(&key))
            })
            .collect();
        if found.len() != n {
            break;
        }
        if let Ok(o) = &mut record.outcome {
            o.ranks = found;
        }
        out.push(record);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn records() -> Vec<Record> {
        let grade =
            |rank, logprob| TokenGrade { position: 511, expected: 7, top: 9, rank, logprob, margin: -0.1 };
        let fact = |layer| FactRank {
            layer,
            answer: 0,
            rank: 3,
            visible: 128,
            width: 64,
            selected: true,
            mass: 1.0 / 3.0,
            potential: 0.1,
        };
        let place = |question| Place { ctx: 512, depth: 0.1, document: 0, question };
        let outcome = Outcome {
            prompt_tokens: 512,
            needle: 50..64,
            sources: vec![58, 59],
            tokens: vec![grade(0, -0.1), TokenGrade { position: 512, ..grade(2, -2.345_678_901_234_567) }],
            ranks: vec![fact(1), fact(3)],
        };
        let path = "attn.splits=8,\"x\"".to_string();
        vec![
            Record { place: place(0), path: path.clone(), width: Width::Fixed(16), outcome: Ok(outcome) },
            Record {
                place: place(1),
                path,
                width: Width::Native,
                outcome: Err("no other fact, sorry".into()),
            },
        ]
    }

    /// Catches a number that loses bits on the way, a field in the wrong column, and a torn line that is believed.
    #[test]
    fn what_is_written_is_read_back() {
        let dir = tempfile::tempdir().unwrap();
        let all = records();
        let keys = || all.iter().map(|r| (r.place, r.path.clone(), r.width));
        let needle = [header(NEEDLE), needle_rows("passkey", 1, &all)].concat();
        let rank = [header(RANK), rank_rows(&all)].concat();
        let read_with = |n: usize, r: usize| {
            std::fs::write(dir.path().join("needle.csv"), &needle[..n]).unwrap();
            std::fs::write(dir.path().join("rank.csv"), &rank[..r]).unwrap();
            read(dir.path(), keys())
        };
        assert_eq!(read_with(needle.len(), rank.len()), all);
        assert_eq!(read_with(needle.len() - 1, rank.len()).len(), 1, "the last line is torn");
        assert_eq!(read_with(needle.len(), rank.len() - 1).len(), 0, "a rank of the first record is torn");
        assert_eq!(read_with(10, rank.len()).len(), 0);
        let other = keys().map(|(p, n, _)| (p, n, Width::All));
        assert!(read(dir.path(), other).is_empty());
    }
}
