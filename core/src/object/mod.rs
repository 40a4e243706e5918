//! Encodes values of any serde type as bytes, and decodes them. Pure: nothing here communicates.
//!
//! The format is our own, because the bytes of other ranks are not trusted and no value may be changed by encoding. It is
//! self-describing, so that a value of another type is detected and `flatten` and `untagged` work, and it distinguishes `Some(None)`
//! from `None`, which JSON, MessagePack and CBOR do not. Every value takes at least one byte, and the total number of elements of
//! all sequences and maps is bounded by the number of bytes: so decoding any bytes takes at most as many steps as there are bytes,
//! and allocates at most as many elements. (The work of serde itself is not bounded: it retries the variants of nested `untagged`
//! types.) Values are nested at most [`DEPTH`] deep, so that no bytes exhaust the stack.
//!
//! The first byte of a value determines what follows. Numbers are little-endian and as short as their value allows; lengths are
//! LEB128:
//!
//! | byte | what follows |
//! |---|---|
//! | `00`–`7f` | nothing: it is that unsigned number |
//! | `80` none, `81` some | nothing; the value |
//! | `82` unit, `83` false, `84` true | nothing |
//! | `85`–`89` | an unsigned number of 1, 2, 4, 8 or 16 bytes |
//! | `8a`–`8e` | a signed number of as many, below 0 |
//! | `8f` f32, `90` f64 | its bits |
//! | `91` char | 4 bytes |
//! | `92` text, `93` bytes | the length, this many bytes |
//! | `94` sequence, tuple | the length, this many values |
//! | `95` map, struct | the length, this many pairs of values; the fields of a struct by their names |
//! | `96` mark | a byte that says what the next value is in another language, that value |
//!
//! A variant is its name if it has no data, and otherwise a map of its name to its data. A [`Marked`] value that is decoded as any
//! other type is decoded as if the mark was not there.

mod decode;
mod encode;
mod error;
mod marked;
#[cfg(test)]
mod tests;

pub use self::{decode::decode, encode::encode, error::ObjectError, marked::Marked};

/// The deepest nesting of values: options, sequences, maps, variants and newtypes count.
pub const DEPTH: usize = 128;

/// The first byte of a value.
mod tag {
    pub(super) const NONE: u8 = 0x80;
    pub(super) const SOME: u8 = 0x81;
    pub(super) const UNIT: u8 = 0x82;
    pub(super) const FALSE: u8 = 0x83;
    pub(super) const TRUE: u8 = 0x84;
    pub(super) const U8: u8 = 0x85;
    pub(super) const U16: u8 = 0x86;
    pub(super) const U32: u8 = 0x87;
    pub(super) const U64: u8 = 0x88;
    pub(super) const U128: u8 = 0x89;
    pub(super) const I8: u8 = 0x8a;
    pub(super) const I16: u8 = 0x8b;
    pub(super) const I32: u8 = 0x8c;
    pub(super) const I64: u8 = 0x8d;
    pub(super) const I128: u8 = 0x8e;
    pub(super) const F32: u8 = 0x8f;
    pub(super) const F64: u8 = 0x90;
    pub(super) const CHAR: u8 = 0x91;
    pub(super) const STR: u8 = 0x92;
    pub(super) const BYTES: u8 = 0x93;
    pub(super) const SEQ: u8 = 0x94;
    pub(super) const MAP: u8 = 0x95;
    pub(super) const MARK: u8 = 0x96;
}
