//! Values of variables that are given by name, and the errors that name them.

use unisono_core::error::{Error, Result};

pub(super) use crate::config::Lookup;

/// The number in a variable, if it is set.
pub(super) fn number(variable: Lookup<'_>, name: &str) -> Result<Option<usize>> {
    match variable(name).map(|text| text.trim().parse()) {
        None => Ok(None),
        Some(Ok(number)) if number < 1 << 31 => Ok(Some(number)),
        Some(_) => Err(wrong(variable, name, "wanted a number from 0".into())),
    }
}

/// The error of a variable, with its value.
pub(super) fn wrong(variable: Lookup<'_>, name: &str, problem: String) -> Error {
    // The error does not show a secret, even if it is wrong.
    let value = variable(name).filter(|_| name != "UNISONO_TOKEN");
    Error::Config { name: name.into(), value, problem }
}
