//! Regression gate of benchmarks: ratios to a baseline that is measured in the same run, against committed ones.
//!
//! A benchmark prints a line for each ratio: its name and one sample for each pair of measurements. The gate takes the median of
//! their logarithms, so that one outlier changes nothing and 2 is as far from 1 as 1/2. A ratio has become worse if it is farther
//! from the committed one than the scatter between runs and the scatter of this run explain ([`Reference::tolerance`]).
//!
//! A file of committed ratios has a line for each, with tabs: name, `higher` or `lower` (what is better), logarithm of the ratio,
//! standard deviation of it between runs, number of runs. Its first line names the machine, for each of which there is a file.

use std::{collections::BTreeMap, fmt, str::FromStr};

#[cfg(test)]
mod tests;

/// A ratio that is worse by less than this is never reported.
const MIN_TOLERANCE: f64 = 1.05;
/// Standard deviations between runs that are tolerated.
const SIGMAS: f64 = 3.0;
/// Standard deviation of the logarithm between runs that is assumed beside the measured one, as if it came from `PRIOR.1` runs: a
/// few runs in a row scatter less than runs on different days.
const PRIOR: (f64, f64) = (0.03, 4.0);
/// Median absolute deviation to standard deviation, and standard error of a mean to that of a median, of a normal distribution.
const MAD_TO_SIGMA: f64 = 1.4826;
const MEDIAN_ERROR: f64 = 1.2533;

/// Which ratios are better.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Better {
    /// Throughput.
    Higher,
    /// Cost.
    Lower,
}

/// What is wrong with a file or the output of a benchmark.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParseError {
    line: String,
    problem: &'static str,
}

impl fmt::Display for ParseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {:?}", self.problem, self.line)
    }
}

impl std::error::Error for ParseError {}

/// A ratio of one run.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Measured {
    /// Median of the logarithms.
    pub ln: f64,
    /// Its standard error.
    pub error: f64,
}

impl Measured {
    /// The median of samples; `None` without samples, or if one is no positive number.
    #[must_use]
    pub fn of(samples: &[f64]) -> Option<Self> {
        if !samples.iter().all(|sample| sample.is_finite() && *sample > 0.0) {
            return None;
        }
        let logarithms: Vec<f64> = samples.iter().map(|sample| sample.ln()).collect();
        let ln = median(&logarithms)?;
        let deviations: Vec<f64> = logarithms.iter().map(|sample| (sample - ln).abs()).collect();
        let error = median(&deviations)? * MAD_TO_SIGMA * MEDIAN_ERROR / (samples.len() as f64).sqrt();
        Some(Self { ln, error })
    }
}

/// Ratios of one run, by name.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Run(pub BTreeMap<String, Measured>);

impl FromStr for Run {
    type Err = ParseError;

    /// Parses the output of benchmarks: lines of a name and samples. Other lines have no `/` in their first word.
    fn from_str(text: &str) -> Result<Self, ParseError> {
        let mut run = Self::default();
        for line in text.lines() {
            let fail = |problem| ParseError { line: line.to_owned(), problem };
            let mut words = line.split_whitespace();
            let Some(name) = words.next().filter(|name| name.contains('/')) else { continue };
            let samples: Result<Vec<f64>, _> = words.map(str::parse).collect();
            let samples = samples.map_err(|_| fail("a sample is no number"))?;
            let measured = Measured::of(&samples).ok_or_else(|| fail("samples have to be positive numbers"))?;
            if run.0.insert(name.to_owned(), measured).is_some() {
                return Err(fail("a name twice"));
            }
        }
        Ok(run)
    }
}

/// A committed ratio.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Reference {
    /// Which ratios are better.
    pub better: Better,
    /// Mean of the logarithms of the runs.
    pub ln: f64,
    /// Standard deviation between the runs; 0 of one run.
    pub sigma: f64,
    /// Number of runs.
    pub runs: u32,
}

impl Reference {
    /// By how much the logarithm of this run may be worse.
    #[must_use]
    pub fn tolerance(&self, measured: Measured) -> f64 {
        let (prior, weight) = PRIOR;
        let freedom = f64::from(self.runs.saturating_sub(1));
        let variance = (weight * prior.powi(2) + freedom * self.sigma.powi(2)) / (weight + freedom);
        (SIGMAS * (variance + measured.error.powi(2)).sqrt()).max(MIN_TOLERANCE.ln())
    }

    /// By how much the logarithm of this run is worse; negative if it is better.
    #[must_use]
    pub fn worse(&self, measured: Measured) -> f64 {
        match self.better {
            Better::Higher => self.ln - measured.ln,
            Better::Lower => measured.ln - self.ln,
        }
    }

    /// Adds a run to mean and standard deviation.
    fn add(&mut self, measured: Measured) {
        let (runs, change) = (f64::from(self.runs), measured.ln - self.ln);
        let squares = self.sigma.powi(2) * (runs - 1.0).max(0.0) + change.powi(2) * runs / (runs + 1.0);
        self.ln += change / (runs + 1.0);
        self.sigma = (squares / runs.max(1.0)).sqrt();
        self.runs += 1;
    }
}

/// The committed ratios.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Committed {
    /// The machine on which they were measured.
    pub machine: String,
    /// By name.
    pub references: BTreeMap<String, Reference>,
}

const MACHINE: &str = "# machine: ";

impl FromStr for Committed {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        let mut committed = Self::default();
        for line in text.lines() {
            let fail = |problem| ParseError { line: line.to_owned(), problem };
            if let Some(machine) = line.strip_prefix(MACHINE) {
                machine.clone_into(&mut committed.machine);
            }
            if line.starts_with('#') || line.is_empty() {
                continue;
            }
            let fields: Vec<&str> = line.split('\t').collect();
            let [name, better, ln, sigma, runs] = fields[..] else { return Err(fail("a line has five fields")) };
            let better = match better {
                "higher" => Better::Higher,
                "lower" => Better::Lower,
                _ => return Err(fail("the second field is higher or lower")),
            };
            let number = |text: &str| text.parse().ok().filter(|number: &f64| number.is_finite());
            let (Some(ln), Some(sigma), Ok(runs)) = (number(ln), number(sigma), runs.parse()) else {
                return Err(fail("a field is no number"));
            };
            if committed.references.insert(name.to_owned(), Reference { better, ln, sigma, runs }).is_some() {
                return Err(fail("a name twice"));
            }
        }
        Ok(committed)
    }
}

impl fmt::Display for Committed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{MACHINE}{}", self.machine)?;
        writeln!(f, "# name, better, logarithm of the ratio, its standard deviation between runs, runs")?;
        for (name, Reference { better, ln, sigma, runs }) in &self.references {
            let better = if *better == Better::Higher { "higher" } else { "lower" };
            writeln!(f, "{name}\t{better}\t{ln:.4}\t{sigma:.4}\t{runs}")?;
        }
        Ok(())
    }
}

/// Result of a comparison, of one ratio.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Verdict {
    /// As good as the committed one, or better.
    Passed,
    /// Worse than the committed one by this factor; the second one was allowed.
    Worse {
        /// 1.1: a tenth.
        by: f64,
        /// As `by`.
        allowed: f64,
    },
    /// The run has no such ratio.
    NotMeasured,
    /// The file has no such ratio.
    NotCommitted,
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Passed => f.write_str("as committed"),
            Self::Worse { by, allowed } => write!(f, "worse by {by:.2} times, {allowed:.2} is allowed"),
            Self::NotMeasured => f.write_str("committed, but not measured"),
            Self::NotCommitted => f.write_str("measured, but not committed"),
        }
    }
}

impl Committed {
    /// Compares every ratio of either side. `slack` is a factor on what is allowed, for machines other than that of the file.
    #[must_use]
    pub fn compare(&self, run: &Run, slack: f64) -> BTreeMap<String, Verdict> {
        let verdict = |name: &String| match (self.references.get(name), run.0.get(name)) {
            (Some(reference), Some(measured)) => {
                let (by, allowed) = (reference.worse(*measured), reference.tolerance(*measured) + slack.ln());
                if by > allowed { Verdict::Worse { by: by.exp(), allowed: allowed.exp() } } else { Verdict::Passed }
            }
            (Some(_), None) => Verdict::NotMeasured,
            (None, _) => Verdict::NotCommitted,
        };
        self.references.keys().chain(run.0.keys()).map(|name| (name.clone(), verdict(name))).collect()
    }

    /// Adds a run. A ratio that the run does not have is removed; a new one is better if it is higher, unless `is_cost` says
    /// that it is a cost.
    pub fn add(&mut self, run: &Run, is_cost: impl Fn(&str) -> bool) {
        self.references.retain(|name, _| run.0.contains_key(name));
        for (name, measured) in &run.0 {
            let better = if is_cost(name) { Better::Lower } else { Better::Higher };
            let new = || Reference { better, ln: measured.ln, sigma: 0.0, runs: 0 };
            self.references.entry(name.clone()).or_insert_with(new).add(*measured);
        }
    }
}

fn median(values: &[f64]) -> Option<f64> {
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() % 2 {
        0 => Some((values.get(middle.checked_sub(1)?)? + values.get(middle)?) / 2.0),
        _ => values.get(middle).copied(),
    }
}
