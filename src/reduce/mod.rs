//! Reductions: which operations there are, which elements they fit, and the kernels that do them.
//!
//! All operations are commutative. Integer sums and products wrap. 16-bit floats are computed in `f32` and
//! rounded to nearest, ties to even: once per step, and by [`Reduction::Reproducible`] once in all. NaN
//! propagates through min and max, and -0 is below +0 there. Which NaN comes out (its sign and payload) is not
//! said, except by min and max, which give the canonical one. A rank alone keeps what it has.

mod arithmetic;
mod kernel;
mod loops;
mod total;

pub use kernel::{Kernel, KernelError};

use crate::dtype::Dtype;

/// What is asked of a reduction beyond its result.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Reduction {
    /// The result as fast as it can be had. Every rank gets the same bits, but for which NaN; other algorithms, chunks or
    /// sizes may round sums and products of floats otherwise.
    #[default]
    Fastest,
    /// The same bits for the same inputs and world size, whatever algorithm, chunk, lanes, provider or size of the
    /// call: contributions are reduced in the order of ranks, `((x0 ⊕ x1) ⊕ x2) ...`; those of 16-bit floats in
    /// `f32`, rounded once; NaN is the canonical one, except of a rank alone, which keeps what it has. Of
    /// [`ReduceOp::PreMulSum`] what is reduced so are the products.
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

    /// The one of this name.
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        [Self::Fastest, Self::Reproducible].into_iter().find(|reduction| reduction.name() == name)
    }
}

/// How contributions become one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ReduceOp {
    /// Their sum; integers wrap.
    Sum,
    /// Their product; integers wrap.
    Product,
    /// The least; NaN if there is one.
    Min,
    /// The greatest; NaN if there is one.
    Max,
    /// The sum divided by the number of ranks; integers are truncated toward zero, as in NCCL. The sum is taken in the
    /// type: integers wrap, and an `f16` beyond 65504 becomes infinite, even where the average would not. Of `f16`,
    /// [`ReduceOp::PreMulSum`] of one by the number of ranks and [`Reduction::Reproducible`] avoid that.
    Avg,
    /// The bits that are set in all; integers only.
    BitAnd,
    /// The bits that are set in any; integers only.
    BitOr,
    /// The bits that are set in an odd number; integers only.
    BitXor,
    /// Each contribution times this factor, each rank's own, and rounded to the type; then their sum. The factor is
    /// rounded to `f32` for `f16`, `bf16` and `f32`; for integers it must be one that the type can hold.
    PreMulSum(f64),
}

impl ReduceOp {
    /// The operations that have no factor, in the order of their codes on the wire; the code of
    /// [`ReduceOp::PreMulSum`] follows theirs.
    pub const PLAIN: [Self; 8] =
        [Self::Sum, Self::Product, Self::Min, Self::Max, Self::Avg, Self::BitAnd, Self::BitOr, Self::BitXor];

    /// Its name, without the factor.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Sum => "sum",
            Self::Product => "product",
            Self::Min => "min",
            Self::Max => "max",
            Self::Avg => "avg",
            Self::BitAnd => "band",
            Self::BitOr => "bor",
            Self::BitXor => "bxor",
            Self::PreMulSum(_) => "premulsum",
        }
    }

    /// The operation of this name: as [`ReduceOp::name`] says, or in the words of nccl-tests, MPI and
    /// torch (`prod`, `average`, `mean`, `mulsum`). A factor follows its name: `premulsum(0.5)` or
    /// `premulsum:0.5`.
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        Some(match name {
            "sum" => Self::Sum,
            "product" | "prod" => Self::Product,
            "min" => Self::Min,
            "max" => Self::Max,
            "avg" | "average" | "mean" => Self::Avg,
            "band" | "bitand" => Self::BitAnd,
            "bor" | "bitor" => Self::BitOr,
            "bxor" | "bitxor" => Self::BitXor,
            _ => {
                let (word, factor) = name
                    .strip_suffix(')')
                    .and_then(|open| open.split_once('('))
                    .or_else(|| name.split_once(':'))?;
                if !matches!(word, "premulsum" | "mulsum") {
                    return None;
                }
                Self::PreMulSum(factor.trim().parse().ok()?)
            }
        })
    }

    /// Its code on the wire, in which ranks agree, and the bits of its factor (0 where there is none), which is each
    /// rank's own.
    #[must_use]
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
    #[must_use]
    pub fn from_code(code: u8, factor: u64) -> Option<Self> {
        if code == 8 {
            return Some(Self::PreMulSum(f64::from_bits(factor)));
        }
        Self::PLAIN.get(usize::from(code)).copied().filter(|_| factor == 0)
    }

    /// Whether the operation fits the type; if not, why, in words for people.
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

/// A factor as people read it: with an exponent where it would have many zeros. It can be read back.
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
