//! What the options of a node ask for, of one of its programs.

use chainscope_spec::Latency;

use super::super::{Plan, Program, RecordOptions, SpanRequest, TransactionRequest};

/// Functions of a process that are timed at most.
pub(super) const MAX_FUNCTIONS: usize = 100;

/// What is timed.
pub(super) struct Requested {
    pub(super) plan: Plan,
    /// What of the options cannot be followed.
    pub(super) faults: Vec<String>,
    /// Why transactions are not recorded one by one, of a program that has no tracepoint for them.
    pub(super) absent: Option<String>,
}

/// Plans what the options ask for. Transactions are recorded if the program has their tracepoint.
pub(super) fn requested(latency: &Latency, program: Program, options: &RecordOptions) -> Result<Requested, String> {
    let spans = latency.spans().map_err(|error| error.to_string())?;
    let requests = spans.into_iter().map(|span| SpanRequest {
        name: span.name,
        entry: span.entry,
        exit: span.exit,
        counts_returns: span.returns,
        is_optional: true,
    });
    let mut plan = Plan::new(program, &requests.collect::<Vec<_>>(), options).map_err(|error| error.to_string())?;
    let count = plan.functions.len();
    if count > MAX_FUNCTIONS {
        return Err(format!("{count} functions are selected, at most {MAX_FUNCTIONS} can be timed: select fewer"));
    }
    let skipped = plan.skipped.iter().map(|skipped| format!("not {}: {}", skipped.function, skipped.reason));
    let mut faults: Vec<String> = skipped.collect();
    let mut absent = None;
    if let Some(transactions) = latency.transactions().map_err(|error| error.to_string())? {
        let known = plan.skipped.len();
        let name = transactions.name.clone();
        let request = TransactionRequest {
            name: transactions.name,
            entry: transactions.entry,
            tracepoint: transactions.tracepoint,
        };
        match plan.add_transactions(&request, options) {
            Ok(()) => {
                let reasons = plan.skipped.iter().skip(known).map(|skipped| skipped.reason.clone());
                let reasons: Vec<String> = reasons.collect();
                absent = (!reasons.is_empty()).then(|| format!("not {name}: {}", reasons.join(", ")));
            }
            Err(error) => faults.push(format!("not {name}: {error}")),
        }
    }
    Ok(Requested { plan, faults, absent })
}
