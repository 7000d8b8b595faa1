//! Whether records can be stored, for `/readyz` and `/v2/stats`.

use chainscope_store::Error as StoreError;
use parking_lot::Mutex;

/// The last error of the store, until a commit succeeds.
#[derive(Debug, Default)]
pub(crate) struct WriteHealth {
    error: Mutex<Option<String>>,
}

impl WriteHealth {
    /// Why records cannot be stored; none if they can.
    pub(crate) fn error(&self) -> Option<String> {
        self.error.lock().clone()
    }

    pub(super) fn set(&self, error: String) {
        *self.error.lock() = Some(error);
    }

    /// Sets the error unless there is one already.
    pub(super) fn set_if_healthy(&self, error: &StoreError) {
        self.error.lock().get_or_insert_with(|| error.to_string());
    }

    pub(super) fn clear(&self) {
        *self.error.lock() = None;
    }
}
