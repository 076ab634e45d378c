//! Tables for people: 80 columns, no colour, nothing a log would garble.

use comfy_table::{Cell, CellAlignment, ColumnConstraint, ContentArrangement, LineStyle, Table, TableStyle};

/// Width every table keeps to.
pub const WIDTH: u16 = 80;

/// How a column behaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Column {
    /// Words, as wide as they are.
    Word,
    /// Numbers, right-aligned, as wide as they are.
    Number,
    /// Prose, wrapped into what is left.
    Prose,
}

/// A table with a header. Rows shorter than the header are filled up with empty cells.
pub fn table(columns: &[(&str, Column)], rows: impl IntoIterator<Item = Vec<String>>) -> String {
    let mut t = Table::new();
    t.load_style(TableStyle::new().header_separator(LineStyle::none().fill('-').junction('-')));
    t.set_content_arrangement(ContentArrangement::Dynamic);
    t.set_width(WIDTH);
    t.set_header(columns.iter().map(|(name, _)| Cell::new(name)).collect::<Vec<_>>());
    for row in rows {
        t.add_row(row);
    }
    for (i, (_, kind)) in columns.iter().enumerate() {
        if let Some(c) = t.column_mut(i) {
            c.set_padding((0, 1));
            match kind {
                Column::Word => {
                    c.set_constraint(ColumnConstraint::ContentWidth);
                }
                Column::Number => {
                    c.set_constraint(ColumnConstraint::ContentWidth);
                    c.set_cell_alignment(CellAlignment::Right);
                }
                Column::Prose => {}
            }
        }
    }
    t.trim_fmt()
}

/// Text wrapped to the width, every line indented.
pub fn wrapped(text: &str, indent: usize) -> String {
    let mut out = String::new();
    let mut used = 0;
    for word in text.split_whitespace() {
        if used > 0 && used + 1 + word.len() <= WIDTH as usize {
            out.push(' ');
            used += 1;
        } else {
            if used > 0 {
                out.push('\n');
            }
            out.push_str(&" ".repeat(indent));
            used = indent;
        }
        out.push_str(word);
        used += word.len();
    }
    out.push('\n');
    out
}

/// `12,345,678`.
pub fn grouped(n: u64) -> String {
    let digits = n.to_string();
    let mut out = String::new();
    for (i, c) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(c);
    }
    out
}

/// `1 tensor`, `2 tensors`.
pub fn count(n: usize, what: &str) -> String {
    format!("{} {what}{}", grouped(n as u64), if n == 1 { "" } else { "s" })
}

/// Bytes with a decimal unit.
pub fn bytes(n: u64) -> String {
    let mut v = n as f64;
    for unit in ["B", "kB", "MB", "GB"] {
        if v < 999.5 {
            return if unit == "B" { format!("{n} B") } else { format!("{v:.1} {unit}") };
        }
        v /= 1000.0;
    }
    format!("{v:.1} TB")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_read_well() {
        assert_eq!(grouped(0), "0");
        assert_eq!(grouped(999), "999");
        assert_eq!(grouped(1000), "1,000");
        assert_eq!(grouped(12345678), "12,345,678");
        assert_eq!(count(1, "tensor"), "1 tensor");
        assert_eq!(bytes(999), "999 B");
        assert_eq!(bytes(1000), "1.0 kB");
        assert_eq!(bytes(10_900_000), "10.9 MB");
    }

    /// Catches a table wider than a terminal.
    #[test]
    fn prose_wraps_within_the_width() {
        let t = table(
            &[("name", Column::Word), ("n", Column::Number), ("doc", Column::Prose)],
            [vec!["a_rather_long_name".into(), "7".into(), "words ".repeat(40)]],
        );
        assert!(t.lines().all(|l| l.len() <= WIDTH as usize), "{t}");
        assert!(t.lines().count() > 4);
    }
}
