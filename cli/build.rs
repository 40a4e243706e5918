//! Hands on what `transport/build.rs` found: the directory of libfabric, where the loader would not look there
//! by itself, and the version whose headers were read, which `unisono doctor` compares with the one that runs.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    if let Ok(directory) = std::env::var("DEP_FABRIC_RPATH") {
        // RUNPATH, never RPATH: LD_LIBRARY_PATH must be able to put another libfabric first.
        println!("cargo:rustc-link-arg=-Wl,--enable-new-dtags,-rpath,{directory}");
    }
    let version = std::env::var("DEP_FABRIC_VERSION").unwrap_or_else(|_| "unknown".into());
    println!("cargo:rustc-env=LIBFABRIC_BUILT_AGAINST={version}");
}
