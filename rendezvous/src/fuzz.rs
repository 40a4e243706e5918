//! The fuzz targets `client`, `server` and `settings`. The tests here run the same functions on stable.

#![allow(clippy::panic, reason = "a finding of the fuzzer")]

use std::collections::HashMap;

use unisono_core::{dtype::Dtype, reduce::ReduceOp};
use unisono_schedule::select::Selection;

use crate::{
    config::{Config, StoreAddress, ThreadCores, parse_duration, parse_size},
    launch, protocol, server,
};

#[cfg(test)]
#[path = "../../fuzz/smoke.rs"]
mod smoke;

/// A client that reads any bytes.
pub fn client(bytes: &[u8]) {
    protocol::fuzz(bytes);
}

/// A server that gets frames made of any bytes.
pub fn server(bytes: &[u8]) {
    server::fuzz::frames(bytes);
}

/// An environment, of lines `NAME=VALUE`: launchers' variables and our own.
pub fn settings(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let all: HashMap<&str, &str> = text.lines().filter_map(|line| line.split_once('=')).collect();
    let variable = |name: &str| all.get(name).map(|&value| value.to_owned());
    drop(launch::detect(&variable));
    let mut config = Config::default();
    if config.set_from(&variable).is_ok() && config.validate_from(&variable).is_ok() {
        drop(config.same_on_all_ranks());
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

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn any_bytes_pass() {
        let corpora = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/corpus");
        for (target, call) in [("client", client as fn(&[u8])), ("server", server), ("settings", settings)] {
            smoke::any_bytes_pass(&corpora, target, call);
        }
    }
}
