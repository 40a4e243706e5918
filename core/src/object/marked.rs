//! Values that say what they are in a language with more types than the format has.

use std::{fmt, marker::PhantomData};

use serde::{
    Deserialize, Deserializer, Serialize, Serializer,
    de::{EnumAccess, VariantAccess, Visitor},
};

/// The name by which the encoder and the decoder know marks.
pub(super) const MARK: &str = "unisono::Marked";

/// A value that may have a mark: a number that says what the value is in another language, for instance that a sequence is a tuple
/// of Python's. Only code that decodes a `Marked` sees the mark: any other type is decoded as if there were no mark.
///
/// ```
/// # use unisono_core as unisono;
/// # use unisono::object::{Marked, decode, encode};
/// let bytes = encode(&Marked { mark: Some(7), value: vec![1, 2] })?;
/// assert_eq!(decode::<Marked<Vec<u8>>>(&bytes)?.mark, Some(7));
/// assert_eq!(decode::<(u8, u8)>(&bytes)?, (1, 2));
/// # Ok::<(), unisono::object::ObjectError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Marked<T> {
    /// The mark, if there is one.
    pub mark: Option<u8>,
    /// The value, which is not a marked one itself.
    pub value: T,
}

impl<T: Serialize> Serialize for Marked<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.mark {
            Some(mark) => serializer.serialize_newtype_variant(MARK, mark.into(), "", &self.value),
            None => self.value.serialize(serializer),
        }
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Marked<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_enum(MARK, &[], Either(PhantomData))
    }
}

/// Takes a marked value as a variant whose name is the mark, and any other as a newtype.
struct Either<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for Either<T> {
    type Value = Marked<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value that may be marked")
    }

    fn visit_enum<A: EnumAccess<'de>>(self, data: A) -> Result<Marked<T>, A::Error> {
        let (mark, value) = data.variant::<u8>()?;
        Ok(Marked { mark: Some(mark), value: value.newtype_variant()? })
    }

    fn visit_newtype_struct<D: Deserializer<'de>>(self, deserializer: D) -> Result<Marked<T>, D::Error> {
        Ok(Marked { mark: None, value: T::deserialize(deserializer)? })
    }
}
