//! Curves over the message size, as SVG text that stands in a page without anything else.

use plotters::coord::Shift;
use plotters::prelude::*;

use crate::error::{Error, Result};
use crate::record::Record;
use crate::table;

/// Width and height of a chart, in pixels.
const SIZE: (u32, u32) = (620, 440);

/// Colours that people with colour blindness tell apart, too (Okabe and Ito), ours first.
const COLOURS: [RGBColor; 7] = [
    RGBColor(213, 94, 0),
    RGBColor(0, 114, 178),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(86, 180, 233),
    RGBColor(230, 159, 0),
    RGBColor(0, 0, 0),
];

/// One subject's values by message size.
#[derive(Clone, Debug, PartialEq)]
pub struct Curve {
    /// The subject.
    pub name: String,
    /// The ways that counters prove for it.
    pub ways: String,
    /// Bytes and value, by bytes.
    pub points: Vec<(f64, f64)>,
}

/// The curves of `benchmark`, in the order of their subjects.
pub fn curves(records: &[Record], benchmark: &str) -> Vec<Curve> {
    let mut curves: Vec<(Curve, Vec<String>)> = Vec::new();
    // A subject that is compared with several peers has a record for each, all with one value.
    let mut seen: Vec<(&str, u64)> = Vec::new();
    for record in records.iter().filter(|record| record.benchmark == benchmark) {
        // Of several TCP paths only the fastest has a curve, as it has a column; which one that is may change with the size.
        let Some(bytes) = record
            .bytes
            .filter(|bytes| *bytes > 0 && crate::subject::family(&record.subject) == record.subject)
        else {
            continue;
        };
        if seen.contains(&(record.subject.as_str(), bytes)) {
            continue;
        }
        seen.push((&record.subject, bytes));
        let way = record.path.clone().unwrap_or_else(|| "unproved".into());
        // Sizes are far below 2^53.
        let point = (bytes as f64, record.value);
        match curves.iter_mut().find(|(curve, _)| curve.name == record.subject) {
            Some((curve, ways)) => {
                curve.points.push(point);
                if !ways.contains(&way) {
                    ways.push(way);
                }
            }
            None => {
                let curve = Curve { name: record.subject.clone(), ways: String::new(), points: vec![point] };
                curves.push((curve, vec![way]));
            }
        }
    }
    curves
        .into_iter()
        .map(|(mut curve, ways)| {
            curve.points.sort_by(|a, b| a.0.total_cmp(&b.0));
            Curve { ways: ways.join(", "), ..curve }
        })
        .collect()
}

/// Draws `curves` over the message size, both axes logarithmic. `metric` is that of their records.
///
/// # Errors
/// [`Error::Chart`].
pub fn draw(title: &str, curves: &[Curve], metric: &str) -> Result<String> {
    let mut text = String::new();
    {
        let area = SVGBackend::with_string(&mut text, SIZE).into_drawing_area();
        plot(&area, title, curves, metric).map_err(|error| Error::Chart { what: error.to_string() })?;
    }
    Ok(text)
}

type Failure = Box<dyn std::error::Error>;

fn plot(
    area: &DrawingArea<SVGBackend<'_>, Shift>,
    title: &str,
    curves: &[Curve],
    metric: &str,
) -> std::result::Result<(), Failure> {
    let points = || curves.iter().flat_map(|curve| &curve.points);
    let (left, right) = span(points().map(|point| point.0)).ok_or("there is nothing to draw")?;
    let (low, high) = span(points().map(|point| point.1)).ok_or("there is nothing to draw")?;
    let unit = table::amount(1.0, metric).1;
    area.fill(&WHITE)?;
    let mut chart = ChartBuilder::on(area)
        .caption(title, ("sans-serif", 18))
        .margin(12)
        .x_label_area_size(38)
        .y_label_area_size(64)
        .build_cartesian_2d(
            (left / 1.3..right * 1.3).log_scale().base(2.0),
            (low / 1.5..high * 1.5).log_scale(),
        )?;
    chart
        .configure_mesh()
        .x_desc("message size")
        .y_desc(unit)
        .x_labels(12)
        .y_labels(8)
        .x_label_formatter(&|bytes| short_size(*bytes))
        .y_label_formatter(&|value| plain(*value))
        .light_line_style(TRANSPARENT)
        .bold_line_style(RGBColor(222, 222, 222))
        .draw()?;
    for (curve, colour) in curves.iter().zip(COLOURS.iter().cycle()) {
        let style = colour.stroke_width(2);
        chart
            .draw_series(LineSeries::new(curve.points.iter().copied(), style))?
            .label(format!("{} ({})", curve.name, curve.ways))
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], style));
        chart.draw_series(curve.points.iter().map(|point| Circle::new(*point, 3, colour.filled())))?;
    }
    // Latency rises to the right and bandwidth, too: the upper left corner is free.
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperLeft)
        .background_style(WHITE.mix(0.85))
        .border_style(RGBColor(180, 180, 180))
        .draw()?;
    area.present()?;
    Ok(())
}

/// The least and the greatest of `values`, which must be positive to have a place on a logarithmic axis.
fn span(values: impl Iterator<Item = f64>) -> Option<(f64, f64)> {
    values.filter(|value| value.is_finite() && *value > 0.0).fold(None, |span, value| {
        Some(span.map_or((value, value), |(a, b): (f64, f64)| (a.min(value), b.max(value))))
    })
}

/// A tick of the size axis.
fn short_size(bytes: f64) -> String {
    for (unit, name) in [(1_048_576.0, "M"), (1024.0, "K")] {
        if bytes >= unit {
            return format!("{}{name}", plain(bytes / unit));
        }
    }
    plain(bytes)
}

/// A number without zeros that say nothing.
fn plain(value: f64) -> String {
    let text = if value >= 1.0 { format!("{value:.0}") } else { format!("{value:.3}") };
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text }
}
