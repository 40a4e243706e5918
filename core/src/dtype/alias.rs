//! Names of the types that callers have and the library moves as others: a `complex64` as two `f32`, a `bool` as a `u8`. Ranks compare
//! them, and errors name them.

use std::borrow::Cow;

/// What a caller's type is called that the library moves as another, as 16 bits that ranks compare. The default: the elements are of
/// the [`Dtype`](super::Dtype) itself.
///
/// ```
/// # use unisono_core as unisono;
/// use unisono::dtype::Alias;
/// assert_eq!(Alias::of("complex64").name(), "complex64");
/// assert_ne!(Alias::of("datetime64[s]"), Alias::of("datetime64[ms]"));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Alias(u16);

/// The known types, and how many elements of the library's one of theirs is; their codes are their places plus one. New ones come
/// last. A `>` stands before those of the byte order of big-endian hosts.
const NAMED: [(&str, u64); 58] = [
    ("bool", 1),
    ("complex32", 2),
    ("complex64", 2),
    ("complex128", 2),
    ("float96", 12),
    ("float128", 16),
    ("complex192", 24),
    ("complex256", 32),
    ("float8_e3m4", 1),
    ("float8_e4m3", 1),
    ("float8_e4m3b11fnuz", 1),
    ("float8_e4m3fn", 1),
    ("float8_e4m3fnuz", 1),
    ("float8_e5m2", 1),
    ("float8_e5m2fnuz", 1),
    ("float8_e8m0fnu", 1),
    ("float6_e2m3fn", 1),
    ("float6_e3m2fn", 1),
    ("float4_e2m1fn", 1),
    ("float4_e2m1fn_x2", 1),
    ("int1", 1),
    ("int2", 1),
    ("int3", 1),
    ("int4", 1),
    ("int5", 1),
    ("int6", 1),
    ("int7", 1),
    ("uint1", 1),
    ("uint2", 1),
    ("uint3", 1),
    ("uint4", 1),
    ("uint5", 1),
    ("uint6", 1),
    ("uint7", 1),
    ("qint8", 1),
    ("quint8", 1),
    ("qint32", 4),
    ("quint4x2", 1),
    ("quint2x4", 1),
    ("bits8", 1),
    ("bits16", 2),
    ("bits1x8", 1),
    ("bits2x4", 1),
    ("bits4x2", 1),
    ("bcomplex32", 4),
    (">i2", 2),
    (">i4", 4),
    (">i8", 8),
    (">u2", 2),
    (">u4", 4),
    (">u8", 8),
    (">f2", 2),
    (">f4", 4),
    (">f8", 8),
    (">f16", 16),
    (">c8", 8),
    (">c16", 16),
    (">c32", 32),
];

/// The units of times, by numpy's names; the last one is none.
const UNITS: [&str; 14] = ["Y", "M", "W", "D", "h", "m", "s", "ms", "us", "ns", "ps", "fs", "as", ""];

/// The bits that say what the others mean. Below them: a place in [`NAMED`], a length of at most [`LENGTH`], or 15 bits of a hash.
const TIME: u16 = 0x1000;
const STRINGS: [(u16, &str, u64); 3] = [(0x2000, "S", 1), (0x4000, "U", 4), (0x6000, "V", 1)];
const LENGTH: u16 = 0x1fff;
const HASHED: u16 = 0x8000;

/// Of a time: whether it is a difference, the place of its unit, and how many of these it counts by.
const DIFFERENCE: u16 = 0x800;
const UNIT_AT: u16 = 7;
const MULTIPLE: u16 = 0x7f;

impl Alias {
    /// None: the elements are of the [`Dtype`](super::Dtype) itself.
    pub const NONE: Self = Self(0);

    /// The alias of a type by its name in numpy or torch: `bool`, `complex64`, `float8_e4m3fn`, `datetime64[25s]`, `S5`, `U3`, `V16`,
    /// `>f4`. Any other text is a description of which ranks compare a hash.
    #[must_use]
    pub fn of(name: &str) -> Self {
        let named = || {
            let place = NAMED.iter().position(|(known, _)| *known == name)?;
            u16::try_from(place + 1).ok()
        };
        Self(named().or_else(|| time(name)).or_else(|| string(name)).unwrap_or_else(|| hash(name)))
    }

    /// The alias of a code. Any has a name.
    #[must_use]
    pub const fn from_code(code: u16) -> Self {
        Self(code)
    }

    /// Its code on the wire; 0 if it is none.
    #[must_use]
    pub const fn code(self) -> u16 {
        self.0
    }

    /// True if elements are of the library's type itself.
    #[must_use]
    pub const fn is_none(self) -> bool {
        self.0 == 0
    }

    /// The type's name, or what is known of it: `type #1f3a` for what is compared by a hash.
    #[must_use]
    pub fn name(self) -> Cow<'static, str> {
        if self.0 & HASHED != 0 {
            return format!("type #{:04x}", self.0 & !HASHED).into();
        }
        if let Some((prefix, _, length)) = self.string() {
            return format!("{prefix}{length}").into();
        }
        if self.0 & TIME != 0 {
            let kind = if self.0 & DIFFERENCE == 0 { "datetime64" } else { "timedelta64" };
            let unit = UNITS.get(usize::from((self.0 & !TIME & !DIFFERENCE) >> UNIT_AT));
            return match (unit, self.0 & MULTIPLE) {
                (None, _) => "unknown type".into(),
                (Some(&""), _) => kind.into(),
                (Some(unit), 1) => format!("{kind}[{unit}]").into(),
                (Some(unit), many) => format!("{kind}[{many}{unit}]").into(),
            };
        }
        self.known().map_or("unknown type", |(name, _)| name).into()
    }

    /// How many of the library's elements one is; `None` if that is not known.
    #[must_use]
    pub fn elements(self) -> Option<u64> {
        if self.0 & HASHED != 0 {
            return None;
        }
        if let Some((_, each, length)) = self.string() {
            return Some(each * u64::from(length)).filter(|&bytes| bytes > 0);
        }
        if self.0 & TIME != 0 { Some(8) } else { self.known().map(|(_, elements)| elements) }
    }

    fn known(self) -> Option<(&'static str, u64)> {
        NAMED.get(usize::from(self.0).checked_sub(1)?).copied()
    }

    /// The prefix of a string's type, the bytes of each part, and the length.
    fn string(self) -> Option<(&'static str, u64, u16)> {
        let (_, prefix, each) = STRINGS.into_iter().find(|(kind, ..)| self.0 & !LENGTH == *kind)?;
        Some((prefix, each, self.0 & LENGTH))
    }
}

/// The code of `datetime64[ns]` and its like.
fn time(name: &str) -> Option<u16> {
    let (kind, difference) = match name.strip_prefix("datetime64") {
        Some(unit) => (unit, 0),
        None => (name.strip_prefix("timedelta64")?, DIFFERENCE),
    };
    let unit = match kind {
        "" => "",
        unit => unit.strip_prefix('[')?.strip_suffix(']')?,
    };
    let unit_name = unit.trim_start_matches(|it: char| it.is_ascii_digit());
    let many = match &unit[..unit.len() - unit_name.len()] {
        "" => 1,
        many => many.parse::<u16>().ok().filter(|many| (2..=MULTIPLE).contains(many))?,
    };
    let place = UNITS.iter().position(|unit| *unit == unit_name)?;
    Some(TIME | difference | u16::try_from(place).ok()? << UNIT_AT | many)
}

/// The code of `S5` and its like, unless it is too long.
fn string(name: &str) -> Option<u16> {
    let (kind, length) =
        STRINGS.into_iter().find_map(|(kind, prefix, _)| Some((kind, name.strip_prefix(prefix)?)))?;
    let digits = !length.is_empty() && length.bytes().all(|it| it.is_ascii_digit());
    let length = length.parse::<u16>().ok().filter(|length| digits && *length <= LENGTH)?;
    Some(kind | length)
}

/// FNV-1a, folded to 15 bits.
fn hash(name: &str) -> u16 {
    let hash =
        name.bytes().fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
    HASHED | ((hash >> 15 ^ hash) & 0x7fff) as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_lead_back_and_differ() {
        let known = NAMED.iter().map(|(name, _)| (*name).to_owned());
        let times = ["datetime64", "timedelta64"].into_iter().flat_map(|kind| {
            let units = UNITS.iter().filter(|unit| !unit.is_empty());
            let each =
                units.flat_map(move |unit| ["", "2", "25", "127"].map(|n| format!("{kind}[{n}{unit}]")));
            each.chain([kind.to_owned()])
        });
        let strings = ["S", "U", "V"].into_iter().flat_map(|it| [0, 1, 5, 8191].map(|n| format!("{it}{n}")));
        let names: Vec<_> = known.chain(times).chain(strings).collect();
        let mut codes: Vec<_> = names.iter().map(|name| Alias::of(name).code()).collect();
        for name in &names {
            assert_eq!(&*Alias::of(name).name(), name);
        }
        codes.sort_unstable();
        codes.dedup();
        assert_eq!(codes.len(), names.len());
        assert!(codes.iter().all(|&code| code != 0 && code & HASHED == 0));
    }

    #[test]
    fn what_is_not_known_is_compared_by_a_hash() {
        let others = [
            "",
            "S",
            "S-1",
            "S8192",
            "U+5",
            "V1x",
            "Struct",
            "datetime64[25q]",
            "datetime64[128s]",
            "datetime64[0s]",
            "datetime64[",
            "timedelta64[s",
            "i4,f4",
            "f4,i4",
            "i4,f8",
            ">U3",
            ">M8[ns]",
            "datetime64[s/7]",
            "datetime64é",
        ];
        let mut codes: Vec<_> = others.iter().map(|name| Alias::of(name).code()).collect();
        assert!(codes.iter().all(|code| code & HASHED != 0));
        assert_eq!(&*Alias::from_code(HASHED | 0x1f).name(), "type #001f");
        codes.sort_unstable();
        codes.dedup();
        assert_eq!(codes.len(), others.len());
    }

    #[test]
    fn any_code_has_a_name() {
        for code in 0..=u16::MAX {
            let alias = Alias::from_code(code);
            assert!((2..30).contains(&alias.name().len()) && alias.elements() != Some(0), "{code:x}");
        }
        assert_eq!(Alias::of("complex64").elements(), Some(2));
        assert_eq!(Alias::of("U3").elements(), Some(12));
    }
}
