//! The report of a layer comparison for people.

use super::{DiffLayersArgs, Outcome};
use crate::cli::table::{Column, grouped, table, wrapped};
use crate::engine::compare::{TapRow, short};
use crate::metrics::Status;
use serde_json::Value;

/// The report for people: verdict, evidence, how to repeat it.
pub(super) fn text(args: &DiffLayersArgs, o: &Outcome, dir: Option<&std::path::Path>) -> String {
    let v = &o.verdict;
    let place = match (v.layer, &v.site) {
        (Some(l), Some(s)) => format!(": layer {l}, site {s}"),
        (None, Some(s)) => format!(": site {s}"),
        _ => String::new(),
    };
    let mut t = format!("{}{place}\n", v.status.to_string().to_uppercase());
    t += &wrapped(&v.why, 2);
    t += "\n";
    let fact = |k: &str| o.facts.iter().find(|(n, _)| *n == k).map(|(_, v)| v.clone()).unwrap_or_default();
    let word = |k: &str| fact(k).as_str().unwrap_or_default().to_string();
    let tokens = grouped(fact("tokens").as_u64().unwrap_or(0));
    let head = match &args.against {
        Some(d) => {
            let precision = if o.rows.is_empty() {
                String::new()
            } else {
                format!(", {} arithmetic ({})", word("precision"), word("precision_from"))
            };
            format!("dump {}, {tokens} tokens, golden {}{precision}", d.display(), word("golden"))
        }
        None => format!(
            "model {}, {tokens} tokens, golden {}, candidate {}",
            args.model,
            word("golden"),
            word("kernels")
        ),
    };
    t += &wrapped(&head, 0);
    if !o.rows.is_empty() {
        t.push('\n');
        t += &layer_table(&o.rows);
        t += "\nA row shows the worst tap of a site. rel_l2: total error against golden. born:\n\
              error added to inputs that are equal on both sides. floor: what the declared\n\
              formats and precision explain. excess: born / floor. top-k: overlap of\n\
              the selected entries or experts.\n";
    }
    if let Some(l) = fact("logits").as_object() {
        let n = |k: &str| l.get(k).and_then(Value::as_f64).unwrap_or(f64::NAN);
        t += &format!(
            "\nlogits: KL(golden|candidate) mean {:.1e}, max {:.1e}; top-1 {:.2} % of {}\n",
            n("mean_kl"),
            n("max_kl"),
            100.0 * n("top1_rate"),
            grouped(n("rows") as u64)
        );
    }
    if let Some(list) = fact("inert").as_array().filter(|l| !l.is_empty()) {
        let names: Vec<&str> = list.iter().filter_map(Value::as_str).collect();
        t += &wrapped(&format!("changed no bit in this run: {}", names.join(", ")), 0);
    }
    if let Some(list) = fact("ignored").as_array().filter(|l| !l.is_empty()) {
        let names: Vec<&str> = list.iter().filter_map(Value::as_str).take(4).collect();
        t += &wrapped(&format!("ignored {} tensors that are no taps: {} …", list.len(), names.join(", ")), 0);
        t.push('\n');
    }
    match dir {
        Some(d) => {
            let files = "layers.csv, index.csv, router.csv, logits.csv, summary.json, manifest.json";
            t.push('\n');
            t += &wrapped(&format!("wrote {}: {files}", d.display()), 0);
        }
        None => t += "\nwrote no files\n",
    }
    t
}

/// One line a layer and site: the worst tap of it.
fn layer_table(rows: &[TapRow]) -> String {
    let mut groups: Vec<(Option<usize>, &str, Vec<&TapRow>)> = Vec::new();
    for r in rows {
        match groups.iter_mut().find(|(l, s, _)| *l == r.layer && *s == r.site) {
            Some(g) => g.2.push(r),
            None => groups.push((r.layer, &r.site, vec![r])),
        }
    }
    let cells = groups.iter().map(|(layer, site, rows)| {
        let worst = rows
            .iter()
            .filter(|r| r.index.is_none())
            .max_by(|a, b| a.status.cmp(&b.status).then(a.excess.total_cmp(&b.excess)));
        let status = rows.iter().map(|r| r.status).max().unwrap_or(Status::Ok);
        let inherited = status == Status::Ok && rows.iter().any(|r| r.inherited);
        let overlap = rows
            .iter()
            .find_map(|r| r.index.as_ref())
            .map_or(String::new(), |i| format!("{:.3}", i.isolated_overlap.unwrap_or(i.overlap)));
        let number = |f: fn(&TapRow) -> f64| worst.map_or(String::new(), |r| format!("{:.1e}", f(r)));
        vec![
            layer.map_or("-".into(), |l| l.to_string()),
            rows[0].kind.to_string(),
            site.to_string(),
            number(|r| r.rel_l2),
            number(|r| r.local_rel_l2),
            number(|r| r.floor),
            worst.map_or(String::new(), |r| short(r.excess)),
            overlap,
            if inherited { "inherited".into() } else { status.to_string() },
        ]
    });
    table(
        &[
            ("layer", Column::Number),
            ("kind", Column::Word),
            ("site", Column::Word),
            ("rel_l2", Column::Number),
            ("born", Column::Number),
            ("floor", Column::Number),
            ("excess", Column::Number),
            ("top-k", Column::Number),
            ("verdict", Column::Word),
        ],
        cells,
    )
}
