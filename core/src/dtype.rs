//! Types of elements: the twelve types, their names, sizes and codes on the wire.

mod alias;

use half::{bf16, f16};

pub use self::alias::Alias;

/// The type of an element.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Dtype {
    /// IEEE 754 binary16.
    F16,
    /// bfloat16: the upper half of a binary32.
    BF16,
    /// IEEE 754 binary32.
    F32,
    /// IEEE 754 binary64.
    F64,
    /// Signed, 8 bits.
    I8,
    /// Signed, 16 bits.
    I16,
    /// Signed, 32 bits.
    I32,
    /// Signed, 64 bits.
    I64,
    /// Unsigned, 8 bits.
    U8,
    /// Unsigned, 16 bits.
    U16,
    /// Unsigned, 32 bits.
    U32,
    /// Unsigned, 64 bits.
    U64,
}

/// Name, bytes of an element, and other names of each type, in the order of their codes on the wire.
const ROWS: [(&str, usize, &[&str]); 12] = [
    ("f16", 2, &["half", "float16"]),
    ("bf16", 2, &["bfloat16"]),
    ("f32", 4, &["float", "float32"]),
    ("f64", 8, &["double", "float64"]),
    ("i8", 1, &["int8"]),
    ("i16", 2, &["int16"]),
    ("i32", 4, &["int32"]),
    ("i64", 8, &["int64"]),
    ("u8", 1, &["uint8"]),
    ("u16", 2, &["uint16"]),
    ("u32", 4, &["uint32"]),
    ("u64", 8, &["uint64"]),
];

impl Dtype {
    /// All of them, in the order of their codes on the wire.
    pub const ALL: [Self; 12] = [
        Self::F16,
        Self::BF16,
        Self::F32,
        Self::F64,
        Self::I8,
        Self::I16,
        Self::I32,
        Self::I64,
        Self::U8,
        Self::U16,
        Self::U32,
        Self::U64,
    ];

    /// Its name as Rust spells it: `f32`, `bf16`, `u8`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        ROWS[self as usize].0
    }

    /// The type of this name. Besides [`Dtype::name`], the names of nccl-tests and torch are understood:
    /// `float`, `half`, `double`, `bfloat16`, `int8`, `uint8`, `float32` and so on.
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        let named = |dtype: &Self| dtype.name() == name || ROWS[*dtype as usize].2.contains(&name);
        Self::ALL.into_iter().find(named)
    }

    /// Bytes of an element; its alignment too.
    #[must_use]
    pub const fn size(self) -> usize {
        ROWS[self as usize].1
    }

    /// True if it has fractions, infinities and NaN.
    #[must_use]
    pub const fn is_float(self) -> bool {
        matches!(self, Self::F16 | Self::BF16 | Self::F32 | Self::F64)
    }

    /// Its code on the wire: its index in [`Dtype::ALL`].
    #[must_use]
    pub const fn code(self) -> u8 {
        self as u8
    }

    /// The type of this code, if there is one.
    #[must_use]
    pub fn from_code(code: u8) -> Option<Self> {
        Self::ALL.get(usize::from(code)).copied()
    }
}

impl std::fmt::Display for Dtype {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

#[expect(unnameable_types, reason = "that is what seals it")]
mod sealed {
    /// Keeps [`super::Scalar`] to the types that the kernels know.
    pub trait Sealed {}
}

/// A Rust type of a [`Dtype`], which tensors hold and kernels reduce. Sealed: the twelve, and usize and isize.
pub trait Scalar: bytemuck::Pod + Send + Sync + sealed::Sealed {
    /// Which one it is.
    const DTYPE: Dtype;
}

macro_rules! elements {
    ($($rust:ty => $dtype:ident),* $(,)?) => {$(
        impl sealed::Sealed for $rust {}
        impl Scalar for $rust {
            const DTYPE: Dtype = Dtype::$dtype;
        }
    )*};
}

elements! {
    f16 => F16, bf16 => BF16, f32 => F32, f64 => F64,
    i8 => I8, i16 => I16, i32 => I32, i64 => I64,
    u8 => U8, u16 => U16, u32 => U32, u64 => U64,
}

// As wide as this machine's addresses: a rank with others sends another type, which is an error on all.
#[cfg(target_pointer_width = "64")]
elements! { usize => U64, isize => I64 }
#[cfg(target_pointer_width = "32")]
elements! { usize => U32, isize => I32 }

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_codes_lead_back() {
        for (place, dtype) in Dtype::ALL.into_iter().enumerate() {
            assert_eq!(Dtype::parse(dtype.name()), Some(dtype));
            assert_eq!(usize::from(dtype.code()), place);
            assert_eq!(Dtype::from_code(dtype.code()), Some(dtype));
        }
        assert_eq!(Dtype::from_code(12), None);
        assert_eq!(Dtype::parse("F32"), None);
        for (name, dtype) in [("half", Dtype::F16), ("bfloat16", Dtype::BF16), ("double", Dtype::F64)] {
            assert_eq!(Dtype::parse(name), Some(dtype));
        }
    }

    #[test]
    fn sizes_are_those_of_the_rust_types() {
        fn check<T: Scalar>() {
            assert_eq!(T::DTYPE.size(), size_of::<T>(), "{}", T::DTYPE);
            assert_eq!(T::DTYPE.size(), align_of::<T>(), "{}", T::DTYPE);
        }
        check::<f16>();
        check::<bf16>();
        check::<f32>();
        check::<f64>();
        check::<i8>();
        check::<i16>();
        check::<i32>();
        check::<i64>();
        check::<u8>();
        check::<u16>();
        check::<u32>();
        check::<u64>();
    }
}
