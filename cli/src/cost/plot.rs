//! Time against size as a picture: both axes logarithmic, a line for every algorithm.

use std::{fs, path::Path};

use plotters::{element::DashedPathElement, prelude::*};

use super::{Result, words};

/// What one algorithm takes.
pub(super) struct Line {
    pub(super) name: &'static str,
    /// Bytes and seconds, in ascending order of bytes.
    pub(super) points: Vec<(usize, f64)>,
}

/// A colour for each algorithm, told apart by most people who do not see all colours (Masataka Okabe and Kei Ito, 2008).
const COLOURS: [RGBColor; 7] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
    RGBColor(0, 0, 0),
];

/// Of what no algorithm can go below, which is dashed.
const BOUND: RGBColor = RGBColor(150, 150, 150);

/// Draws the lines of algorithms and their lower bound to a file.
pub(super) fn draw(file: &Path, title: &str, lines: &[Line], bound: &Line) -> Result<()> {
    let mut picture = String::new();
    render(&mut picture, title, lines, bound).map_err(|error| format!("--plot: {error}"))?;
    Ok(fs::write(file, picture).map_err(|error| format!("--plot {}: {error}", file.display()))?)
}

#[allow(clippy::cast_precision_loss, reason = "places in a picture")]
fn render(picture: &mut String, title: &str, lines: &[Line], bound: &Line) -> Result<()> {
    // A world of one may take no time, which has no logarithm.
    let places = |line: &Line| -> Vec<(f64, f64)> {
        line.points.iter().map(|&(bytes, time)| (bytes as f64, time.max(1e-10))).collect()
    };
    let all: Vec<(f64, f64)> = lines.iter().chain([bound]).flat_map(places).collect();
    let span = |of: fn(&(f64, f64)) -> f64| {
        let least = all.iter().map(of).fold(f64::INFINITY, f64::min);
        let most = all.iter().map(of).fold(0.0, f64::max);
        if least < most { least..most } else { 1.0..10.0 }
    };
    let (sizes, times) = (span(|place| place.0), span(|place| place.1));

    let root = SVGBackend::with_string(picture, (960, 640)).into_drawing_area();
    root.fill(&WHITE)?;
    let mut chart = ChartBuilder::on(&root)
        .caption(title, ("sans-serif", 24))
        .margin(12)
        .x_label_area_size(40)
        .y_label_area_size(80)
        .build_cartesian_2d((sizes.start..sizes.end).log_scale(), (times.start..times.end).log_scale())?;
    chart
        .configure_mesh()
        .x_desc("bytes")
        .y_desc("time")
        .x_label_formatter(&|bytes| format!("{bytes:.0}"))
        .y_label_formatter(&|seconds| words::time(*seconds))
        .label_style(("sans-serif", 15))
        .axis_desc_style(("sans-serif", 15))
        .light_line_style(TRANSPARENT)
        .draw()?;
    for (index, line) in lines.iter().enumerate() {
        let colour = COLOURS[index % COLOURS.len()];
        chart
            .draw_series(LineSeries::new(places(line), colour.stroke_width(2)))?
            .label(line.name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], colour.stroke_width(2)));
    }
    let stroke = BOUND.stroke_width(2);
    chart
        .draw_series(DashedLineSeries::new(places(bound), 6, 4, stroke))?
        .label(bound.name)
        .legend(move |(x, y)| DashedPathElement::new([(x, y), (x + 18, y)], 6, 4, stroke));
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperLeft)
        .label_font(("sans-serif", 15))
        .background_style(WHITE.mix(0.8))
        .border_style(BLACK.mix(0.2))
        .draw()?;
    root.present()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use unisono_schedule::{Collective, algorithm::ALGORITHMS};

    use super::*;

    #[test]
    fn every_line_has_a_colour_of_its_own() {
        for collective in Collective::ALL {
            let names = ALGORITHMS.iter().filter(|it| it.supports(collective)).map(|it| it.name);
            let line = |name| Line { name, points: vec![(8, 1e-6), (1 << 20, 1e-3)] };
            let lines: Vec<_> = names.map(line).collect();
            assert!(lines.len() <= COLOURS.len(), "{} has more algorithms than colours", collective.name());
            let mut picture = String::new();
            render(&mut picture, "", &lines, &line("lower bound")).unwrap();
            let used: Vec<_> = COLOURS.iter().take(lines.len()).chain([&BOUND]).collect();
            for (index, colour) in used.iter().enumerate() {
                assert!(!used[..index].contains(colour), "{colour:?} twice");
                let RGBColor(red, green, blue) = colour;
                assert!(
                    picture.contains(&format!("stroke=\"#{red:02X}{green:02X}{blue:02X}\"")),
                    "{colour:?}"
                );
            }
        }
    }
}
