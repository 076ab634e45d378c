//! What `dsv4 ab` prints, and the Markdown of a CI step.

use super::junit::message;
use crate::ab::judge::{Conclusion, Effect};
use crate::cli::table::{Column, table, wrapped};
use crate::engine::compare::short;

/// The first words: passed or failed, and who is to blame.
pub fn headline(c: &Conclusion) -> String {
    let failed = c.gates.iter().filter(|j| !j.passed).count();
    if !c.aa_identical {
        return "FAILED: golden differs from itself; nothing below can be believed".into();
    }
    match &c.suspect {
        _ if c.passed => format!("PASSED: {} gates hold in every run", c.gates.len()),
        None => format!("FAILED: {failed} of {} gates, in no single run", c.gates.len()),
        Some(s) => {
            let place = match (&s.site, s.layer) {
                (Some(site), Some(l)) => format!(", site {site}, first at layer {l}"),
                (Some(site), None) => format!(", site {site}"),
                _ => String::new(),
            };
            let phases =
                if s.phases.is_empty() { String::new() } else { format!(" ({})", s.phases.join(", ")) };
            format!(
                "FAILED: {} of {} gates; suspect: {}{place}{phases}",
                failed,
                c.gates.len(),
                s.toggles.join(" + ")
            )
        }
    }
}

fn number(x: f64) -> String {
    if x.is_nan() {
        "-".into()
    } else if x == 0.0 {
        "0".into()
    } else {
        format!("{x:.1e}")
    }
}

fn effect(e: &Effect) -> Vec<String> {
    let mut says: Vec<&str> = Vec::new();
    if e.inert {
        says.push("changed no bit");
    }
    if e.fails_alone {
        says.push("fails alone");
    }
    if e.cures {
        says.push("all but it passes");
    }
    if says.is_empty() {
        says.push("passes alone");
    }
    vec![
        e.toggle.clone(),
        says.join(", "),
        number(e.kl),
        format!("±{}", number(1.96 * e.kl_se)),
        number(e.kl_among_all),
        format!("{:.1} %", 100.0 * e.top1),
        short(e.excess),
        e.recall.map_or("-".into(), |r| format!("{:+.1} %", 100.0 * r)),
    ]
}

const EFFECTS: [(&str, Column); 8] = [
    ("toggle", Column::Word),
    ("", Column::Prose),
    ("KL", Column::Number),
    ("95 %", Column::Number),
    ("in all", Column::Number),
    ("top-1", Column::Number),
    ("excess", Column::Number),
    ("recall", Column::Number),
];

/// The report for a terminal.
pub fn text(c: &Conclusion, again: &str, dir: Option<&str>) -> String {
    let mut t = wrapped(&headline(c), 0);
    if let Some(s) = &c.suspect {
        t += &wrapped(&s.why, 2);
    }
    t.push('\n');
    t += &table(&EFFECTS, c.effects.iter().map(effect));
    t += "\nKL: golden to the toggle alone, nats a position. in all: what it adds to\n\
          everything together. excess: largest of any tap, alone.\n";
    for [a, b] in &c.interactions {
        t += &wrapped(&format!("{a} and {b} fail together, and neither fails alone"), 0);
    }
    let failed: Vec<_> = c.gates.iter().filter(|j| !j.passed).collect();
    if !failed.is_empty() {
        t.push('\n');
        t += &table(
            &[("run", Column::Word), ("broken gate", Column::Prose)],
            failed.iter().map(|j| {
                let run = if j.run.is_empty() { "-" } else { &j.run };
                vec![run.into(), format!("{}: {}", j.result.gate, message(j))]
            }),
        );
        t.push('\n');
    }
    t += &format!("\nagain: {again}\n");
    if let Some(d) = dir {
        t += &wrapped(&format!("wrote {d}"), 0);
    }
    t
}

/// The summary of a CI step, in Markdown.
pub fn markdown(c: &Conclusion) -> String {
    let mut t = format!("## dsv4 ab\n\n**{}**\n\n", headline(c));
    if let Some(s) = &c.suspect {
        t += &format!("{}\n\n", s.why);
    }
    t += "| toggle | | KL (nats) | 95 % | in all | top-1 | excess | recall |\n|---|---|---:|---:|---:|---:|---:|---:|\n";
    for e in &c.effects {
        t += &format!("| {} |\n", effect(e).iter().map(|s| escaped(s)).collect::<Vec<_>>().join(" | "));
    }
    let failed: Vec<_> = c.gates.iter().filter(|j| !j.passed).collect();
    if !failed.is_empty() {
        t += "\n| run | broken gate | why |\n|---|---|---|\n";
        for j in failed {
            t += &format!(
                "| {} | {} | {} |\n",
                escaped(&j.run),
                escaped(&j.result.gate),
                escaped(&message(j))
            );
        }
    }
    t
}

fn escaped(s: &str) -> String {
    s.replace('|', "\\|").replace('\n', " ")
}

/// At most ten annotations for a CI log, the most telling first.
pub fn annotations(c: &Conclusion) -> Vec<String> {
    // The characters that end a property or a message of a workflow command.
    let data = |s: &str| s.replace('%', "%25").replace('\r', "%0D").replace('\n', "%0A");
    let property = |s: &str| data(s).replace(':', "%3A").replace(',', "%2C");
    let mut out = Vec::new();
    if !c.passed {
        let why = c.suspect.as_ref().map_or(String::new(), |s| format!(" — {}", s.why));
        out.push(format!(
            "::error title={}::{}",
            property("dsv4 ab"),
            data(&format!("{}{why}", headline(c)))
        ));
    }
    for j in c.gates.iter().filter(|j| !j.passed) {
        let title = if j.run.is_empty() { "experiment" } else { &j.run };
        out.push(format!(
            "::error title={}::{}",
            property(title),
            data(&format!("{}: {}", j.result.gate, message(j)))
        ));
    }
    out.truncate(10);
    out
}
