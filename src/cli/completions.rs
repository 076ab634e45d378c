//! `dsv4 completions` and `dsv4 man`: what shells and `man` need to know of the command line.

use super::{Cli, write_text};
use crate::error::{Error, Result, exit};
use clap::CommandFactory;
use std::io::Write;
use std::path::PathBuf;

/// Print a completion script for a shell
#[derive(Debug, Clone, clap::Args)]
pub struct CompletionsArgs {
    /// The shell
    #[arg(value_name = "SHELL")]
    pub shell: clap_complete::Shell,
}

/// Print the manual page, or write one a command
#[derive(Debug, Clone, clap::Args)]
pub struct ManArgs {
    /// Write dsv4.1 and one page a subcommand here
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
}

/// Prints the script.
pub fn run(args: &CompletionsArgs, out: &mut dyn Write) -> Result<i32> {
    // Into memory first: the generator does not expect a reader that leaves early.
    let mut bytes = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "dsv4", &mut bytes);
    write_text(out, &String::from_utf8_lossy(&bytes))?;
    Ok(exit::OK)
}

/// Prints or writes the pages.
pub fn man(args: &ManArgs, out: &mut dyn Write) -> Result<i32> {
    match &args.out {
        Some(dir) => {
            let failed = |e: std::io::Error| Error::io(dir, "write the manual pages", &e);
            std::fs::create_dir_all(dir).map_err(failed)?;
            clap_mangen::generate_to(Cli::command(), dir).map_err(failed)?;
        }
        None => {
            let mut bytes = Vec::new();
            clap_mangen::Man::new(Cli::command())
                .render(&mut bytes)
                .map_err(|e| Error::bug(format!("manual page: {e}")))?;
            write_text(out, &String::from_utf8_lossy(&bytes))?;
        }
    }
    Ok(exit::OK)
}
