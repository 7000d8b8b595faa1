//! Charts as SVG. Colours are placeholders that the page's style sheet replaces, so that light and dark need no second chart.

use plotters::coord::Shift;
use plotters::prelude::*;

use crate::format;
use crate::report::{BucketCount, FunctionReport};
use crate::verdict::ShiftPoint;

/// Size in units of the SVG; the page scales it.
pub(super) const SIZE: (u32, u32) = (520, 300);

/// Text and axes.
pub(super) const FOREGROUND: RGBColor = RGBColor(0x11, 0x11, 0x11);
/// Grid.
pub(super) const GRID: RGBColor = RGBColor(0x22, 0x22, 0x22);
/// First side, then second, then a third line.
pub(super) const SERIES: [RGBColor; 3] =
    [RGBColor(0x33, 0x33, 0x33), RGBColor(0x44, 0x44, 0x44), RGBColor(0x55, 0x55, 0x55)];

/// Buckets of the histogram that are drawn as one: 8 an octave.
const MERGED: u64 = 4;

pub(super) type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// Draw into a string; `None` if there is nothing to draw.
pub(super) fn svg(draw: impl FnOnce(&Area<'_>) -> Option<()>) -> Option<String> {
    let mut text = String::new();
    {
        let area = SVGBackend::with_string(&mut text, SIZE).into_drawing_area();
        draw(&area)?;
        area.present().ok()?;
    }
    // Sizes are the page's.
    let fixed = format!("<svg width=\"{}\" height=\"{}\" ", SIZE.0, SIZE.1);
    Some(text.replacen(&fixed, "<svg aria-hidden=\"true\" ", 1))
}

pub(super) fn label() -> TextStyle<'static> {
    ("sans-serif", 20).into_font().color(&FOREGROUND)
}

pub(super) fn nanoseconds(value: &f64) -> String {
    format::duration(value.round() as u64)
}

/// Round durations within a range, as labels of a logarithmic axis: 2 to 6 of them where that is possible.
pub(super) fn ticks(range: &std::ops::Range<f64>) -> Vec<f64> {
    let within = |digits: &[f64]| -> Vec<f64> {
        let all = (0..20).flat_map(|power| digits.iter().map(move |digit| digit * 10_f64.powi(power)));
        all.filter(|tick| range.contains(tick)).collect()
    };
    let ticks = within(&[1.0, 2.0, 5.0]);
    match ticks.len() {
        0 | 1 => within(&[1.0, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0]),
        2..=6 => ticks,
        _ => within(&[1.0]),
    }
}

/// Draw axes with labels of both.
macro_rules! axes {
    ($chart:expr, $x:expr, $y:expr, $x_name:expr, $y_name:expr, $labels:expr) => {
        $chart
            .configure_mesh()
            .disable_x_mesh()
            .light_line_style(TRANSPARENT)
            .bold_line_style(GRID)
            .axis_style(FOREGROUND)
            .label_style(label())
            .axis_desc_style(label())
            .x_labels($labels)
            .y_labels(5)
            .x_label_formatter(&$x)
            .y_label_formatter(&$y)
            .x_desc($x_name)
            .y_desc($y_name)
            .draw()
            .ok()?
    };
}

pub(super) use axes;

/// Bounds and density (share of all spans per unit of the natural logarithm) of neighbouring buckets.
fn densities(buckets: &[BucketCount]) -> Vec<(f64, f64, f64)> {
    let total: u64 = buckets.iter().map(|bucket| bucket.count).sum();
    let mut merged = Vec::<(u64, f64, f64, u64)>::new();
    for bucket in buckets {
        let group = u64::from(crate::bucket_index(bucket.least_ns)) / MERGED;
        match merged.last_mut() {
            Some((last, _, _, count)) if *last == group => *count += bucket.count,
            _ => {
                // The whole group, whether or not all of its buckets hold spans.
                let bound = |index: u64| u16::try_from(index).ok().and_then(crate::bucket_bounds);
                let least = bound(group * MERGED).map_or(1.0, |(least, _)| least as f64).max(1.0);
                let greatest = bound(group * MERGED + MERGED - 1).map_or(least, |(_, greatest)| greatest as f64 + 1.0);
                merged.push((group, least, greatest.max(least + 1.0), bucket.count));
            }
        }
    }
    merged
        .into_iter()
        .map(|(_, least, greatest, count)| (least, greatest, count as f64 / total as f64 / (greatest / least).ln()))
        .collect()
}

/// Histograms of the sides of a function over each other.
pub(super) fn histograms(function: &FunctionReport) -> Option<String> {
    let sides: Vec<Vec<(f64, f64, f64)>> = function.sides.iter().map(|side| densities(&side.histogram)).collect();
    let all = || sides.iter().flatten();
    let least = all().map(|(least, _, _)| *least).reduce(f64::min)?;
    let greatest = all().map(|(_, greatest, _)| *greatest).reduce(f64::max)?;
    let peak = all().map(|(_, _, density)| *density).reduce(f64::max)?;
    svg(|area| {
        let mut chart = ChartBuilder::on(area)
            .margin(10)
            .margin_right(40)
            .x_label_area_size(56)
            .y_label_area_size(36)
            .build_cartesian_2d(
                (least..greatest).log_scale().with_key_points(ticks(&(least..greatest))),
                0.0..peak * 1.05,
            )
            .ok()?;
        axes!(chart, nanoseconds, |_: &f64| String::new(), "duration, logarithmic", "share of spans", 5);
        for (side, colour) in sides.iter().zip(SERIES) {
            let mut outline = Vec::new();
            let mut end = None;
            for &(least, greatest, density) in side {
                if end != Some(least) {
                    outline.extend(end.map(|end| (end, 0.0)));
                    outline.push((least, 0.0));
                }
                outline.extend([(least, density), (greatest, density)]);
                end = Some(greatest);
            }
            outline.extend(end.map(|end| (end, 0.0)));
            chart.draw_series(std::iter::once(Polygon::new(outline.clone(), colour.mix(0.2)))).ok()?;
            chart.draw_series(LineSeries::new(outline, colour.stroke_width(2))).ok()?;
        }
        Some(())
    })
}

/// p50, p90 and p99 of each run.
pub(super) fn percentiles(function: &FunctionReport) -> Option<String> {
    let series: Vec<Vec<(f64, f64)>> = (0..3)
        .map(|quantile| {
            let values = (1..).map(f64::from).zip(&function.runs).filter_map(|(number, run)| {
                let statistics = &run.statistics;
                let value = [statistics.p50_ns, statistics.p90_ns, statistics.p99_ns][quantile]?;
                Some((number, value.max(1) as f64))
            });
            values.collect()
        })
        .collect();
    let all = || series.iter().flatten().map(|(_, value)| *value);
    let (least, greatest) = (all().reduce(f64::min)?, all().reduce(f64::max)?);
    let runs = function.runs.len();
    let range = least * 0.8..greatest * 1.25;
    let key_points = ticks(&range);
    svg(|area| {
        let mut chart = ChartBuilder::on(area)
            .margin(10)
            .margin_right(40)
            .x_label_area_size(56)
            .y_label_area_size(84)
            .build_cartesian_2d(0.5..runs as f64 + 0.5, range.log_scale().with_key_points(key_points))
            .ok()?;
        let number = |value: &f64| if value.fract() == 0.0 { format!("{value}") } else { String::new() };
        axes!(chart, number, nanoseconds, "run, in the order of the table", "", runs.clamp(2, 12));
        for (points, colour) in series.iter().zip(SERIES) {
            chart.draw_series(LineSeries::new(points.iter().copied(), colour.stroke_width(2))).ok()?;
            chart.draw_series(points.iter().map(|point| Circle::new(*point, 4, colour.filled()))).ok()?;
        }
        Some(())
    })
}

/// Change of each quantile with its interval.
pub(super) fn shift(points: &[ShiftPoint], margin: f64) -> Option<String> {
    let bounds = points.iter().flat_map(|point| [point.low_percent, point.high_percent]);
    let extreme = bounds.map(f64::abs).reduce(f64::max)?.clamp(margin * 1.2, 1_000.0) * 1.1;
    svg(|area| {
        let mut chart = ChartBuilder::on(area)
            .margin(10)
            .margin_right(40)
            .x_label_area_size(56)
            .y_label_area_size(84)
            .build_cartesian_2d(0.05..1.02, -extreme..extreme)
            .ok()?;
        let percent =
            |value: &f64| if *value == 0.0 { "0 %".to_owned() } else { format!("{value:+.0} %").replace('-', "−") };
        axes!(chart, |value: &f64| percentile(*value), percent, "quantile", "", 6);
        for bound in [-margin, 0.0, margin] {
            let style = if bound == 0.0 { FOREGROUND.stroke_width(1) } else { SERIES[2].stroke_width(1) };
            chart.draw_series(LineSeries::new([(0.05, bound), (1.02, bound)], style)).ok()?;
        }
        for point in points {
            let at = |change: f64| (point.quantile, change.clamp(-extreme, extreme));
            let bar = vec![at(point.low_percent), at(point.high_percent)];
            chart.draw_series(std::iter::once(PathElement::new(bar, SERIES[1].stroke_width(3)))).ok()?;
            chart.draw_series(std::iter::once(Circle::new(at(point.change_percent), 5, SERIES[1].filled()))).ok()?;
        }
        Some(())
    })
}

/// A quantile as a percentile: `p50`, `p99.9`.
fn percentile(quantile: f64) -> String {
    format!("p{}", (quantile * 1e4).round() / 1e2)
}

#[cfg(test)]
mod tests {
    use super::percentile;

    #[test]
    fn quantiles_are_shown_as_percentiles() {
        assert_eq!([percentile(0.5), percentile(0.999)], ["p50", "p99.9"]);
    }
}
