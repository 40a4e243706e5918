//! Types of Python for which the format of objects has no bytes. Each is a plain value with a mark; a program in Rust reads the value.

use pyo3::{intern, prelude::*};

/// What a marked value is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mark {
    Tuple,
    Set,
    FrozenSet,
    ByteArray,
    /// An integer of more than 128 bits: its bytes in two's complement, the lowest first.
    Integer,
    /// Two floats.
    Complex,
    /// The bytes of a pickle.
    Pickle,
    /// The scalar type of numpy at this place in [`NUMPY`], with the value that its `item` returns.
    Numpy(u8),
}

/// numpy's names of its scalar types. Their places are on the wire.
const NUMPY: [&str; 16] = [
    "bool",
    "int8",
    "int16",
    "int32",
    "int64",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "float16",
    "float32",
    "float64",
    "complex64",
    "complex128",
    "str_",
    "bytes_",
];

/// The places of the complex types.
const COMPLEX: u8 = 12;
const COMPLEX_TOO: u8 = 13;

/// The mark of the first of these.
const FIRST: u8 = 64;

impl Mark {
    /// In the order of their bytes, which count from 1.
    const PLAIN: [Self; 7] = [
        Self::Tuple,
        Self::Set,
        Self::FrozenSet,
        Self::ByteArray,
        Self::Integer,
        Self::Complex,
        Self::Pickle,
    ];

    /// Its byte.
    pub(crate) fn code(self) -> u8 {
        match self {
            Self::Numpy(place) => FIRST + place,
            plain => (1..).zip(Self::PLAIN).find(|(_, mark)| *mark == plain).map_or(0, |(code, _)| code),
        }
    }

    /// The mark of a byte.
    pub(crate) fn of(code: u8) -> Option<Self> {
        let numpy = || code.checked_sub(FIRST).filter(|place| usize::from(*place) < NUMPY.len());
        let plain = usize::from(code).checked_sub(1).and_then(|at| Self::PLAIN.get(at)).copied();
        plain.or_else(|| numpy().map(Self::Numpy))
    }

    /// A scalar of numpy, and what its `item` returns.
    pub(crate) fn of_numpy<'py>(object: &Bound<'py, PyAny>) -> Option<(Self, Bound<'py, PyAny>)> {
        let kind = object.get_type();
        if kind.module().ok()? != "numpy" {
            return None;
        }
        let name = kind.name().ok()?;
        let name = name.to_cow().ok()?;
        // numpy 1 has another name for it.
        let name = if name == "bool_" { "bool" } else { &*name };
        let place = NUMPY.iter().position(|known| *known == name)?;
        let item = object.call_method0(intern!(object.py(), "item")).ok()?;
        Some((Self::Numpy(u8::try_from(place).ok()?), item))
    }

    pub(crate) fn is_complex(self) -> bool {
        matches!(self, Self::Complex | Self::Numpy(COMPLEX..=COMPLEX_TOO))
    }

    /// The name of a type of numpy.
    pub(crate) fn numpy_name(place: u8) -> &'static str {
        match NUMPY.get(usize::from(place)).copied() {
            // numpy 1 has no other name.
            Some("bool") | None => "bool_",
            Some(name) => name,
        }
    }
}
