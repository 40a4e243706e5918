//! The fuzz targets `object` and `position`. The tests here run the same functions on stable.

#![allow(clippy::panic, reason = "a finding of the fuzzer")]

use std::{
    collections::{BTreeMap, HashMap},
    fmt::Debug,
};

use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::{
    object,
    position::{Position, judge, report, whereabouts},
};

#[cfg(test)]
#[path = "../../fuzz/smoke.rs"]
mod smoke;

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

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn corpus(target: &str) -> Vec<(String, Vec<u8>)> {
        smoke::corpus(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/corpus").join(target))
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
    fn any_bytes_pass() {
        let corpora = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/corpus");
        for (target, call) in [("object", object as fn(&[u8])), ("position", position)] {
            smoke::any_bytes_pass(&corpora, target, call);
        }
    }
}
