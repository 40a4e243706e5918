//! Charts as SVG or PNG: panels side by side, both axes logarithmic, and one legend for all below them. And pictures of schedules.

use std::{fs, path::Path};

mod pixels;
pub(crate) mod schedule;
mod trace;

use plotters::{coord::Shift, element::DashedPathElement, prelude::*};

use self::pixels::Pixels;
use crate::{Result, words};

/// A line of a panel.
pub(crate) struct PanelLine {
    /// Its name in the legend.
    pub name: String,
    /// Bytes and values, in ascending order of bytes.
    pub points: Vec<(usize, f64)>,
}

/// A panel: values against bytes.
pub(crate) struct Panel<'a> {
    pub title: &'a str,
    /// The name of the values, with their unit.
    pub values: &'a str,
    /// Formats a value as a label of the axis.
    pub label: fn(f64) -> String,
    /// The place of a line gives its colour, which is the same in every panel.
    pub lines: Vec<PanelLine>,
    /// A further line, grey and dashed.
    pub bound: Option<PanelLine>,
}

/// Colours that most people who do not see all colours can tell apart (Masataka Okabe and Kei Ito, 2008), and, for more lines, five
/// that differ from them.
const COLOURS: [RGBColor; 12] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
    RGBColor(0, 0, 0),
    RGBColor(136, 34, 85),
    RGBColor(128, 128, 0),
    RGBColor(64, 224, 208),
    RGBColor(75, 0, 160),
    RGBColor(139, 90, 43),
];
/// The most lines that a panel may have.
pub(crate) const MOST: usize = COLOURS.len();
/// The colour of a panel's bound.
const GREY: RGBColor = RGBColor(150, 150, 150);
/// The pixels of PNG in each direction for one of SVG, so that lines are smooth.
const SCALE: u32 = 2;
/// The size of a panel in pixels.
const SIZE: (u32, u32) = (760, 520);
/// The height of a row of the legend, the width of a character there, and that of a sample with its distances, in pixels.
const ROW: i32 = 22;
const CHARACTER: usize = 9;
const SAMPLE: usize = 60;
/// The smallest value that is drawn, since 0 has no logarithm.
const LEAST: f64 = 1e-10;

/// Draws panels side by side to a file, of the kind that its name ends in, or SVG.
///
/// # Errors
/// If the name ends otherwise, or the file cannot be written: its name and why.
pub(crate) fn draw(file: &Path, panels: &[Panel<'_>]) -> Result<()> {
    let kind = file.extension().map(|kind| kind.to_string_lossy().to_lowercase());
    let picture = match kind.as_deref() {
        None | Some("svg") => svg(panels).map(String::into_bytes),
        Some("png") => png(panels),
        Some(_) => Err("it draws SVG and PNG; name a file that ends in .svg or .png".into()),
    };
    let picture = picture.map_err(|error| format!("--plot {}: {error}", file.display()))?;
    Ok(fs::write(file, picture).map_err(|error| format!("--plot {}: {error}", file.display()))?)
}

fn svg(panels: &[Panel<'_>]) -> Result<String> {
    let (legend, size) = arrange(panels);
    let mut picture = String::new();
    render(SVGBackend::with_string(&mut picture, size).into_drawing_area(), panels, &legend, 1)?;
    Ok(picture)
}

fn png(panels: &[Panel<'_>]) -> Result<Vec<u8>> {
    let (legend, (width, height)) = arrange(panels);
    let size = (width * SCALE, height * SCALE);
    let mut bytes = vec![255; 3 * size.0 as usize * size.1 as usize];
    render(Pixels { size, bytes: &mut bytes }.into_drawing_area(), panels, &legend, SCALE)?;
    pixels::png(&bytes, size)
}

/// The legend, and the width and height of the picture.
fn arrange<'p>(panels: &'p [Panel<'_>]) -> (Legend<'p>, (u32, u32)) {
    let width = SIZE.0 * u32::try_from(panels.len()).unwrap_or(1);
    let legend = legend(panels, width as usize);
    let rows = i32::try_from(legend.len()).unwrap_or(0);
    (legend, (width, SIZE.1 + (ROW * rows + 12).unsigned_abs()))
}

fn render<B: DrawingBackend<ErrorType: 'static>>(
    root: Area<B>,
    panels: &[Panel<'_>],
    legend: &Legend<'_>,
    scale: u32,
) -> Result<()> {
    root.fill(&WHITE)?;
    let (charts, names) = root.split_vertically(SIZE.1 * scale);
    for (area, panel) in charts.split_evenly((1, panels.len())).iter().zip(panels) {
        one(area, panel, scale)?;
    }
    for (row, entries) in (0..).zip(legend) {
        for (x, name, colour) in entries {
            sample(&names, (*x, ROW * row + ROW / 2), name, *colour, scale)?;
        }
    }
    Ok(root.present()?)
}

type Area<B> = DrawingArea<B, Shift>;

fn one<B: DrawingBackend<ErrorType: 'static>>(area: &Area<B>, panel: &Panel<'_>, scale: u32) -> Result<()> {
    let all = panel.lines.iter().chain(&panel.bound).flat_map(places);
    let (sizes, values): (Vec<f64>, Vec<f64>) = all.unzip();
    // Sizes are powers of two, so labels are too.
    let (sizes, values) = (span(&sizes, 2.0).log_scale().base(2.0), span(&values, 10.0).log_scale());
    let mut chart = ChartBuilder::on(area)
        .caption(panel.title, ("sans-serif", 20 * scale))
        .margin(12 * scale)
        .margin_right(36 * scale)
        .x_label_area_size(44 * scale)
        .y_label_area_size(80 * scale)
        .build_cartesian_2d(sizes, values)?;
    chart
        .configure_mesh()
        .x_desc("bytes")
        .y_desc(panel.values)
        .x_labels(12)
        .x_label_formatter(&|bytes| words::size64(whole(*bytes)))
        .y_label_formatter(&|value| (panel.label)(*value))
        .label_style(("sans-serif", 14 * scale))
        .axis_desc_style(("sans-serif", 15 * scale))
        .axis_style(BLACK.stroke_width(scale))
        .set_all_tick_mark_size(5 * scale)
        .bold_line_style(BLACK.mix(0.2).stroke_width(scale))
        .light_line_style(TRANSPARENT)
        .draw()?;
    for (line, colour) in panel.lines.iter().zip(COLOURS.iter().cycle()) {
        chart.draw_series(LineSeries::new(places(line), colour.stroke_width(2 * scale)))?;
        // The marks are what was measured; the rest of the line lies between them.
        chart.draw_series(
            places(line).into_iter().map(|place| TriangleMarker::new(place, 5 * scale, colour.filled())),
        )?;
    }
    if let Some(bound) = &panel.bound {
        chart.draw_series(DashedLineSeries::new(
            places(bound),
            6 * scale,
            4 * scale,
            GREY.stroke_width(2 * scale),
        ))?;
    }
    Ok(())
}

/// The rows of the legend: where in the row each entry begins, its name, and its colour; `None` for the dashed bound.
type Legend<'p> = Vec<Vec<(i32, &'p str, Option<RGBColor>)>>;

fn legend<'p>(panels: &'p [Panel<'_>], width: usize) -> Legend<'p> {
    let mut entries: Vec<(&str, Option<RGBColor>)> = Vec::new();
    let of = |panel: &'p Panel<'_>| {
        let colours = COLOURS.map(Some).into_iter().cycle();
        let lines = panel.lines.iter().zip(colours).chain(panel.bound.iter().zip([None]));
        lines.map(|(line, colour)| (line.name.as_str(), colour))
    };
    for entry in panels.iter().flat_map(of) {
        if !entries.contains(&entry) {
            entries.push(entry);
        }
    }
    let longest = entries.iter().map(|(name, _)| name.chars().count()).max().unwrap_or(0);
    let column = longest * CHARACTER + SAMPLE;
    let columns = (width / column).max(1);
    let place = |at: usize| i32::try_from(24 + at * column).unwrap_or(0);
    let row = |row: &[(&'p str, Option<RGBColor>)]| {
        row.iter().enumerate().map(|(at, (name, colour))| (place(at), *name, *colour)).collect()
    };
    entries.chunks(columns).map(row).collect()
}

/// Draws an entry of the legend.
fn sample<B: DrawingBackend<ErrorType: 'static>>(
    area: &Area<B>,
    (x, y): (i32, i32),
    name: &str,
    colour: Option<RGBColor>,
    scale: u32,
) -> Result<()> {
    let at = |x, y| (x * scale.cast_signed(), y * scale.cast_signed());
    let ends = [at(x, y), at(x + 24, y)];
    match colour {
        Some(colour) => {
            area.draw(&PathElement::new(ends, colour.stroke_width(2 * scale)))?;
            area.draw(&TriangleMarker::new(at(x + 12, y), 5 * scale, colour.filled()))?;
        }
        None => {
            area.draw(&DashedPathElement::new(ends, 6 * scale, 4 * scale, GREY.stroke_width(2 * scale)))?;
        }
    }
    area.draw(&Text::new(name.to_owned(), at(x + 32, y - 8), ("sans-serif", 15 * scale)))?;
    Ok(())
}

/// The coordinates of a line's points.
fn places(line: &PanelLine) -> Vec<(f64, f64)> {
    line.points.iter().map(|&(bytes, value)| (bytes as f64, value.max(LEAST))).collect()
}

/// The range of an axis: from the power of `base` below the least value to the one above the largest, which have labels.
fn span(values: &[f64], base: f64) -> std::ops::Range<f64> {
    let least = values.iter().copied().fold(f64::INFINITY, f64::min).min(f64::MAX);
    let most = values.iter().copied().fold(least, f64::max);
    let first = least.log(base).floor();
    let last = most.log(base).ceil().max(first + 1.0);
    // A little more, so that rounding does not exclude the powers at the ends.
    base.powf(first - 1e-6)..base.powf(last + 1e-6)
}

#[allow(clippy::cast_possible_truncation, reason = "a label")]
fn whole(bytes: f64) -> u64 {
    bytes.round() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_a_panel_have_different_colours() {
        let line = |name: String| PanelLine { name, points: vec![(8, 1e-6), (1 << 20, 1e-3)] };
        let panel = |title| Panel {
            title,
            values: "time",
            label: words::time,
            lines: (0..MOST).map(|index| line(format!("line {index}"))).collect(),
            bound: Some(line("bound".to_owned())),
        };
        let picture = svg(&[panel("left"), panel("right")]).unwrap();
        for (index, RGBColor(red, green, blue)) in COLOURS.iter().chain([&GREY]).enumerate() {
            assert!(!COLOURS[..index].contains(&RGBColor(*red, *green, *blue)), "colour {index} twice");
            // Each colour is used once in each panel, and once in the legend; a bound has many dashes, and axes are black.
            let uses = picture.matches(&format!("stroke=\"#{red:02X}{green:02X}{blue:02X}\"")).count();
            assert!(uses >= 3, "colour {index}: {uses}");
        }
        for wanted in ["left", "right", "line 0", "bound", " KiB", " µs"] {
            assert!(picture.contains(wanted), "{wanted}");
        }
    }

    #[test]
    fn sizes_are_marked_and_entries_of_the_legend_do_not_overlap() {
        let line = |name: String| PanelLine { name, points: vec![(8, 1e-6), (64, 2e-6), (512, 3e-6)] };
        let lines = || (0..MOST).map(|at| line(format!("{at}: {}", "long ".repeat(at)))).collect();
        let panel = || Panel {
            title: "",
            values: "time",
            label: words::time,
            lines: lines(),
            bound: Some(line("bound".into())),
        };
        let panels = [panel(), panel()];
        let picture = svg(&panels).unwrap();
        // Each size in each panel, and each entry.
        assert_eq!(picture.matches("<polygon").count(), 3 * 2 * MOST + MOST);
        let rows = legend(&panels, 2 * SIZE.0 as usize);
        assert_eq!(rows.iter().map(Vec::len).sum::<usize>(), MOST + 1);
        for row in rows {
            for pair in row.windows(2) {
                let end = pair[0].0 + 32 + i32::try_from(CHARACTER * pair[0].1.len()).unwrap();
                assert!(end < pair[1].0, "{pair:?}");
            }
            let last = row.last().unwrap();
            assert!(last.0 as usize + 32 + CHARACTER * last.1.len() <= 2 * SIZE.0 as usize, "{last:?}");
        }
    }

    #[test]
    fn both_ends_of_an_axis_have_labels() {
        for (value, around) in
            [(2e-9, ["1.00 ns", "10.0 ns"]), (2e-6, ["1.00 µs", "10.0 µs"]), (2.0, ["1.00 s", "10.0 s"])]
        {
            let lines =
                vec![PanelLine { name: "flat".to_owned(), points: vec![(8, value), (16, value * 2.0)] }];
            let picture =
                svg(&[Panel { title: "", values: "time", label: words::time, lines, bound: None }]).unwrap();
            assert!(around.iter().all(|label| picture.contains(label)), "{value}: {picture}");
        }
    }

    #[test]
    fn one_point_and_no_time_are_drawn() {
        let lines = vec![PanelLine { name: "alone".to_owned(), points: vec![(8, 0.0)] }];
        let panel = Panel { title: "", values: "time", label: words::time, lines, bound: None };
        assert!(svg(&[panel]).unwrap().contains("alone"));
    }

    #[test]
    fn pixels_have_what_the_drawing_has() {
        let lines = (0..MOST)
            .map(|at| PanelLine { name: format!("line {at}"), points: vec![(8, 1e-6), (1 << 20, 1e-3)] });
        let panel =
            Panel { title: "title", values: "time", label: words::time, lines: lines.collect(), bound: None };
        let (picture, (width, height)) = (png(&[panel]).unwrap(), (2 * SIZE.0, 2 * SIZE.1));
        let mut reader = ::png::Decoder::new(std::io::Cursor::new(&picture[..])).read_info().unwrap();
        let mut bytes = vec![0; reader.output_buffer_size().unwrap()];
        let frame = reader.next_frame(&mut bytes).unwrap();
        assert!(frame.width == width && frame.height > height, "{frame:?}");
        // Lines lie on each other, and the last one drawn is seen: each has its place in the legend.
        for colour in COLOURS {
            let count = bytes.chunks(3).filter(|pixel| *pixel == [colour.0, colour.1, colour.2]).count();
            assert!(count > 100, "{colour:?}: {count}");
        }
        // The axis' name stands upright at the left, where nothing else is.
        let row = 3 * width as usize;
        let dark = |y: &usize| bytes[y * row..][..3 * 60].iter().any(|it| *it < 90);
        assert!((0..2 * SIZE.1 as usize).filter(dark).count() > 40);
    }
}
