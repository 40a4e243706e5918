//! Draws charts to pixels, for PNG. The font is in the program, since a host need not have one.

use std::{convert::Infallible, io};

use noto_sans_mono_bitmap::{FontWeight, RasterHeight, get_raster, get_raster_width};
use plotters_backend::{
    BackendColor, BackendCoord, BackendTextStyle, DrawingBackend, DrawingErrorKind,
    text_anchor::{HPos, VPos},
};

/// The pixels of a chart.
pub(super) struct Pixels<'p> {
    pub size: (u32, u32),
    /// The bytes of red, green and blue of each pixel, in rows.
    pub bytes: &'p mut [u8],
}

type Drawn = Result<(), DrawingErrorKind<Infallible>>;

/// The bytes of a PNG file with pixels of this width and height.
pub(super) fn png(bytes: &[u8], (width, height): (u32, u32)) -> crate::Result<Vec<u8>> {
    let mut file = Vec::new();
    let mut encoder = png::Encoder::new(io::Cursor::new(&mut file), width, height);
    encoder.set_color(png::ColorType::Rgb);
    encoder.set_depth(png::BitDepth::Eight);
    encoder.write_header()?.write_image_data(bytes)?;
    Ok(file)
}

#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "between two bytes")]
fn mix(below: u8, above: u8, alpha: f64) -> u8 {
    (f64::from(below) * (1.0 - alpha) + f64::from(above) * alpha).round() as u8
}

/// The font for a size that a chart asks for: labels of axes stand closer to each other than other text.
fn font(size: f64) -> RasterHeight {
    if size < 30.0 { RasterHeight::Size24 } else { RasterHeight::Size32 }
}

/// The size of a text in pixels.
fn extent(text: &str, height: RasterHeight) -> (i32, i32) {
    let width = text.chars().count() * get_raster_width(FontWeight::Regular, height);
    (i32::try_from(width).unwrap_or(i32::MAX), i32::try_from(height.val()).unwrap_or(i32::MAX))
}

impl DrawingBackend for Pixels<'_> {
    type ErrorType = Infallible;

    fn get_size(&self) -> (u32, u32) {
        self.size
    }

    fn ensure_prepared(&mut self) -> Drawn {
        Ok(())
    }

    fn present(&mut self) -> Drawn {
        Ok(())
    }

    fn draw_pixel(&mut self, (x, y): BackendCoord, color: BackendColor) -> Drawn {
        let (Ok(x), Ok(y)) = (u32::try_from(x), u32::try_from(y)) else { return Ok(()) };
        if x < self.size.0 && y < self.size.1 {
            let at = 3 * (y as usize * self.size.0 as usize + x as usize);
            for (byte, wanted) in self.bytes[at..at + 3].iter_mut().zip(<[u8; 3]>::from(color.rgb)) {
                *byte = mix(*byte, wanted, color.alpha);
            }
        }
        Ok(())
    }

    fn estimate_text_size<S: BackendTextStyle>(
        &self,
        text: &str,
        style: &S,
    ) -> Result<(u32, u32), DrawingErrorKind<Infallible>> {
        let (width, height) = extent(text, font(style.size()));
        Ok((width.unsigned_abs(), height.unsigned_abs()))
    }

    fn draw_text<S: BackendTextStyle>(&mut self, text: &str, style: &S, position: BackendCoord) -> Drawn {
        let height = font(style.size());
        let (width, high) = extent(text, height);
        let left = match style.anchor().h_pos {
            HPos::Left => 0,
            HPos::Right => -width,
            HPos::Center => -width / 2,
        };
        let top = match style.anchor().v_pos {
            VPos::Top => 0,
            VPos::Center => -high / 2,
            VPos::Bottom => -high,
        };
        let (turn, (x, y)) = (style.transform(), position);
        let mut from = left;
        for character in text.chars() {
            // The font has Latin characters.
            let known = |character| get_raster(character, FontWeight::Regular, height);
            let Some(glyph) = known(character).or_else(|| known('?')) else { continue };
            for (line, row) in (top..).zip(glyph.rows()) {
                for (column, ink) in (from..).zip(row.iter()) {
                    let (dx, dy) = turn.transform(column, line);
                    let alpha = style.color().alpha * f64::from(*ink) / 255.0;
                    self.draw_pixel((x + dx, y + dy), BackendColor { alpha, ..style.color() })?;
                }
            }
            from += i32::try_from(glyph.width()).unwrap_or(0);
        }
        Ok(())
    }
}
