//! The rules of a node: which tracepoints to attach to, and which of their events to record.

use std::{fs, path::Path};

use chainscope_ebpf::trace::TraceOptions;
use chainscope_spec::{Trace, built_in_contracts};
use chainscope_trace::{Condition, Event, Pattern};
use chainscope_usdt::{Contract, built_in};

/// Least and largest ring of a process in bytes.
const RING_BYTES: (u64, u64) = (4 << 20, 32 << 20);
/// Payloads of the maximum size that a ring has room for.
const PAYLOADS: u64 = 4;
/// Largest file of a contract.
const MAX_CONTRACT_BYTES: u64 = 4 << 20;

/// Selects events.
#[derive(Debug)]
pub(super) struct Rules(Vec<(Vec<Pattern>, Vec<Condition>)>);

impl Rules {
    /// # Errors
    /// A rule that cannot be parsed; validated options have none.
    pub(super) fn new(trace: &Trace) -> Result<Self, String> {
        let rule = |rule: &chainscope_spec::TraceRule| {
            let patterns = rule.tracepoints.iter().map(|text| text.parse()).collect::<Result<_, String>>()?;
            let conditions = rule.filter.iter().map(|text| text.parse()).collect::<Result<_, String>>()?;
            Ok((patterns, conditions))
        };
        trace.rules.iter().map(rule).collect::<Result<_, String>>().map(Self)
    }

    /// Tracepoints of which any rule selects events.
    pub(super) fn patterns(&self) -> Vec<Pattern> {
        self.0.iter().flat_map(|(patterns, _)| patterns).cloned().collect()
    }

    /// Whether any rule selects the event.
    pub(super) fn select(&self, event: &Event) -> bool {
        let (provider, name) = (&event.attachment.provider, &event.attachment.name);
        self.0.iter().any(|(patterns, conditions)| {
            patterns.iter().any(|pattern| pattern.matches(provider, name))
                && conditions.iter().all(|condition| condition.holds(event))
        })
    }
}

/// The contracts that may describe the arguments. Reads a file.
///
/// # Errors
/// The file cannot be read or parsed.
pub(super) fn contracts(trace: &Trace) -> Result<Vec<Contract>, String> {
    let Some(wanted) = &trace.contract else { return Ok(built_in().to_vec()) };
    let path = Path::new(wanted);
    if !path.is_absolute() {
        return Ok(built_in_contracts(wanted));
    }
    let fail = |cause: String| format!("contract {wanted}: {cause}");
    let size = fs::metadata(path).map_err(|cause| fail(cause.to_string()))?.len();
    if size > MAX_CONTRACT_BYTES {
        return Err(fail(format!("{size} bytes, at most {MAX_CONTRACT_BYTES} are read")));
    }
    let text = fs::read_to_string(path).map_err(|cause| fail(cause.to_string()))?;
    chainscope_usdt::parse(&text).map_err(|cause| fail(cause.to_string()))
}

/// Options of the probe. The ring bounds what a process can make the kernel hold; as much may wait for its order, and as much in
/// the queue of the source.
pub(super) fn options(trace: &Trace) -> TraceOptions {
    let max_payload = trace.max_payload.as_u64();
    let ring = max_payload.saturating_mul(PAYLOADS).clamp(RING_BYTES.0, RING_BYTES.1).next_power_of_two();
    let ring_bytes = u32::try_from(ring).unwrap_or(u32::MAX);
    TraceOptions {
        ring_bytes,
        wake_bytes: ring_bytes / 16,
        max_hold_bytes: ring_bytes.into(),
        max_string: u32::try_from(trace.max_text.as_u64()).unwrap_or(u32::MAX),
        max_payload,
        ..TraceOptions::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ring_has_room_for_some_payloads_and_is_bounded() {
        let ring = |max_payload: u64| {
            let trace = Trace { max_payload: bytesize::ByteSize::b(max_payload), ..Trace::of(["net:*"]) };
            trace.validate().unwrap();
            options(&trace).ring_bytes
        };
        assert_eq!((ring(1), ring(1 << 20), ring(3 << 20), ring(4 << 20)), (4 << 20, 4 << 20, 16 << 20, 16 << 20));
    }

    #[test]
    fn a_contract_is_a_built_in_one_or_a_file() {
        let of = |contract: &str| contracts(&Trace { contract: Some(contract.to_owned()), ..Trace::of(["net:*"]) });
        assert_eq!(of("tapyrus").unwrap().len(), 1);
        assert!(of("bitcoin-core").unwrap().len() > 1);
        assert!(of("/nonexistent/node.toml").unwrap_err().starts_with("contract /nonexistent/node.toml: No such file"));
        assert_eq!(contracts(&Trace::of(["net:*"])).unwrap().len(), built_in().len());
    }
}
