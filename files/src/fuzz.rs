//! The fuzz target `file`: arbitrary bytes as another rank's plan, and then as a journal, are decoded without a panic and in
//! bounded memory. The test runs the same function on the corpus and on random bytes.

use std::path::Path;

use crate::{local, plan::FilePlan};

#[cfg(test)]
#[path = "../../fuzz/smoke.rs"]
mod smoke;

/// Decodes the bytes as a plan, and then as a journal.
pub fn file(bytes: &[u8]) {
    let Ok((plan, rest)) = postcard::take_from_bytes::<FilePlan>(bytes) else { return };
    let Ok(plan) = plan.check() else { return };
    let name = plan.name();
    assert!(name.len() <= 255 && Path::new(&name).file_name() == Some(&name), "{name:?}");
    assert!(plan.mode <= 0o777 && plan.data <= plan.len && plan.pieces() <= 1 << 20);
    let mut end = 0;
    for piece in [0, 1, plan.pieces() / 2, plan.pieces().saturating_sub(1), plan.pieces(), u64::MAX] {
        let (start, len) = plan.range(piece);
        end = start + len as u64;
        assert!(end <= plan.len && len <= plan.longest() && len <= 256 << 20);
    }
    assert_eq!(end, plan.len);
    if let Some(sums) = local::noted(rest, &plan) {
        assert_eq!(sums.len() as u64, plan.pieces());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_bytes_pass() {
        let corpora = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/corpus");
        assert!(smoke::corpus(&corpora.join("file")).len() > 1);
        smoke::any_bytes_pass(&corpora, "file", file);
    }
}
