//! Some tensors of a .safetensors file in place of the whole.

use std::os::unix::fs::symlink;

use super::*;
use crate::{recv, send};

/// A directory with a .safetensors file of these tensors, with this many bytes for all of them.
fn checkpoint(tensors: &[String], len: usize) -> (TempDir, PathBuf, Vec<u8>) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("model");
    let header = format!("{{{}}}", tensors.join(","));
    let head = (header.len() as u64).to_le_bytes();
    let bytes = [&head[..], header.as_bytes(), &vec![7; len]].concat();
    fs::write(&path, &bytes).unwrap();
    (directory, path, bytes)
}

fn tensor(name: &str, dtype: &str, from: usize, to: usize) -> String {
    format!(r#""{name}":{{"dtype":"{dtype}","shape":[{}],"data_offsets":[{from},{to}]}}"#, to - from)
}

#[test]
fn some_tensors_do_not_take_the_place_of_the_whole() {
    // The directories, of which the source lies in the first, and the rank that refuses.
    let cases = [
        ([".", "1", "2"], Some(0)),
        (["0", ".", "2"], Some(1)),
        (["0", ".", "."], Some(1)),
        (["0", "1", "link"], Some(2)),
        (["0", "soft", "2"], Some(1)),
        (["0", "copy", "2"], None),
    ];
    for (places, refuses) in cases {
        let tensors = [tensor("a", "U8", 0, 500), tensor("b", "U8", 500, 900)];
        let (directory, path, bytes) = checkpoint(&tensors, 900);
        let here = directory.path();
        symlink(here, here.join("link")).unwrap();
        fs::create_dir(here.join("soft")).unwrap();
        symlink(&path, here.join("soft/model")).unwrap();
        // Another file with the same length and modification time.
        fs::create_dir(here.join("copy")).unwrap();
        fs::write(here.join("copy/model"), &bytes).unwrap();
        let age = fs::metadata(&path).unwrap().modified().unwrap();
        let copy = fs::File::options().write(true).open(here.join("copy/model")).unwrap();
        copy.set_modified(age).unwrap();
        let chosen = ["a".to_owned()];
        let message = world(3, small, |group| {
            let to = here.join(places[group.rank()]);
            let options = Options { tensors: &chosen, piece: 100, progress: None };
            let delivered = broadcast(&group, &path, &to, 0, options);
            match refuses {
                None => (0, delivered.unwrap().bytes.to_string()),
                Some(_) => {
                    let (rank, _, words) = problem(&group, delivered);
                    (rank, words)
                }
            }
        });
        let (rank, words) = alike(message);
        if let Some(refuses) = refuses {
            assert_eq!(rank, refuses, "{places:?}: {words}");
            assert!(words.contains("some tensors of this very file; name another directory"), "{words}");
        } else {
            assert!(words.parse::<usize>().unwrap() < bytes.len() - 300);
            assert_ne!(fs::read(here.join("copy/model")).unwrap(), bytes);
        }
        assert_eq!(fs::read(&path).unwrap(), bytes, "{places:?}");
        for place in [here.to_owned(), here.join(places[1]), here.join(places[2])] {
            assert!(names(&place).iter().all(|name| !name.starts_with('.')), "{places:?}");
        }
    }
}

#[test]
fn some_tensors_go_to_one_rank() {
    let tensors = [tensor("a", "U8", 0, 500), tensor("b", "U8", 500, 900)];
    let (directory, path, bytes) = checkpoint(&tensors, 900);
    let chosen = ["b".to_owned()];
    world(2, small, |group| {
        let here = directory.path();
        for (to, refused) in [(here.to_owned(), true), (here.join("to"), false)] {
            let options = Options { tensors: &chosen, piece: 100, progress: None };
            let done = match group.rank() {
                0 => send(&group, &path, 1, 0, options),
                _ => recv(&group, &to, 0, 0, pieces(1)).map(|(delivered, _)| delivered),
            };
            match done {
                Err(error) => {
                    let words = "some tensors of this very file; name another directory";
                    assert!(refused && error.to_string().contains(words), "{error}");
                }
                Ok(it) => assert!(!refused && it.sent == it.bytes && it.bytes < 550, "{it:?}"),
            }
        }
    });
    assert_eq!(fs::read(&path).unwrap(), bytes);
    assert!(fs::read(directory.path().join("to/model")).unwrap().ends_with(&[7; 400]));
}

#[test]
fn all_ranks_get_the_error_of_a_header_with_long_names() {
    let many = (0..9).map(|it: u8| tensor(&it.to_string().repeat(20_000), "U8", 0, 0)).collect();
    let cases = [
        (vec![tensor("a", &"X".repeat(100_000), 0, 4)], 4),
        (vec![tensor(&"a".repeat(100_000), "U8", 1, 5)], 5),
        (many, 0),
    ];
    for (tensors, len) in cases {
        let (directory, path, _) = checkpoint(&tensors, len);
        let chosen = ["z".to_owned()];
        let message = world(2, small, |group| {
            let to = directory.path().join(group.rank().to_string());
            let options = Options { tensors: &chosen, piece: 100, progress: None };
            let message = problem(&group, broadcast(&group, &path, &to, 1, options));
            group.barrier().unwrap();
            message
        });
        let (rank, problem, words) = alike(message);
        assert!(rank == 1 && matches!(problem, Problem::Tensors { .. }), "{words}");
        assert!(words.ends_with("...") && words.len() < 2000, "{words}");
    }
}
