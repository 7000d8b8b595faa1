//! Samples for the regression gate: capture against nothing and against the copy floor, in processor time of the
//! sender, which other load affects least. With `SLOW_CAPTURE=1` in the environment the
//! bytes are captured at system calls instead, which shows that the gate fails.

use std::time::Duration;

use crate::statistics::ratios;
use crate::throughput::measure;
use crate::variants::Variant;

const SIZES: [usize; 3] = [256, 4 << 10, 64 << 10];
const ROUNDS: u64 = 15;
const RUN: Duration = Duration::from_millis(150);

/// Prints a line for each ratio: its name and its samples.
pub(crate) fn print() {
    let product = if std::env::var_os("SLOW_CAPTURE").is_some() { Variant::Syscall } else { Variant::Sock };
    for size in SIZES {
        let all = measure(&[Variant::Off, Variant::Floor, product], size, ROUNDS, RUN);
        let [off, floor, product] = &all[..] else { panic!("three variants") };
        for (name, to) in [("off", off), ("floor", floor)] {
            let samples: Vec<String> =
                ratios(&to.costs, &product.costs).iter().map(|ratio| format!("{ratio:.5}")).collect();
            println!("capture/{size}/of_{name} {}", samples.join(" "));
        }
    }
}
