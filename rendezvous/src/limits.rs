//! How long keys and values of a store may be.

use unisono_core::error::{Error, Result};

/// The longest key.
pub const MAX_KEY: usize = 1024;

/// The largest value, in bytes: a table of the addresses of 100,000 ranks fits well.
pub const MAX_VALUE: usize = 64 << 20;

/// Checks the lengths of a key (or a prefix) and of a value, in bytes; every request begins with this check.
pub(super) fn limits(store: &str, key: &str, value: usize) -> Result<()> {
    let problem = if key.len() > MAX_KEY {
        too_long(key)
    } else if value > MAX_VALUE {
        format!("{key} has {value} bytes; at most {MAX_VALUE} are allowed")
    } else {
        return Ok(());
    };
    Err(Error::Rendezvous { store: store.to_owned(), problem })
}

pub(super) fn too_long(key: &str) -> String {
    format!("a key of {} bytes; at most {MAX_KEY} are allowed", key.len())
}
