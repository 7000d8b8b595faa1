//! Draws how costs grow with the amount of work: a chart with logarithmic axes for each kind of work, and a table of exponents.
//!
//! `growth_plot DIRECTORY < points` writes `DIRECTORY/growth-CHART.svg`. A point is a line `growth CHART SERIES X Y`, with tabs; other
//! lines are ignored. Each series is drawn relative to its first point; the dashed line is what grows as the work does.
//!
//! An exponent is the slope of the regression line of the logarithms: 0 is constant, 1 linear. That of the last step is
//! between the last two points.
#![expect(clippy::print_stdout, reason = "prints the table")]

use std::{collections::BTreeMap, error::Error, io, path::Path};

use plotters::{coord::combinators::IntoLogRange as _, prelude::*};

const SIZE: (u32, u32) = (720, 420);
/// Readable on light and dark pages.
const FOREGROUND: RGBColor = RGBColor(0x80, 0x80, 0x80);
const SERIES: [RGBColor; 6] = [
    RGBColor(0x1f, 0x77, 0xb4),
    RGBColor(0xd6, 0x60, 0x00),
    RGBColor(0x2c, 0x96, 0x4c),
    RGBColor(0xa0, 0x40, 0xa0),
    RGBColor(0xc0, 0x30, 0x30),
    RGBColor(0x20, 0xa0, 0xb0),
];

/// Points of a series, in the order in which they were measured.
type Points = Vec<(f64, f64)>;
/// Series of a chart, by name.
type Chart = BTreeMap<String, Points>;

fn main() -> Result<(), Box<dyn Error>> {
    let directory = std::env::args().nth(1).ok_or("growth_plot DIRECTORY")?;
    let mut charts: BTreeMap<String, Chart> = BTreeMap::new();
    for line in io::stdin().lines() {
        let line = line?;
        let columns: Vec<&str> = line.split('\t').collect();
        let &["growth", chart, series, x, y] = &columns[..] else { continue };
        let number = |text: &str| text.parse().ok().filter(|number: &f64| number.is_finite() && *number > 0.0);
        let (Some(x), Some(y)) = (number(x), number(y)) else {
            return Err(format!("no positive numbers: {line:?}").into());
        };
        charts.entry(chart.to_owned()).or_default().entry(series.to_owned()).or_default().push((x, y));
    }
    if charts.is_empty() {
        return Err("no points".into());
    }
    println!("| work | from | to | cost | first | last | exponent | of the last step |");
    println!("| --- | ---: | ---: | --- | ---: | ---: | ---: | ---: |");
    for (name, chart) in &charts {
        for (series, points) in chart {
            let &[(from, first), .., (to, last)] = &points[..] else {
                return Err(format!("{name}, {series}: fewer than two points").into());
            };
            let last_step = slope(&points[points.len() - 2..]);
            println!(
                "| {name} | {from} | {to} | {series} | {} | {} | {:.2} | {last_step:.2} |",
                rounded(first),
                rounded(last),
                slope(points)
            );
        }
        draw(&Path::new(&directory).join(format!("growth-{name}.svg")), name, chart)?;
    }
    Ok(())
}

/// Three significant digits.
fn rounded(value: f64) -> String {
    let decimals = (2 - value.abs().log10().floor() as i32).max(0);
    format!("{value:.*}", usize::try_from(decimals).unwrap_or(0))
}

/// Slope of the regression line of the logarithms.
fn slope(points: &[(f64, f64)]) -> f64 {
    let logarithms: Points = points.iter().map(|(x, y)| (x.ln(), y.ln())).collect();
    let mean = |of: fn(&(f64, f64)) -> f64| logarithms.iter().map(of).sum::<f64>() / logarithms.len() as f64;
    let (x, y) = (mean(|point| point.0), mean(|point| point.1));
    let covariance: f64 = logarithms.iter().map(|point| (point.0 - x) * (point.1 - y)).sum();
    let variance: f64 = logarithms.iter().map(|point| (point.0 - x).powi(2)).sum();
    covariance / variance
}

fn draw(path: &Path, work: &str, chart: &Chart) -> Result<(), Box<dyn Error>> {
    let relative = |points: &Points| -> Points { points.iter().map(|(x, y)| (*x, y / points[0].1)).collect() };
    let series: Vec<(&String, Points)> = chart.iter().map(|(name, points)| (name, relative(points))).collect();
    let all = || series.iter().flat_map(|(_, points)| points);
    let least_x = all().map(|point| point.0).fold(f64::INFINITY, f64::min);
    let most_x = all().map(|point| point.0).fold(0.0, f64::max);
    let least_y = all().map(|point| point.1).fold(1.0, f64::min) / 1.5;
    let most_y = all().map(|point| point.1).fold(10.0, f64::max) * 1.5;
    let area = SVGBackend::new(path, SIZE).into_drawing_area();
    let label = || ("sans-serif", 16).into_font().color(&FOREGROUND);
    let mut axes = ChartBuilder::on(&area)
        .margin(12)
        .margin_right(36)
        .x_label_area_size(44)
        .y_label_area_size(64)
        .build_cartesian_2d((least_x..most_x).log_scale(), (least_y..most_y).log_scale())?;
    axes.configure_mesh()
        .light_line_style(TRANSPARENT)
        .bold_line_style(FOREGROUND.mix(0.3))
        .axis_style(FOREGROUND)
        .label_style(label())
        .axis_desc_style(label())
        .x_desc(work)
        .y_desc("relative to the first point")
        .x_label_formatter(&|x| match *x {
            x if x >= 1e6 => format!("{:.0} M", x / 1e6),
            x if x >= 1e3 => format!("{:.0} k", x / 1e3),
            x => format!("{x:.0}"),
        })
        .y_label_formatter(&|y| if *y < 1.0 { format!("{y:.1}") } else { format!("{y:.0}") })
        .draw()?;
    let linear_to = (most_x / least_x).min(most_y);
    axes.draw_series(DashedLineSeries::new(
        [(least_x, 1.0), (least_x * linear_to, linear_to)],
        4,
        6,
        FOREGROUND.stroke_width(1),
    ))?
    .label("linear")
    .legend(|(x, y)| PathElement::new([(x, y), (x + 18, y)], FOREGROUND));
    for ((name, points), color) in series.into_iter().zip(SERIES.iter().cycle()) {
        axes.draw_series(LineSeries::new(points.clone(), color.stroke_width(2)))?
            .label(name.as_str())
            .legend(|(x, y)| PathElement::new([(x, y), (x + 18, y)], color.stroke_width(2)));
        axes.draw_series(points.into_iter().map(|point| Circle::new(point, 3, color.filled())))?;
    }
    axes.configure_series_labels()
        .position(SeriesLabelPosition::UpperLeft)
        .label_font(label())
        .border_style(FOREGROUND.mix(0.3))
        .draw()?;
    area.present()?;
    Ok(())
}
