//! Charts of the course of runs: durations, counts and return codes by period, run after run.

use std::collections::BTreeMap;

use plotters::prelude::*;

use super::chart::{FOREGROUND, GRID, SERIES, axes, label, nanoseconds, svg, ticks};
use crate::report::Period;

/// Return codes that are drawn.
const CODES: usize = 3;

/// Share of the width between two runs.
const GAP: f64 = 0.02;

/// The course of one run.
pub(super) struct Course<'a> {
    /// Its side of a comparison.
    pub(super) side: Option<usize>,
    pub(super) periods: &'a [Period],
}

/// A line of a run: its side, and points by minutes.
struct Line {
    side: Option<usize>,
    points: Vec<(f64, f64)>,
}

/// The moments of the periods of each run, in minutes since the start of the first one; runs follow one another with a gap. Also the
/// end of the last one.
fn minutes(courses: &[Course<'_>]) -> (Vec<Vec<f64>>, f64) {
    let at = |period: &Period| period.start.parse::<jiff::Timestamp>().map_or(0.0, |at| at.as_second() as f64 / 60.0);
    let length = |course: &Course<'_>| match (course.periods.first(), course.periods.last()) {
        (Some(first), Some(last)) => at(last) - at(first) + last.seconds / 60.0,
        _ => 0.0,
    };
    let gap = courses.iter().map(length).sum::<f64>() * GAP;
    let (mut starts, mut all) = (0.0, Vec::new());
    for course in courses {
        let first = course.periods.first().map_or(0.0, at);
        all.push(course.periods.iter().map(|period| starts + at(period) - first + period.seconds / 120.0).collect());
        starts += length(course) + gap;
    }
    (all, (starts - gap).max(f64::MIN_POSITIVE))
}

/// A line of each run: what `value` says of its periods.
fn lines(courses: &[Course<'_>], moments: &[Vec<f64>], value: impl Fn(&Period) -> Option<f64>) -> Vec<Line> {
    let line = |(course, moments): (&Course<'_>, &Vec<f64>)| {
        let points = moments.iter().zip(course.periods).filter_map(|(at, period)| Some((*at, value(period)?)));
        Line { side: course.side, points: points.collect() }
    };
    courses.iter().zip(moments).map(line).collect()
}

/// Name of the axis of time.
fn time_axis(courses: &[Course<'_>]) -> &'static str {
    if courses.len() > 1 { "minutes recorded, run after run" } else { "minutes" }
}

/// Without what a sum of steps is off by.
fn minute(value: &f64) -> String {
    format!("{}", (value * 1e6).round() / 1e6)
}

/// Whether there is a course to draw: two periods of a run.
fn has_course(courses: &[Course<'_>]) -> bool {
    courses.iter().any(|course| course.periods.len() > 1)
}

/// p50, mean and p99.
pub(super) fn durations(courses: &[Course<'_>]) -> Option<String> {
    if !has_course(courses) {
        return None;
    }
    let (moments, end) = minutes(courses);
    let at_least_one = |value: u64| value.max(1) as f64;
    let all = [
        lines(courses, &moments, |period| period.p50_ns.map(at_least_one)),
        lines(courses, &moments, |period| period.mean_ns.map(|mean| mean.max(1.0))),
        lines(courses, &moments, |period| period.p99_ns.map(at_least_one)),
    ];
    let values = || all.iter().flatten().flat_map(|line| &line.points).map(|(_, value)| *value);
    let range = values().reduce(f64::min)? * 0.8..values().reduce(f64::max)? * 1.25;
    let key_points = ticks(&range);
    svg(|area| {
        let mut chart = ChartBuilder::on(area)
            .margin(10)
            .margin_right(40)
            .x_label_area_size(56)
            .y_label_area_size(84)
            .build_cartesian_2d(0.0..end, range.log_scale().with_key_points(key_points))
            .ok()?;
        axes!(chart, minute, nanoseconds, time_axis(courses), "", 6);
        for (number, lines) in all.iter().enumerate() {
            for line in lines {
                // With two sides the colour is that of the side.
                let style = match line.side {
                    Some(side) => match number {
                        0 => SERIES[side.min(1)].stroke_width(3),
                        1 => SERIES[side.min(1)].mix(0.5).stroke_width(2),
                        _ => SERIES[side.min(1)].stroke_width(1),
                    },
                    None => SERIES[number].stroke_width(2),
                };
                chart.draw_series(LineSeries::new(line.points.iter().copied(), style)).ok()?;
            }
        }
        Some(())
    })
}

/// Spans a second.
pub(super) fn counts(courses: &[Course<'_>]) -> Option<String> {
    let rate = |period: &Period| (period.seconds > 0.0).then(|| period.spans as f64 / period.seconds);
    let (moments, _) = minutes(courses);
    let lines = lines(courses, &moments, rate);
    let lines = lines.into_iter().map(|line| (line.side.unwrap_or(0), line.points)).collect::<Vec<_>>();
    let greatest = lines.iter().flat_map(|(_, points)| points).map(|(_, value)| *value).reduce(f64::max)?;
    from_zero(courses, &lines, greatest.max(f64::MIN_POSITIVE), |value| shown(*value))
}

/// A number of an axis.
fn shown(value: f64) -> String {
    match value {
        v if v >= 1e6 => format!("{} M", v / 1e6),
        v if v >= 1e3 => format!("{} k", v / 1e3),
        v => format!("{v}"),
    }
}

/// The most frequent return codes.
pub(super) fn frequent_codes(courses: &[Course<'_>]) -> Vec<i64> {
    let mut counts = BTreeMap::<i64, u64>::new();
    for held in courses.iter().flat_map(|course| course.periods).flat_map(|period| &period.returns) {
        let count = counts.entry(held.code).or_default();
        *count = count.saturating_add(held.count);
    }
    let mut codes: Vec<(i64, u64)> = counts.into_iter().collect();
    codes.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    codes.into_iter().map(|(code, _)| code).take(CODES).collect()
}

/// Share of each of these codes among all that were returned in a period.
pub(super) fn codes(courses: &[Course<'_>], codes: &[i64]) -> Option<String> {
    if codes.is_empty() {
        return None;
    }
    let (moments, _) = minutes(courses);
    let mut all = Vec::new();
    for (number, code) in codes.iter().enumerate() {
        let share = |period: &Period| {
            let total = period.returns.iter().fold(0_u64, |sum, held| sum.saturating_add(held.count));
            let count = period.returns.iter().find(|held| held.code == *code).map_or(0, |held| held.count);
            (total > 0).then(|| count as f64 / total as f64)
        };
        all.extend(lines(courses, &moments, share).into_iter().map(|line| (number, line.points)));
    }
    from_zero(courses, &all, 1.0, |value| format!("{} %", (value * 100.0).round()))
}

/// Lines, each with the number of its colour, over a linear axis.
fn from_zero(
    courses: &[Course<'_>],
    lines: &[(usize, Vec<(f64, f64)>)],
    greatest: f64,
    show: impl Fn(&f64) -> String,
) -> Option<String> {
    if !has_course(courses) {
        return None;
    }
    let (_, end) = minutes(courses);
    svg(|area| {
        let mut chart = ChartBuilder::on(area)
            .margin(10)
            .margin_right(40)
            .x_label_area_size(56)
            .y_label_area_size(84)
            .build_cartesian_2d(0.0..end, 0.0..greatest * 1.05)
            .ok()?;
        axes!(chart, minute, show, time_axis(courses), "", 6);
        for (number, points) in lines {
            let style = SERIES[(*number).min(2)].stroke_width(2);
            chart.draw_series(LineSeries::new(points.iter().copied(), style)).ok()?;
        }
        Some(())
    })
}

#[cfg(test)]
mod tests {
    #[test]
    fn labels_of_time_are_rounded() {
        assert_eq!([0.1 + 0.2, 12.0, 0.0].map(|value| super::minute(&value)), ["0.3", "12", "0"]);
    }
}
