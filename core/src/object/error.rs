//! Errors of encoding and decoding.

use std::fmt::{self, Write as _};

use super::DEPTH;

/// Why a value cannot be encoded or sent, or bytes cannot be decoded as the type that was asked for.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ObjectError {
    /// The value is of another type, or its `Serialize` or `Deserialize` failed.
    #[error("{problem}")]
    Value {
        /// The message of serde or of the type.
        problem: String,
    },
    /// A sequence or a map has another number of elements than its `Serialize` declared.
    #[error("a sequence or map declares {said} elements and has {gave}; correct its Serialize")]
    Count {
        /// The number of elements declared.
        said: usize,
        /// The number of elements encoded.
        gave: usize,
    },
    /// Values are nested too deeply.
    #[error("its values are nested more than {DEPTH} levels deep; flatten it")]
    Deep,
    /// The bytes end in the middle of a value.
    #[error("the bytes end at {at}, within a value")]
    Ends {
        /// The number of bytes.
        at: usize,
    },
    /// Bytes follow the value.
    #[error("{left} bytes follow the value")]
    Trailing {
        /// The number of these bytes.
        left: usize,
    },
    /// A value begins with an unknown byte.
    #[error("byte {at} is {byte:#04x}, with which no value begins")]
    Tag {
        /// The index of the byte.
        at: usize,
        /// Its value.
        byte: u8,
    },
    /// A length is larger than the rest of the bytes can hold.
    #[error(
        "the length before byte {at} is {said} bytes or elements, and the rest of the bytes has room for {room} at most"
    )]
    Length {
        /// The length.
        said: u64,
        /// The index of the byte behind the length.
        at: usize,
        /// The most that the rest of the bytes can contain.
        room: usize,
    },
    /// A text is not UTF-8, or a number is no character.
    #[error("the text that begins at byte {at} is not Unicode")]
    Text {
        /// The index of its first byte.
        at: usize,
    },
    /// The value takes more bytes than the limit.
    #[error(
        "it takes {bytes} bytes, and at most {limit} may be sent; send parts of it, or tensors, or \
        raise UNISONO_OBJECT_LIMIT"
    )]
    TooLarge {
        /// The bytes of the value.
        bytes: u64,
        /// The limit, in bytes.
        limit: usize,
    },
    /// The rank that should have sent it could not.
    #[error("that rank did not send it; its own error says why")]
    Unsent,
}

/// The beginning of a message, which may contain a long text from another rank.
#[derive(Default)]
struct Short(String);

impl fmt::Write for Short {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        const MOST: usize = 400;
        let room = MOST.saturating_sub(self.0.len());
        if text.len() <= room {
            self.0.push_str(text);
        } else if room > 0 {
            self.0.extend(text.chars().take(room));
            // The text now has at least as many bytes as allowed, so nothing more is appended.
            self.0.push('…');
        }
        Ok(())
    }
}

impl ObjectError {
    fn value(problem: impl fmt::Display) -> Self {
        let mut short = Short::default();
        // `Short` never fails; if the `Display` does, the message is incomplete.
        let _ = write!(short, "{problem}");
        Self::Value { problem: short.0 }
    }
}

impl serde::ser::Error for ObjectError {
    fn custom<T: fmt::Display>(problem: T) -> Self {
        Self::value(problem)
    }
}

impl serde::de::Error for ObjectError {
    fn custom<T: fmt::Display>(problem: T) -> Self {
        Self::value(problem)
    }
}
