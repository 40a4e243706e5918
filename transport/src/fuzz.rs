//! The fuzz targets `control` and `ring`: bytes that a peer sends over shared memory are read without a panic, and land only where
//! the peer may write. The tests run the same functions on their corpora and on random bytes.

#[cfg(test)]
#[path = "../../fuzz/smoke.rs"]
mod smoke;

/// A message of the socket between a writer and a reader.
pub fn control(bytes: &[u8]) {
    crate::shm::fuzz::control(bytes);
}

/// What a writer does to its ring.
pub fn ring(bytes: &[u8]) {
    crate::shm::fuzz::ring(bytes);
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn any_bytes_pass() {
        let corpora = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/corpus");
        for (target, call) in [("control", control as fn(&[u8])), ("ring", ring)] {
            smoke::any_bytes_pass(&corpora, target, call);
        }
    }
}
