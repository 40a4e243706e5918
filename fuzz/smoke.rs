//! Runs the function of a fuzz target in an ordinary test, on stable: on its corpus, and on bytes made from that. Each crate with
//! fuzz targets has this file as a module of its tests.

use std::{
    fs,
    path::{Path, PathBuf},
};

use proptest::{collection::vec, prelude::*, sample::Index, test_runner::TestRunner};

/// The files of a corpus in this folder, by name, with their bytes.
pub(crate) fn corpus(folder: &Path) -> Vec<(String, Vec<u8>)> {
    let entries = fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let read = |path: PathBuf| (path.display().to_string(), fs::read(&path).unwrap());
    let mut all: Vec<_> = entries.map(|entry| read(entry.unwrap().path())).collect();
    all.sort();
    all
}

/// The files of this target's corpus, which lies in this folder, and other bytes.
pub(crate) fn any_bytes_pass(corpora: &Path, target: &str, call: fn(&[u8])) {
    let corpus = corpus(&corpora.join(target));
    corpus_passes(&corpus, call);
    other_bytes_pass(target, &corpus, call);
}

/// Every file of a corpus.
fn corpus_passes(corpus: &[(String, Vec<u8>)], call: fn(&[u8])) {
    assert!(!corpus.is_empty());
    for (file, bytes) in corpus {
        std::panic::catch_unwind(|| call(bytes)).unwrap_or_else(|_| panic!("{file}"));
    }
}

/// Bytes of nothing, and those of a corpus changed, cut off and put together. A failure tells the bytes.
fn other_bytes_pass(target: &str, corpus: &[(String, Vec<u8>)], call: fn(&[u8])) {
    let change = (any::<Index>(), any::<u8>());
    let changed = (any::<Index>(), any::<Index>(), vec(change, 0..8), any::<Index>());
    let changed = changed.prop_map(|(one, other, changes, cut)| {
        let mut bytes = one.get(corpus).1.clone();
        bytes.truncate(cut.index(bytes.len() * 4 + 1));
        bytes.extend(&other.get(corpus).1[..cut.index(other.get(corpus).1.len() + 1)]);
        for (at, byte) in changes {
            let at = at.index(bytes.len().max(1));
            bytes.get_mut(at).into_iter().for_each(|there| *there = byte);
        }
        bytes
    });
    let any_bytes = prop_oneof![1 => vec(any::<u8>(), 0..300), 3 => changed];
    let mut runner = TestRunner::new(ProptestConfig { cases: 1000, ..ProptestConfig::default() });
    let run = runner.run(&any_bytes, |bytes| {
        call(&bytes);
        Ok(())
    });
    run.unwrap_or_else(|failure| panic!("{target}: {failure}"));
}
