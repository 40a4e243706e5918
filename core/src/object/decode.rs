//! Decodes bytes from any source to a value or an error.

use serde::{
    Deserializer,
    de::{
        DeserializeOwned, DeserializeSeed, EnumAccess, Error as _, MapAccess, SeqAccess, Unexpected,
        VariantAccess, Visitor,
        value::{BorrowedStrDeserializer, U8Deserializer},
    },
    forward_to_deserialize_any,
};

use super::{DEPTH, ObjectError, marked::MARK, tag};

/// Decodes a value from all of the bytes.
///
/// An integer may be decoded as any integer type that holds it, an f32 as f64, and any value as `Some` of it. Types with the same
/// encoding are interchangeable: tuples and sequences; structs and maps with string keys; variants without data and their names;
/// variants with data and maps with one such name; newtypes and their contents. Serde itself also accepts a character for a
/// string, a string of one character for a character, and more within `flatten` and `untagged`.
///
/// # Errors
/// An [`ObjectError`] that says what is wrong with the bytes, or what they encode instead of a `T`. Decoding takes at most as many
/// steps as there are bytes, and at most the memory of as many elements of `T`'s sequences and maps.
pub fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, ObjectError> {
    let mut decoder = Decoder { bytes, at: 0, depth: 0, room: bytes.len() };
    let value = T::deserialize(&mut decoder)?;
    match bytes.len() - decoder.at {
        0 => Ok(value),
        left => Err(ObjectError::Trailing { left }),
    }
}

struct Decoder<'de> {
    bytes: &'de [u8],
    at: usize,
    /// The depth of the value that is being decoded.
    depth: usize,
    /// How many elements lengths may still announce: at most as many as bytes, since every value takes at least one.
    room: usize,
}

impl<'de> Decoder<'de> {
    fn rest(&self) -> &'de [u8] {
        self.bytes.get(self.at..).unwrap_or_default()
    }

    fn take<const N: usize>(&mut self) -> Result<[u8; N], ObjectError> {
        let ends = ObjectError::Ends { at: self.bytes.len() };
        let taken = self.rest().first_chunk().copied().ok_or(ends)?;
        self.at += N;
        Ok(taken)
    }

    fn first(&self) -> Result<u8, ObjectError> {
        self.rest().first().copied().ok_or(ObjectError::Ends { at: self.bytes.len() })
    }

    /// The first byte of the next value, which may have a mark.
    fn peek(&mut self) -> Result<u8, ObjectError> {
        self.mark()?;
        self.first()
    }

    /// The mark of the next value, if it has one. A marked value has no other mark, so that marks do not nest.
    fn mark(&mut self) -> Result<Option<u8>, ObjectError> {
        if self.first()? != tag::MARK {
            return Ok(None);
        }
        let [_, mark] = self.take()?;
        match self.first()? {
            tag::MARK => Err(ObjectError::Tag { at: self.at, byte: tag::MARK }),
            _ => Ok(Some(mark)),
        }
    }

    fn length(&mut self) -> Result<u64, ObjectError> {
        let at = self.at;
        let mut length = 0_u64;
        for shift in (0..64).step_by(7) {
            let [byte] = self.take()?;
            let part = u64::from(byte & 0x7f);
            if part << shift >> shift != part {
                break;
            }
            length |= part << shift;
            if byte < 0x80 {
                return Ok(length);
            }
        }
        Err(ObjectError::Length { said: u64::MAX, at, room: self.rest().len() })
    }

    /// Bytes, preceded by their number.
    fn blob(&mut self) -> Result<&'de [u8], ObjectError> {
        let said = self.length()?;
        let (at, rest) = (self.at, self.rest());
        let blob = usize::try_from(said).ok().and_then(|len| rest.get(..len));
        let blob = blob.ok_or(ObjectError::Length { said, at, room: rest.len() })?;
        self.at += blob.len();
        Ok(blob)
    }

    fn text(&mut self) -> Result<&'de str, ObjectError> {
        let at = self.at;
        str::from_utf8(self.blob()?).map_err(|_| ObjectError::Text { at })
    }

    /// The number of elements that follow, each of `values` values.
    fn count(&mut self, values: usize) -> Result<usize, ObjectError> {
        let said = self.length()?;
        let room = self.room.min(self.rest().len()) / values;
        match usize::try_from(said) {
            Ok(count) if count <= room => {
                self.room -= count * values;
                Ok(count)
            }
            _ => Err(ObjectError::Length { said, at: self.at, room }),
        }
    }

    fn nested<T>(
        &mut self,
        inner: impl FnOnce(&mut Self) -> Result<T, ObjectError>,
    ) -> Result<T, ObjectError> {
        self.depth += 1;
        if self.depth > DEPTH {
            return Err(ObjectError::Deep);
        }
        let value = inner(self)?;
        self.depth -= 1;
        Ok(value)
    }

    /// Reads a sequence or a map. It is an error if the visitor does not take all elements.
    fn many<T>(
        &mut self,
        values: usize,
        visit: impl FnOnce(&mut Many<'_, 'de>) -> Result<T, ObjectError>,
    ) -> Result<T, ObjectError> {
        let count = self.count(values)?;
        self.nested(|decoder| {
            let mut many = Many { decoder, left: count };
            let value = visit(&mut many)?;
            match many.left {
                0 => Ok(value),
                left => Err(ObjectError::invalid_length(count, &format!("{}", count - left).as_str())),
            }
        })
    }

    /// An error unless the next value begins with one of these bytes.
    fn unlike(&mut self, wanted: &[u8], expected: &str) -> Result<(), ObjectError> {
        let byte = self.peek()?;
        if wanted.contains(&byte) {
            return Ok(());
        }
        let given = match byte {
            ..tag::NONE | tag::U8..=tag::I128 => "a whole number",
            tag::NONE | tag::SOME => "an option",
            tag::UNIT => "a unit value",
            tag::FALSE | tag::TRUE => "a boolean",
            tag::F32 => "an f32",
            tag::F64 => "an f64",
            tag::CHAR => "a character",
            tag::STR => "a string",
            tag::BYTES => "a byte array",
            tag::SEQ => "a sequence",
            tag::MAP => "a map",
            _ => return Err(ObjectError::Tag { at: self.at, byte }),
        };
        Err(ObjectError::invalid_type(Unexpected::Other(given), &expected))
    }
}

impl<'de> Deserializer<'de> for &mut Decoder<'de> {
    type Error = ObjectError;

    fn is_human_readable(&self) -> bool {
        true
    }

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ObjectError> {
        self.mark()?;
        let at = self.at;
        let [byte] = self.take()?;
        match byte {
            ..tag::NONE => visitor.visit_u8(byte),
            tag::NONE => visitor.visit_none(),
            tag::SOME => self.nested(|decoder| visitor.visit_some(decoder)),
            tag::UNIT => visitor.visit_unit(),
            tag::FALSE => visitor.visit_bool(false),
            tag::TRUE => visitor.visit_bool(true),
            tag::U8 => visitor.visit_u8(u8::from_le_bytes(self.take()?)),
            tag::U16 => visitor.visit_u16(u16::from_le_bytes(self.take()?)),
            tag::U32 => visitor.visit_u32(u32::from_le_bytes(self.take()?)),
            tag::U64 => visitor.visit_u64(u64::from_le_bytes(self.take()?)),
            tag::U128 => visitor.visit_u128(u128::from_le_bytes(self.take()?)),
            tag::I8 => visitor.visit_i8(i8::from_le_bytes(self.take()?)),
            tag::I16 => visitor.visit_i16(i16::from_le_bytes(self.take()?)),
            tag::I32 => visitor.visit_i32(i32::from_le_bytes(self.take()?)),
            tag::I64 => visitor.visit_i64(i64::from_le_bytes(self.take()?)),
            tag::I128 => visitor.visit_i128(i128::from_le_bytes(self.take()?)),
            tag::F32 => visitor.visit_f32(f32::from_bits(u32::from_le_bytes(self.take()?))),
            tag::F64 => visitor.visit_f64(f64::from_bits(u64::from_le_bytes(self.take()?))),
            tag::CHAR => {
                let c = char::from_u32(u32::from_le_bytes(self.take()?));
                visitor.visit_char(c.ok_or(ObjectError::Text { at })?)
            }
            tag::STR => visitor.visit_borrowed_str(self.text()?),
            tag::BYTES => visitor.visit_borrowed_bytes(self.blob()?),
            tag::SEQ => self.many(1, |many| visitor.visit_seq(many)),
            tag::MAP => self.many(2, |many| visitor.visit_map(many)),
            _ => Err(ObjectError::Tag { at, byte }),
        }
    }

    fn deserialize_f32<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ObjectError> {
        self.unlike(&[tag::F32], "f32")?;
        self.deserialize_any(visitor)
    }

    fn deserialize_f64<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ObjectError> {
        self.unlike(&[tag::F32, tag::F64], "f64")?;
        self.deserialize_any(visitor)
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ObjectError> {
        match self.peek()? {
            tag::NONE | tag::SOME => self.deserialize_any(visitor),
            // Many types read an option, for which `null` is the default, where they wrote a plain value.
            _ => self.nested(|decoder| visitor.visit_some(decoder)),
        }
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, ObjectError> {
        self.nested(|decoder| visitor.visit_newtype_struct(decoder))
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, ObjectError> {
        self.unlike(&[tag::MAP], &format!("struct {name}"))?;
        self.deserialize_any(visitor)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        name: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, ObjectError> {
        if name == MARK {
            return match self.mark()? {
                Some(mark) => visitor.visit_enum(Variant { mark: Some(mark), decoder: self }),
                None => visitor.visit_newtype_struct(self),
            };
        }
        self.unlike(&[tag::STR, tag::MAP], &format!("enum {name}"))?;
        let [byte] = self.take()?;
        if byte == tag::STR {
            return visitor.visit_enum(BorrowedStrDeserializer::new(self.text()?));
        }
        self.many(2, |many| match many.left {
            1 => {
                many.left = 0;
                visitor.visit_enum(Variant { mark: None, decoder: many.decoder })
            }
            count => Err(ObjectError::invalid_length(count, &"the one name of a variant")),
        })
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 char str string bytes byte_buf unit unit_struct seq tuple
        tuple_struct map identifier ignored_any
    }
}

/// A sequence or a map that is being read.
struct Many<'d, 'de> {
    decoder: &'d mut Decoder<'de>,
    /// The number of elements that have not been read.
    left: usize,
}

impl Many<'_, '_> {
    /// Counts the next element as read. `false` if there is none.
    fn next(&mut self) -> bool {
        let next = self.left.checked_sub(1);
        self.left = next.unwrap_or_default();
        next.is_some()
    }
}

impl<'de> SeqAccess<'de> for &mut Many<'_, 'de> {
    type Error = ObjectError;

    fn next_element_seed<T: DeserializeSeed<'de>>(
        &mut self,
        seed: T,
    ) -> Result<Option<T::Value>, ObjectError> {
        self.next().then(|| seed.deserialize(&mut *self.decoder)).transpose()
    }

    fn size_hint(&self) -> Option<usize> {
        Some(self.left)
    }
}

impl<'de> MapAccess<'de> for &mut Many<'_, 'de> {
    type Error = ObjectError;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, ObjectError> {
        self.next().then(|| seed.deserialize(&mut *self.decoder)).transpose()
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, ObjectError> {
        seed.deserialize(&mut *self.decoder)
    }

    fn size_hint(&self) -> Option<usize> {
        Some(self.left)
    }
}

/// A variant with data: its name, or the mark that stands for it, then its data.
struct Variant<'d, 'de> {
    mark: Option<u8>,
    decoder: &'d mut Decoder<'de>,
}

impl<'d, 'de> EnumAccess<'de> for Variant<'d, 'de> {
    type Error = ObjectError;
    type Variant = &'d mut Decoder<'de>;

    fn variant_seed<V: DeserializeSeed<'de>>(
        self,
        seed: V,
    ) -> Result<(V::Value, Self::Variant), ObjectError> {
        let name = match self.mark {
            Some(mark) => seed.deserialize(U8Deserializer::new(mark))?,
            None => seed.deserialize(&mut *self.decoder)?,
        };
        Ok((name, self.decoder))
    }
}

impl<'de> VariantAccess<'de> for &mut Decoder<'de> {
    type Error = ObjectError;

    fn unit_variant(self) -> Result<(), ObjectError> {
        serde::Deserialize::deserialize(self)
    }

    fn newtype_variant_seed<T: DeserializeSeed<'de>>(self, seed: T) -> Result<T::Value, ObjectError> {
        seed.deserialize(self)
    }

    fn tuple_variant<V: Visitor<'de>>(self, _: usize, visitor: V) -> Result<V::Value, ObjectError> {
        self.unlike(&[tag::SEQ], "a tuple variant")?;
        self.deserialize_any(visitor)
    }

    fn struct_variant<V: Visitor<'de>>(
        self,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, ObjectError> {
        self.unlike(&[tag::MAP], "a struct variant")?;
        self.deserialize_any(visitor)
    }
}
