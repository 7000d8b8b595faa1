//! The lines of single events.

use super::bitcoin::SECOND_ATTEMPT;
use crate::event::Event;

/// The line of an event, by the arguments that it has.
pub(super) fn of(event: &Event) -> Option<String> {
    let has = |name: &str| event.attachment.index_of(name).is_some();
    let show = |name: &str| event.show(name);
    let wallet = show("wallet");
    Some(match event.attachment.name.as_str() {
        "coins_requested" => format!("Request [{}] : value [{}]", show("color"), show("value")),
        "selected_coins" if has("color") => format!(
            "Select [{}]: try to select [{}] using [{}] coins of total value [{}] algorithm tried is [{}]",
            show("color"),
            show("target"),
            show("coins"),
            show("total"),
            show("algorithm"),
        ),
        "selected_coins" => format!(
            "Select [{wallet}]: try to select [{}] total value [{}] waste [{}] algorithm tried is [{}]",
            show("target"),
            show("selected"),
            show("waste"),
            show("algorithm"),
        ),
        "change_info" => format!("Change [{}] : value [{}]", show("color"), show("value")),
        "fee_info" => format!("Fee [TPC] : value [{}] need [{}]", show("fee_paid"), show("fee_needed")),
        "normal_create_tx_internal" => format!(
            "Create [{wallet}] : success [{}] fee [{}] change position [{}]",
            show("success"),
            show("fee"),
            show("change_position"),
        ),
        SECOND_ATTEMPT => format!("Avoid partial spends [{wallet}] : attempt"),
        "aps_create_tx_internal" => format!(
            "Avoid partial spends [{wallet}] : used [{}] success [{}] fee [{}] change position [{}]",
            show("is_used"),
            show("success"),
            show("fee"),
            show("change_position"),
        ),
        _ => return None,
    })
}
