//! The layer-major pass: loading, running, observing. Prints nothing.

pub mod check;
pub mod compare;
pub mod dump;
pub mod grid;
pub mod interrupt;
pub mod load;
pub mod pass;
pub mod prompt_faults;
pub mod selftest;
pub mod session;
pub mod tap_shape;
pub mod tap_sink;

pub use load::Loader;
pub use pass::{Progress, Quiet, for_each_layer, for_layers, forward, work_on_this_thread};
pub use session::{Schedule, Session};
