//! The layer-major pass: loading, running, observing. Prints nothing.

pub mod interrupt;
pub mod load;
pub mod pass;
pub mod session;

pub use load::Loader;
pub use pass::{Progress, Quiet, for_each_layer, forward, work_on_this_thread};
pub use session::{Schedule, Session};
