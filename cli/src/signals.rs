//! Signals that ask the program to end.

use std::sync::{Arc, atomic::AtomicBool};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

/// Whether a signal asked to end. A second SIGINT ends the program at once.
pub(crate) fn stop_flag() -> anyhow::Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    signal_hook::flag::register_conditional_shutdown(SIGINT, 130, Arc::clone(&stop))?;
    for signal in [SIGTERM, SIGINT, SIGHUP] {
        signal_hook::flag::register(signal, Arc::clone(&stop))?;
    }
    Ok(stop)
}
