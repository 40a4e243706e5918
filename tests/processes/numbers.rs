//! The ranks' contributions and the expected results, computed without the library's kernels.

#![allow(clippy::cast_possible_truncation, reason = "small numbers; integers wrap as the reductions do")]

use std::{fmt::Debug, ops::Range};

use half::{bf16, f16};
use unisono::{ReduceOp, dtype::Element};

use crate::random::Random;

/// An element that an oracle can reduce.
pub(crate) trait Number: Element + PartialEq + Debug {
    /// The relative rounding error; 0 for integers.
    const ROUNDING: f64;
    /// The element of a small number; integers wrap.
    fn of(value: i64) -> Self;
    /// The element of any number, rounded.
    fn near(value: f64) -> Self;
    fn value(self) -> f64;
    /// The reduction of all, one after the other.
    fn reduce(op: ReduceOp, all: &[Self]) -> Self;
    /// Their sum or average, reduced in order in `f32` (`f64` for that type), rounded at the end alone.
    fn in_order(op: ReduceOp, all: &[Self]) -> Self;
    /// The factor of pre-multiplied sums.
    fn factor() -> f64;
}

macro_rules! integers {
    ($($int:ty)*) => {$(
        impl Number for $int {
            const ROUNDING: f64 = 0.0;
            fn of(value: i64) -> Self {
                value as Self
            }
            fn near(value: f64) -> Self {
                value as Self
            }
            fn value(self) -> f64 {
                self as f64
            }
            fn factor() -> f64 {
                3.0
            }
            fn in_order(op: ReduceOp, all: &[Self]) -> Self {
                Self::reduce(op, all)
            }
            fn reduce(op: ReduceOp, all: &[Self]) -> Self {
                let numbers = all.iter().copied();
                let sum = numbers.clone().fold(0, Self::wrapping_add);
                match op {
                    ReduceOp::Sum => sum,
                    ReduceOp::Product => numbers.fold(1, Self::wrapping_mul),
                    ReduceOp::Min => numbers.min().unwrap_or_default(),
                    ReduceOp::Max => numbers.max().unwrap_or_default(),
                    ReduceOp::Avg => sum / all.len() as Self,
                    ReduceOp::BitAnd => numbers.fold(!0, |a, b| a & b),
                    ReduceOp::BitOr => numbers.fold(0, |a, b| a | b),
                    ReduceOp::BitXor => numbers.fold(0, |a, b| a ^ b),
                    ReduceOp::PreMulSum(factor) => sum.wrapping_mul(factor as Self),
                }
            }
        }
    )*};
}
integers!(i8 i16 i32 i64 u8 u16 u32 u64);

macro_rules! floats {
    ($($float:ty, $rounding:expr, $near:expr, $value:expr, $work:expr;)*) => {$(
        impl Number for $float {
            const ROUNDING: f64 = $rounding;
            fn of(value: i64) -> Self {
                Self::near(value as f64)
            }
            fn near(value: f64) -> Self {
                $near(value)
            }
            fn value(self) -> f64 {
                $value(self)
            }
            fn factor() -> f64 {
                0.5
            }
            fn in_order(op: ReduceOp, all: &[Self]) -> Self {
                let sum = all[1..].iter().fold(all[0].value(), |sum, next| $work(sum + next.value()));
                Self::near(if op == ReduceOp::Avg { $work(sum / all.len() as f64) } else { sum })
            }
            fn reduce(op: ReduceOp, all: &[Self]) -> Self {
                let numbers = all.iter().map(|number| number.value());
                Self::near(match op {
                    ReduceOp::Sum => numbers.sum(),
                    ReduceOp::Product => numbers.product(),
                    ReduceOp::Min => numbers.fold(f64::INFINITY, f64::min),
                    ReduceOp::Max => numbers.fold(f64::NEG_INFINITY, f64::max),
                    ReduceOp::Avg => numbers.sum::<f64>() / all.len() as f64,
                    ReduceOp::PreMulSum(factor) => numbers.map(|number| number * factor).sum(),
                    ReduceOp::BitAnd | ReduceOp::BitOr | ReduceOp::BitXor => f64::NAN,
                })
            }
        }
    )*};
}
// 16-bit floats are made from f32: half's conversion from f64 does not consider all bits that it rounds.
floats! {
    f16, 1.0 / (1_u64 << 11) as f64, |value| f16::from_f32(value as f32), f16::to_f64, single;
    bf16, 1.0 / (1_u64 << 8) as f64, |value| bf16::from_f32(value as f32), bf16::to_f64, single;
    f32, 1.0 / (1_u64 << 24) as f64, |value| value as f32, f64::from, single;
    f64, 1.0 / (1_u64 << 53) as f64, |value| value, |value| value, |value| value;
}

/// Rounds a sum or quotient of two `f32` to `f32`: once, because `f64` has more than twice the digits.
fn single(value: f64) -> f64 {
    f64::from(value as f32)
}

/// Every operation that fits the type.
pub(crate) fn operations<T: Number>() -> Vec<ReduceOp> {
    let mut all = ReduceOp::PLAIN.to_vec();
    all.push(ReduceOp::PreMulSum(T::factor()));
    all.retain(|op| op.check(T::DTYPE).is_ok());
    all
}

/// 64 pseudo-random bits.
fn random(seed: u64, rank: usize, index: usize) -> u64 {
    Random(seed ^ (rank as u64) << 48 ^ (index as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15)).bits()
}

/// A contribution: numbers so small that no type rounds a result of up to 8 ranks, except for averages, which are rounded once.
pub(crate) fn small<T: Number>(seed: u64, op: ReduceOp, rank: usize, index: usize) -> T {
    let random = random(seed, rank, index);
    T::of(match op {
        ReduceOp::Product => [1, -1, 2, -2][random as usize % 4],
        _ => random as i64 % 9,
    })
}

/// After this many elements [`numbers`] repeats itself: a prime number, so that no two places of blocks, slots and chunks have the same.
const PERIOD: usize = 1009;

/// The elements of a range of an endless row, of which `of` gives the first ones. Most of a test's time, without optimization, is the
/// computation of expected results: this computes one period, and copies the rest.
pub(crate) fn numbers<T: Copy>(range: Range<usize>, of: impl FnMut(usize) -> T) -> Vec<T> {
    let first = range.start % PERIOD;
    let period: Vec<T> = (0..if first == 0 { range.len().min(PERIOD) } else { PERIOD }).map(of).collect();
    let mut all = Vec::with_capacity(range.len());
    let mut from = first;
    while all.len() < range.len() {
        let end = period.len().min(from + range.len() - all.len());
        all.extend_from_slice(&period[from..end]);
        from = 0;
    }
    all
}

/// A contribution that causes rounding: numbers of very different sizes.
pub(crate) fn wild<T: Number>(seed: u64, rank: usize, index: usize) -> T {
    let random = random(seed, rank, index);
    let mantissa = (random >> 11) as f64 / (1_u64 << 52) as f64 - 1.0;
    T::near(mantissa * 2f64.powi((random % 13) as i32 - 6))
}
