//! Every kind of fact of this build, and the version of the layout on disk.
//!
//! A new pillar adds its declaration to [`KINDS`] and a section to the drawing in [`crate::keys`].

use chainscope_proto::v1::Record;

use crate::{
    kind::{FactKind, RetentionClass},
    latency, logs, network, trace,
};

/// Version of the layout in [`crate::keys`]. Raised when an older build could no longer read the database.
pub(crate) const VERSION: u32 = 2;

/// The kinds of fact, in any order.
pub(crate) type Schema = &'static [&'static FactKind];

/// The kinds of fact of this build.
pub(crate) static KINDS: Schema = &[
    &network::MESSAGES,
    &network::CONNECTION_EVENTS,
    &network::LOSSES,
    &network::TARGET_EVENTS,
    &logs::LOG_MESSAGES,
    &trace::TRACE_EVENTS,
    &latency::LATENCY_BLOCKS,
    &latency::LATENCY_TRANSACTIONS,
];

/// The position in the schema of the kind of a record.
pub(crate) fn kind_of(schema: Schema, record: &Record) -> Option<usize> {
    schema.iter().position(|kind| (kind.accepts)(record))
}

/// The kinds of a retention class.
pub(crate) fn of_class(schema: Schema, class: RetentionClass) -> impl Iterator<Item = &'static FactKind> {
    schema.iter().copied().filter(move |kind| kind.retention == class)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{kind::TABLES, memory};

    #[test]
    fn kinds_have_tables_of_their_own() {
        let mut tables: Vec<u8> = KINDS.iter().map(|kind| kind.table).chain([network::CHUNKS, memory::HEAD]).collect();
        assert!(tables.iter().all(|table| *table >= TABLES && table.is_multiple_of(TABLES)), "{tables:?}");
        let count = tables.len();
        tables.sort_unstable();
        tables.dedup();
        assert_eq!(tables.len(), count);
        assert!(KINDS.iter().all(|kind| kind.indexes.len() <= usize::from(TABLES) - 2));
    }

    /// `Totals` has one counter for what is dropped of a class.
    #[test]
    fn one_kind_of_a_class_is_counted() {
        for class in RetentionClass::ALL {
            assert!(of_class(KINDS, class).filter(|kind| kind.counted).count() <= 1, "{class:?}");
        }
    }
}
