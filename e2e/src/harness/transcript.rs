//! Comparison of the recorded messages with the transcript of the demo node (`--transcript`).

use serde_json::Value;
use sha2::{Digest as _, Sha256};

use super::api::{Api, id};

/// Messages of the transcript that are not recorded, of one direction.
#[derive(Debug, PartialEq, Eq)]
pub struct Missing {
    /// Length of the only run of missing messages that recorded ones follow.
    pub run: usize,
    /// Messages after the last recorded one.
    pub tail: usize,
}

/// The messages of the only connection that are not recorded, in each direction: sent, received.
///
/// # Panics
/// If ids are not dense, or if the rows of a direction are not the messages of the transcript, in order, without at most one run and the
/// last ones: then more than one run is missing, or a row was never sent, is recorded twice, or is out of order.
#[must_use]
pub fn missing(api: &Api, node: &str, rows: &[Value], transcript: &[Value]) -> [Missing; 2] {
    compare(api, node, rows, transcript, missing_of)
}

/// Lengths of the runs of messages that are not recorded, in each direction: sent, received. Unlike [`missing`], it takes any number of
/// them, and ignores the messages after the last recorded one.
///
/// # Panics
/// If ids are not dense, or if a row was never sent, is recorded twice, or is out of order.
#[must_use]
pub fn gaps(api: &Api, node: &str, rows: &[Value], transcript: &[Value]) -> [Vec<usize>; 2] {
    compare(api, node, rows, transcript, gaps_of)
}

/// Compares messages as digests and kinds, in each direction: sent, received.
fn compare<T>(
    api: &Api,
    node: &str,
    rows: &[Value],
    transcript: &[Value],
    of: impl Fn(&[(String, String)], &[(String, String)]) -> Result<T, String>,
) -> [T; 2] {
    assert!(rows.iter().enumerate().all(|(n, row)| id(row) == n as u64), "ids are not dense from 0");
    [true, false].map(|sent| {
        let listed = transcript.iter().filter(|line| line["sent"] == sent);
        let listed: Vec<_> = listed.map(|line| (text(line, "sha256"), text(line, "kind"))).collect();
        let recorded = rows.iter().filter(|row| row["category"] == "p2p" && row["incoming"] == !sent);
        let recorded = recorded.map(|row| (hex::encode(Sha256::digest(api.plain(node, id(row)))), text(row, "kind")));
        of(&listed, &recorded.collect::<Vec<_>>()).unwrap_or_else(|what| panic!("sent = {sent}: {what}"))
    })
}

/// Messages are distinct, so the first equal one is the right one.
fn gaps_of<T: PartialEq>(listed: &[T], recorded: &[T]) -> Result<Vec<usize>, String> {
    let (mut gaps, mut rest) = (Vec::new(), listed);
    for (number, row) in recorded.iter().enumerate() {
        let skipped = rest.iter().position(|line| line == row);
        let skipped = skipped.ok_or_else(|| format!("row {number} is not in the rest of the transcript"))?;
        if skipped > 0 {
            gaps.push(skipped);
        }
        rest = &rest[skipped + 1..];
    }
    Ok(gaps)
}

fn missing_of<T: PartialEq>(listed: &[T], recorded: &[T]) -> Result<Missing, String> {
    let first = listed.iter().zip(recorded).take_while(|(listed, recorded)| listed == recorded).count();
    let (left, rest) = (&listed[first..], &recorded[first..]);
    if rest.is_empty() {
        return Ok(Missing { run: 0, tail: left.len() });
    }
    let run = left.windows(rest.len()).position(|window| window == rest).ok_or_else(|| {
        format!(
            "after {first} of {} messages of the transcript, the other {} recorded ones are no run of them",
            listed.len(),
            rest.len()
        )
    })?;
    Ok(Missing { run, tail: left.len() - run - rest.len() })
}

fn text(value: &Value, field: &str) -> String {
    value[field].as_str().unwrap_or_else(|| panic!("no {field} in {value}")).to_owned()
}

#[cfg(test)]
mod tests {
    use super::{Missing, gaps_of, missing_of};

    #[test]
    fn any_number_of_runs_may_be_missing() {
        let listed: Vec<_> = (0..10).collect();
        let of = |recorded: &[i32]| gaps_of(&listed, recorded);
        assert_eq!(of(&listed), Ok(Vec::new()));
        assert_eq!(of(&[0, 3, 4, 8]), Ok(vec![2, 3]));
        for bad in [&[0, 0][..], &[1, 0], &[11]] {
            assert!(of(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn one_run_may_be_missing_and_nothing_else() {
        let listed: Vec<_> = (0..10).collect();
        let of = |recorded: &[i32]| missing_of(&listed, recorded);
        assert_eq!(of(&listed), Ok(Missing { run: 0, tail: 0 }));
        assert_eq!(of(&[0, 1, 2, 6, 7, 8, 9]), Ok(Missing { run: 3, tail: 0 }));
        assert_eq!(of(&[0, 1, 2, 6, 7]), Ok(Missing { run: 3, tail: 2 }));
        assert_eq!(of(&[0, 1]), Ok(Missing { run: 0, tail: 8 }));
        for bad in [&[0, 1, 3, 5, 6][..], &[0, 1, 1, 2], &[0, 2, 1], &[0, 1, 11], &[9, 9]] {
            assert!(of(bad).is_err(), "{bad:?}");
        }
    }
}
