//! The functions of the fuzz targets in `fuzz/`. Each reads bytes that anybody could have sent or written; it must end, without a
//! panic and in bounded memory. The tests here run the same functions on stable.

#![allow(clippy::panic, reason = "a finding of the fuzzer")]

use unisono_schedule::{Collective, select::table::Table};

use crate::runtime;

#[cfg(test)]
#[path = "../fuzz/smoke.rs"]
mod smoke;

/// Its name, which is that of its folder in `fuzz/corpus`, and what it calls.
pub type FuzzTarget = (&'static str, fn(&[u8]));

/// All targets of this library; each has a file of its name in `fuzz/fuzz_targets`.
pub const TARGETS: &[FuzzTarget] = &[("roster", runtime::roster::fuzz), ("tuning", tuning)];

/// Runs the target of that name.
pub fn run(target: &str, bytes: &[u8]) {
    match TARGETS.iter().find(|(name, _)| *name == target) {
        Some((_, call)) => call(bytes),
        None => panic!("there is no target {target}"),
    }
}

/// A tuning file; what could be read is the same when it is written and read again.
pub fn tuning(bytes: &[u8]) {
    let Ok(table) = Table::parse(&String::from_utf8_lossy(bytes)) else { return };
    let written = table.to_string();
    match Table::parse(&written) {
        Ok(again) => assert_eq!(again.to_string(), written),
        Err(error) => panic!("cannot be read again: {error}: {written}"),
    }
    for collective in Collective::ALL {
        for (ranks, bytes) in [(1, 0), (2, 8), (4, 1 << 20), (usize::MAX, usize::MAX)] {
            let _ = table.choose(collective, ranks, bytes, |_| true);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        collections::BTreeMap,
        fs,
        path::{Path, PathBuf},
    };

    use super::*;

    #[test]
    fn targets_have_their_files() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz");
        let manifest = fs::read_to_string(root.join("Cargo.toml")).unwrap();
        for (name, _) in TARGETS {
            let text = fs::read_to_string(root.join(format!("fuzz_targets/{name}.rs"))).unwrap();
            assert!(text.contains("unisono::fuzz::run(\"") && text.contains(name), "{name}: {text}");
            assert!(manifest.contains(&format!("name = \"{name}\"")), "{name} is not in fuzz/Cargo.toml");
        }
        let all = |folder: &str| {
            let entries = fs::read_dir(root.join(folder)).unwrap().map(|entry| entry.unwrap().path());
            entries.map(|path| (path.file_stem().unwrap().to_owned(), path)).collect::<BTreeMap<_, _>>()
        };
        let (programs, corpora) = (all("fuzz_targets"), all("corpus"));
        assert!(programs.keys().eq(corpora.keys()), "{programs:?} {corpora:?}");
        let ours = |path: &&PathBuf| fs::read_to_string(path).unwrap().contains("unisono::fuzz::run(");
        assert_eq!(programs.values().filter(ours).count(), TARGETS.len());
    }

    #[test]
    fn any_bytes_pass() {
        let corpora = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus");
        for (target, call) in TARGETS {
            smoke::any_bytes_pass(&corpora, target, *call);
        }
    }
}
