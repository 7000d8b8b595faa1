//! The error rates of the verdict over 10,000 pairs for each scenario.

mod simulation;

#[test]
fn error_rates_of_ten_thousand_pairs() {
    if std::env::var_os("CHAINSCOPE_SOAK").is_none() {
        eprintln!("1,000 pairs: CHAINSCOPE_SOAK is not set (`make soak`)");
        return simulation::verify(1_000, &[8, 20], &[0.0, 0.6]);
    }
    simulation::verify(10_000, &[8, 20, 40], &[0.0, 0.3, 0.6]);
}

#[test]
fn error_rates_where_runs_differ() {
    simulation::verify_runs(if std::env::var_os("CHAINSCOPE_SOAK").is_none() { 300 } else { 10_000 });
}
