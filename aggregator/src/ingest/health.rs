//! Whether records can be stored, for `/readyz` and `/v2/stats`.

use chainscope_store::Error as StoreError;
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

/// The last error of the store, until a commit succeeds.
#[derive(Debug, Default)]
pub(crate) struct WriteHealth {
    error: Mutex<Option<String>>,
    /// Cancelled when no commit can succeed any more.
    failed: CancellationToken,
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

    /// The error is final until the database is opened again.
    pub(super) fn fail(&self) {
        self.failed.cancel();
    }

    /// Completes with the error once it is final.
    pub(super) async fn failed(&self) -> String {
        self.failed.cancelled().await;
        self.error().unwrap_or_default()
    }

    pub(super) fn clear(&self) {
        *self.error.lock() = None;
    }
}
