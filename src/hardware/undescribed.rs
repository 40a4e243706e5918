//! The hardware where the library is built without hwloc.

use std::io;

use super::Hardware;

/// The version of the hwloc that is loaded, major and minor; `None` where the library is built without it.
#[must_use]
pub fn hwloc_version() -> Option<(usize, usize)> {
    None
}

impl Hardware {
    /// This host's. Without the feature `hwloc`, it is one node of the processors that this process may use.
    ///
    /// # Errors
    /// If the system says nothing of its processors.
    pub fn here() -> io::Result<Self> {
        Self::undescribed()
    }

    /// This host's, and why its cores are not known.
    pub(crate) fn own() -> io::Result<(Self, Option<String>)> {
        Ok((Self::undescribed()?, Some("unisono was built without hwloc".to_owned())))
    }

    /// The hardware in XML that hwloc has written (`lstopo --of xml`). hwloc ends the process on some files that were changed by hand:
    /// it is for files that are trusted, or for a separate process, as `unisono doctor` has.
    ///
    /// # Errors
    /// If hwloc does not read it, or the library is built without the feature `hwloc`.
    pub fn from_xml(_text: &str) -> io::Result<Self> {
        Err(unsupported())
    }

    /// The hardware that a text describes as hwloc's synthetic topologies do: `pack:2 [numa] l3:2 core:4 pu:2`.
    ///
    /// # Errors
    /// As of [`from_xml`](Self::from_xml).
    pub fn from_synthetic(_text: &str) -> io::Result<Self> {
        Err(unsupported())
    }
}

fn unsupported() -> io::Error {
    let problem = "unisono was built without hwloc (the feature `hwloc`), which reads topologies";
    io::Error::new(io::ErrorKind::Unsupported, problem)
}
