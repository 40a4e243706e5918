//! The fuzz targets `arrivals` and `wire`: the decoding of any bytes from the wire, and an engine that gets them. The tests here run the
//! same functions on stable.

#[cfg(test)]
#[path = "../../fuzz/smoke.rs"]
mod smoke;

/// An engine that gets messages of any bytes.
pub fn arrivals(bytes: &[u8]) {
    crate::fuzz_tests::arrivals(bytes);
}

/// Records of the wire.
pub fn wire(bytes: &[u8]) {
    crate::wire::fuzz(bytes);
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn any_bytes_pass() {
        let corpora = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/corpus");
        for (target, call) in [("arrivals", arrivals as fn(&[u8])), ("wire", wire)] {
            smoke::any_bytes_pass(&corpora, target, call);
        }
    }
}
