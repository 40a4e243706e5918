//! Errors of encoding and decoding.

use std::fmt::{self, Write as _};

use super::DEPTH;

/// Why a value cannot be encoded or sent, or bytes cannot be decoded as the type that was asked for.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ObjectError {
    /// The value is of another type, or its own `Serialize` or `Deserialize` failed.
    #[error("{problem}")]
    Value {
        /// In serde's words, or the type's own.
        problem: String,
    },
    /// A sequence or a map has another number of elements than its `Serialize` declared.
    #[error("a sequence or map said that it has {said} elements and gave {gave}; mend its Serialize")]
    Count {
        /// What it said.
        said: usize,
        /// What it gave.
        gave: usize,
    },
    /// Values are nested too deep.
    #[error("its values lie more than {DEPTH} deep in one another; flatten it")]
    Deep,
    /// The bytes end in the middle of a value.
    #[error("the bytes end at {at}, within a value")]
    Ends {
        /// How many bytes there are.
        at: usize,
    },
    /// Bytes follow the value.
    #[error("{left} bytes follow the value")]
    Trailing {
        /// How many.
        left: usize,
    },
    /// A byte that begins no value.
    #[error("no value begins with {byte:#04x}, which is byte {at}")]
    Tag {
        /// Which byte it is.
        at: usize,
        /// What it holds.
        byte: u8,
    },
    /// A length is larger than the rest of the bytes can hold.
    #[error(
        "a length of {said} bytes or elements stands before byte {at}, and the rest of the bytes holds {room} at most"
    )]
    Length {
        /// How many.
        said: u64,
        /// Where they would begin.
        at: usize,
        /// How many there can be.
        room: usize,
    },
    /// Text that is not UTF-8, or no character.
    #[error("the text that begins at byte {at} is not Unicode")]
    Text {
        /// Where it begins.
        at: usize,
    },
    /// The value takes more bytes than the limit.
    #[error(
        "it takes {bytes} bytes, and at most {limit} may be sent; send parts of it, or tensors, or \
        raise UNISONO_OBJECT_LIMIT"
    )]
    TooLarge {
        /// How many it takes.
        bytes: u64,
        /// How many are allowed.
        limit: usize,
    },
    /// The rank that should have sent it could not.
    #[error("that rank did not send it; its own error says why")]
    Unsent,
}

/// The beginning of a message: what came from elsewhere may be in it, however long.
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
            // As many characters are at least as many bytes: nothing more is taken.
            self.0.push('…');
        }
        Ok(())
    }
}

impl ObjectError {
    fn value(problem: impl fmt::Display) -> Self {
        let mut short = Short::default();
        // It never fails; what a Display leaves unsaid is not ours to mend.
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
