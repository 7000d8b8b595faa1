//! Transactions as records.

use chainscope_proto::v1::LatencyTransaction;

use crate::model::{RunId, Time, Transaction, TransactionId};

/// A transaction of a run. The time of the record is that of its end.
#[must_use]
pub fn encode_transaction(run: RunId, transaction: &Transaction) -> LatencyTransaction {
    LatencyTransaction {
        run_id: run.0.to_vec(),
        id: transaction.id.0.to_vec(),
        r#type: transaction.kind,
        result: transaction.result,
        duration_ns: transaction.duration_ns,
    }
}

/// A transaction with its run, from a record of this time.
///
/// # Errors
/// What of it is not valid.
pub fn decode_transaction(time_ns: i64, record: &LatencyTransaction) -> Result<(RunId, Transaction), &'static str> {
    let run = record.run_id.as_slice().try_into().map(RunId).map_err(|_| "id of a run")?;
    let id = record.id.as_slice().try_into().map(TransactionId).map_err(|_| "id of a transaction")?;
    let LatencyTransaction { r#type: kind, result, duration_ns, .. } = *record;
    Ok((run, Transaction { id, kind, result, duration_ns, time: Time(time_ns) }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_transaction_is_read_as_it_was_written() {
        let id = TransactionId([0xab; 32]);
        let whole = Transaction { id, kind: -7, result: 125, duration_ns: u64::MAX, time: Time(-3) };
        let record = encode_transaction(RunId([9; 16]), &whole);
        assert_eq!(decode_transaction(-3, &record), Ok((RunId([9; 16]), whole)));
        let of = |run_id: Vec<u8>, id: Vec<u8>| LatencyTransaction { run_id, id, ..record.clone() };
        assert_eq!(decode_transaction(0, &of(vec![9; 15], vec![1; 32])), Err("id of a run"));
        assert_eq!(decode_transaction(0, &of(vec![9; 16], vec![1; 33])), Err("id of a transaction"));
    }
}
