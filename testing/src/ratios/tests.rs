use super::*;

/// As recorded: throughput with capture to without, at writes of 256 B, and the cost of a page fault.
const RECORDED: &str = "\
== capture
capture/256/of_off 0.6021 0.5943 0.6102 0.6055 0.5987 0.6110 0.6029
memory/15/same 1.2981 1.3102 1.2870 1.3324 1.2910 1.3055 1.2992
";

fn run() -> Run {
    RECORDED.parse().unwrap()
}

fn is_cost(name: &str) -> bool {
    name.starts_with("memory/")
}

fn committed() -> Committed {
    let mut committed = Committed { machine: "one".to_owned(), ..Committed::default() };
    for change in [1.0, 1.01, 0.99, 1.005, 0.995] {
        committed.add(&scaled(change), is_cost);
    }
    committed
}

/// The run with all ratios multiplied.
fn scaled(by: f64) -> Run {
    let scale = |measured: &Measured| Measured { ln: measured.ln + by.ln(), ..*measured };
    Run(run().0.iter().map(|(name, measured)| (name.clone(), scale(measured))).collect())
}

fn failed(run: &Run, slack: f64) -> Vec<String> {
    let verdicts = committed().compare(run, slack);
    assert_eq!(verdicts.len(), 2);
    verdicts.into_iter().filter(|(_, verdict)| *verdict != Verdict::Passed).map(|(name, _)| name).collect()
}

#[test]
fn the_same_samples_pass() {
    assert_eq!(failed(&run(), 1.0), Vec::<String>::new());
    for slightly in [1.02, 0.98] {
        assert_eq!(failed(&scaled(slightly), 1.0), Vec::<String>::new());
    }
}

#[test]
fn a_ratio_that_is_a_tenth_worse_fails_in_its_direction_only() {
    assert_eq!(failed(&scaled(1.0 / 1.1), 1.0), ["capture/256/of_off"], "lower throughput");
    assert_eq!(failed(&scaled(1.1), 1.0), ["memory/15/same"], "higher cost");
    assert_eq!(failed(&scaled(1.1), 1.25), Vec::<String>::new(), "on another machine");
    assert_eq!(failed(&scaled(1.6), 1.25), ["memory/15/same"]);
    let Verdict::Worse { by, allowed } = committed().compare(&scaled(1.1), 1.0)["memory/15/same"] else { panic!() };
    assert!((by - 1.1).abs() < 0.01 && (1.05..1.1).contains(&allowed), "{by} {allowed}");
}

#[test]
fn one_outlier_passes() {
    let outlier = RECORDED.replace("0.6102", "0.1102").replace("1.2870", "9.2870");
    assert_eq!(failed(&outlier.parse().unwrap(), 1.0), Vec::<String>::new());
    // Of samples that scatter this much a difference says nothing.
    let noisy = "capture/256/of_off 0.9 0.3 0.54 0.2 0.8 0.5 0.6\nmemory/15/same 1.3 1.4 1.3 1.2 1.5 1.2 1.3";
    assert_eq!(failed(&noisy.parse().unwrap(), 1.0), Vec::<String>::new());
}

#[test]
fn a_name_that_one_side_does_not_have_fails() {
    let mut fewer = run();
    fewer.0.remove("memory/15/same");
    assert_eq!(committed().compare(&fewer, 2.0)["memory/15/same"], Verdict::NotMeasured);
    let more: Run = format!("{RECORDED}store/rows 0.6 0.61\n").parse().unwrap();
    assert_eq!(committed().compare(&more, 2.0)["store/rows"], Verdict::NotCommitted);
    let mut updated = committed();
    updated.add(&more, is_cost);
    assert_eq!(updated.compare(&more, 1.0)["store/rows"], Verdict::Passed);
    updated.add(&fewer, is_cost);
    assert_eq!(updated.references.keys().collect::<Vec<_>>(), ["capture/256/of_off"]);
}

#[test]
fn runs_are_averaged() {
    let committed = committed();
    let reference = committed.references["capture/256/of_off"];
    assert_eq!((reference.runs, reference.better), (5, Better::Higher));
    let logarithms: Vec<f64> =
        [1.0, 1.01, 0.99, 1.005, 0.995].map(|by: f64| run().0["capture/256/of_off"].ln + by.ln()).to_vec();
    let mean = logarithms.iter().sum::<f64>() / 5.0;
    let variance = logarithms.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / 4.0;
    assert!((reference.ln - mean).abs() < 1e-12 && (reference.sigma - variance.sqrt()).abs() < 1e-12, "{reference:?}");
    assert_eq!(committed.references["memory/15/same"].better, Better::Lower);
}

#[test]
fn scatter_between_runs_is_tolerated() {
    let measured = run().0["memory/15/same"];
    let reference = |sigma, runs| Reference { better: Better::Lower, ln: 0.0, sigma, runs };
    assert!(reference(0.2, 9).tolerance(measured) > 3.0 * 0.15);
    assert!(reference(0.0, 100).tolerance(measured) < reference(0.0, 1).tolerance(measured));
    assert!(reference(0.0, 1_000_000).tolerance(Measured { error: 0.0, ..measured }) >= 1.05_f64.ln());
}

#[test]
fn files_are_read_as_they_are_written() {
    let committed = committed();
    let text = committed.to_string();
    let read: Committed = text.parse().unwrap();
    assert_eq!(read.to_string(), text);
    assert_eq!(read.machine, "one");
    for (line, problem) in [
        ("a/b\thigher\t0.1\t0.1", "a line has five fields: \"a/b\\thigher\\t0.1\\t0.1\""),
        ("a/b\tgreater\t0.1\t0.1\t1", "the second field is higher or lower: \"a/b\\tgreater\\t0.1\\t0.1\\t1\""),
        ("a/b\tlower\tNaN\t0.1\t1", "a field is no number: \"a/b\\tlower\\tNaN\\t0.1\\t1\""),
    ] {
        assert_eq!(line.parse::<Committed>().unwrap_err().to_string(), problem);
    }
}

#[test]
fn damaged_output_is_an_error() {
    for output in ["a/b 1 x", "a/b", "a/b 1 0", "a/b 1 -1", "a/b 1 inf", "a/b 1\na/b 1"] {
        assert!(output.parse::<Run>().is_err(), "{output}");
    }
    assert_eq!("| a | 1 |\n== store\n".parse::<Run>().unwrap(), Run::default());
}
