//! The images of `examples/data/digits.csv` (its README says whose they are), and chance that is the same everywhere.

pub(crate) const PIXELS: usize = 64;

#[derive(Clone)]
pub(crate) struct Image {
    /// From 0 to 1, row by row.
    pub(crate) pixels: [f64; PIXELS],
    pub(crate) digit: usize,
}

/// Four fifths of the images to learn from, and one fifth to be held out.
pub(crate) fn read() -> Result<(Vec<Image>, Vec<Image>), Box<dyn std::error::Error>> {
    let mut images = Vec::new();
    for line in include_str!("../data/digits.csv").lines() {
        let numbers = line.split(',').map(str::parse).collect::<Result<Vec<u8>, _>>()?;
        let (&digit, pixels) = numbers.split_last().ok_or("an empty line")?;
        let pixels: [u8; PIXELS] = pixels.try_into()?;
        images.push(Image { pixels: pixels.map(|pixel| f64::from(pixel) / 16.0), digit: digit.into() });
    }
    shuffle(&mut images, 0);
    let held_out = images.split_off(images.len() * 4 / 5);
    Ok((images, held_out))
}

/// Every order is equally probable; a seed gives the same one on every rank.
pub(crate) fn shuffle(images: &mut [Image], seed: u64) {
    let mut random = Random(seed);
    images.sort_by_cached_key(|_| random.bits());
}

/// SplitMix64 (Guy Steele, Doug Lea and Christine Flood, 2014).
pub(crate) struct Random(pub(crate) u64);

impl Random {
    fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let bits = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        bits ^ (bits >> 31)
    }

    /// From 0 up to, not including, 1.
    pub(crate) fn fraction(&mut self) -> f64 {
        (self.bits() >> 11) as f64 / (1_u64 << 53) as f64
    }
}
