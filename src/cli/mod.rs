//! One file a subcommand: arguments → plan → events → writers.
