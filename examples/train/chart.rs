//! The loss of each epoch as a picture.

use std::error::Error;

use plotters::prelude::*;

/// Draws a curve through the losses to a file.
pub(crate) fn draw(file: &str, losses: &[f64]) -> Result<(), Box<dyn Error>> {
    let most = losses.iter().copied().fold(0.0, f64::max);
    let root = SVGBackend::new(file, (640, 400)).into_drawing_area();
    root.fill(&WHITE)?;
    let mut chart = ChartBuilder::on(&root)
        .caption("mean loss of each epoch", ("sans-serif", 20))
        .margin(12)
        .x_label_area_size(40)
        .y_label_area_size(60)
        .build_cartesian_2d(1..losses.len(), 0.0..most)?;
    let mut mesh = chart.configure_mesh();
    mesh.x_desc("epoch").y_desc("loss").label_style(("sans-serif", 15)).axis_desc_style(("sans-serif", 15));
    mesh.light_line_style(TRANSPARENT).draw()?;
    let blue = RGBColor(0, 114, 178).stroke_width(2);
    chart.draw_series(LineSeries::new((1..).zip(losses.iter().copied()), blue))?;
    root.present()?;
    Ok(())
}
