//! `dsv4 report`: run directories into one coherence report.

use super::write_text;
use crate::coherence::{Report, build};
use crate::error::{Error, Result, exit};
use crate::report::run_dir::RunDir;
use minijinja::{Environment, UndefinedBehavior, Value};
use std::io::Write;
use std::path::PathBuf;

/// The report's template. Every variable it names is described in docs/ci.md.
const TEMPLATE: &str = include_str!("../../REPORT_TEMPLATE.md");

/// Turn run directories into one Markdown report: suspect, evidence, what was not tested
#[derive(Debug, Clone, clap::Args)]
pub struct ReportArgs {
    /// Run directories of diff-layers, needle, ab, selftest and inspect, all of one model
    #[arg(value_name = "RUN", required_unless_present = "print_template")]
    pub runs: Vec<PathBuf>,
    /// A template of your own (MiniJinja)
    #[arg(long, value_name = "FILE")]
    pub template: Option<PathBuf>,
    /// Print the built-in template and stop
    #[arg(long)]
    pub print_template: bool,
    /// Write report.md, report.json and plots/ here; without it the report goes to standard output
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// Print the report's variables as one JSON object (schema dsv4.report/1) instead of Markdown
    #[arg(long)]
    pub json: bool,
}

/// Runs the command; the result is the exit code.
pub fn run(args: &ReportArgs, out: &mut dyn Write) -> Result<i32> {
    if args.print_template {
        write_text(out, TEMPLATE)?;
        return Ok(exit::OK);
    }
    let template = match &args.template {
        Some(p) => std::fs::read_to_string(p).map_err(|e| Error::io(p, "read the template", &e))?,
        None => TEMPLATE.to_owned(),
    };
    let mut report = build(&args.runs)?;
    report.context["schema"] = "dsv4.report/1".into();
    let text = render(&template, &report).map_err(|e| match &args.template {
        Some(p) => e.file(p),
        None => e,
    })?;
    if let Some(path) = &args.out {
        let dir = RunDir::create(path)?;
        let plots = RunDir::create(&path.join("plots"))?;
        for (name, svg) in &report.plots {
            plots.write(name, svg.as_bytes())?;
        }
        dir.json("report.json", &report.context)?;
        dir.write("report.md", text.as_bytes())?;
    }
    if args.json {
        super::write_json(out, &report.context)?;
    } else {
        write_text(out, &text)?;
    }
    Ok(exit::OK)
}

/// A number in few characters; nothing where it was not measured.
fn num(v: &Value) -> String {
    match f64::try_from(v.clone()) {
        Err(_) => "-".into(),
        Ok(0.0) => "0".into(),
        Ok(x) if x.abs() >= 1e-3 && x.abs() < 1e4 => {
            let s = format!("{x:.4}");
            s.trim_end_matches('0').trim_end_matches('.').into()
        }
        Ok(x) => format!("{x:.2e}"),
    }
}

fn render(template: &str, report: &Report) -> Result<String> {
    let mut env = Environment::new();
    env.set_undefined_behavior(UndefinedBehavior::Strict);
    env.add_filter("num", |v: Value| num(&v));
    env.add_filter("whole", |v: Value| f64::try_from(v).map_or("-".into(), |x| format!("{x:.0}")));
    // A bar would end a cell of a Markdown table.
    env.add_filter("cell", |v: String| v.replace('|', "\\|").replace('\n', " "));
    let bad = |e: minijinja::Error| {
        let line = e.line().map_or(String::new(), |l| format!(", line {l}"));
        Error::usage(format!("the template cannot be used{line}: {e}"))
            .hint("`dsv4 report --print-template` prints the built-in one; docs/ci.md lists the variables")
    };
    let t = env.template_from_str(template).map_err(bad)?;
    let known = report.context.as_object();
    let mut unknown: Vec<String> = t
        .undeclared_variables(false)
        .into_iter()
        .filter(|v| known.is_none_or(|k| !k.contains_key(v)))
        .collect();
    unknown.sort_unstable();
    if !unknown.is_empty() {
        let names: Vec<&str> = known.into_iter().flat_map(|k| k.keys()).map(String::as_str).collect();
        return Err(Error::usage(format!("the template names unknown variables: {}", unknown.join(", ")))
            .hint(format!("known are {}", names.join(", "))));
    }
    let mut text = t.render(Value::from(minijinja::value::Serde(&report.context))).map_err(bad)?;
    if !text.ends_with('\n') {
        text.push('\n');
    }
    Ok(text)
}
