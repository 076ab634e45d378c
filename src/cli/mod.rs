//! One file a subcommand: arguments → plan → events → writers.

pub mod inspect;
