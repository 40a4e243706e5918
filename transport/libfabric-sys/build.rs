//! Finds libfabric and makes the bindings from its installed headers; a miss says what to install. On docs.rs (`DOCS_RS` is set) the
//! bindings are those that are checked in, and nothing need be installed.
//!
//! Build scripts of crates that depend on this one directly get `DEP_FABRIC_RPATH`: libfabric's directory, if the loader would not
//! look there by itself.

use std::{
    env, io,
    panic::{self, AssertUnwindSafe},
    path::{Path, PathBuf},
    process::{self, Command},
};

/// The oldest libfabric whose providers were tried; Debian 12 and Ubuntu 23.04 ship it.
const OLDEST: &str = "1.17";

/// The functions, static inline functions and constants of libfabric that have bindings.
const FUNCTIONS: &str = "fi_(getinfo|freeinfo|dupinfo|allocinfo|fabric|strerror|version|close|domain|av_open|av_insert|\
    cq_open|cq_read|cq_readerr|cq_strerror|endpoint|ep_bind|enable|getname|mr_reg|mr_bind|mr_enable|mr_desc|mr_key|\
    trywait|control|writemsg|writedata|inject_writedata)";
const CONSTANTS: &str = "FI_(RMA|WRITE|REMOTE_WRITE|(LOCAL|REMOTE)_COMM|REMOTE_CQ_DATA|COMPLETION|INJECT|TRANSMIT|RECV|SOURCE|MSG|CONTEXT2?|\
    GETWAIT|MR_(LOCAL|VIRT_ADDR|ALLOCATED|PROV_KEY|ENDPOINT)|E[A-Z]+|KEY_NOTAVAIL|ADDR_UNSPEC|ADDR_NOTAVAIL|SOCKADDR(_IN6?)?|\
    AV_(UNSPEC|MAP|TABLE)|(MAJOR|MINOR|REVISION)_VERSION|WAIT_(NONE|FD)|CQ_FORMAT_DATA|EP_RDM|THREAD_(UNSPEC|DOMAIN)|PROGRESS_(UNSPEC|MANUAL|AUTO)|\
    RM_(UNSPEC|ENABLED)|CQ_COND_NONE)";

/// The packages that are needed, by the distributions' names.
const LIBFABRIC: &str = "libfabric-dev (Debian, Ubuntu), libfabric-devel (Fedora, RHEL, openSUSE) or libfabric (Arch, conda-forge, Homebrew)";
const LIBCLANG: &str = "libclang-dev (Debian, Ubuntu), clang-devel (Fedora, RHEL, openSUSE), clang (Arch), libclang (conda-forge) or llvm \
    (Homebrew)";
const PKG_CONFIG: &str =
    "pkg-config (Debian, Ubuntu, openSUSE, conda-forge) or pkgconf (Fedora, RHEL, Arch, Homebrew)";
const COMPILER: &str = "gcc and libc6-dev (Debian, Ubuntu), gcc and glibc-devel (Fedora, RHEL, openSUSE), gcc (Arch, Homebrew) or \
    c-compiler (conda-forge)";

fn main() {
    if let Err(sentence) = build() {
        // To stderr and without a panic, so that cargo shows this sentence and no trace.
        eprintln!("error: {sentence}");
        process::exit(1);
    }
}

fn build() -> Result<(), String> {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-env-changed=DOCS_RS");
    let directory = |name: &str| {
        let unset = || format!("{name} is not set; this script is for cargo to run");
        env::var_os(name).map(PathBuf::from).ok_or_else(unset)
    };
    let (source, out) = (directory("CARGO_MANIFEST_DIR")?, directory("OUT_DIR")?);
    if env::var_os("DOCS_RS").is_some() {
        println!("cargo:rustc-env=LIBFABRIC_BINDINGS={}", source.join("src/docs_rs.inc").display());
        return Ok(());
    }
    let library = pkg_config::Config::new()
        .atleast_version(OLDEST)
        .probe("libfabric")
        .map_err(|error| explain_pkg_config(&error))?;
    let libdir = match library.link_paths.first() {
        Some(path) => path.clone(),
        // pkg-config leaves the system's own directory out of the flags.
        None => pkg_config::get_variable("libfabric", "libdir").map(PathBuf::from).unwrap_or_default(),
    };
    if !["libfabric.so", "libfabric.a", "libfabric.dylib"].iter().any(|name| libdir.join(name).exists()) {
        return Err(format!(
            "pkg-config says that libfabric {} is in {}, and there is no libfabric.so there; reinstall {LIBFABRIC}",
            library.version,
            libdir.display()
        ));
    }
    let bindings = generate(&library, &source.join("wrapper.h"), &out)?;
    println!("cargo:rustc-env=LIBFABRIC_BINDINGS={}", bindings.display());
    if !library.link_paths.is_empty() && must_be_told(&libdir) {
        println!("cargo:rpath={}", libdir.display());
        // For this crate's own tests. RUNPATH, never RPATH: LD_LIBRARY_PATH must be able to put another libfabric first.
        println!("cargo:rustc-link-arg=-Wl,--enable-new-dtags,-rpath,{}", libdir.display());
    }
    Ok(())
}

/// Makes the bindings, and compiles the functions that the headers define. Returns the file of the bindings.
fn generate(library: &pkg_config::Library, header: &Path, out: &Path) -> Result<PathBuf, String> {
    let flags: Vec<String> =
        library.include_paths.iter().map(|path| format!("-I{}", path.display())).collect();
    let wrappers = out.join("static_inline");
    let builder = bindgen::Builder::default()
        .header(header.to_string_lossy())
        .clang_args(&flags)
        .allowlist_function(FUNCTIONS)
        .allowlist_function("strdup|ask_for_manual_progress")
        .allowlist_type("fi_cq_data_entry|fi_context2")
        .allowlist_var(CONSTANTS)
        .default_enum_style(bindgen::EnumVariation::Consts)
        .prepend_enum_name(false)
        .parse_callbacks(Box::new(Widths))
        // A libfabric that is exchanged has these made again.
        .parse_callbacks(Box::new(bindgen::CargoCallbacks::new()))
        .generate_comments(false)
        .layout_tests(false)
        .wrap_static_fns(true)
        .wrap_static_fns_path(&wrappers);

    // Without libclang bindgen panics; its message is kept out of sight and ours is shown.
    let hook = panic::take_hook();
    panic::set_hook(Box::new(|_| ()));
    let generated = panic::catch_unwind(AssertUnwindSafe(|| builder.generate()));
    panic::set_hook(hook);
    let bindings = generated
        .map_err(|_| format!("libclang, which reads libfabric's headers, was not found; install {LIBCLANG}, or name its directory with LIBCLANG_PATH"))?
        .map_err(|error| {
            let error = error.to_string();
            let error = error.trim();
            if ["stddef.h", "stdint.h"].iter().any(|own| error.contains(own)) {
                format!("libclang is there without its own headers; install {LIBCLANG}")
            } else if error.contains("string.h") {
                format!("the C library's headers are not there; install {COMPILER}")
            } else {
                format!("libfabric's headers cannot be read ({error}); reinstall {LIBFABRIC}")
            }
        })?;
    let file = out.join("bindings.rs");
    let failed = |error: io::Error| format!("cannot write {}: {error}", file.display());
    bindings.write_to_file(&file).map_err(failed)?;

    let mut compile = cc::Build::new();
    compile.file(wrappers.with_extension("c")).includes(&library.include_paths).warnings(false);
    compile.try_compile("unisono_static_inline").map_err(|error| {
        format!("no C compiler works here ({}); install {COMPILER}", error.to_string().trim())
    })?;
    Ok(file)
}

/// The types of constants: flags have 64 bits in C, and error codes are compared with signed results. Without this, bindgen would take
/// the narrowest type that holds each value.
#[derive(Debug)]
struct Widths;

impl bindgen::callbacks::ParseCallbacks for Widths {
    fn int_macro(&self, name: &str, _value: i64) -> Option<bindgen::callbacks::IntKind> {
        use bindgen::callbacks::IntKind;
        match name {
            name if name.starts_with("FI_E") && name != "FI_EVENT" => Some(IntKind::I64),
            name if name.starts_with("FI_") => Some(IntKind::U64),
            _ => None,
        }
    }
}

fn explain_pkg_config(error: &pkg_config::Error) -> String {
    let any = pkg_config::Config::new().cargo_metadata(false).probe("libfabric");
    match error {
        pkg_config::Error::Command { .. } => {
            format!("pkg-config, which finds libfabric, was not found; install {PKG_CONFIG}, and {LIBFABRIC}")
        }
        pkg_config::Error::ProbeFailure { .. } | pkg_config::Error::Failure { .. } => match any {
            Ok(pkg_config::Library { version, .. }) => format!(
                "libfabric {version} is too old, at least {OLDEST} is wanted; install a newer one, {LIBFABRIC}, or name another with \
                     PKG_CONFIG_PATH"
            ),
            Err(_) => format!(
                "libfabric's headers were not found; install {LIBFABRIC}, or name another libfabric with PKG_CONFIG_PATH"
            ),
        },
        other => format!("pkg-config cannot say where libfabric is: {other}"),
    }
}

/// True if the loader must be told of this directory: programs can load the library there, which is not only one to link with, and the
/// loader does not look there by itself. It may know the directory by another path: `/lib` is often a link to `/usr/lib`.
fn must_be_told(libdir: &Path) -> bool {
    let Ok(library) = libdir.join("libfabric.so.1").canonicalize() else {
        return libdir.join("libfabric.dylib").exists();
    };
    let listed = ["ldconfig", "/sbin/ldconfig", "/usr/sbin/ldconfig"].iter().find_map(|program| {
        Command::new(program).arg("-p").output().ok().filter(|output| output.status.success())
    });
    !listed.is_some_and(|output| {
        String::from_utf8_lossy(&output.stdout)
            .lines()
            .filter_map(|line| line.split("=> ").nth(1))
            .any(|path| Path::new(path.trim()).canonicalize().is_ok_and(|known| known == library))
    })
}
