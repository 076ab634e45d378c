//! Gates: rules on any column of a run's tables.
//!
//! `where` picks rows (`site=attn & phase=decode & layer=2..4`), `require` must hold on each of them
//! (`excess <= 2`, `lower >= 0.9`, `rel_l2 <= 1.1 * baseline`).

use super::cmp::Cmp;
use super::table::{Table, number};
use crate::error::{Error, Result};
use serde::{Deserialize, Serialize};

/// One condition of `where`.
#[derive(Debug, Clone, PartialEq)]
struct Condition {
    column: String,
    cmp: Cmp,
    value: String,
}

impl Condition {
    fn parse(s: &str) -> Result<Condition> {
        let (column, cmp, value) = Cmp::split(s)
            .filter(|(c, _, v)| !c.is_empty() && !v.is_empty())
            .ok_or_else(|| Error::usage(format!("`{s}` is no condition")).hint(HINT))?;
        Ok(Condition { column: column.into(), cmp, value: value.into() })
    }

    /// Whether a cell meets it. `a..b` is a closed range, `a,b` a choice.
    fn meets(&self, cell: &str) -> bool {
        let one = |value: &str| match (number(cell), number(value)) {
            (Some(a), Some(b)) => self.cmp.holds(a, b),
            _ => match self.cmp {
                Cmp::Eq => cell == value,
                Cmp::Ne => cell != value,
                _ => false,
            },
        };
        if let (Some((a, b)), Cmp::Eq | Cmp::Ne) = (self.value.split_once(".."), self.cmp) {
            let inside = match (number(cell), number(a), number(b)) {
                (Some(x), Some(a), Some(b)) => a <= x && x <= b,
                _ => false,
            };
            return inside == (self.cmp == Cmp::Eq);
        }
        let mut choices = self.value.split(',').map(|v| one(v.trim()));
        if self.cmp == Cmp::Ne { choices.all(|x| x) } else { choices.any(|x| x) }
    }
}

const HINT: &str = "conditions look like: site=attn & phase=decode & layer=2..4; requirements like: excess <= 2, \
                    lower >= 0.9, rel_l2 <= 1.1 * baseline";

/// The right side of a requirement.
#[derive(Debug, Clone, PartialEq)]
enum Bound {
    /// A number.
    Value(f64),
    /// Text, for `=` and `!=`.
    Text(String),
    /// A multiple of the same cell of the baseline.
    Baseline(f64),
}

/// A gate as written in the config.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GateConfig {
    /// What reports call it; `require` and `where` if not given.
    #[serde(default)]
    pub name: Option<String>,
    /// Which rows: conditions joined by `&`; all rows if not given. `table=NAME` names one file.
    #[serde(default, rename = "where")]
    pub rows: String,
    /// What must hold on every one of them.
    pub require: String,
}

/// A gate, checked.
#[derive(Debug, Clone, PartialEq)]
pub struct Gate {
    /// What reports call it.
    pub name: String,
    rows: Vec<Condition>,
    column: String,
    cmp: Cmp,
    bound: Bound,
    text: GateConfig,
}

/// A row that breaks a gate.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Broken {
    /// The table.
    pub table: String,
    /// What tells the row from others.
    pub row: String,
    /// The value, as it stands in the table.
    pub value: String,
    /// What it should have been.
    pub bound: String,
}

/// What a gate came to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct GateResult {
    /// The gate's name.
    pub gate: String,
    /// Its `where`.
    #[serde(rename = "where")]
    pub rows: String,
    /// Its `require`.
    pub require: String,
    /// Rows it looked at.
    pub matched: usize,
    /// Rows that break it, worst first is not meant: in table order.
    pub broken: Vec<Broken>,
}

impl GateResult {
    /// A gate that looked at nothing holds nothing.
    pub fn passed(&self) -> bool {
        self.matched > 0 && self.broken.is_empty()
    }
}

impl Gate {
    /// Reads a gate.
    ///
    /// # Errors
    /// Exit 2: no condition or requirement can be read from the text.
    pub fn new(c: &GateConfig) -> Result<Gate> {
        let conditions = c.rows.split('&').map(str::trim).filter(|s| !s.is_empty());
        let (column, cmp, value) = Cmp::split(&c.require)
            .filter(|(col, _, v)| !col.is_empty() && !v.is_empty())
            .ok_or_else(|| Error::usage(format!("`{}` is no requirement", c.require)).hint(HINT))?;
        let bound = if value == "baseline" {
            Bound::Baseline(1.0)
        } else if let Some((factor, "baseline")) = value.split_once('*').map(|(a, b)| (a.trim(), b.trim())) {
            let f = number(factor).filter(|f| f.is_finite());
            Bound::Baseline(
                f.ok_or_else(|| Error::usage(format!("`{factor}` is no factor of the baseline")).hint(HINT))?,
            )
        } else if let Some(v) = number(value) {
            Bound::Value(v)
        } else if matches!(cmp, Cmp::Eq | Cmp::Ne) {
            Bound::Text(value.into())
        } else {
            return Err(Error::usage(format!("`{value}` in `{}` is no number", c.require)).hint(HINT));
        };
        let place =
            if c.rows.trim().is_empty() { String::new() } else { format!(" where {}", c.rows.trim()) };
        Ok(Gate {
            name: c.name.clone().unwrap_or_else(|| format!("{}{place}", c.require.trim())),
            rows: conditions.map(Condition::parse).collect::<Result<_>>()?,
            column: column.into(),
            cmp,
            bound,
            text: c.clone(),
        })
    }

    /// True if it compares with a stored run.
    pub fn needs_baseline(&self) -> bool {
        matches!(self.bound, Bound::Baseline(_))
    }

    /// True if it picks runs by itself.
    pub fn names_runs(&self) -> bool {
        self.rows.iter().any(|c| c.column == "run")
    }

    /// The columns it names, `table` aside.
    fn columns(&self) -> impl Iterator<Item = &str> {
        self.rows.iter().map(|c| c.column.as_str()).filter(|c| *c != "table").chain([self.column.as_str()])
    }

    /// True if it looks at `table`.
    fn looks_at(&self, table: &Table) -> bool {
        let named = self.rows.iter().filter(|c| c.column == "table").all(|c| c.meets(&table.name));
        named && self.columns().all(|c| table.column(c).is_some())
    }

    /// Judges a run.
    ///
    /// # Errors
    /// Exit 2: no table has the columns it names.
    pub fn judge(&self, tables: &[Table], baseline: Option<&[Table]>) -> Result<GateResult> {
        if !tables.iter().any(|t| self.looks_at(t)) {
            return Err(self.unknown(tables));
        }
        let mut result = GateResult {
            gate: self.name.clone(),
            rows: self.text.rows.clone(),
            require: self.text.require.clone(),
            matched: 0,
            broken: Vec::new(),
        };
        for t in tables.iter().filter(|t| self.looks_at(t)) {
            let stored = baseline.and_then(|b| b.iter().find(|b| b.name == t.name));
            for row in &t.rows {
                let conditions = self.rows.iter().filter(|c| c.column != "table");
                let cell = t.cell(row, &self.column);
                // A cell that holds nothing was not measured.
                if cell.is_empty() || !conditions.clone().all(|c| c.meets(t.cell(row, &c.column))) {
                    continue;
                }
                result.matched += 1;
                let (holds, bound) = self.holds(cell, || self.stored(t, row, stored));
                if !holds {
                    result.broken.push(Broken {
                        table: t.name.clone(),
                        row: t.key(row),
                        value: cell.into(),
                        bound: format!("{} {bound}", self.cmp),
                    });
                }
            }
        }
        Ok(result)
    }

    /// The baseline's cell for a row.
    fn stored(&self, t: &Table, row: &[String], stored: Option<&Table>) -> Option<f64> {
        let b = stored?;
        let key = t.key(row);
        let found = b.rows.iter().find(|r| b.key(r) == key)?;
        number(b.cell(found, &self.column))
    }

    fn holds(&self, cell: &str, stored: impl Fn() -> Option<f64>) -> (bool, String) {
        match &self.bound {
            Bound::Text(v) => ((cell == v) == (self.cmp == Cmp::Eq), v.clone()),
            Bound::Value(v) => (number(cell).is_some_and(|c| self.cmp.holds(c, *v)), v.to_string()),
            Bound::Baseline(f) => match stored() {
                Some(b) => (
                    number(cell).is_some_and(|c| self.cmp.holds(c, f * b)),
                    format!("{:e} ({f} * baseline {b:e})", f * b),
                ),
                None => (false, "a row that the baseline does not have".into()),
            },
        }
    }

    fn unknown(&self, tables: &[Table]) -> Error {
        let all: Vec<&str> = tables.iter().flat_map(|t| t.columns.iter().map(String::as_str)).collect();
        let Some(column) = self.columns().find(|c| !all.contains(c)) else {
            return Error::usage(format!(
                "gate `{}`: no single table has all the columns it names",
                self.name
            ))
            .hint("the tables of a run and their columns are in docs/formats.md; table=NAME picks one");
        };
        let near = all
            .iter()
            .map(|c| (strsim::jaro_winkler(c, column), *c))
            .max_by(|a, b| a.0.total_cmp(&b.0).then(b.1.cmp(a.1)));
        let e = Error::usage(format!("gate `{}`: no table of the run has a column `{column}`", self.name));
        match near {
            Some((score, name)) if score > 0.7 => e.hint(format!("did you mean `{name}`?")),
            _ => e.hint("the tables of a run and their columns are in docs/formats.md"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tables() -> Vec<Table> {
        let layers = "run,phase,tap,layer,kind,site,excess,status\n\
                      a,prefill,layers.0.attn.out,0,window,attn,1.5,ok\n\
                      a,decode,layers.0.attn.out,0,window,attn,9,suspect\n\
                      a,decode,layers.3.attn.out,3,csa,attn,NaN,ok\n\
                      a,decode,layers.3.mid,3,csa,mhc,,ok\n";
        let recall = "run,ctx,n,recall,lower\na,2048,64,1,0.94\na,8192,64,0.9,0.8\n";
        vec![
            Table::parse("layers", layers.as_bytes()).unwrap(),
            Table::parse("recall", recall.as_bytes()).unwrap(),
        ]
    }

    fn judge(rows: &str, require: &str) -> Result<GateResult> {
        let c = GateConfig { name: None, rows: rows.into(), require: require.into() };
        Gate::new(&c)?.judge(&tables(), None)
    }

    /// Catches a gate that passes what it should stop: a NaN, a wrong phase, a range that leaves out its ends.
    #[test]
    fn gates_look_at_the_rows_they_name() {
        let r = |w: &str, q: &str| {
            let r = judge(w, q).unwrap();
            (r.matched, r.broken.len())
        };
        assert_eq!(r("site=attn & phase=prefill", "excess <= 2"), (1, 0));
        assert_eq!(r("site=attn", "excess <= 2"), (3, 2), "NaN breaks a bound");
        assert_eq!(r("layer=0..2", "excess < 9"), (2, 1));
        assert_eq!(r("layer=0..3 & kind=csa,hca", "excess < 9"), (1, 1), "an empty cell was not measured");
        assert_eq!(r("kind!=csa", "status=ok"), (2, 1));
        assert_eq!(r("ctx=2k", "lower ≥ 0.9"), (1, 0));
        assert_eq!(r("table=recall", "lower >= 0.9"), (2, 1));
        assert_eq!(r("", "n >= 64"), (2, 0));
    }

    /// Catches a gate that holds because nothing was looked at.
    #[test]
    fn a_gate_that_matched_nothing_fails() {
        let g = judge("site=router", "excess <= 2").unwrap();
        assert_eq!(g.matched, 0);
        assert!(!g.passed());
    }

    #[test]
    fn unknown_columns_and_nonsense_are_refused() {
        for (w, q, what) in [
            ("", "exces <= 2", "did you mean `excess`?"),
            ("sight=attn", "excess <= 2", "no table of the run has a column `sight`"),
            ("ctx=2k", "excess <= 2", "no single table"),
            ("", "excess", "is no requirement"),
            ("site", "excess <= 2", "is no condition"),
            ("", "excess <= much", "is no number"),
            ("", "excess <= x * baseline", "is no factor"),
        ] {
            let e = judge(w, q).unwrap_err();
            assert!(e.to_string().contains(what), "{e}");
            assert_eq!(e.kind().exit_code(), 2);
        }
    }

    /// Catches a baseline row taken from another tap, run or phase, and a row that has none.
    #[test]
    fn baselines_are_compared_row_by_row() {
        let mut stored = tables();
        stored[0].rows[1][6] = "8.5".into();
        stored[0].rows.remove(2);
        let c = GateConfig { name: None, rows: "".into(), require: "excess <= 1.05 * baseline".into() };
        let g = Gate::new(&c).unwrap();
        assert!(g.needs_baseline());
        let r = g.judge(&tables(), Some(&stored)).unwrap();
        let broken: Vec<&str> = r.broken.iter().map(|b| b.row.as_str()).collect();
        assert_eq!(
            broken,
            ["a | decode | layers.0.attn.out", "a | decode | layers.3.attn.out"],
            "{:?}",
            r.broken
        );
    }
}
