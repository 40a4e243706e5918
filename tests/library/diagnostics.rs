//! The compiler's message to a caller that passes a type that cannot be sent: it says which types can, and what to do.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
    sync::atomic::{AtomicUsize, Ordering},
    time::SystemTime,
};

/// The compiled library with which this test is linked: the latest.
fn library() -> (PathBuf, PathBuf) {
    let program = env::current_exe().expect("this program's path");
    let directory = program.parent().expect("this program's directory").to_owned();
    let entries = fs::read_dir(&directory).expect("the directory of this program");
    let libraries = entries.flatten().map(|entry| entry.path()).filter(|path| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name.starts_with("libunisono-") && name.ends_with(".rlib")
    });
    let age =
        |path: &PathBuf| fs::metadata(path).and_then(|it| it.modified()).unwrap_or(SystemTime::UNIX_EPOCH);
    let library = libraries.max_by_key(age).expect("the compiled library");
    (directory, library)
}

/// The compiler's message about this function's body.
fn said(body: &str) -> String {
    let (directory, library) = library();
    static PROGRAMS: AtomicUsize = AtomicUsize::new(0);
    let number = PROGRAMS.fetch_add(1, Ordering::Relaxed);
    let name = format!("diagnostics-{}-{number}", std::process::id());
    let scratch = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    fs::create_dir_all(&scratch).expect("a directory for the program");
    let source = scratch.join("program.rs");
    let text = format!(
        "use unisono::{{ProcessGroup, ReduceOp, Result}};\n\
         pub fn call(group: &ProcessGroup) -> Result<()> {{\n{body}\nOk(())\n}}\n"
    );
    fs::write(&source, text).expect("the program");
    let output = Command::new(env::var_os("RUSTC").unwrap_or_else(|| "rustc".into()))
        .args(["--edition", "2024", "--crate-type", "lib", "--emit", "metadata", "--color", "never"])
        .arg("-L")
        .arg(format!("dependency={}", directory.display()))
        .arg("--extern")
        .arg(format!("unisono={}", library.display()))
        .arg("--out-dir")
        .arg(&scratch)
        .arg(&source)
        .output()
        .expect("rustc");
    let _ = fs::remove_dir_all(&scratch);
    // The message in one line, without its line breaks.
    String::from_utf8_lossy(&output.stderr).split_whitespace().collect::<Vec<_>>().join(" ")
}

#[test]
fn the_compiler_names_the_types_that_can_be_sent() {
    for element in ["1_u64", "1_usize"] {
        assert_eq!(said(&format!("group.all_reduce(&mut [{element}], ReduceOp::Sum)?;")), "");
    }
    for (element, name) in [("1_i128", "i128"), ("true", "bool"), ("'a'", "char")] {
        let message = said(&format!("group.all_reduce(&mut [{element}], ReduceOp::Sum)?;"));
        for wanted in [
            &format!("`{name}` is not an element type of unisono")[..],
            "the element types are f32, f64, i8 to i64, u8 to u64, usize and isize, and f16 and bf16 of the crate `half`",
        ] {
            assert!(message.contains(wanted), "wanted {wanted:?} in:\n{message}");
        }
    }
}

#[test]
fn the_compiler_says_what_an_asynchronous_call_keeps() {
    assert_eq!(said("group.begin().all_reduce(vec![1_u64], ReduceOp::Sum)?.wait()?;"), "");
    for memory in ["&mut [1_u64][..]", "[1_u64]", "&mut vec![1_u64]"] {
        let message = said(&format!("group.begin().all_reduce({memory}, ReduceOp::Sum)?.wait()?;"));
        for wanted in [
            "an asynchronous call cannot keep a `",
            "pass a `Vec`, a `Box<[T]>` or a `Buffer` of elements by value",
        ] {
            assert!(message.contains(wanted), "wanted {wanted:?} in:\n{message}");
        }
    }
}

#[test]
fn the_compiler_says_what_a_call_takes() {
    let message = said("group.begin().all_reduce((&[1_u64], &mut [1_u64]), ReduceOp::Sum)?.wait()?;");
    let wanted = "a call that `group.begin()` makes takes `data` or `(input, output)` by value";
    assert!(message.contains(wanted), "{message}");
    for operand in ["vec![1_u64]", "&[1_u64]", "(vec![1_u64], vec![1_u64])"] {
        let message = said(&format!("group.all_reduce({operand}, ReduceOp::Sum)?;"));
        let wanted = "a blocking call takes `&mut data` in place, or `(&input, &mut output)`";
        assert!(message.contains(wanted), "{operand}: wanted {wanted:?} in:\n{message}");
    }
    let message = said("group.send(vec![1_u64], 0)?;");
    assert!(message.contains("a blocking call takes `&data`"), "{message}");
}
