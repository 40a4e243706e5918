//! The functions of the fuzz targets in `fuzz/`. Each reads bytes that anybody could have sent or written; it must end, without a
//! panic and in bounded memory. The tests here run the same functions on stable.

#![allow(clippy::panic, reason = "a finding of the fuzzer")]

use std::{
    collections::{BTreeMap, HashMap},
    fmt::Debug,
};

use serde::{Deserialize, Serialize, de::DeserializeOwned};
use unisono_schedule::{
    Collective,
    select::{Selection, table::Table},
};

use crate::{
    config::{Config, StoreAddress, ThreadCores, parse_duration, parse_size},
    dtype::Dtype,
    engine, launch, object,
    position::{Position, judge, report, whereabouts},
    reduce::ReduceOp,
    rendezvous, runtime,
};

#[cfg(test)]
#[path = "../fuzz/smoke.rs"]
mod smoke;

/// Its name, which is that of its folder in `fuzz/corpus`, and what it calls.
pub type Target = (&'static str, fn(&[u8]));

/// All targets of this library; each has a file of its name in `fuzz/fuzz_targets`.
pub const TARGETS: &[Target] = &[
    ("arrivals", engine::FUZZ[1]),
    ("client", rendezvous::FUZZ[0]),
    ("object", object),
    ("position", position),
    ("roster", runtime::roster::fuzz),
    ("server", rendezvous::FUZZ[1]),
    ("settings", settings),
    ("tuning", tuning),
    ("wire", engine::FUZZ[0]),
];

/// Runs the target of that name.
pub fn run(target: &str, bytes: &[u8]) {
    match TARGETS.iter().find(|(name, _)| *name == target) {
        Some((_, call)) => call(bytes),
        None => panic!("there is no target {target}"),
    }
}

#[derive(Debug, Serialize, Deserialize)]
enum Shape {
    Unit,
    Newtype(Option<Option<i8>>),
    Tuple(u16, String, f32),
    Struct { wide: i128, list: Vec<Self>, small: Option<()> },
}

/// Values of any kind of type out of any bytes; what could be read is the same when it is written and read again.
pub fn object(bytes: &[u8]) {
    fn read<T: DeserializeOwned + Serialize + Debug>(bytes: &[u8]) {
        let Ok(value) = object::decode::<T>(bytes) else { return };
        let Ok(written) = object::encode(&value) else { panic!("cannot be written: {value:?}") };
        match object::decode::<T>(&written) {
            // As bytes: not every float is equal to itself.
            Ok(again) => assert_eq!(object::encode(&again).ok().as_ref(), Some(&written), "{value:?}"),
            Err(error) => panic!("cannot be read again: {value:?}: {error}"),
        }
    }
    read::<Vec<Shape>>(bytes);
    read::<BTreeMap<String, Option<Shape>>>(bytes);
    read::<Vec<()>>(bytes);
    read::<Vec<u8>>(bytes);
    read::<(u8, i64, f64, char, bool)>(bytes);
    read::<BTreeMap<Option<i16>, Vec<Vec<Vec<u128>>>>>(bytes);
    drop(object::decode::<serde::de::IgnoredAny>(bytes));
    drop(object::decode::<HashMap<String, String>>(bytes));
    drop(object::decode::<Vec<object::Marked<String>>>(bytes));
}

/// Positions of ranks, compared and put into words.
pub fn position(bytes: &[u8]) {
    let Ok(positions) = postcard::from_bytes::<Vec<Option<Position>>>(bytes) else { return };
    for op in [0, 1, u64::from(u32::MAX), u64::MAX] {
        drop(report(0, op, &positions));
        drop(report(1, op, &positions));
    }
    drop(whereabouts(&positions));
    drop(judge(&positions).map(|failure| failure.to_string()));
}

/// An environment, of lines `NAME=VALUE`: launchers' variables and our own.
pub fn settings(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let all: HashMap<&str, &str> = text.lines().filter_map(|line| line.split_once('=')).collect();
    let variable = |name: &str| all.get(name).map(|&value| value.to_owned());
    drop(launch::detect(&variable));
    let mut config = Config::default();
    if config.set_from(&variable).is_ok() && config.validate_from(&variable).is_ok() {
        drop(config.alike());
    }
    for value in all.values() {
        if let Ok(store) = StoreAddress::parse(value) {
            assert_eq!(StoreAddress::parse(&store.to_string()), Ok(store));
        }
        if let Some(op) = ReduceOp::parse(value) {
            let (again, same) =
                (ReduceOp::parse(&op.to_string()), |again: ReduceOp| again.code() == op.code());
            let number = !matches!(op, ReduceOp::PreMulSum(factor) if factor.is_nan());
            assert!(!number || again.is_some_and(same), "{op} {again:?}");
        }
        if let Ok(cores) = ThreadCores::parse(value) {
            assert_eq!(ThreadCores::parse(&cores.to_string()), Ok(cores));
        }
        drop((Selection::parse(value), parse_size(value), parse_duration(value), Dtype::parse(value)));
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
        fs,
        path::{Path, PathBuf},
    };

    use super::*;

    fn corpus(target: &str) -> Vec<(String, Vec<u8>)> {
        smoke::corpus(&Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus").join(target))
    }

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

    /// Otherwise nothing is compared.
    #[test]
    fn the_seeds_of_positions_are_read_to_their_end() {
        for (file, bytes) in corpus("position") {
            let read = postcard::take_from_bytes::<Vec<Option<Position>>>(&bytes);
            let (positions, rest) = read.unwrap_or_else(|error| panic!("{file}: {error}"));
            assert!(rest.is_empty() && positions.len() > 1, "{file}: {positions:?}, and {rest:02x?}");
        }
    }

    #[test]
    fn corpora_pass() {
        for (target, call) in TARGETS {
            smoke::corpus_passes(&corpus(target), *call);
        }
    }

    #[test]
    fn other_bytes_pass() {
        for (target, call) in TARGETS {
            smoke::other_bytes_pass(target, &corpus(target), *call);
        }
    }
}
