//! One file a subcommand: arguments → plan → events → writers.

pub mod ab;
pub mod completions;
pub mod diff_layers;
pub mod doctor;
pub mod dump;
pub mod encode;
mod help;
pub mod inspect;
pub mod kernels;
pub mod merge;
pub mod needle;
pub mod path;
pub mod progress;
pub mod prompt;
pub mod report;
pub mod selftest;
pub mod table;

use crate::engine::{interrupt, work_on_this_thread};
use crate::error::{Error, ErrorKind, Result, exit};
use crate::report::temp;
use clap::{Args, Parser, Subcommand};
use std::ffi::OsString;
use std::io::{ErrorKind as Io, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};

/// Numerical-fidelity forensics for DeepSeek-V4 deployments: which kernel, which layer, which fact was lost
#[derive(Debug, Parser)]
#[command(name = "dsv4", version, after_help = help::TOP, arg_required_else_help = true, max_term_width = 100)]
struct Cli {
    #[command(flatten)]
    global: Globals,
    #[command(subcommand)]
    command: Command,
}

/// Flags every command takes.
#[derive(Debug, Clone, Default, Args)]
pub struct Globals {
    /// Threads to compute with; the result does not depend on it [default: all cores]
    #[arg(long, global = true, help_heading = "Global options", value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub threads: Option<u16>,
    /// No progress and no notes on standard error; errors still appear
    #[arg(long, short, global = true, help_heading = "Global options")]
    pub quiet: bool,
}

impl Globals {
    /// Tells the user something that is no result.
    pub fn note(&self, text: &str) {
        if !self.quiet {
            let _ = writeln!(std::io::stderr(), "note: {text}");
        }
    }
}

#[derive(Debug, Subcommand)]
enum Command {
    #[command(after_help = help::INSPECT)]
    Inspect(inspect::InspectArgs),
    #[command(name = "diff-layers", after_help = help::DIFF_LAYERS)]
    DiffLayers(diff_layers::DiffLayersArgs),
    #[command(after_help = help::NEEDLE)]
    Needle(Box<needle::NeedleArgs>),
    #[command(after_help = help::MERGE)]
    Merge(merge::MergeArgs),
    #[command(after_help = help::DUMP)]
    Dump(dump::DumpArgs),
    #[command(after_help = help::KERNELS)]
    Kernels(kernels::KernelsArgs),
    #[command(after_help = help::AB)]
    Ab(ab::AbArgs),
    #[command(after_help = help::DOCTOR)]
    Doctor(doctor::DoctorArgs),
    #[command(after_help = help::COMPLETIONS)]
    Completions(completions::CompletionsArgs),
    Man(completions::ManArgs),
    #[command(after_help = help::REPORT)]
    Report(report::ReportArgs),
    #[command(after_help = help::ENCODE)]
    Encode(encode::EncodeArgs),
    #[command(after_help = help::SELFTEST)]
    Selftest(selftest::SelftestArgs),
}

impl Command {
    /// True if it runs the engine, which looks at [`interrupt`] and cleans up by itself.
    fn stops_itself(&self) -> bool {
        matches!(
            self,
            Command::Ab(_)
                | Command::DiffLayers(_)
                | Command::Needle(_)
                | Command::Dump(_)
                | Command::Selftest(_)
        )
    }
    fn run(&self, global: &Globals, out: &mut dyn Write) -> Result<i32> {
        match self {
            Command::Inspect(a) => inspect::run(a, out),
            Command::DiffLayers(a) => diff_layers::run(a, global, out),
            Command::Needle(a) => needle::run(a, global, out),
            Command::Merge(a) => merge::run(a, global, out),
            Command::Dump(a) => dump::run(a, global, out),
            Command::Kernels(a) => kernels::run(a, global, out),
            Command::Ab(a) => ab::run(a, global, out),
            Command::Doctor(a) => doctor::run(a, out),
            Command::Completions(a) => completions::run(a, out),
            Command::Man(a) => completions::man(a, out),
            Command::Report(a) => report::run(a, out),
            Command::Encode(a) => encode::run(a, global, out),
            Command::Selftest(a) => selftest::run(a, global, out),
        }
    }
}

/// The program: arguments in, exit code out.
pub fn main(args: impl IntoIterator<Item = OsString>) -> i32 {
    std::panic::set_hook(Box::new(|info| {
        // The first panic is the cause; what unwinding threads add to it only hides it.
        static SAID: AtomicBool = AtomicBool::new(false);
        if !SAID.swap(true, Ordering::SeqCst) {
            let _ = writeln!(
                std::io::stderr(),
                "error: this is a bug in dsv4: {info}\n  hint: please report it with the command line and the \
                 output of `dsv4 --version`; --threads 1 and a shorter prompt may help to narrow it down"
            );
        }
    }));
    guarded(|| match Cli::try_parse_from(args) {
        Ok(cli) => start(&cli),
        Err(e) => {
            // Help for a closed pipe is no failure.
            let _ = e.print();
            e.exit_code()
        }
    })
}

/// Runs `f`; a panic unwinds (so that temporary files go) and becomes the exit code of a bug.
fn guarded(f: impl FnOnce() -> i32) -> i32 {
    catch_unwind(AssertUnwindSafe(f)).unwrap_or(exit::BUG)
}

fn start(cli: &Cli) -> i32 {
    let mut out = Stdout { inner: std::io::BufWriter::new(std::io::stdout().lock()), closed: false };
    let result = prepare(cli).and_then(|()| cli.command.run(&cli.global, &mut out));
    let flushed = out.flush().map_err(|e| {
        Error::new(ErrorKind::Input, format!("cannot write to standard output: {e}"))
            .hint("is the disk full?")
    });
    match result.and_then(|code| flushed.map(|()| code)) {
        Ok(code) => code,
        Err(e) => {
            let _ = writeln!(std::io::stderr(), "error: {e}");
            e.kind().exit_code()
        }
    }
}

fn prepare(cli: &Cli) -> Result<()> {
    let started = work_on_this_thread(cli.global.threads.map(usize::from));
    if let Some(n) = cli.global.threads {
        started.map_err(|e| Error::new(ErrorKind::Unavailable, format!("cannot start {n} threads: {e}")))?;
    }
    if cli.command.stops_itself() {
        ctrlc::set_handler(on_interrupt).map_err(|e| Error::bug(format!("cannot watch for Ctrl-C: {e}")))?;
    }
    Ok(())
}

/// First Ctrl-C: stop at the next step and clean up. Second: at once.
fn on_interrupt() {
    static SEEN: AtomicBool = AtomicBool::new(false);
    if SEEN.swap(true, Ordering::SeqCst) {
        temp::remove_all();
        std::process::exit(exit::INTERRUPTED);
    }
    interrupt::request();
    let _ = writeln!(std::io::stderr(), "stopping after this step; Ctrl-C again stops at once");
}

/// Standard output whose reader may leave early: that is no failure, the rest goes nowhere.
struct Stdout<W: Write> {
    inner: W,
    closed: bool,
}

impl<W: Write> Stdout<W> {
    fn forgive<T>(&mut self, r: std::io::Result<T>, instead: T) -> std::io::Result<T> {
        match r {
            Err(e) if e.kind() == Io::BrokenPipe => {
                self.closed = true;
                Ok(instead)
            }
            r => r,
        }
    }
}

impl<W: Write> Write for Stdout<W> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        if self.closed {
            return Ok(bytes.len());
        }
        let r = self.inner.write(bytes);
        self.forgive(r, bytes.len())
    }
    fn flush(&mut self) -> std::io::Result<()> {
        if self.closed {
            return Ok(());
        }
        let r = self.inner.flush();
        self.forgive(r, ())
    }
}

/// Writes a JSON object and a newline.
pub fn write_json(out: &mut dyn Write, value: &serde_json::Value) -> Result<()> {
    let text = serde_json::to_string_pretty(value).map_err(|e| Error::bug(e.to_string()))?;
    write_text(out, &format!("{text}\n"))
}

/// Writes text.
pub fn write_text(out: &mut dyn Write, text: &str) -> Result<()> {
    out.write_all(text.as_bytes())
        .map_err(|e| Error::input(format!("cannot write to standard output: {e}")).hint("is the disk full?"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Catches flags that clash or a command clap cannot build.
    #[test]
    fn the_command_line_is_consistent() {
        use clap::CommandFactory;
        Cli::command().debug_assert();
    }

    /// Catches a panic that ends with the exit code of a wrong command line or of success.
    #[test]
    fn a_panic_is_a_bug() {
        assert_eq!(guarded(|| panic!("planted")), exit::BUG);
        assert_eq!(guarded(|| 5), 5);
    }

    struct Closed;
    impl Write for Closed {
        fn write(&mut self, _: &[u8]) -> std::io::Result<usize> {
            Err(Io::BrokenPipe.into())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Err(Io::StorageFull.into())
        }
    }

    #[test]
    fn a_reader_that_leaves_is_no_failure() {
        let mut out = Stdout { inner: Closed, closed: false };
        assert!(out.flush().is_err(), "a full disk is one");
        out.write_all(b"x").unwrap();
        out.flush().unwrap();
    }
}
