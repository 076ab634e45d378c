//! Parse, run, exit code. Nothing else.

use clap::Parser;

#[derive(Parser)]
#[command(version, about)]
enum Cli {
    /// Describe a checkpoint and check it against its config
    Inspect(dsv4::cli::inspect::InspectArgs),
}

fn main() {
    dsv4::engine::work_on_this_thread();
    let Cli::Inspect(args) = Cli::parse();
    let code = dsv4::cli::inspect::run(&args, &mut std::io::stdout().lock()).unwrap_or_else(|e| {
        eprintln!("error: {e}");
        e.kind().exit_code()
    });
    std::process::exit(code);
}
