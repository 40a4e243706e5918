//! Kernels against naive oracles, which share no code with them: floats of 16 bits are converted by
//! `half`, integers are computed in 128 bits, and order comes from `total_cmp`.

use half::{bf16, f16};
use proptest::{prelude::*, test_runner::TestCaseResult};

use super::{Kernel, KernelError, ReduceOp, arithmetic::Number};
use crate::dtype::{Dtype, Scalar};

/// What an operation should do to one element.
trait Oracle: Scalar + std::fmt::Debug {
    const SPECIAL: &'static [Self];
    fn of(bits: u64) -> Self;
    fn reduce(op: ReduceOp, a: Self, b: Self) -> Self;
    fn divide(self, ranks: usize) -> Self;
    fn scale(self, factor: f64) -> Self;
    /// Equal bits, or both NaN.
    fn same(self, other: Self) -> bool;
}

macro_rules! float_oracle {
    ($float:ident, $wide:ident, $bits:ident, |$up:ident| $widen:expr, |$down:ident| $narrow:expr) => {
        impl Oracle for $float {
            const SPECIAL: &'static [Self] = &[
                $float::NAN,
                $float::INFINITY,
                $float::NEG_INFINITY,
                $float::MAX,
                $float::MIN,
                $float::MIN_POSITIVE,
                $float::EPSILON,
                $float::from_bits(0),
                $float::from_bits(1 << ($bits::BITS - 1)),
                $float::from_bits(1),
                $float::from_bits((1 << ($bits::BITS - 1)) + 1),
            ];
            fn of(bits: u64) -> Self {
                $float::from_bits($bits::try_from(bits & u64::from($bits::MAX)).unwrap())
            }
            fn reduce(op: ReduceOp, a: Self, b: Self) -> Self {
                let widen = |$up: $float| -> $wide { $widen };
                let narrow = |$down: $wide| -> $float { $narrow };
                let ordered = |first: std::cmp::Ordering| match (a.is_nan(), b.is_nan()) {
                    (false, false) if a.total_cmp(&b) == first => a,
                    (false, false) => b,
                    _ => $float::NAN,
                };
                match op {
                    ReduceOp::Sum | ReduceOp::Avg | ReduceOp::PreMulSum(_) => narrow(widen(a) + widen(b)),
                    ReduceOp::Product => narrow(widen(a) * widen(b)),
                    ReduceOp::Min => ordered(std::cmp::Ordering::Less),
                    ReduceOp::Max => ordered(std::cmp::Ordering::Greater),
                    other => panic!("{other} of floats"),
                }
            }
            fn divide(self, ranks: usize) -> Self {
                let (widen, narrow) =
                    (|$up: $float| -> $wide { $widen }, |$down: $wide| -> $float { $narrow });
                narrow(widen(self) / ranks as $wide)
            }
            #[allow(clippy::cast_possible_truncation)]
            fn scale(self, factor: f64) -> Self {
                let (widen, narrow) =
                    (|$up: $float| -> $wide { $widen }, |$down: $wide| -> $float { $narrow });
                narrow(widen(self) * factor as $wide)
            }
            fn same(self, other: Self) -> bool {
                self.to_bits() == other.to_bits() || self.is_nan() && other.is_nan()
            }
        }
    };
}
float_oracle!(f32, f32, u32, |x| x, |x| x);
float_oracle!(f64, f64, u64, |x| x, |x| x);
float_oracle!(f16, f32, u16, |x| x.to_f32_const(), |x| f16::from_f32_const(x));
float_oracle!(bf16, f32, u16, |x| x.to_f32_const(), |x| bf16::from_f32_const(x));

macro_rules! integer_oracle {
    ($($integer:ident),*) => {$(
        impl Oracle for $integer {
            const SPECIAL: &'static [Self] = &[0, 1, $integer::MAX, $integer::MIN, $integer::MAX - 1];
            #[allow(clippy::cast_possible_truncation)]
            fn of(bits: u64) -> Self {
                bits as Self
            }
            #[allow(clippy::cast_possible_truncation)]
            fn reduce(op: ReduceOp, a: Self, b: Self) -> Self {
                let (x, y) = (i128::from(a), i128::from(b));
                (match op {
                    ReduceOp::Sum | ReduceOp::Avg | ReduceOp::PreMulSum(_) => x + y,
                    ReduceOp::Product => x.wrapping_mul(y),
                    ReduceOp::Min => if x < y { x } else { y },
                    ReduceOp::Max => if x > y { x } else { y },
                    ReduceOp::BitAnd => x & y,
                    ReduceOp::BitOr => x | y,
                    ReduceOp::BitXor => x ^ y,
                }) as Self
            }
            fn divide(self, ranks: usize) -> Self {
                Self::try_from(i128::from(self) / i128::try_from(ranks).unwrap()).unwrap()
            }
            #[allow(clippy::cast_possible_truncation)]
            fn scale(self, factor: f64) -> Self {
                i128::from(self).wrapping_mul(factor as i128) as Self
            }
            fn same(self, other: Self) -> bool {
                self == other
            }
        }
    )*};
}
integer_oracle!(i8, i16, i32, i64, u8, u16, u32, u64);

/// Every operation that fits the type, with factors it can hold.
fn operations(dtype: Dtype) -> impl Iterator<Item = ReduceOp> {
    let factors = [0.0, 1.0, 3.0, 100.0, -2.0, 0.3].map(ReduceOp::PreMulSum);
    ReduceOp::PLAIN.into_iter().chain(factors).filter(move |op| op.check(dtype).is_ok())
}

fn compare<T: Oracle>(what: &str, op: ReduceOp, found: &[T], wanted: impl Fn(usize) -> T) -> TestCaseResult {
    for (at, &found) in found.iter().enumerate() {
        let wanted = wanted(at);
        prop_assert!(found.same(wanted), "{what} {op} of {}: {found:?} at {at}, not {wanted:?}", T::DTYPE);
    }
    Ok(())
}

/// All that kernels do, on elements made of these bits, from element `skip` of a buffer on.
fn agrees<T: Oracle>(bits: &[(u64, u64)], skip: usize, ranks: usize) -> TestCaseResult {
    let of = |bits: u64| match usize::try_from(bits >> 58).unwrap() {
        special if special < 2 * T::SPECIAL.len() && special % 2 == 0 => T::SPECIAL[special / 2],
        _ => T::of(bits),
    };
    let a: Vec<T> = bits.iter().map(|bits| of(bits.0)).collect();
    let b: Vec<T> = bits.iter().map(|bits| of(bits.1)).collect();
    let (a, b) = (&a[skip.min(a.len())..], &b[skip.min(b.len())..]);
    let (left, right) = (bytemuck::cast_slice::<T, u8>(a), bytemuck::cast_slice::<T, u8>(b));
    for op in operations(T::DTYPE) {
        let kernel = Kernel::new(T::DTYPE, op).unwrap();
        let mut acc = a.to_vec();
        kernel.fold(bytemuck::cast_slice_mut(&mut acc), right).unwrap();
        compare("fold", op, &acc, |at| T::reduce(op, a[at], b[at]))?;

        let mut swapped = b.to_vec();
        kernel.fold(bytemuck::cast_slice_mut(&mut swapped), left).unwrap();
        compare("swapped fold", op, &swapped, |at| acc[at])?;

        let mut into = vec![T::zeroed(); a.len()];
        kernel.combine(left, right, bytemuck::cast_slice_mut(&mut into)).unwrap();
        compare("combine", op, &into, |at| acc[at])?;

        kernel.divide(bytemuck::cast_slice_mut(&mut into), ranks).unwrap();
        let divided = |at: usize| if op == ReduceOp::Avg { acc[at].divide(ranks) } else { acc[at] };
        compare("divide", op, &into, divided)?;

        let scaled = |at: usize| if let ReduceOp::PreMulSum(by) = op { a[at].scale(by) } else { a[at] };
        let mut own = a.to_vec();
        kernel.scale_in_place(bytemuck::cast_slice_mut(&mut own)).unwrap();
        compare("scale in place", op, &own, scaled)?;
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn kernels_agree_with_the_oracle(
        bits in prop::collection::vec(any::<(u64, u64)>(), 0..150),
        skip in 0usize..9,
        ranks in prop_oneof![1usize..300, Just(70_000)],
    ) {
        agrees::<f16>(&bits, skip, ranks)?;
        agrees::<bf16>(&bits, skip, ranks)?;
        agrees::<f32>(&bits, skip, ranks)?;
        agrees::<f64>(&bits, skip, ranks)?;
        agrees::<i8>(&bits, skip, ranks)?;
        agrees::<i16>(&bits, skip, ranks)?;
        agrees::<i32>(&bits, skip, ranks)?;
        agrees::<i64>(&bits, skip, ranks)?;
        agrees::<u8>(&bits, skip, ranks)?;
        agrees::<u16>(&bits, skip, ranks)?;
        agrees::<u32>(&bits, skip, ranks)?;
        agrees::<u64>(&bits, skip, ranks)?;
    }

    #[test]
    fn narrowing_rounds_as_half_does(bits in any::<u32>()) {
        let work = f32::from_bits(bits);
        prop_assert!(<f16 as Number>::narrow(work).same(f16::from_f32_const(work)));
        prop_assert!(<bf16 as Number>::narrow(work).same(bf16::from_f32_const(work)));
    }
}

#[test]
fn every_16_bit_float_widens_and_comes_back() {
    for bits in 0..=u16::MAX {
        let (half, brain) = (f16::from_bits(bits), bf16::from_bits(bits));
        assert!(half.widen().same(half.to_f32_const()), "f16 {bits:#x}");
        assert!(brain.widen().same(brain.to_f32_const()), "bf16 {bits:#x}");
        assert!(<f16 as Number>::narrow(half.widen()).same(half), "f16 {bits:#x}");
        assert!(<bf16 as Number>::narrow(brain.widen()).same(brain), "bf16 {bits:#x}");
    }
}

#[test]
fn halfway_between_any_two_neighbours_is_rounded_to_even() {
    for bits in 0..=u16::MAX {
        let ends = (f16::from_bits(bits).to_f64_const(), f16::from_bits(bits.wrapping_add(1)).to_f64_const());
        #[allow(clippy::cast_possible_truncation)]
        let middle = ((ends.0 + ends.1) / 2.0) as f32;
        let brain = f32::from_bits(u32::from(bits) << 16 | 0x8000);
        for near in [-1, 0, 1] {
            let nudge = |float: f32| f32::from_bits(float.to_bits().wrapping_add_signed(near));
            let (half, brain) = (nudge(middle), nudge(brain));
            assert!(<f16 as Number>::narrow(half).same(f16::from_f32_const(half)), "{half:e}");
            assert!(<bf16 as Number>::narrow(brain).same(bf16::from_f32_const(brain)), "{brain:e}");
        }
    }
    // Half of the smallest subnormal is a tie with zero, and the last f16 before infinity ends at 65520.
    assert_eq!(<f16 as Number>::narrow(2f32.powi(-25)).to_bits(), 0);
    assert_eq!(<f16 as Number>::narrow(65519.996), f16::MAX);
    assert_eq!(<f16 as Number>::narrow(65520.0), f16::INFINITY);
}

#[test]
fn the_zeros_have_an_order() {
    let zeros = [0.0f32, -0.0];
    for (a, b) in [(0, 1), (1, 0)] {
        for (op, wanted) in [(ReduceOp::Min, -0.0f32), (ReduceOp::Max, 0.0)] {
            let mut acc = [zeros[a]];
            let kernel = Kernel::new(Dtype::F32, op).unwrap();
            kernel.fold(bytemuck::bytes_of_mut(&mut acc), bytemuck::bytes_of(&zeros[b])).unwrap();
            assert_eq!(acc[0].to_bits(), wanted.to_bits(), "{op}");
        }
    }
}

#[test]
fn bytes_that_are_no_elements_are_refused() {
    let kernel = Kernel::new(Dtype::F32, ReduceOp::Sum).unwrap();
    let whole = [0f32; 4];
    let whole: &[u8] = bytemuck::cast_slice(&whole);
    let mut acc = [1f32; 4];
    let acc: &mut [u8] = bytemuck::cast_slice_mut(&mut acc);
    let slice = |bytes, off| KernelError::Slice { dtype: Dtype::F32, bytes, off };
    let lengths = |first, second| KernelError::Lengths { dtype: Dtype::F32, first, second };
    assert_eq!(kernel.fold(acc, &whole[..12]), Err(lengths(16, 12)));
    assert_eq!(kernel.fold(&mut acc[..7], &whole[..7]), Err(slice(7, 0)));
    assert_eq!(kernel.fold(&mut acc[4..], &whole[1..13]), Err(slice(12, 1)));
    assert_eq!(kernel.fold(&mut acc[2..6], &whole[..4]), Err(slice(4, 2)));
    assert_eq!(kernel.combine(whole, &whole[..8], acc), Err(lengths(16, 8)));
    assert_eq!(kernel.combine(whole, whole, &mut acc[..8]), Err(lengths(16, 8)));
    assert!(acc.iter().any(|&byte| byte != 0), "nothing was written");
    assert_eq!(kernel.fold(&mut [], &[]), Ok(()));
}

#[test]
fn mismatches_are_errors() {
    for dtype in Dtype::ALL {
        for op in ReduceOp::PLAIN {
            let bitwise = matches!(op, ReduceOp::BitAnd | ReduceOp::BitOr | ReduceOp::BitXor);
            assert_eq!(Kernel::new(dtype, op).is_ok(), !(bitwise && dtype.is_float()), "{op} {dtype}");
        }
    }
    let message = Kernel::new(Dtype::BF16, ReduceOp::BitOr).unwrap_err().to_string();
    assert_eq!(message, "bor works on the bits of integers, and bf16 is a float type");
    let fits = |dtype, factor| ReduceOp::PreMulSum(factor).check(dtype).is_ok();
    assert!(fits(Dtype::I8, -128.0) && !fits(Dtype::I8, 128.0) && !fits(Dtype::I8, 0.5));
    assert!(fits(Dtype::U64, 2f64.powi(63)) && !fits(Dtype::U64, 2f64.powi(64)) && !fits(Dtype::U64, -1.0));
    assert!(fits(Dtype::I64, -(2f64.powi(63))) && !fits(Dtype::I64, 2f64.powi(63)));
    assert!(!fits(Dtype::I32, f64::NAN) && !fits(Dtype::I32, f64::INFINITY));
    assert!(fits(Dtype::F32, 1e38) && !fits(Dtype::F32, 1e39) && fits(Dtype::F64, 1e300));
    let message = ReduceOp::PreMulSum(0.5).check(Dtype::I8).unwrap_err();
    assert_eq!(message, "premulsum's factor is 0.5, and for i8 it must be a whole number from -128 to 127");
}

#[test]
fn long_factors_are_printed_with_an_exponent() {
    for (factor, message) in [
        (0.0, "0"),
        (-0.25, "-0.25"),
        (9_007_199_254_740_993.0, "9007199254740992"),
        (1e300, "1e300"),
        (-f64::MAX, "-1.7976931348623157e308"),
        (1e-7, "1e-7"),
        (f64::INFINITY, "inf"),
    ] {
        assert_eq!(ReduceOp::PreMulSum(factor).to_string(), format!("premulsum({message})"));
    }
    let message = ReduceOp::PreMulSum(1e300).check(Dtype::F32).unwrap_err();
    assert_eq!(message, "premulsum's factor is 1e300, and for f32 it must be a number f32 can hold");
}

#[test]
fn names_and_codes_lead_back() {
    let factors = [-0.25, 1e16, 4e18, -f64::MAX, f64::MIN_POSITIVE].map(ReduceOp::PreMulSum);
    for op in ReduceOp::PLAIN.into_iter().chain(factors) {
        assert_eq!(ReduceOp::parse(&op.to_string()), Some(op));
        let (code, factor) = op.code();
        assert_eq!(ReduceOp::from_code(code, factor), Some(op));
    }
    assert_eq!(ReduceOp::parse("prod"), Some(ReduceOp::Product));
    assert_eq!(ReduceOp::parse("mulsum:2"), Some(ReduceOp::PreMulSum(2.0)));
    for wrong in ["", "SUM", "premulsum", "premulsum(", "premulsum(x)", "sum(2)", "sum:1"] {
        assert_eq!(ReduceOp::parse(wrong), None, "{wrong}");
    }
    assert_eq!(ReduceOp::from_code(0, 1), None, "a sum has no factor");
    assert_eq!(ReduceOp::from_code(9, 0), None);
}
