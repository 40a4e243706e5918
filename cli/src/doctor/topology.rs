//! A topology that hwloc's variables give, in place of this machine's. It is read in a separate process: hwloc ends its process on some
//! broken files, and writes to stderr on others.

use std::{path::PathBuf, time::Duration};

use serde::Serialize;
use unisono::hardware::Hardware;

use super::{environment::Environment, files, group::output};
use crate::invocation;

/// The name of the subcommand that reads it.
pub(crate) const NAME: &str = "doctor-topology";
/// How long reading may take.
const PATIENCE: Duration = Duration::from_secs(30);

/// A topology that takes the place of this machine's hardware.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) enum GivenTopology {
    /// A file that `lstopo --of xml` wrote.
    Recorded(PathBuf),
    /// A description, such as `pack:2 core:8 pu:2`.
    Synthetic(String),
}

impl GivenTopology {
    /// The one that hwloc's variables give. As for hwloc, a file counts before a description.
    pub(super) fn of(environment: &Environment) -> Option<Self> {
        let value = |name| environment.value(name).filter(|value| !value.is_empty());
        let file = value("HWLOC_XMLFILE").map(|file| Self::Recorded(file.into()));
        file.or_else(|| value("HWLOC_SYNTHETIC").map(|text| Self::Synthetic(text.into())))
    }

    /// Reads it in this process.
    pub(super) fn read(&self) -> Result<Hardware, String> {
        let read = match self {
            Self::Recorded(file) => files::read(file).and_then(|text| Hardware::from_xml(&text)),
            Self::Synthetic(text) => Hardware::from_synthetic(text),
        };
        read.map_err(|error| format!("{}: {error}", self.name()))
    }

    /// Reads the one that the variables give in a separate process.
    pub(super) fn read_apart(&self) -> Result<Hardware, String> {
        let ran = output(invocation::command().arg(NAME), PATIENCE);
        let (ended, said, _) = ran.map_err(|error| format!("{}: no process: {error}", self.name()))?;
        if !ended {
            return Err(format!("{}: hwloc did not read it within {} s", self.name(), PATIENCE.as_secs()));
        }
        let crashed = || format!("{}: hwloc crashed while it read it", self.name());
        serde_json::from_str(said.trim()).unwrap_or_else(|_| Err(crashed()))
    }

    fn name(&self) -> String {
        match self {
            Self::Recorded(file) => file.display().to_string(),
            Self::Synthetic(text) => format!("HWLOC_SYNTHETIC={text:?}"),
        }
    }
}

/// Reads the topology, in a separate process.
pub(crate) fn run() -> serde_json::Result<()> {
    let read = GivenTopology::of(&Environment::gather()).map(|topology| topology.read());
    let read = read.unwrap_or_else(|| Err("no variable gives a topology".to_owned()));
    serde_json::to_string(&read).map(|said| println!("{said}"))
}
