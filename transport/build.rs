//! Finds libfabric and makes the bindings from its installed headers; a miss says what to install.
//!
//! Hands on, for the build scripts of crates that depend on this one (`DEP_FABRIC_*`): `libdir`,
//! `version`, and `rpath`, which is the same directory where the loader would not look by itself.

use std::{
    env, fs, io,
    panic::{self, AssertUnwindSafe},
    path::{Path, PathBuf},
    process::{self, Command},
};

/// The oldest libfabric whose providers were tried; Debian 12 and Ubuntu 23.04 ship it.
const OLDEST: &str = "1.17";

/// What of libfabric is spoken: plain functions, static inline functions and constants.
const FUNCTIONS: &str = "fi_(getinfo|freeinfo|dupinfo|allocinfo|fabric|strerror|version|close|domain|av_open|av_insert|\
    cq_open|cq_read|cq_readerr|cq_strerror|endpoint|ep_bind|enable|getname|mr_reg|mr_bind|mr_enable|mr_desc|mr_key|\
    trywait|control|writemsg|writedata|inject_writedata)";
const CONSTANTS: &str = "FI_(RMA|WRITE|REMOTE_WRITE|(LOCAL|REMOTE)_COMM|REMOTE_CQ_DATA|COMPLETION|INJECT|TRANSMIT|RECV|SOURCE|MSG|CONTEXT2?|\
    GETWAIT|MR_(LOCAL|VIRT_ADDR|ALLOCATED|PROV_KEY|ENDPOINT)|E[A-Z]+|KEY_NOTAVAIL|ADDR_UNSPEC|ADDR_NOTAVAIL|SOCKADDR(_IN6?)?|\
    AV_(UNSPEC|MAP|TABLE)|WAIT_(NONE|FD)|CQ_FORMAT_DATA|EP_RDM|THREAD_(UNSPEC|DOMAIN)|PROGRESS_(UNSPEC|MANUAL|AUTO)|\
    RM_(UNSPEC|ENABLED)|CQ_COND_NONE)";

/// From libfabric 2.0 on the field lies in an anonymous union, which only C names alike in all versions.
const MANUAL_PROGRESS: &str = "
static inline void ask_for_manual_progress(struct fi_domain_attr *attr) {
    attr->control_progress = attr->data_progress = FI_PROGRESS_MANUAL;
}
";

fn main() {
    if let Err(sentence) = build() {
        // To stderr and without a panic, so that cargo shows this sentence and no trace.
        eprintln!("error: {sentence}");
        process::exit(1);
    }
}

fn build() -> Result<(), String> {
    println!("cargo:rerun-if-changed=build.rs");
    let library = pkg_config::Config::new()
        .atleast_version(OLDEST)
        .probe("libfabric")
        .map_err(|error| explain_pkg_config(&error))?;

    let out =
        PathBuf::from(env::var_os("OUT_DIR").ok_or("OUT_DIR is not set; this script is for cargo to run")?);
    let header = out.join("fabric_all.h");
    let includes = ["fabric", "fi_domain", "fi_endpoint", "fi_cm", "fi_eq", "fi_rma", "fi_errno"]
        .map(|name| format!("#include <rdma/{name}.h>\n"))
        .concat();
    let written = |error: io::Error| format!("cannot write to {}: {error}", out.display());
    fs::write(&header, format!("#include <string.h>\n{includes}{MANUAL_PROGRESS}")).map_err(written)?;

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
        .map_err(|_| "libclang, which reads libfabric's headers, was not found; install it: apt-get install libclang-dev")?
        .map_err(|error| {
            let error = error.to_string();
            let error = error.trim();
            if error.contains("stddef.h") || error.contains("stdint.h") {
                "libclang is there without its own headers; install them: apt-get install libclang-dev".into()
            } else {
                format!("libfabric's headers cannot be read ({error}); reinstall them: apt-get install libfabric-dev")
            }
        })?;
    bindings.write_to_file(out.join("bindings.rs")).map_err(written)?;

    let mut compile = cc::Build::new();
    compile.file(wrappers.with_extension("c")).includes(&library.include_paths).include(&out).warnings(false);
    compile.try_compile("unisono_static_inline").map_err(|error| {
        format!(
            "no C compiler works here ({}); install one: apt-get install gcc libc6-dev",
            error.to_string().trim()
        )
    })?;

    let libdir = match library.link_paths.first() {
        Some(path) => path.clone(),
        // pkg-config leaves the system's own directory out of the flags.
        None => pkg_config::get_variable("libfabric", "libdir").map(PathBuf::from).unwrap_or_default(),
    };
    println!("cargo:libdir={}", libdir.display());
    println!("cargo:version={}", library.version);
    if !library.link_paths.is_empty() && !loader_knows(&libdir) {
        println!("cargo:rpath={}", libdir.display());
        // RUNPATH, never RPATH: LD_LIBRARY_PATH must be able to put another libfabric first.
        println!("cargo:rustc-link-arg=-Wl,--enable-new-dtags,-rpath,{}", libdir.display());
    }
    Ok(())
}

/// Flags are 64 bits wide in C and error codes are compared with signed results: say so once, here, since
/// bindgen would take the narrowest type that holds each value.
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
    match error {
        pkg_config::Error::Command { .. } => {
            "pkg-config, which finds libfabric, was not found; install both: apt-get install pkg-config libfabric-dev".into()
        }
        pkg_config::Error::ProbeFailure { .. } | pkg_config::Error::Failure { .. } => {
            let found = Command::new("pkg-config").args(["--modversion", "libfabric"]).output();
            let found = found.ok().filter(|output| output.status.success());
            match found.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned()) {
                Some(version) => format!(
                    "libfabric {version} is too old, at least {OLDEST} is wanted; install a newer libfabric-dev, \
                     or name another with PKG_CONFIG_PATH"
                ),
                None => "libfabric's headers were not found; install them: apt-get install libfabric-dev \
                         (or name another libfabric with PKG_CONFIG_PATH)"
                    .into(),
            }
        }
        other => format!("pkg-config cannot say where libfabric is: {other}"),
    }
}

/// Whether the loader finds libraries of this directory without being told.
fn loader_knows(libdir: &Path) -> bool {
    ["ldconfig", "/sbin/ldconfig", "/usr/sbin/ldconfig"]
        .iter()
        .find_map(|program| {
            Command::new(program).arg("-p").output().ok().filter(|output| output.status.success())
        })
        .is_some_and(|output| {
            String::from_utf8_lossy(&output.stdout)
                .lines()
                .filter_map(|line| line.split("=> ").nth(1))
                .any(|path| Path::new(path.trim()) == libdir.join("libfabric.so.1"))
        })
}
