//! One element at a time: what each operation does to each type. Written without branches, so that the
//! loops over it become vector code.

use half::{bf16, f16};

use crate::dtype::{Dtype, Scalar};

/// An element and the type it is computed in.
pub(super) trait Number: Scalar {
    /// Itself, or `f32` for 16-bit floats.
    type Intermediate: Intermediate;
    /// Exact.
    fn widen(self) -> Self::Intermediate;
    /// Rounded to nearest, ties to even.
    fn narrow(work: Self::Intermediate) -> Self;
}

/// What numbers are computed in.
pub(super) trait Intermediate: Copy {
    /// The factor in this type; `None` if it has none such.
    fn factor(factor: f64) -> Option<Self>;
    fn times(self, other: Self) -> Self;
    /// Divided by how many ranks there are, truncated toward zero if it is an integer.
    fn divided(self, ranks: usize) -> Self;
    /// The number itself, or the canonical NaN for any NaN.
    fn canonical(self) -> Self;
}

/// What `⊕` is.
pub(super) trait Operator<W> {
    fn apply(a: W, b: W) -> W;
}

pub(super) struct Sum;
pub(super) struct Product;
pub(super) struct Min;
pub(super) struct Max;
pub(super) struct BitAnd;
pub(super) struct BitOr;
pub(super) struct BitXor;

macro_rules! floats {
    ($($float:ident),*) => {$(
        impl Intermediate for $float {
            #[inline(always)]
            fn factor(factor: f64) -> Option<Self> {
                #[allow(clippy::cast_possible_truncation, reason = "rounding is what is wanted; f64 as f64 is not")]
                let rounded = factor as Self;
                (rounded.is_finite() == factor.is_finite()).then_some(rounded)
            }
            #[inline(always)]
            fn times(self, other: Self) -> Self { self * other }
            #[inline(always)]
            fn divided(self, ranks: usize) -> Self { self / ranks as Self }
            #[inline(always)]
            fn canonical(self) -> Self { if self.is_nan() { Self::NAN } else { self } }
        }
        // Equal numbers have equal bits, but for the zeros: or-ing gives -0, and-ing gives +0.
        impl Operator<$float> for Min {
            #[inline(always)]
            fn apply(a: $float, b: $float) -> $float {
                let less = if a < b { a } else { b };
                let same = $float::from_bits(a.to_bits() | b.to_bits());
                let ordered = if a == b { same } else { less };
                if a.is_nan() | b.is_nan() { $float::NAN } else { ordered }
            }
        }
        impl Operator<$float> for Max {
            #[inline(always)]
            fn apply(a: $float, b: $float) -> $float {
                let more = if a > b { a } else { b };
                let same = $float::from_bits(a.to_bits() & b.to_bits());
                let ordered = if a == b { same } else { more };
                if a.is_nan() | b.is_nan() { $float::NAN } else { ordered }
            }
        }
    )*};
}
floats!(f32, f64);

macro_rules! integers {
    ($($integer:ident { $divided:item })*) => {$(
        impl Intermediate for $integer {
            #[inline(always)]
            fn factor(factor: f64) -> Option<Self> {
                // A float that does not fit saturates; 2^127 fits in none of our types.
                #[expect(clippy::cast_possible_truncation, reason = "fractions are refused before")]
                let whole = (factor.fract() == 0.0).then_some(factor as i128)?;
                Self::try_from(whole).ok()
            }
            #[inline(always)]
            fn times(self, other: Self) -> Self { self.wrapping_mul(other) }
            #[inline(always)]
            fn canonical(self) -> Self { self }
            #[inline(always)]
            $divided
        }
    )*};
}

macro_rules! operation {
    ($operation:ident of $($number:ident)*: |$a:ident, $b:ident| $result:expr) => {$(
        impl Operator<$number> for $operation {
            #[inline(always)]
            fn apply($a: $number, $b: $number) -> $number { $result }
        }
    )*};
}
operation!(Sum of f32 f64: |a, b| a + b);
operation!(Product of f32 f64: |a, b| a * b);
operation!(Sum of i8 i16 i32 i64 u8 u16 u32 u64: |a, b| a.wrapping_add(b));
operation!(Product of i8 i16 i32 i64 u8 u16 u32 u64: |a, b| a.wrapping_mul(b));
operation!(Min of i8 i16 i32 i64 u8 u16 u32 u64: |a, b| a.min(b));
operation!(Max of i8 i16 i32 i64 u8 u16 u32 u64: |a, b| a.max(b));
operation!(BitAnd of i8 i16 i32 i64 u8 u16 u32 u64: |a, b| a & b);
operation!(BitOr of i8 i16 i32 i64 u8 u16 u32 u64: |a, b| a | b);
operation!(BitXor of i8 i16 i32 i64 u8 u16 u32 u64: |a, b| a ^ b);

macro_rules! signed {
    ($($signed:ident by $unsigned:ident),*) => {
        integers! {$(
            $signed {
                fn divided(self, ranks: usize) -> Self {
                    // The magnitude, because 128 ranks do not fit in an i8, but -128 / 128 is -1.
                    let whole = self.unsigned_abs().divided(ranks);
                    if self < 0 { (0 as Self).wrapping_sub_unsigned(whole) } else { (0 as Self).wrapping_add_unsigned(whole) }
                }
            }
        )*}
        integers! {$(
            $unsigned {
                fn divided(self, ranks: usize) -> Self {
                    // More ranks than the type can hold: less than one each. No ranks: nothing to divide.
                    Self::try_from(ranks).map_or(0, |ranks| self.checked_div(ranks).unwrap_or(self))
                }
            }
        )*}
    };
}
signed!(i8 by u8, i16 by u16, i32 by u32, i64 by u64);

macro_rules! own {
    ($($number:ident),*) => {$(
        impl Number for $number {
            type Intermediate = Self;
            #[inline(always)]
            fn widen(self) -> Self { self }
            #[inline(always)]
            fn narrow(work: Self) -> Self { work }
        }
    )*};
}
own!(f32, f64, i8, i16, i32, i64, u8, u16, u32, u64);

impl Number for bf16 {
    type Intermediate = f32;

    #[inline(always)]
    fn widen(self) -> f32 {
        f32::from_bits(u32::from(self.to_bits()) << 16)
    }

    #[inline(always)]
    fn narrow(work: f32) -> Self {
        let [high, low, ..] = bf16_above(work).to_be_bytes();
        Self::from_bits(u16::from_be_bytes([high, low]))
    }
}

/// The bits of the bf16 nearest to a number, in the upper half; the lower half means nothing.
#[inline(always)]
pub(super) fn bf16_above(work: f32) -> u32 {
    let bits = work.to_bits();
    // Half of the last place, less one if that place is even: a carry rounds up, and ties to even.
    let rounded = bits.wrapping_add(0x7fff + ((bits >> 16) & 1));
    // A NaN must stay one, even if its payload lies in the lower half.
    if work.is_nan() { bits | 0x0040_0000 } else { rounded }
}

impl Number for f16 {
    type Intermediate = f32;

    #[inline(always)]
    fn widen(self) -> f32 {
        let bits = u32::from(self.to_bits());
        // The exponent's bias is 15 here and 127 there: 2^112 between them, for subnormals too.
        let magnitude = f32::from_bits((bits & 0x7fff) << 13) * f32::from_bits((127 + 112) << 23);
        let infinite = if bits & 0x7c00 == 0x7c00 { 0x7f80_0000 } else { 0 };
        f32::from_bits(magnitude.to_bits() | infinite | (bits & 0x8000) << 16)
    }

    #[inline(always)]
    fn narrow(work: f32) -> Self {
        let (bits, magnitude) = (work.to_bits(), work.abs().to_bits());
        // Normal: half of the last place, less one if that is even; then the other bias.
        let normal = magnitude.wrapping_add(0xfff + ((magnitude >> 13) & 1)).wrapping_sub(112 << 23) >> 13;
        // Below 2^-14: adding 1/2 rounds to multiples of 2^-24, which then are the lowest bits.
        let subnormal = (work.abs() + 0.5).to_bits().wrapping_sub(0.5f32.to_bits());
        let finite = if magnitude < 113 << 23 { subnormal } else { normal };
        // From 65520 on, halfway between the greatest and the next, numbers round to infinity.
        let bounded = if magnitude < 0x477f_f000 { finite } else { 0x7c00 };
        let all = if work.is_nan() { 0x7e00 | (magnitude >> 13 & 0x3ff) } else { bounded };
        let [.., high, low] = (all | (bits >> 16 & 0x8000)).to_be_bytes();
        Self::from_bits(u16::from_be_bytes([high, low]))
    }
}

/// Checks that numbers of the type can be multiplied by the factor; if not, says why.
pub(super) fn check_factor(dtype: Dtype, factor: f64) -> Result<(), String> {
    let (fits, wanted) = match dtype {
        Dtype::F16 | Dtype::BF16 | Dtype::F32 => (f32::factor(factor).is_some(), "a number f32 can hold"),
        Dtype::F64 => (true, ""),
        Dtype::I8 => (i8::factor(factor).is_some(), "a whole number from -128 to 127"),
        Dtype::I16 => (i16::factor(factor).is_some(), "a whole number from -32768 to 32767"),
        Dtype::I32 => (i32::factor(factor).is_some(), "a whole number from -2^31 to 2^31 - 1"),
        Dtype::I64 => (i64::factor(factor).is_some(), "a whole number from -2^63 to below 2^63"),
        Dtype::U8 => (u8::factor(factor).is_some(), "a whole number from 0 to 255"),
        Dtype::U16 => (u16::factor(factor).is_some(), "a whole number from 0 to 65535"),
        Dtype::U32 => (u32::factor(factor).is_some(), "a whole number from 0 to 2^32 - 1"),
        Dtype::U64 => (u64::factor(factor).is_some(), "a whole number from 0 to below 2^64"),
    };
    if fits {
        Ok(())
    } else {
        let factor = super::Factor(factor);
        Err(format!("premulsum's factor is {factor}, and for {dtype} it must be {wanted}"))
    }
}
