//! libfabric's directory, where the loader would not look there by itself, goes into this package's binaries, tests and benches.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    if let Ok(directory) = std::env::var("DEP_FABRIC_RPATH") {
        // RUNPATH, never RPATH: LD_LIBRARY_PATH must be able to put another libfabric first.
        println!("cargo:rustc-link-arg=-Wl,--enable-new-dtags,-rpath,{directory}");
    }
}
