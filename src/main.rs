//! Parse, run, exit code. Nothing else.

fn main() {
    std::process::exit(dsv4::cli::main(std::env::args_os()));
}
