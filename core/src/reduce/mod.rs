//! Reductions: the operations, the types that they are defined for, and the kernels that compute them.
//!
//! All operations are commutative. Integer sums and products wrap. 16-bit floats are computed in `f32` and rounded to nearest,
//! ties to even: after each step, or with [`Reduction::Reproducible`] once at the end. Min and max propagate NaN and order -0 below
//! +0. The sign and payload of a resulting NaN are unspecified, except that min and max give the canonical NaN. In a world of one
//! rank the result is the input.

mod arithmetic;
mod kernel;
mod loops;
mod total;

pub use kernel::{Kernel, KernelError};

use crate::dtype::Dtype;

/// What the bits of a result depend on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Reduction {
    /// The fastest algorithm. Every rank gets the same bits, except for the payload of NaN. Sums and products of floats may be
    /// rounded differently with another algorithm, chunk or size.
    #[default]
    Fastest,
    /// The same bits for the same inputs and world size, whatever the algorithm, chunk, lanes, provider or size of the call:
    /// contributions are reduced in the order of ranks, `((x0 ⊕ x1) ⊕ x2) ...`; 16-bit floats in `f32` and rounded once; a NaN is
    /// the canonical one, except in a world of one rank. With [`ReduceOp::PreMulSum`] the contributions are the products.
    Reproducible,
}

impl Reduction {
    /// Its name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Fastest => "fastest",
            Self::Reproducible => "reproducible",
        }
    }

    /// The reduction with this name.
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        [Self::Fastest, Self::Reproducible].into_iter().find(|reduction| reduction.name() == name)
    }
}

/// The operation of a reduction.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ReduceOp {
    /// The sum; integers wrap.
    Sum,
    /// The product; integers wrap.
    Product,
    /// The minimum; NaN if a contribution is NaN.
    Min,
    /// The maximum; NaN if a contribution is NaN.
    Max,
    /// The sum divided by the number of ranks; integers are truncated toward zero, as in NCCL. The sum has the element type:
    /// integers wrap, and a sum of `f16` beyond 65504 becomes infinite, even if the average is not. For `f16`,
    /// [`ReduceOp::PreMulSum`] with the factor 1 / number of ranks and [`Reduction::Reproducible`] avoid that.
    Avg,
    /// Bitwise and; integers only.
    BitAnd,
    /// Bitwise or; integers only.
    BitOr,
    /// Bitwise exclusive or; integers only.
    BitXor,
    /// The sum of products: each rank's contribution times its own factor, rounded to the type. The factor is rounded to `f32` for
    /// `f16`, `bf16` and `f32`; for integers it must be representable in the type.
    PreMulSum(f64),
}

/// The names of the operations by their codes, each with others that mean the same.
const NAMES: [&[&str]; 9] = [
    &["sum"],
    &["product", "prod"],
    &["min"],
    &["max"],
    &["avg", "average", "mean"],
    &["band", "bitand"],
    &["bor", "bitor"],
    &["bxor", "bitxor"],
    &["premulsum", "mulsum"],
];

impl ReduceOp {
    /// The operations without a factor, in the order of their codes on the wire; [`ReduceOp::PreMulSum`] has the next code.
    pub const PLAIN: [Self; 8] =
        [Self::Sum, Self::Product, Self::Min, Self::Max, Self::Avg, Self::BitAnd, Self::BitOr, Self::BitXor];

    /// Its name, without the factor.
    #[must_use]
    pub const fn name(self) -> &'static str {
        NAMES[self.code().0 as usize][0]
    }

    /// The operation of this name: as [`ReduceOp::name`] says, or in the words of nccl-tests, MPI and
    /// torch (`prod`, `average`, `mean`, `mulsum`). A factor follows its name: `premulsum(0.5)` or
    /// `premulsum:0.5`.
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        let code = |word: &str| NAMES.iter().position(|names| names.contains(&word));
        let Some((word, factor)) =
            name.strip_suffix(')').and_then(|open| open.split_once('(')).or_else(|| name.split_once(':'))
        else {
            return Self::PLAIN.get(code(name)?).copied();
        };
        let factor = factor.trim().parse().ok()?;
        (code(word)? == Self::PLAIN.len()).then_some(Self::PreMulSum(factor))
    }

    /// Its code on the wire, in which ranks agree, and the bits of its factor (0 where there is none), which is each
    /// rank's own.
    #[doc(hidden)]
    pub const fn code(self) -> (u8, u64) {
        match self {
            Self::Sum => (0, 0),
            Self::Product => (1, 0),
            Self::Min => (2, 0),
            Self::Max => (3, 0),
            Self::Avg => (4, 0),
            Self::BitAnd => (5, 0),
            Self::BitOr => (6, 0),
            Self::BitXor => (7, 0),
            Self::PreMulSum(factor) => (8, factor.to_bits()),
        }
    }

    /// The operation of this code and these bits, if there is one.
    #[doc(hidden)]
    pub fn from_code(code: u8, factor: u64) -> Option<Self> {
        if code == 8 {
            return Some(Self::PreMulSum(f64::from_bits(factor)));
        }
        Self::PLAIN.get(usize::from(code)).copied().filter(|_| factor == 0)
    }

    /// Checks that the operation is defined for the type; if not, the error is a sentence that says why.
    pub fn check(self, dtype: Dtype) -> Result<(), String> {
        match self {
            Self::BitAnd | Self::BitOr | Self::BitXor if dtype.is_float() => {
                Err(format!("{self} works on the bits of integers, and {dtype} is a float type"))
            }
            Self::PreMulSum(factor) => arithmetic::check_factor(dtype, factor),
            _ => Ok(()),
        }
    }
}

/// A factor as text, with an exponent if it would have many zeros. It can be parsed back.
struct Factor(f64);

impl std::fmt::Display for Factor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self(factor) = *self;
        let short = factor == 0.0 || (1e-5..1e16).contains(&factor.abs()) || !factor.is_finite();
        if short { write!(f, "{factor}") } else { write!(f, "{factor:e}") }
    }
}

impl std::fmt::Display for ReduceOp {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::PreMulSum(factor) => write!(f, "premulsum({})", Factor(*factor)),
            plain => f.write_str(plain.name()),
        }
    }
}

#[cfg(test)]
mod tests;
