//! Encodes a value.

use serde::{
    Serialize, Serializer,
    ser::{
        SerializeMap, SerializeSeq, SerializeStruct, SerializeStructVariant, SerializeTuple,
        SerializeTupleStruct, SerializeTupleVariant,
    },
};

use super::{DEPTH, ObjectError, marked::MARK, tag};

/// Encodes a value.
///
/// # Errors
/// [`ObjectError::Deep`] if it is nested too deeply; [`ObjectError::Value`] if its `Serialize` fails; [`ObjectError::Count`] if a
/// sequence or map has another number of elements than its `Serialize` declares.
pub fn encode<T: Serialize + ?Sized>(value: &T) -> Result<Vec<u8>, ObjectError> {
    let mut encoder = Encoder { out: Vec::new(), depth: 0 };
    value.serialize(&mut encoder)?;
    Ok(encoder.out)
}

struct Encoder {
    out: Vec<u8>,
    /// The depth of the value that is being encoded.
    depth: usize,
}

/// The number of bytes of a length that is filled in later.
const LATER: usize = 10;

impl Encoder {
    fn tagged<const N: usize>(&mut self, tag: u8, bytes: [u8; N]) {
        self.out.push(tag);
        self.out.extend(bytes);
    }

    fn length(&mut self, length: usize) {
        let mut rest = length as u64;
        while rest > 0x7f {
            self.out.push((rest & 0x7f) as u8 | 0x80);
            rest >>= 7;
        }
        self.out.push((rest & 0x7f) as u8);
    }

    fn blob(&mut self, tag: u8, bytes: &[u8]) {
        self.out.push(tag);
        self.length(bytes.len());
        self.out.extend_from_slice(bytes);
    }

    fn enter(&mut self) -> Result<(), ObjectError> {
        self.depth += 1;
        if self.depth > DEPTH { Err(ObjectError::Deep) } else { Ok(()) }
    }

    /// Encodes a value within this one.
    fn nested<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), ObjectError> {
        self.enter()?;
        value.serialize(&mut *self)?;
        self.depth -= 1;
        Ok(())
    }

    /// Begins the map of a variant's name to its data.
    fn variant(&mut self, name: &str) -> Result<(), ObjectError> {
        self.enter()?;
        self.out.push(tag::MAP);
        self.length(1);
        self.blob(tag::STR, name.as_bytes());
        Ok(())
    }

    fn begin(&mut self, tag: u8, said: Option<usize>, variant: bool) -> Result<Many<'_>, ObjectError> {
        self.enter()?;
        self.out.push(tag);
        let at = self.out.len();
        match said {
            Some(said) => self.length(said),
            None => self.out.extend([0; LATER]),
        }
        Ok(Many { encoder: self, said, gave: 0, at, variant })
    }
}

/// A sequence or a map that is being written.
struct Many<'e> {
    encoder: &'e mut Encoder,
    said: Option<usize>,
    gave: usize,
    /// The position of its length.
    at: usize,
    /// True if it is the data of a variant.
    variant: bool,
}

impl Many<'_> {
    fn give<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), ObjectError> {
        self.gave += 1;
        value.serialize(&mut *self.encoder)
    }

    fn field<T: Serialize + ?Sized>(&mut self, name: &str, value: &T) -> Result<(), ObjectError> {
        self.encoder.blob(tag::STR, name.as_bytes());
        self.give(value)
    }

    fn done(self) -> Result<(), ObjectError> {
        let Self { encoder, said, gave, at, variant } = self;
        match said {
            Some(said) if said != gave => return Err(ObjectError::Count { said, gave }),
            Some(_) => {}
            None => {
                // All bytes but the last have the bit that says that more follow.
                let mut rest = gave as u64;
                for byte in encoder.out.iter_mut().skip(at).take(LATER - 1) {
                    *byte = (rest & 0x7f) as u8 | 0x80;
                    rest >>= 7;
                }
                if let Some(byte) = encoder.out.get_mut(at + LATER - 1) {
                    *byte = (rest & 0x7f) as u8;
                }
            }
        }
        encoder.depth -= 1 + usize::from(variant);
        Ok(())
    }
}

impl<'e> Serializer for &'e mut Encoder {
    type Ok = ();
    type Error = ObjectError;
    type SerializeSeq = Many<'e>;
    type SerializeTuple = Many<'e>;
    type SerializeTupleStruct = Many<'e>;
    type SerializeTupleVariant = Many<'e>;
    type SerializeMap = Many<'e>;
    type SerializeStruct = Many<'e>;
    type SerializeStructVariant = Many<'e>;

    // The default, which serde's buffers for `flatten` and `untagged` assume.
    fn is_human_readable(&self) -> bool {
        true
    }

    fn serialize_bool(self, v: bool) -> Result<(), ObjectError> {
        self.out.push(if v { tag::TRUE } else { tag::FALSE });
        Ok(())
    }

    fn serialize_i8(self, v: i8) -> Result<(), ObjectError> {
        self.serialize_i64(v.into())
    }

    fn serialize_i16(self, v: i16) -> Result<(), ObjectError> {
        self.serialize_i64(v.into())
    }

    fn serialize_i32(self, v: i32) -> Result<(), ObjectError> {
        self.serialize_i64(v.into())
    }

    fn serialize_i64(self, v: i64) -> Result<(), ObjectError> {
        if let Ok(v) = u64::try_from(v) {
            self.serialize_u64(v)?;
        } else if let Ok(v) = i8::try_from(v) {
            self.tagged(tag::I8, v.to_le_bytes());
        } else if let Ok(v) = i16::try_from(v) {
            self.tagged(tag::I16, v.to_le_bytes());
        } else if let Ok(v) = i32::try_from(v) {
            self.tagged(tag::I32, v.to_le_bytes());
        } else {
            self.tagged(tag::I64, v.to_le_bytes());
        }
        Ok(())
    }

    fn serialize_i128(self, v: i128) -> Result<(), ObjectError> {
        if let Ok(v) = u128::try_from(v) {
            self.serialize_u128(v)?;
        } else if let Ok(v) = i64::try_from(v) {
            self.serialize_i64(v)?;
        } else {
            self.tagged(tag::I128, v.to_le_bytes());
        }
        Ok(())
    }

    fn serialize_u8(self, v: u8) -> Result<(), ObjectError> {
        self.serialize_u64(v.into())
    }

    fn serialize_u16(self, v: u16) -> Result<(), ObjectError> {
        self.serialize_u64(v.into())
    }

    fn serialize_u32(self, v: u32) -> Result<(), ObjectError> {
        self.serialize_u64(v.into())
    }

    fn serialize_u64(self, v: u64) -> Result<(), ObjectError> {
        match (u8::try_from(v), u16::try_from(v), u32::try_from(v)) {
            (Ok(v @ ..0x80), ..) => self.out.push(v),
            (Ok(v), ..) => self.tagged(tag::U8, v.to_le_bytes()),
            (_, Ok(v), _) => self.tagged(tag::U16, v.to_le_bytes()),
            (.., Ok(v)) => self.tagged(tag::U32, v.to_le_bytes()),
            _ => self.tagged(tag::U64, v.to_le_bytes()),
        }
        Ok(())
    }

    fn serialize_u128(self, v: u128) -> Result<(), ObjectError> {
        match u64::try_from(v) {
            Ok(v) => self.serialize_u64(v)?,
            Err(_) => self.tagged(tag::U128, v.to_le_bytes()),
        }
        Ok(())
    }

    fn serialize_f32(self, v: f32) -> Result<(), ObjectError> {
        self.tagged(tag::F32, v.to_bits().to_le_bytes());
        Ok(())
    }

    fn serialize_f64(self, v: f64) -> Result<(), ObjectError> {
        self.tagged(tag::F64, v.to_bits().to_le_bytes());
        Ok(())
    }

    fn serialize_char(self, v: char) -> Result<(), ObjectError> {
        self.tagged(tag::CHAR, u32::from(v).to_le_bytes());
        Ok(())
    }

    fn serialize_str(self, v: &str) -> Result<(), ObjectError> {
        self.blob(tag::STR, v.as_bytes());
        Ok(())
    }

    fn serialize_bytes(self, v: &[u8]) -> Result<(), ObjectError> {
        self.blob(tag::BYTES, v);
        Ok(())
    }

    fn serialize_none(self) -> Result<(), ObjectError> {
        self.out.push(tag::NONE);
        Ok(())
    }

    fn serialize_some<T: Serialize + ?Sized>(self, value: &T) -> Result<(), ObjectError> {
        self.out.push(tag::SOME);
        self.nested(value)
    }

    fn serialize_unit(self) -> Result<(), ObjectError> {
        self.out.push(tag::UNIT);
        Ok(())
    }

    fn serialize_unit_struct(self, _: &'static str) -> Result<(), ObjectError> {
        self.serialize_unit()
    }

    fn serialize_unit_variant(self, _: &'static str, _: u32, name: &'static str) -> Result<(), ObjectError> {
        self.serialize_str(name)
    }

    fn serialize_newtype_struct<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        value: &T,
    ) -> Result<(), ObjectError> {
        self.nested(value)
    }

    fn serialize_newtype_variant<T: Serialize + ?Sized>(
        self,
        of: &'static str,
        index: u32,
        name: &'static str,
        value: &T,
    ) -> Result<(), ObjectError> {
        if let (MARK, Ok(mark)) = (of, u8::try_from(index)) {
            self.tagged(tag::MARK, [mark]);
            return value.serialize(self);
        }
        self.variant(name)?;
        value.serialize(&mut *self)?;
        self.depth -= 1;
        Ok(())
    }

    fn serialize_seq(self, len: Option<usize>) -> Result<Many<'e>, ObjectError> {
        self.begin(tag::SEQ, len, false)
    }

    fn serialize_tuple(self, len: usize) -> Result<Many<'e>, ObjectError> {
        self.begin(tag::SEQ, Some(len), false)
    }

    fn serialize_tuple_struct(self, _: &'static str, len: usize) -> Result<Many<'e>, ObjectError> {
        self.begin(tag::SEQ, Some(len), false)
    }

    fn serialize_tuple_variant(
        self,
        _: &'static str,
        _: u32,
        name: &'static str,
        len: usize,
    ) -> Result<Many<'e>, ObjectError> {
        self.variant(name)?;
        self.begin(tag::SEQ, Some(len), true)
    }

    fn serialize_map(self, len: Option<usize>) -> Result<Many<'e>, ObjectError> {
        self.begin(tag::MAP, len, false)
    }

    fn serialize_struct(self, _: &'static str, len: usize) -> Result<Many<'e>, ObjectError> {
        self.begin(tag::MAP, Some(len), false)
    }

    fn serialize_struct_variant(
        self,
        _: &'static str,
        _: u32,
        name: &'static str,
        len: usize,
    ) -> Result<Many<'e>, ObjectError> {
        self.variant(name)?;
        self.begin(tag::MAP, Some(len), true)
    }
}

macro_rules! sequences {
    ($($of:ident: $element:ident),* $(,)?) => {$(
        impl $of for Many<'_> {
            type Ok = ();
            type Error = ObjectError;

            fn $element<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), ObjectError> {
                self.give(value)
            }

            fn end(self) -> Result<(), ObjectError> {
                self.done()
            }
        }
    )*};
}

sequences! {
    SerializeSeq: serialize_element,
    SerializeTuple: serialize_element,
    SerializeTupleStruct: serialize_field,
    SerializeTupleVariant: serialize_field,
}

macro_rules! structs {
    ($($of:ident),* $(,)?) => {$(
        impl $of for Many<'_> {
            type Ok = ();
            type Error = ObjectError;

            fn serialize_field<T: Serialize + ?Sized>(
                &mut self,
                name: &'static str,
                value: &T,
            ) -> Result<(), ObjectError> {
                self.field(name, value)
            }

            fn end(self) -> Result<(), ObjectError> {
                self.done()
            }
        }
    )*};
}

structs!(SerializeStruct, SerializeStructVariant);

impl SerializeMap for Many<'_> {
    type Ok = ();
    type Error = ObjectError;

    fn serialize_key<T: Serialize + ?Sized>(&mut self, key: &T) -> Result<(), ObjectError> {
        key.serialize(&mut *self.encoder)
    }

    fn serialize_value<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), ObjectError> {
        self.give(value)
    }

    fn end(self) -> Result<(), ObjectError> {
        self.done()
    }
}
