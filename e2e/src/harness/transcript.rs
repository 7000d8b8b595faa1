//! What a node noted that it said and heard (`--transcript`), compared with what is recorded of it.

use serde_json::Value;
use sha2::{Digest as _, Sha256};

use super::api::{Api, id};

/// What is missing of one direction of a connection.
#[derive(Debug, PartialEq, Eq)]
pub struct Missing {
    /// Length of the one run of messages that are not recorded although later ones are.
    pub run: usize,
    /// Messages after the last one that is recorded.
    pub tail: usize,
}

/// What is missing of a node's messages, all of one connection, in each direction: sent, received.
///
/// # Panics
/// If ids are not dense, or if in a direction the rows are not the noted messages in their order without one run and the last ones: then
/// more than one run is missing, or something is recorded that was never said, twice, or out of order.
#[must_use]
pub fn missing(api: &Api, node: &str, rows: &[Value], transcript: &[Value]) -> [Missing; 2] {
    assert!(rows.iter().enumerate().all(|(n, row)| id(row) == n as u64), "ids are not dense from 0");
    [true, false].map(|sent| {
        let noted = transcript.iter().filter(|line| line["sent"] == sent);
        let noted: Vec<_> = noted.map(|line| (text(line, "sha256"), text(line, "kind"))).collect();
        let recorded = rows.iter().filter(|row| row["category"] == "p2p" && row["incoming"] == !sent);
        let recorded = recorded.map(|row| (hex::encode(Sha256::digest(api.plain(node, id(row)))), text(row, "kind")));
        missing_of(&noted, &recorded.collect::<Vec<_>>()).unwrap_or_else(|what| panic!("sent = {sent}: {what}"))
    })
}

fn missing_of<T: PartialEq>(noted: &[T], recorded: &[T]) -> Result<Missing, String> {
    let first = noted.iter().zip(recorded).take_while(|(noted, recorded)| noted == recorded).count();
    let (left, rest) = (&noted[first..], &recorded[first..]);
    if rest.is_empty() {
        return Ok(Missing { run: 0, tail: left.len() });
    }
    let run = left.windows(rest.len()).position(|window| window == rest).ok_or_else(|| {
        format!(
            "after {first} of {} noted messages, the other {} recorded ones are no run of them",
            noted.len(),
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
    use super::{Missing, missing_of};

    #[test]
    fn one_run_may_be_missing_and_nothing_else() {
        let noted: Vec<_> = (0..10).collect();
        let of = |recorded: &[i32]| missing_of(&noted, recorded);
        assert_eq!(of(&noted), Ok(Missing { run: 0, tail: 0 }));
        assert_eq!(of(&[0, 1, 2, 6, 7, 8, 9]), Ok(Missing { run: 3, tail: 0 }));
        assert_eq!(of(&[0, 1, 2, 6, 7]), Ok(Missing { run: 3, tail: 2 }));
        assert_eq!(of(&[0, 1]), Ok(Missing { run: 0, tail: 8 }));
        for bad in [&[0, 1, 3, 5, 6][..], &[0, 1, 1, 2], &[0, 2, 1], &[0, 1, 11], &[9, 9]] {
            assert!(of(bad).is_err(), "{bad:?}");
        }
    }
}
