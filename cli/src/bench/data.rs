//! Values that the bench sends, and the results expected of them. Values differ by rank, element and block, and are small
//! enough that rounding changes a result by less than any one rank contributes.

use std::{convert::identity, ops::DerefMut};

use half::{bf16, f16};
use unisono::{
    Buffer, ProcessGroup,
    buffer::{Elements, Owned},
    dtype::Element,
    reduce::ReduceOp,
};

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

/// As [`with_dtype`], of a [`Bench`](super::Bench): a name stands for the memory of its elements, an [`OperandMemory`].
macro_rules! with_memory {
    ($bench:expr, $memory:ident => $body:expr) => {
        $crate::bench::data::with_dtype!($bench.dtype, T => if $bench.asked.registered {
            type $memory = unisono::Buffer<T>;
            $body
        } else {
            type $memory = Vec<T>;
            $body
        })
    };
}
pub(super) use with_memory;

/// The memory of an operand that is measured: plain or registered.
pub(crate) trait OperandMemory:
    Sized + Owned<Element: Sample> + DerefMut<Target = [<Self as Elements>::Element]>
{
    fn zeros(group: &ProcessGroup, len: usize) -> Result<Self>;
}

impl<T: Sample> OperandMemory for Vec<T> {
    fn zeros(_: &ProcessGroup, len: usize) -> Result<Self> {
        zeros(len)
    }
}

impl<T: Sample> OperandMemory for Buffer<T> {
    fn zeros(group: &ProcessGroup, len: usize) -> Result<Self> {
        Ok(group.buffer(len)?)
    }
}

/// An element type whose values are made of small numbers and checked.
pub(crate) trait Sample: Element + PartialEq {
    /// A float represents all whole numbers up to 2 to the power of this; sums of integers wrap, so they have no limit.
    const DIGITS: u32;

    /// A value that is no result: NaN; for integers all bits, which only 8-bit sums of some 40 ranks can have.
    const SPOILT: Self;

    /// The value as this type; integers wrap.
    fn of(value: f64) -> Self;

    fn get(self) -> f64;

    /// The sum of small whole numbers times a factor; integers wrap.
    fn scaled_sum(numbers: impl Iterator<Item = f64>, factor: f64) -> Self;
}

macro_rules! floats {
    ($($type:ty: $of:expr, $factor:expr;)*) => {$(
        impl Sample for $type {
            const DIGITS: u32 = <$type>::MANTISSA_DIGITS;
            const SPOILT: Self = <$type>::NAN;
            fn of(value: f64) -> Self {
                $of(value)
            }
            fn get(self) -> f64 {
                f64::from(self)
            }
            fn scaled_sum(numbers: impl Iterator<Item = f64>, factor: f64) -> Self {
                let factor = $factor(factor);
                $of(numbers.map(|number| f64::from($of(number * factor))).sum::<f64>())
            }
        }
    )*};
}

#[allow(clippy::cast_possible_truncation, reason = "rounding is what is meant")]
const fn narrow(value: f64) -> f32 {
    value as f32
}

/// A factor as the types that compute in f32 round it: very small ones have few digits there.
const fn narrowed(factor: f64) -> f64 {
    narrow(factor) as f64
}

floats! {
    f16: f16::from_f64, narrowed;
    bf16: bf16::from_f64, narrowed;
    f32: narrow, narrowed;
    f64: identity, identity;
}

macro_rules! integers {
    ($($type:ty)*) => {$(
        impl Sample for $type {
            const DIGITS: u32 = u32::MAX;
            const SPOILT: Self = !0;
            #[allow(clippy::cast_possible_truncation, reason = "wrapping is what is meant")]
            fn of(value: f64) -> Self {
                value as i128 as Self
            }
            fn get(self) -> f64 {
                self as f64
            }
            #[allow(clippy::cast_possible_truncation, reason = "wrapping is what is meant")]
            fn scaled_sum(numbers: impl Iterator<Item = f64>, factor: f64) -> Self {
                // Wrapped once at the end: the lowest bits do not depend on the higher ones.
                let add = |sum: i128, number: f64| sum.wrapping_add((number as i128).wrapping_mul(factor as i128));
                numbers.fold(0, add) as Self
            }
        }
    )*};
}

integers!(i8 i16 i32 i64 u8 u16 u32 u64);

/// A vector of zeros.
pub(crate) fn zeros<T: Sample>(len: usize) -> Result<Vec<T>> {
    let mut zeros = room(len)?;
    zeros.resize(len, T::of(0.0));
    Ok(zeros)
}

/// The period of the numbers over elements and over ranks: a prime, so that blocks of usual lengths differ.
const PERIOD: usize = 97;

/// The number of rank `rank` at `index`: from 1 to 97, which every type represents.
fn number(rank: usize, index: usize) -> usize {
    (index * 7 + rank * 31) % PERIOD + 1
}

/// The terms that ranks give to a reduction, and its results.
struct Terms {
    op: ReduceOp,
    ranks: usize,
    /// In a sum, one in this many ranks has a term and the others 0: so few that no partial sum is rounded or, if the operation itself
    /// rounds, that all roundings together are less than the smallest term.
    sparse: usize,
}

impl Terms {
    fn of<T: Sample>(op: ReduceOp, ranks: usize) -> Self {
        let digits = match op {
            ReduceOp::Sum => T::DIGITS,
            ReduceOp::Avg | ReduceOp::PreMulSum(_) => T::DIGITS / 2,
            _ => u32::MAX,
        };
        // A term is at most 5, and more digits than 30 would not matter with any number of ranks.
        let most = (1_usize << digits.min(30)) / 5;
        Self { op, ranks, sparse: ranks.div_ceil(most) }
    }

    /// The number of elements after which the terms repeat.
    fn period(&self) -> usize {
        if self.op == ReduceOp::Product { self.ranks + 1 } else { PERIOD * self.sparse }
    }

    /// The term of rank `rank` at `index`.
    fn term(&self, rank: usize, index: usize) -> usize {
        match self.op {
            ReduceOp::Sum | ReduceOp::Avg | ReduceOp::PreMulSum(_) => {
                if (index + rank).is_multiple_of(self.sparse) { number(rank, index) % 5 + 1 } else { 0 }
            }
            // Only one rank has a factor, so that no type overflows.
            ReduceOp::Product => {
                if index % (self.ranks + 1) == rank {
                    2 + rank % 2
                } else {
                    1
                }
            }
            ReduceOp::Min | ReduceOp::Max | ReduceOp::BitAnd | ReduceOp::BitOr | ReduceOp::BitXor => {
                number(rank, index)
            }
        }
    }

    /// The reduction of all ranks' terms at `index`.
    fn reduced<T: Sample>(&self, index: usize) -> T {
        let first = (self.sparse - index % self.sparse) % self.sparse;
        let terms = (first..self.ranks).step_by(self.sparse).map(|rank| self.term(rank, index));
        let value = match self.op {
            ReduceOp::Sum => terms.sum(),
            ReduceOp::Product => terms.product(),
            ReduceOp::Min => terms.min().unwrap_or_default(),
            ReduceOp::Max => terms.max().unwrap_or_default(),
            ReduceOp::BitAnd => terms.fold(usize::MAX, |a, b| a & b),
            ReduceOp::BitOr => terms.fold(0, |a, b| a | b),
            ReduceOp::BitXor => terms.fold(0, |a, b| a ^ b),
            // Integers wrap before they are divided.
            ReduceOp::Avg => return T::of(T::of(terms.sum::<usize>() as f64).get() / self.ranks as f64),
            ReduceOp::PreMulSum(factor) => {
                // The zeros of the other ranks matter if the factor is infinite.
                let others = (self.sparse > 1).then_some(0);
                return T::scaled_sum(terms.chain(others).map(|term| term as f64), factor);
            }
        };
        T::of(value as f64)
    }

    /// The number of roundings by which a float may differ from the result.
    fn roundings(&self) -> usize {
        match self.op {
            ReduceOp::Avg => 2,
            ReduceOp::PreMulSum(_) => self.ranks.div_ceil(self.sparse) + 1,
            _ => 0,
        }
    }
}

/// Fills in the terms that rank `rank` gives to a reduction.
pub(super) fn fill_reduced<T: Sample>(op: ReduceOp, rank: usize, ranks: usize, into: &mut [T]) {
    let terms = Terms::of::<T>(op, ranks);
    repeat(terms.period(), into, |index| terms.term(rank, index));
}

/// Fills in the numbers of rank `rank` from `first` on, for calls that copy.
pub(super) fn fill_copied<T: Sample>(rank: usize, first: usize, into: &mut [T]) {
    repeat(PERIOD, into, |index| number(rank, first + index));
}

/// Fills with the first `period` numbers, repeated.
fn repeat<T: Sample>(period: usize, into: &mut [T], number: impl Fn(usize) -> usize) {
    let numbers: Vec<T> = (0..period.min(into.len())).map(|index| T::of(number(index) as f64)).collect();
    for (element, &number) in into.iter_mut().zip(numbers.iter().cycle()) {
        *element = number;
    }
}

/// The number of elements of `output` that are not the reduction of all ranks' terms from `first` on.
pub(super) fn wrong_reduced<T: Sample>(op: ReduceOp, ranks: usize, first: usize, output: &[T]) -> u64 {
    let terms = Terms::of::<T>(op, ranks);
    let (period, roundings) = (terms.period(), terms.roundings());
    count_wrong(period, output, roundings, |index| terms.reduced((first + index) % period))
}

/// The number of elements of `output` that are not the numbers of rank `rank` from `first` on.
pub(super) fn wrong_copied<T: Sample>(rank: usize, first: usize, output: &[T]) -> u64 {
    count_wrong(PERIOD, output, 0, |index| T::of(number(rank, first + index) as f64))
}

fn count_wrong<T: Sample>(period: usize, output: &[T], roundings: usize, wanted: impl Fn(usize) -> T) -> u64 {
    let wanted: Vec<T> = (0..period.min(output.len())).map(wanted).collect();
    let pairs = output.iter().zip(wanted.iter().cycle());
    // A rounding relative to the value is 2 to the power of -(digits - 1). Integers are exact.
    let tolerance = roundings as f64 * (1.0 - f64::from(T::DIGITS)).exp2();
    let is_right =
        |got: T, wanted: T| got == wanted || tolerance > 0.0 && is_near(got.get(), wanted.get(), tolerance);
    pairs.filter(|(got, wanted)| !is_right(**got, **wanted)).count() as u64
}

/// True if two numbers differ by at most `tolerance`, relative to `wanted`.
fn is_near(got: f64, wanted: f64, tolerance: f64) -> bool {
    // Infinities and NaNs have no difference to judge.
    let finite = got.is_finite() && wanted.is_finite();
    got.is_nan() && wanted.is_nan() || finite && (got - wanted).abs() <= wanted.abs() * tolerance
}

#[cfg(test)]
mod tests {
    use unisono::dtype::Dtype;

    use super::*;

    /// What ranks give, each a vector of this many elements.
    fn given<T: Sample>(op: ReduceOp, ranks: usize, len: usize) -> Vec<Vec<T>> {
        let mut given = vec![vec![T::SPOILT; len]; ranks];
        given.iter_mut().enumerate().for_each(|(rank, into)| fill_reduced(op, rank, ranks, into));
        given
    }

    fn operations(dtype: Dtype) -> impl Iterator<Item = ReduceOp> {
        let all = ReduceOp::PLAIN.into_iter().chain([2.0, 0.3].map(ReduceOp::PreMulSum));
        all.filter(move |op| op.check(dtype).is_ok())
    }

    #[test]
    fn a_dropped_contribution_is_noticed() {
        const LEN: usize = 300;
        fn check<T: Sample>() {
            for ranks in [30, 60, 200] {
                for op in [ReduceOp::Sum, ReduceOp::Avg, ReduceOp::PreMulSum(3.0)] {
                    let given = given::<T>(op, ranks, LEN);
                    let sum = |index: usize| given.iter().map(|data| data[index].get()).sum::<f64>();
                    let sums: Vec<f64> = (0..LEN).map(sum).collect();
                    let wrong = |rank: Option<usize>| {
                        let left =
                            |index: usize| sums[index] - rank.map_or(0.0, |rank| given[rank][index].get());
                        let reduced = |index| match op {
                            ReduceOp::Avg => left(index) / ranks as f64,
                            ReduceOp::PreMulSum(factor) => left(index) * factor,
                            _ => left(index),
                        };
                        let output: Vec<T> = (0..LEN).map(|index| T::of(reduced(index))).collect();
                        wrong_reduced(op, ranks, 0, &output)
                    };
                    assert_eq!(wrong(None), 0, "{op} of {ranks}");
                    for rank in (0..ranks).step_by(3) {
                        assert!(wrong(Some(rank)) > 0, "{op} of {ranks} without rank {rank}");
                    }
                }
            }
        }
        check::<bf16>();
        check::<f16>();
    }

    #[test]
    fn right_results_are_right_in_whatever_order_they_are_reduced() {
        fn check<T: Sample>(op: ReduceOp, ranks: usize, name: &str) {
            let mut given = given::<T>(op, ranks, 100);
            for order in ["ascending", "descending"] {
                let reduced: Vec<T> = (0..100)
                    .map(|index| {
                        let terms = given.iter().map(|data| data[index].get());
                        let round = |value: f64| T::of(value).get();
                        T::of(match op {
                            ReduceOp::Sum => terms.fold(0.0, |a, b| round(a + b)),
                            ReduceOp::Product => terms.fold(1.0, |a, b| round(a * b)),
                            ReduceOp::Min => terms.fold(f64::INFINITY, f64::min),
                            ReduceOp::Max => terms.fold(0.0, f64::max),
                            ReduceOp::Avg => terms.fold(0.0, |a, b| round(a + b)) / ranks as f64,
                            ReduceOp::BitAnd => terms.map(u8::of).fold(255, |a, b| a & b).get(),
                            ReduceOp::BitOr => terms.map(u8::of).fold(0, |a, b| a | b).get(),
                            ReduceOp::BitXor => terms.map(u8::of).fold(0, |a, b| a ^ b).get(),
                            ReduceOp::PreMulSum(factor) => {
                                terms.fold(0.0, |a, b| round(a + round(b * factor)))
                            }
                        })
                    })
                    .collect();
                assert_eq!(wrong_reduced(op, ranks, 0, &reduced), 0, "{op} of {ranks} {name}, {order}");
                given.reverse();
            }
        }
        for dtype in Dtype::ALL {
            for op in operations(dtype) {
                for ranks in [1, 3, 60] {
                    with_dtype!(dtype, T => check::<T>(op, ranks, dtype.name()));
                }
            }
        }
    }

    #[test]
    fn spoilt_memory_is_wrong_for_every_operation_and_type() {
        fn check<T: Sample>(op: ReduceOp, ranks: usize) {
            let wrong = wrong_reduced(op, ranks, 0, &[T::SPOILT; 500]);
            assert_eq!(wrong, 500, "{op} of {} among {ranks} ranks", T::DTYPE);
            assert_eq!(wrong_copied(ranks, 0, &[T::SPOILT; 97]), 97);
        }
        for dtype in Dtype::ALL {
            for op in operations(dtype) {
                for ranks in [1, 2, 3, 8, 24, 27] {
                    with_dtype!(dtype, T => check::<T>(op, ranks));
                }
            }
        }
    }

    #[test]
    fn ranks_blocks_and_messages_differ() {
        let of = |rank, first| {
            let mut data = [0_u8; 8];
            fill_copied(rank, first, &mut data);
            data
        };
        for other in 1..PERIOD {
            assert!(of(other, 0).iter().zip(of(0, 0)).all(|(a, b)| *a != b), "ranks 0 and {other}");
            assert_eq!(wrong_copied(0, other, &of(0, 0)), 8, "elements 0 and {other}");
        }
        // Reductions find it too: a block in the place of another.
        let sums: Vec<f32> = (0..64).map(|index| Terms::of::<f32>(ReduceOp::Sum, 5).reduced(index)).collect();
        assert_eq!(wrong_reduced(ReduceOp::Sum, 5, 0, &sums), 0);
        assert!((1..8).all(|block| wrong_reduced(ReduceOp::Sum, 5, 0, &sums[block * 8..][..8]) > 0));
    }

    #[test]
    fn what_overflows_as_it_must_is_right() {
        let factors = [(1e9, f16::INFINITY), (f64::NEG_INFINITY, f16::NEG_INFINITY), (f64::NAN, f16::NAN)];
        for (factor, value) in factors {
            let wrong = |value| wrong_reduced(ReduceOp::PreMulSum(factor), 3, 0, &[value; 7]);
            assert_eq!((wrong(value), wrong(f16::ONE)), (0, 7), "{factor}");
        }
        // A factor of which f32 has five digits.
        let tiny = f32::from_bits(71362);
        let sum: f32 = sums::<f32>().next().unwrap();
        assert_eq!(wrong_reduced(ReduceOp::PreMulSum(1e-40), 3, 0, &[tiny * sum]), 0);
        // Zeros that some ranks give to sums.
        assert_eq!(wrong_reduced(ReduceOp::PreMulSum(f64::INFINITY), 30, 0, &[bf16::NAN; 7]), 0);
        assert_eq!(wrong_reduced(ReduceOp::Sum, 3, 0, &[f32::INFINITY, f32::NAN]), 2);
    }

    #[test]
    fn integers_wrap_and_truncate() {
        assert_eq!(u8::of(300.0), 44);
        assert_eq!(i8::of(-1.9), -1);
        assert_eq!(u64::of(1e19), 10_000_000_000_000_000_000);
    }

    fn sums<T: Sample>() -> impl Iterator<Item = T> {
        (0..3).map(|index| Terms::of::<T>(ReduceOp::Sum, 3).reduced(index))
    }

    #[test]
    fn large_factors_wrap_and_no_bit_may_be_wrong() {
        let wrong = |factor, output: &[i64]| wrong_reduced(ReduceOp::PreMulSum(factor), 3, 0, output);
        let mut output: Vec<i64> =
            sums().map(|sum: i64| sum.wrapping_mul(4_000_000_000_000_000_000)).collect();
        assert_eq!(wrong(4e18, &output), 0);
        output[1] = output[1].wrapping_add(1);
        assert_eq!(wrong(4e18, &output), 1);
        let least: Vec<i64> = sums().map(|sum: i64| sum.wrapping_mul(i64::MIN)).collect();
        assert_eq!(wrong(-(2_f64.powi(63)), &least), 0);

        let output: Vec<u64> = sums().map(|sum: u64| sum.wrapping_mul(10_000_000_000_000_000_000)).collect();
        assert_eq!(wrong_reduced(ReduceOp::PreMulSum(1e19), 3, 0, &output), 0);
        let output: Vec<i8> = sums().map(|sum: i8| sum.wrapping_mul(-128)).collect();
        assert_eq!(wrong_reduced(ReduceOp::PreMulSum(-128.0), 3, 0, &output), 0);
    }
}
