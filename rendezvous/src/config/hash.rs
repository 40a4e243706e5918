//! A hash that is the same in every build and on every host.

/// FNV-1a, which gives the same hash everywhere. The standard library's hashes do not promise that.
pub fn fnv(bytes: &[u8]) -> u64 {
    fnv_of_words(bytes.iter().map(|&byte| u64::from(byte)))
}

/// The same hash over whole words. It is faster for thousands of them.
pub fn fnv_of_words(words: impl Iterator<Item = u64>) -> u64 {
    words.fold(0xcbf2_9ce4_8422_2325, |hash, word| (hash ^ word).wrapping_mul(0x0100_0000_01b3))
}
