//! A network of two layers: 64 pixels, 32 hidden units that are rectified, and a probability for each of 10 digits.

use super::digits::{Image, PIXELS, Random};

const HIDDEN: usize = 32;
const DIGITS: usize = 10;
/// How many there are. Every unit has a weight for each of its inputs, and a bias behind them.
pub(crate) const PARAMETERS: usize = HIDDEN * (PIXELS + 1) + DIGITS * (HIDDEN + 1);

pub(crate) struct Network {
    pub(crate) parameters: Vec<f64>,
}

impl Network {
    /// Small weights, so drawn that the units' outputs begin about as large as their inputs.
    pub(crate) fn random(seed: u64) -> Self {
        let mut random = Random(seed);
        let mut layer = |units, inputs: usize| -> Vec<f64> {
            let most = (6.0 / inputs as f64).sqrt();
            (0..units * (inputs + 1)).map(|_| most * (2.0 * random.fraction() - 1.0)).collect()
        };
        Self { parameters: [layer(HIDDEN, PIXELS), layer(DIGITS, HIDDEN)].concat() }
    }

    /// The digit that an image most probably shows.
    pub(crate) fn reads(&self, image: &Image) -> usize {
        let (_, digits) = self.run(image);
        (0..DIGITS).max_by(|&one, &other| digits[one].total_cmp(&digits[other])).unwrap_or(0)
    }

    /// Adds the gradient of an image's loss (the negative logarithm of the right digit's probability), and behind it
    /// the loss, to the sums.
    pub(crate) fn learn(&self, image: &Image, sums: &mut [f64]) {
        let (hidden, mut digits) = self.run(image);
        let (first, second) = sums.split_at_mut(HIDDEN * (PIXELS + 1));
        second[DIGITS * (HIDDEN + 1)] += exact(-digits[image.digit].max(f64::MIN_POSITIVE).ln());

        // How the loss changes with what each unit summed up.
        digits[image.digit] -= 1.0;
        let mut back = [0.0; HIDDEN];
        let weights = self.parameters[HIDDEN * (PIXELS + 1)..].chunks_exact(HIDDEN + 1);
        for ((delta, weights), sums) in digits.iter().zip(weights).zip(second.chunks_exact_mut(HIDDEN + 1)) {
            add(sums, *delta, &hidden);
            for (back, weight) in back.iter_mut().zip(weights) {
                *back += delta * weight;
            }
        }
        for ((back, unit), sums) in back.iter().zip(&hidden).zip(first.chunks_exact_mut(PIXELS + 1)) {
            if *unit > 0.0 {
                add(sums, *back, &image.pixels);
            }
        }
    }

    /// The hidden units' outputs, and the probability of each digit.
    fn run(&self, image: &Image) -> ([f64; HIDDEN], [f64; DIGITS]) {
        let (first, second) = self.parameters.split_at(HIDDEN * (PIXELS + 1));
        let hidden = layer(first, &image.pixels).map(|sum: f64| sum.max(0.0));
        let digits: [f64; DIGITS] = layer(second, &hidden);
        let most = digits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let digits = digits.map(|digit| (digit - most).exp());
        let total: f64 = digits.iter().sum();
        (hidden, digits.map(|digit| digit / total))
    }
}

/// What each unit of a layer sums up.
fn layer<const UNITS: usize>(parameters: &[f64], inputs: &[f64]) -> [f64; UNITS] {
    let mut sums = [0.0; UNITS];
    for (sum, unit) in sums.iter_mut().zip(parameters.chunks_exact(inputs.len() + 1)) {
        *sum =
            unit[inputs.len()] + unit.iter().zip(inputs).map(|(weight, input)| weight * input).sum::<f64>();
    }
    sums
}

/// Adds the gradient of one unit's weights and bias.
fn add(sums: &mut [f64], delta: f64, inputs: &[f64]) {
    for (sum, input) in sums.iter_mut().zip(inputs.iter().chain(&[1.0])) {
        *sum += exact(delta * input);
    }
}

/// The nearest multiple of 2^-30. Such numbers add up without rounding as long as their sums stay below 2^22, so
/// these do not depend on who adds what in which order: any number of ranks gets the same bits.
///
/// Without it, 1 rank and 4 ranks would differ in the last digits, since (a + b) + (c + d) is not ((a + b) + c) + d.
/// Nor would `Reduction::Reproducible` help, which keeps to the order of ranks: that gives the same bits whenever
/// the same number of ranks does it, whatever the algorithm or the network.
fn exact(term: f64) -> f64 {
    const UNIT: f64 = (1_u64 << 30) as f64;
    (term * UNIT).round() / UNIT
}
