//! A CSV of a run directory as rows of text: what gates and reports look at.

use crate::error::{Error, Result};
use std::path::Path;

/// One CSV file.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Table {
    /// Its name without `.csv`.
    pub name: String,
    /// The header.
    pub columns: Vec<String>,
    /// The rows, each as long as the header.
    pub rows: Vec<Vec<String>>,
}

impl Table {
    /// Reads `path`.
    ///
    /// # Errors
    /// Exit 3: the file cannot be read, is no CSV, or has a row of another length.
    pub fn read(path: &Path) -> Result<Table> {
        let bytes = std::fs::read(path).map_err(|e| {
            Error::io(path, "read the table", &e).hint("is this a run directory that dsv4 wrote to its end?")
        })?;
        let name = path.file_stem().map_or(String::new(), |s| s.to_string_lossy().into_owned());
        Table::parse(&name, &bytes).map_err(|e| e.file(path))
    }

    /// Reads CSV text.
    pub fn parse(name: &str, bytes: &[u8]) -> Result<Table> {
        let bad = |e: csv::Error| {
            Error::input(format!("not a CSV table: {e}"))
                .hint("the file is torn or was edited; make the run again with the same --out")
        };
        let mut r = csv::ReaderBuilder::new().from_reader(bytes);
        let columns: Vec<String> = r.headers().map_err(bad)?.iter().map(str::to_owned).collect();
        let mut rows = Vec::new();
        for row in r.records() {
            rows.push(row.map_err(bad)?.iter().map(str::to_owned).collect());
        }
        Ok(Table { name: name.into(), columns, rows })
    }

    /// The number of a column.
    pub fn column(&self, name: &str) -> Option<usize> {
        self.columns.iter().position(|c| c == name)
    }

    /// A cell by column name; empty if there is no such column.
    pub fn cell<'a>(&self, row: &'a [String], column: &str) -> &'a str {
        self.column(column).map_or("", |c| row[c].as_str())
    }

    /// What tells a row from the others: the cells that name what was measured.
    pub fn key(&self, row: &[String]) -> String {
        const NAMES: [&str; 8] = ["run", "prompt", "phase", "tap", "path", "ctx", "depth", "topk"];
        let parts: Vec<&str> = NAMES.iter().map(|n| self.cell(row, n)).filter(|c| !c.is_empty()).collect();
        parts.join(" | ")
    }
}

/// A cell as a number: whole numbers may end in `k` (1024), `true` is 1 and `false` 0.
pub fn number(cell: &str) -> Option<f64> {
    match cell {
        "true" => Some(1.0),
        "false" => Some(0.0),
        c => match c.strip_suffix(['k', 'K']) {
            Some(n) => n.parse::<f64>().ok().map(|n| n * 1024.0),
            None => c.parse().ok(),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Catches lengths that read as text, and text that reads as a number.
    #[test]
    fn cells_are_numbers_where_they_look_like_one() {
        assert_eq!(number("8k"), Some(8192.0));
        assert_eq!(number("1.5e-3"), Some(1.5e-3));
        assert_eq!(number("true"), Some(1.0));
        assert_eq!(number("inf"), Some(f64::INFINITY));
        assert_eq!((number(""), number("attn"), number("k")), (None, None, None));
    }

    /// Catches a torn row that shifts cells into other columns.
    #[test]
    fn rows_of_another_length_are_refused() {
        let t = Table::parse("layers", b"a,b\n1,2\n").unwrap();
        assert_eq!(t.cell(&t.rows[0], "b"), "2");
        assert!(Table::parse("layers", b"a,b\n1\n").unwrap_err().to_string().contains("not a CSV table"));
    }
}
