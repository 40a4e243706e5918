//! Where the extension module looks for libfabric: first in the package's own `libs/`, which wheels have, then where it was found at
//! build time, if the loader would not look there by itself.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    // RUNPATH, never RPATH: LD_LIBRARY_PATH must be able to put another libfabric first.
    println!("cargo:rustc-link-arg=-Wl,--enable-new-dtags,-rpath,$ORIGIN/libs");
    if let Ok(directory) = std::env::var("DEP_FABRIC_RPATH") {
        println!("cargo:rustc-link-arg=-Wl,-rpath,{directory}");
    }
}
