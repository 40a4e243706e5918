//! Versions of the libraries in use.

use serde::Serialize;
use unisono::hardware;
use unisono_transport::ofi;

use super::{files::Files, report::Section};

/// The oldest libfabric that is supported; `transport/libfabric-sys/build.rs` requires the same of the headers.
const OLDEST: (u32, u32) = (1, 17);

/// The versions of the program, of libfabric and of the kernel.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Versions {
    /// The program's.
    pub(super) unisono: String,
    /// The libfabric whose headers the program was built with, for instance `1.17.0`.
    pub(super) libfabric_built: String,
    /// The libfabric that runs: major, minor.
    pub(super) libfabric: (u32, u32),
    /// Its file.
    pub(super) libfabric_file: Option<String>,
    /// The hwloc that runs, major, minor; `None` if the program was built without it.
    pub(super) hwloc: Option<(usize, usize)>,
    /// The kernel's release.
    pub(super) kernel: Option<String>,
}

impl Versions {
    pub(super) fn gather(files: &Files) -> Self {
        let (major, minor, revision) = ofi::headers_version();
        Self {
            unisono: env!("CARGO_PKG_VERSION").into(),
            libfabric_built: format!("{major}.{minor}.{revision}"),
            libfabric: ofi::library_version(),
            libfabric_file: files.text("/proc/self/maps").and_then(|maps| library_in(&maps)),
            hwloc: hardware::hwloc_version(),
            kernel: files.text("/proc/sys/kernel/osrelease"),
        }
    }

    pub(super) fn judge(&self) -> Section {
        let mut section = Section::new("versions");
        section.note(format!(
            "unisono {} on Linux {}",
            self.unisono,
            self.kernel.as_deref().unwrap_or("of unknown release")
        ));
        let (major, minor) = self.libfabric;
        let file = self.libfabric_file.as_deref().unwrap_or("an unknown file");
        let runs = format!("libfabric {major}.{minor} from {file}");
        if self.libfabric < OLDEST {
            let (major, minor) = OLDEST;
            section.problem(
                format!("{runs} is older than {major}.{minor}, which is the oldest supported"),
                "install a newer libfabric, or put a newer one's directory first in LD_LIBRARY_PATH",
            );
        } else if self.libfabric_built.starts_with(&format!("{major}.{minor}.")) {
            section.ok(runs);
        } else {
            section.ok(format!("{runs}; built against {}, which is compatible", self.libfabric_built));
        }
        match self.hwloc {
            Some((major, minor)) => section.ok(format!("hwloc {major}.{minor}")),
            None => section.note(
                "built without hwloc: NUMA nodes, caches and what is near a NIC are unknown, and memory is not bound to nodes"
                    .to_owned(),
            ),
        }
        section
    }
}

/// The file of libfabric in the text of `/proc/self/maps`.
fn library_in(maps: &str) -> Option<String> {
    maps.lines().find_map(|line| {
        let path = line.get(line.find('/')?..)?;
        path.rsplit('/').next()?.starts_with("libfabric").then(|| path.to_owned())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_the_library_among_the_mappings() {
        let maps = "55d0-55d1 r-xp 0000 08:01 11 /usr/bin/libfabricate/x\n7f00-7f01 rw-p 0 00:00 0\n\
                    7f02-7f03 r-xp 0 08:01 5 /opt/my libs/libfabric.so.1.19.0\n";
        assert_eq!(library_in(maps).as_deref(), Some("/opt/my libs/libfabric.so.1.19.0"));
        assert_eq!(library_in("7f00-7f01 rw-p\n\u{fffd}"), None);
    }

    #[test]
    fn this_program_knows_what_it_runs_on() {
        let versions = Versions::gather(&Files::below("/"));
        assert!(versions.libfabric >= OLDEST, "{versions:?}");
        assert!(versions.libfabric_file.is_some_and(|file| file.contains("libfabric")));
        assert!(versions.libfabric_built.starts_with(|first: char| first.is_ascii_digit()));
    }
}
