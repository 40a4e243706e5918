//! What the bench sends, and what must come of it.

use half::{bf16, f16};
use unisono::{dtype::Element, reduce::ReduceOp};

use super::{Result, room};

/// An expression in which a name stands for the element type of a [`Dtype`](unisono::dtype::Dtype).
macro_rules! with_dtype {
    ($dtype:expr, $type:ident => $body:expr) => {
        $crate::bench::data::with_dtype!($dtype, $type => $body;
            F16: half::f16, BF16: half::bf16, F32: f32, F64: f64, I8: i8, I16: i16, I32: i32, I64: i64,
            U8: u8, U16: u16, U32: u32, U64: u64)
    };
    ($dtype:expr, $type:ident => $body:expr; $($name:ident: $element:ty),*) => {
        match $dtype {
            $(unisono::dtype::Dtype::$name => {
                type $type = $element;
                $body
            })*
        }
    };
}
pub(crate) use with_dtype;

/// An element that can be made of small numbers and looked at.
pub(crate) trait Sample: Element {
    /// Wraps around as integers do.
    fn of(value: f64) -> Self;

    fn get(self) -> f64;

    /// The sum of small whole numbers times a factor that the type can hold, however large it is: integers wrap.
    fn scaled_sum(numbers: impl Iterator<Item = f64>, factor: f64) -> Self;

    /// Whether it will do where `wanted` is the truth: floats may be off by a few roundings of their type, integers not
    /// at all.
    fn passes_for(self, wanted: Self) -> bool;
}

macro_rules! floats {
    ($($type:ty: $tolerance:expr, $of:expr, $get:expr;)*) => {$(
        impl Sample for $type {
            fn of(value: f64) -> Self {
                $of(value)
            }
            fn get(self) -> f64 {
                $get(self)
            }
            fn scaled_sum(numbers: impl Iterator<Item = f64>, factor: f64) -> Self {
                $of(numbers.map(|number| $get($of(number * factor))).sum::<f64>())
            }
            fn passes_for(self, wanted: Self) -> bool {
                near($get(self), $get(wanted), $tolerance)
            }
        }
    )*};
}

#[allow(clippy::cast_possible_truncation, reason = "rounding is what is meant")]
const fn narrow(value: f64) -> f32 {
    value as f32
}

floats! {
    f16: 0.02, f16::from_f64, f16::to_f64;
    bf16: 0.1, bf16::from_f64, bf16::to_f64;
    f32: 1e-5, narrow, f64::from;
    f64: 1e-12, std::convert::identity, std::convert::identity;
}

macro_rules! integers {
    ($($type:ty)*) => {$(
        impl Sample for $type {
            #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::cast_possible_wrap,
                reason = "wrapping is what is meant")]
            fn of(value: f64) -> Self {
                value as i128 as Self
            }
            #[allow(clippy::cast_precision_loss, reason = "small numbers")]
            fn get(self) -> f64 {
                self as f64
            }
            #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::cast_possible_wrap,
                reason = "wrapping is what is meant")]
            fn scaled_sum(numbers: impl Iterator<Item = f64>, factor: f64) -> Self {
                // Wrapped once, in the end: the lowest bits do not depend on those above.
                let add = |sum: i128, number: f64| sum.wrapping_add((number as i128).wrapping_mul(factor as i128));
                numbers.fold(0, add) as Self
            }
            fn passes_for(self, wanted: Self) -> bool {
                self == wanted
            }
        }
    )*};
}

integers!(i8 i16 i32 i64 u8 u16 u32 u64);

/// So many zeros.
pub(crate) fn zeros<T: Sample>(len: usize) -> Result<Vec<T>> {
    let mut zeros = room(len)?;
    zeros.resize(len, T::of(0.0));
    Ok(zeros)
}

/// What rank `rank` contributes, wholly.
pub(super) fn fill<T: Sample>(op: ReduceOp, rank: usize, ranks: usize, into: &mut [T]) {
    // The pattern repeats after 5 elements, or after as many as there are ranks.
    let period = 5 * ranks;
    let pattern: Vec<T> = (0..period).map(|index| T::of(input(op, rank, ranks, index))).collect();
    for (element, &value) in into.iter_mut().zip(pattern.iter().cycle()) {
        *element = value;
    }
}

/// What rank `rank` contributes at `index`: numbers so small that no type overflows at a few ranks.
#[allow(clippy::cast_precision_loss, reason = "small numbers")]
fn input(op: ReduceOp, rank: usize, ranks: usize, index: usize) -> f64 {
    match op {
        ReduceOp::Product => 1.0 + f64::from(u8::from(index % ranks == rank)),
        _ => ((index * 7 + rank * 3) % 5 + 1) as f64,
    }
}

/// The reduction of all ranks' [`input`] at `index`.
#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::cast_precision_loss,
    reason = "small numbers"
)]
fn reduced<T: Sample>(op: ReduceOp, ranks: usize, index: usize) -> T {
    let inputs = (0..ranks).map(|rank| input(op, rank, ranks, index));
    let bits = (0..ranks).map(|rank| input(op, rank, ranks, index) as u64);
    let value = match op {
        ReduceOp::Sum => inputs.sum(),
        ReduceOp::Product => inputs.product(),
        ReduceOp::Min => inputs.fold(f64::INFINITY, f64::min),
        ReduceOp::Max => inputs.fold(f64::NEG_INFINITY, f64::max),
        // Integers wrap before they are divided.
        ReduceOp::Avg => T::of(inputs.sum()).get() / ranks as f64,
        ReduceOp::BitAnd => bits.fold(u64::MAX, |a, b| a & b) as f64,
        ReduceOp::BitOr => bits.fold(0, |a, b| a | b) as f64,
        ReduceOp::BitXor => bits.fold(0, |a, b| a ^ b) as f64,
        ReduceOp::PreMulSum(factor) => return T::scaled_sum(inputs, factor),
    };
    T::of(value)
}

/// How many elements of `output` are not the reduction of elements `first..` of all ranks' inputs.
pub(super) fn wrong_reduced<T: Sample>(op: ReduceOp, ranks: usize, first: usize, output: &[T]) -> u64 {
    // The inputs repeat after 5 (and, for products, after `ranks`) elements.
    let period = if op == ReduceOp::Product { ranks } else { 5 };
    let wanted: Vec<T> = (0..period).map(|index| reduced(op, ranks, index)).collect();
    count_wrong(output.iter().enumerate(), |index| wanted[(first + index) % period])
}

/// How many elements of `output` are not elements `first..` of rank `rank`'s input.
pub(super) fn wrong_copied<T: Sample>(rank: usize, ranks: usize, first: usize, output: &[T]) -> u64 {
    let wanted: Vec<T> = (0..5).map(|index| T::of(input(ReduceOp::Sum, rank, ranks, index))).collect();
    count_wrong(output.iter().enumerate(), |index| wanted[(first + index) % 5])
}

fn count_wrong<'a, T: Sample>(
    output: impl Iterator<Item = (usize, &'a T)>,
    wanted: impl Fn(usize) -> T,
) -> u64 {
    output.filter(|(index, got)| !got.passes_for(wanted(*index))).count() as u64
}

/// Whether two numbers differ by no more than this, relative to what is wanted.
fn near(got: f64, wanted: f64, tolerance: f64) -> bool {
    // Of infinities and NaNs no difference can be judged.
    let same = got == wanted || got.is_nan() && wanted.is_nan();
    let off = (got - wanted).abs();
    same || got.is_finite() && wanted.is_finite() && off <= wanted.abs() * tolerance
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_element_is_counted() {
        let sum = |index| (0..3).map(|rank| input(ReduceOp::Sum, rank, 3, index)).sum::<f64>();
        let mut output: Vec<f32> = (4..20).map(|index| f32::of(sum(index))).collect();
        assert_eq!(wrong_reduced(ReduceOp::Sum, 3, 4, &output), 0);
        output[7] += 1.0;
        output[9] = f32::NAN;
        assert_eq!(wrong_reduced(ReduceOp::Sum, 3, 4, &output), 2);
        assert_eq!(wrong_reduced(ReduceOp::Sum, 3, 5, &output[..3]), 3);
    }

    #[test]
    fn what_overflows_as_it_must_is_right() {
        let factors = [(1e9, f16::INFINITY), (f64::NEG_INFINITY, f16::NEG_INFINITY), (f64::NAN, f16::NAN)];
        for (factor, value) in factors {
            let wrong = |value| wrong_reduced(ReduceOp::PreMulSum(factor), 3, 0, &[value; 7]);
            assert_eq!((wrong(value), wrong(f16::ONE)), (0, 7), "{factor}");
        }
        assert_eq!(wrong_reduced(ReduceOp::Sum, 3, 0, &[f32::INFINITY, f32::NAN]), 2);
    }

    #[test]
    fn integers_wrap_and_truncate() {
        assert_eq!(u8::of(300.0), 44);
        assert_eq!(i8::of(-1.9), -1);
        assert_eq!(u64::of(1e19), 10_000_000_000_000_000_000);
    }

    #[test]
    fn large_factors_wrap_and_no_bit_may_be_wrong() {
        let wrong = |factor, output: &[i64]| wrong_reduced(ReduceOp::PreMulSum(factor), 3, 0, output);
        // The sums of three ranks' first inputs.
        let mut output = [7, 8, 9].map(|sum: i64| sum.wrapping_mul(4_000_000_000_000_000_000));
        assert_eq!(wrong(4e18, &output), 0);
        output[1] = output[1].wrapping_add(1);
        assert_eq!(wrong(4e18, &output), 1);
        let least = [7, 8, 9].map(|sum: i64| sum.wrapping_mul(i64::MIN));
        assert_eq!(wrong(-(2_f64.powi(63)), &least), 0);

        let output = [7, 8, 9].map(|sum: u64| sum.wrapping_mul(10_000_000_000_000_000_000));
        assert_eq!(wrong_reduced(ReduceOp::PreMulSum(1e19), 3, 0, &output), 0);
        let output = [7, 8, 9].map(|sum: i8| sum.wrapping_mul(-128));
        assert_eq!(wrong_reduced(ReduceOp::PreMulSum(-128.0), 3, 0, &output), 0);
    }
}
