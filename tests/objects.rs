//! Decoding bytes from outside takes no more memory than their number allows; a counting allocator measures it. It is a separate test, so
//! that nothing else allocates meanwhile.

use peak_alloc::PeakAlloc;
use serde::{Deserialize, de::DeserializeOwned};
use unisono::object::{DEPTH, ObjectError, decode, encode};

#[global_allocator]
static MEMORY: PeakAlloc = PeakAlloc;

/// Nested branches of 24 bytes each.
#[derive(Debug, Deserialize)]
struct Tree(#[expect(dead_code, reason = "only its size counts")] Vec<Self>);

/// The most bytes that decoding allocates at once.
fn peak<T: DeserializeOwned>(bytes: &[u8]) -> (usize, Result<T, ObjectError>) {
    let before = MEMORY.current_usage();
    MEMORY.reset_peak_usage();
    let result = decode::<T>(bytes);
    (MEMORY.peak_usage().saturating_sub(before), result)
}

fn modest<T: DeserializeOwned>(bytes: &[u8]) {
    // Vectors grow by doubling, and hold the old one until the new one is filled.
    let most = 3 * size_of::<Tree>() * bytes.len() + (4 << 10);
    let (took, _) = peak::<T>(bytes);
    assert!(took <= most, "{} took {took} of {} bytes", std::any::type_name::<T>(), bytes.len());
}

const TEXT: u8 = 0x92;
const SEQUENCE: u8 = 0x94;

/// An encoded length.
fn length(mut number: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    while number > 0x7f {
        bytes.push((number & 0x7f) as u8 | 0x80);
        number >>= 7;
    }
    bytes.push((number & 0x7f) as u8);
    bytes
}

#[test]
fn hostile_bytes_take_little_memory() {
    // The allocator counts memory that is really used.
    let honest = encode(&vec![u64::MAX; 10_000]).unwrap();
    let (took, value) = peak::<Vec<u64>>(&honest);
    assert!(took >= 80_000 && value.unwrap().len() == 10_000, "{took}");
    modest::<Vec<u64>>(&honest);

    for said in [5, 1 << 20, u32::MAX.into(), u64::MAX] {
        // Every level claims the same length; other formats reserve memory for it on each level.
        let level = [&[SEQUENCE][..], &length(said)].concat();
        for levels in [1, DEPTH / 2, DEPTH, 1000] {
            for padding in [0, 10, 100_000] {
                let bytes = [level.repeat(levels), vec![0; padding]].concat();
                modest::<Tree>(&bytes);
                modest::<Vec<Vec<u64>>>(&bytes);
                modest::<Vec<()>>(&bytes);
            }
        }
        let bytes = [&[TEXT][..], &length(said), &[b'x'; 100]].concat();
        modest::<String>(&bytes);
        modest::<Vec<u8>>(&bytes);
    }
    // Every level in turn claims as much as is left.
    let mut bytes = vec![0; 50_000];
    for level in 0..DEPTH {
        let head = [&[SEQUENCE][..], &length((50_000 - level) as u64)].concat();
        bytes.splice(..0, head);
    }
    modest::<Tree>(&bytes);
    // Random bytes.
    let mut state = 7_u64;
    for round in 0..3000_usize {
        let byte = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let byte = (state >> 56) as u8;
            if byte > 0x60 { SEQUENCE } else { byte }
        };
        let bytes: Vec<u8> = std::iter::repeat_with(byte).take(round).collect();
        modest::<Tree>(&bytes);
        modest::<Vec<Vec<u64>>>(&bytes);
        modest::<Option<String>>(&bytes);
    }
}
