//! What the fuzz target `file` calls: what another rank says of a file, in any bytes, and then any bytes of a journal, come to an
//! end without a panic and in bounded memory. The test runs the same on its corpus, and on other bytes.

use std::path::Path;

use crate::{local, plan::Plan};

/// A plan, and a journal.
pub fn file(bytes: &[u8]) {
    let Ok((plan, rest)) = postcard::take_from_bytes::<Plan>(bytes) else { return };
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
    use std::fs;

    use proptest::{collection::vec, prelude::*, sample::Index, test_runner::TestRunner};

    use super::*;

    #[test]
    fn any_bytes_pass() {
        let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/corpus/file");
        let entries = fs::read_dir(corpus).unwrap();
        let seeds: Vec<Vec<u8>> = entries.map(|entry| fs::read(entry.unwrap().path()).unwrap()).collect();
        assert!(seeds.len() > 1);
        seeds.iter().for_each(|seed| file(seed));
        // The seeds with some bytes changed, and cut off.
        let changed = (any::<Index>(), vec((any::<Index>(), any::<u8>()), 0..8), any::<Index>());
        let changed = changed.prop_map(|(seed, changes, cut)| {
            let mut bytes = seed.get(&seeds).clone();
            bytes.truncate(cut.index(bytes.len() * 4 + 1));
            for (at, byte) in changes {
                let at = at.index(bytes.len().max(1));
                bytes.get_mut(at).into_iter().for_each(|there| *there = byte);
            }
            bytes
        });
        let any_bytes = prop_oneof![1 => vec(any::<u8>(), 0..300), 3 => changed];
        let mut runner = TestRunner::new(ProptestConfig { cases: 1000, ..ProptestConfig::default() });
        let run = runner.run(&any_bytes, |bytes| {
            file(&bytes);
            Ok(())
        });
        run.unwrap();
    }
}
