//! Prints the number of rows of each file's unwind table, and the totals by kind: `survey FILE...`
#![expect(clippy::print_stdout, reason = "prints its results")]

use std::collections::BTreeMap;

use chainscope_unwind::{Limits, Table};

fn main() {
    let mut kinds: BTreeMap<String, u64> = BTreeMap::new();
    for path in std::env::args().skip(1) {
        let Ok(bytes) = std::fs::read(&path) else { continue };
        let began = std::time::Instant::now();
        match Table::read(&*bytes, &Limits::default()) {
            Ok(table) => {
                for row in table.rows() {
                    *kinds.entry(format!("{:?}/rbp {}", row.kind(), row.rbp_kind)).or_default() += 1;
                }
                let took = began.elapsed();
                println!("{path}: {} rows in {took:?}, skipped {:?}", table.rows().len(), table.skipped());
            }
            Err(error) => println!("{path}: {error}"),
        }
    }
    println!("{kinds:#?}");
}
