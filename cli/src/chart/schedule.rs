//! A picture of a collective by an algorithm: a row for each rank, time from left to right, an arrow for each message, and a box for
//! what arrives or is reduced.

use plotters::{
    prelude::*,
    style::text_anchor::{HPos, Pos, VPos},
};
use unisono_schedule::{Job, algorithm::Plan};

use super::{
    Area, COLOURS, GREY,
    trace::{Symbol, Trace, trace},
};
use crate::words;

/// The most ranks of a picture, and the most elements of a box.
const RANKS: usize = 8;
const ELEMENTS: usize = 16;
/// The side of an element, the height of a row, the room for the arrows of a column, and the room at the top and the left, in pixels.
const CELL: i32 = 22;
const ROW: i32 = 64;
const GAP: i32 = 56;
const TOP: i32 = 64;
const LEFT: i32 = 64;
/// The least width, for the title.
const WIDTH: i32 = 400;

/// Draws the schedules of all ranks as SVG.
///
/// # Errors
/// If there are too many ranks or elements to be seen.
pub(crate) fn picture(algorithm: &str, plan: &Plan, job: &Job<'_>) -> crate::Result<String> {
    let (input, output) = Job { rank: job.root, ..*job }.lengths().unwrap_or((usize::MAX, 0));
    if job.ranks > RANKS || input.max(output) > ELEMENTS {
        return Err(format!("a picture has at most {RANKS} ranks and {ELEMENTS} elements").into());
    }
    let trace = trace(plan, job);
    let layout = Layout::of(&trace);
    let size = (layout.width.max(WIDTH).unsigned_abs(), (TOP + ROW * number(job.ranks)).unsigned_abs());
    let title = format!("{} by {algorithm}, {}", plan.collective.name(), words::some(job.ranks, "rank"));
    let mut picture = String::new();
    layout.draw(SVGBackend::with_string(&mut picture, size).into_drawing_area(), &trace, &title)?;
    Ok(picture)
}

/// Where columns are, in pixels from the left.
struct Layout {
    /// The beginnings of the columns; boxes begin [`GAP`] after these.
    columns: Vec<i32>,
    after: i32,
    /// Where the picture ends.
    width: i32,
}

impl Layout {
    fn of(trace: &Trace) -> Self {
        let count = trace.boxes.iter().map(|held| held.column + 1).max().unwrap_or(0);
        let width = |symbols: usize| CELL * number(symbols.max(1));
        let widest = |all: &[Vec<Symbol>]| width(all.iter().map(Vec::len).max().unwrap_or(0));
        let of_column = |column| {
            let held = trace.boxes.iter().filter(|held| held.column == column);
            GAP + width(held.map(|held| held.symbols.len()).max().unwrap_or(0))
        };
        let mut x = LEFT + widest(&trace.before).max(2 * CELL);
        let columns = (0..count).map(|column| {
            x += of_column(column);
            x - of_column(column)
        });
        let columns = columns.collect();
        let after = x + GAP / 2;
        Self { columns, after, width: after + widest(&trace.after).max(2 * CELL) + CELL }
    }

    /// The middle of a rank's row.
    fn row(rank: usize) -> i32 {
        TOP + ROW * number(rank) + ROW / 2
    }

    fn draw(&self, area: Area<SVGBackend<'_>>, trace: &Trace, title: &str) -> crate::Result<()> {
        area.fill(&WHITE)?;
        area.draw(&Text::new(title, (10, 10), ("sans-serif", 18)))?;
        let left = |column: usize| self.columns.get(column).copied().unwrap_or(self.after);
        let ends = [(LEFT, "before".to_owned()), (self.after, "after".to_owned())];
        let steps = self.columns.iter().zip(1..).map(|(x, number)| (x + GAP, format!("{number}")));
        for (x, name) in ends.into_iter().chain(steps) {
            area.draw(&Text::new(name, (x, TOP - 18), ("sans-serif", 14).into_font().color(&GREY)))?;
        }
        for rank in 0..trace.before.len() {
            let y = Self::row(rank);
            area.draw(&PathElement::new([(LEFT, y), (self.after, y)], GREY.mix(0.5)))?;
            area.draw(&Text::new(format!("rank {rank}"), (10, y - 8), ("sans-serif", 15)))?;
        }
        for arrow in &trace.arrows {
            let from = (left(arrow.from.1) + 8, Self::row(arrow.from.0));
            let to = (left(arrow.to.1) + GAP - 3, Self::row(arrow.to.0));
            area.draw(&Rectangle::new([(from.0 - 3, from.1 - 3), (from.0 + 3, from.1 + 3)], BLACK.filled()))?;
            area.draw(&PathElement::new([from, to], BLACK))?;
            area.draw(&Polygon::new(head(from, to), BLACK))?;
        }
        for (x, all) in [(LEFT, &trace.before), (self.after, &trace.after)] {
            for (rank, symbols) in all.iter().enumerate() {
                symbols_at(&area, (x, Self::row(rank)), symbols, false)?;
            }
        }
        for held in &trace.boxes {
            let at = (left(held.column) + GAP, Self::row(held.rank));
            symbols_at(&area, at, &held.symbols, held.reduced)?;
        }
        Ok(area.present()?)
    }
}

/// A number of ranks, elements or parts, of which a picture has few.
fn number(number: usize) -> i32 {
    i32::try_from(number).unwrap_or(0)
}

/// The corners of an arrow's head, at `to`.
#[allow(clippy::cast_possible_truncation, reason = "pixels")]
fn head(from: (i32, i32), to: (i32, i32)) -> [(i32, i32); 3] {
    let (x, y) = (f64::from(to.0 - from.0), f64::from(to.1 - from.1));
    let length = x.hypot(y).max(1.0);
    let (x, y) = (9.0 * x / length, 9.0 * y / length);
    let corner = |side: f64| (to.0 - (x - side * y).round() as i32, to.1 - (y + side * x).round() as i32);
    [to, corner(0.4), corner(-0.4)]
}

/// Draws elements from a place on, each in the colours of the ranks whose contributions are in it; reduced ones have a thick border.
fn symbols_at(
    area: &Area<SVGBackend<'_>>,
    (x, y): (i32, i32),
    symbols: &[Symbol],
    reduced: bool,
) -> crate::Result<()> {
    let (top, bottom) = (y - CELL / 2, y + CELL / 2);
    for (left, symbol) in (x..).step_by(CELL.unsigned_abs() as usize).zip(symbols) {
        let ranks: Vec<_> = (0..RANKS).filter(|rank| symbol.ranks >> rank & 1 == 1).collect();
        area.draw(&Rectangle::new([(left, top), (left + CELL, bottom)], WHITE.filled()))?;
        let edge = |part: usize| left + CELL * number(part) / number(ranks.len());
        for (part, rank) in ranks.iter().enumerate() {
            let stripe = [(edge(part), top), (edge(part + 1), bottom)];
            area.draw(&Rectangle::new(stripe, COLOURS[rank % COLOURS.len()].mix(0.5).filled()))?;
        }
        area.draw(&Rectangle::new([(left, top), (left + CELL, bottom)], BLACK))?;
        if !ranks.is_empty() {
            let style =
                ("sans-serif", 13).into_font().color(&BLACK).pos(Pos::new(HPos::Center, VPos::Center));
            area.draw(&Text::new(symbol.element.to_string(), (left + CELL / 2, y), style))?;
        }
    }
    let right = x + CELL * number(symbols.len());
    if reduced {
        area.draw(&Rectangle::new([(x, top), (right, bottom)], BLACK.stroke_width(3)))?;
    }
    Ok(())
}
