//! The tables: the rooms of each crate and their imports, where C may be called and the environment read, how long a file may be.

/// A crate's rooms, and those that each may import besides itself.
pub(super) type Rooms = &'static [(&'static str, &'static [&'static str])];

/// The crates whose rooms have arrows, by the folder of their sources.
pub(super) const CRATES: &[(&str, Rooms)] = &[
    ("src/", LIBRARY),
    ("core/src/", CORE),
    ("engine/src/", ENGINE),
    ("rendezvous/src/", RENDEZVOUS),
    ("transport/src/", TRANSPORT),
    ("files/src/", FILES),
    ("python/src/", PYTHON),
];

/// The rooms of `src/` and those each may import besides itself; arrows point down only.
pub(super) const LIBRARY: Rooms = &[
    ("dtype", &[]),
    ("hardware", &[]),
    ("rendezvous", &[]),
    ("buffer", &["dtype"]),
    ("work", &["runtime"]),
    ("signals", &["rendezvous"]),
    ("runtime", &["hardware", "rendezvous", "signals"]),
    ("group", &["buffer", "dtype", "rendezvous", "runtime", "signals", "work"]),
    ("program", &["group", "runtime"]),
    ("fuzz", ALL),
];
/// The rooms of `core/src/`, which all other crates except the schedule and the transport know.
pub(super) const CORE: Rooms = &[
    ("dtype", &[]),
    ("reduce", &["dtype"]),
    ("outside", &[]),
    ("object", &[]),
    ("tensor", &["dtype"]),
    ("error", &["object", "tensor"]),
    ("position", &["error"]),
    ("fuzz", ALL),
];
/// The rooms of `engine/src/`. `progress` drives all of them and knows collectives, messages and communicators; these do not know it.
pub(super) const ENGINE: Rooms = &[
    ("call", &[]),
    ("memory", &[]),
    ("wait", &[]),
    ("wire", &["call"]),
    ("access", &["wire"]),
    ("settings", &["wire"]),
    ("stop", &["call"]),
    ("request", &["call", "memory", "stop", "wire"]),
    ("completion", &["memory", "request", "stop"]),
    ("supervisor", &["call", "completion", "request", "wire"]),
    ("endpoint", &["settings", "stop", "wire"]),
    // The messages from point to point that a communicator holds.
    ("messages", &["call", "completion", "memory", "request", "settings", "wire"]),
    (
        "comm",
        &[
            "access",
            "call",
            "completion",
            "endpoint",
            "memory",
            "messages",
            "request",
            "settings",
            "stop",
            "wire",
        ],
    ),
    (
        "collective",
        &[
            "access",
            "call",
            "comm",
            "completion",
            "endpoint",
            "memory",
            "request",
            "settings",
            "stop",
            "supervisor",
            "wait",
            "wire",
        ],
    ),
    ("p2p", &["call", "comm", "completion", "memory", "messages", "request", "settings", "stop", "wire"]),
    (
        "progress",
        &[
            "call",
            "collective",
            "comm",
            "completion",
            "endpoint",
            "messages",
            "request",
            "settings",
            "stop",
            "supervisor",
            "wait",
            "wire",
        ],
    ),
    ("turn", &["collective", "comm", "completion", "progress", "request", "stop", "supervisor", "wire"]),
    ("handshake", &["access", "comm", "endpoint", "progress", "stop", "wire"]),
    ("leave", &["comm", "completion", "progress", "stop"]),
    ("position", &["comm", "endpoint", "progress", "supervisor"]),
    ("fuzz_tests", ALL),
    ("fuzz", &["fuzz_tests", "wire"]),
];
/// The rooms of `rendezvous/src/`.
pub(super) const RENDEZVOUS: Rooms = &[
    ("config", &[]),
    ("epoch", &[]),
    ("launch", &["config"]),
    ("failure_latch", &[]),
    ("position_source", &[]),
    ("seal", &["config"]),
    ("protocol", &["config", "seal"]),
    ("server", &["config", "protocol", "seal"]),
    ("session", &["config", "protocol"]),
    ("connect", &["config", "protocol", "seal", "session"]),
    ("directory", &["config", "launch", "protocol", "seal", "server"]),
    ("watch", &["connect", "directory", "failure_latch", "position_source", "protocol", "seal", "session"]),
    (
        "store",
        &[
            "config",
            "connect",
            "directory",
            "failure_latch",
            "position_source",
            "protocol",
            "seal",
            "server",
            "session",
            "watch",
        ],
    ),
    ("among", &["config", "connect", "protocol", "store"]),
    ("pmi", &["config", "connect", "directory", "protocol", "server", "store"]),
    ("cannot_join", &["among", "config", "connect", "directory", "protocol", "store"]),
    ("exchange", &["store"]),
    ("unable", &["config", "store"]),
    ("fuzz", ALL),
];
/// The rooms of `transport/src/`: the ways to move bytes know the trait and its types, but not each other,
/// except one that is made of two.
pub(super) const TRANSPORT: Rooms = &[
    ("log", &[]),
    ("fork", &[]),
    ("eventfd", &[]),
    ("file", &[]),
    ("keys", &[]),
    ("region", &["file"]),
    ("activity", &[]),
    ("check", &["region"]),
    ("local", &["region"]),
    ("streaming", &[]),
    ("peer_memory", &["keys", "local"]),
    ("inproc", &["region", "local", "eventfd", "keys", "peer_memory"]),
    ("ofi", &["region", "activity", "eventfd", "fork", "keys"]),
    ("shm", &["region", "local", "eventfd", "file", "fork", "keys", "peer_memory"]),
    ("mux", &["region", "activity", "local", "shm"]),
    ("fuzz", &["shm"]),
];
/// The rooms of `files/src/`: the part of one rank does not know the part on which ranks agree.
pub(super) const FILES: Rooms = &[
    ("checksum", &[]),
    ("error", &[]),
    ("options", &[]),
    ("plan", &["checksum", "error"]),
    ("local", &["checksum", "error", "plan"]),
    ("handover", &["error", "local", "options", "plan"]),
    ("fuzz", &["local", "plan"]),
];
/// The rooms of `python/src/`, the native part of the Python package.
pub(super) const PYTHON: Rooms = &[
    ("program", &[]),
    ("errors", &[]),
    ("buffer", &[]),
    ("view", &[]),
    ("finisher", &["view"]),
    ("marks", &[]),
    ("value", &["errors", "marks"]),
    ("operands", &["view"]),
    ("plain", &["finisher", "operands"]),
    ("work", &["errors", "finisher", "operands"]),
    ("group", &["buffer", "errors", "finisher", "operands", "plain", "work"]),
    ("log", &["finisher"]),
    ("join", &["errors", "group", "log", "operands", "work"]),
    ("objects", &["group", "value", "work"]),
    ("tensors", &["buffer", "errors", "group", "operands", "work"]),
    ("files", &["group", "work"]),
];
pub(super) const ALL: &[&str] = &["*"];
/// The rooms of `src/` and `core/src/` that may not name the transport.
pub(super) const NO_TRANSPORT: &[&str] = &[
    "core/src/dtype",
    "core/src/object/",
    "core/src/outside.rs",
    "core/src/position/",
    "core/src/reduce/",
    "core/src/tensor/",
    "src/dtype.rs",
    "src/hardware/",
    "src/program.rs",
];
/// A crate and some rooms that have only pure functions, and the names that these may not use.
pub(super) const PURE: &[&str] = &[
    "schedule/src/",
    "checker/src/",
    "core/src/dtype",
    "core/src/object/",
    "core/src/position/",
    "core/src/tensor/",
];
pub(super) const IMPURE: &[&str] =
    &["std::fs", "std::net", "std::thread", "std::env", "std::process", "std::io", "Instant", "SystemTime"];
/// The files in which `unsafe` may stand: they touch memory that puts read and write, and say why no put does so at that time. The trait
/// declares such functions; each user of a transport has one file that calls them.
pub(super) const UNSAFE: &[&str] = &[
    "python/src/buffer.rs",
    "python/src/operands.rs",
    "transport/src/lib.rs",
    "transport/src/ofi/",
    "transport/src/fork.rs",
    "transport/src/region.rs",
    "transport/src/local.rs",
    "transport/src/peer_memory.rs",
    "transport/src/inproc.rs",
    "transport/src/mux/mod.rs",
    "transport/src/mux/tests.rs",
    "transport/src/shm/fuzz.rs",
    "transport/src/shm/incoming.rs",
    "transport/src/shm/memory.rs",
    "transport/src/shm/mod.rs",
    "transport/src/shm/outgoing.rs",
    "transport/src/shm/ring.rs",
    "transport/src/shm/segment.rs",
    "transport/src/shm/socket.rs",
    "transport/src/shm/tests.rs",
    "transport/src/shm/tests/fetched.rs",
    "transport/src/shm/tests/guarded.rs",
    "transport/src/shm/tests/keys.rs",
    "transport/src/streaming.rs",
    "transport/tests/conformance/kit.rs",
    "transport/tests/observed/mod.rs",
    "transport/tests/sim/",
    "transport/benches/put.rs",
    "engine/src/access.rs",
    "engine/src/memory/",
    "rendezvous/src/pmi.rs",
    "src/buffer/",
    "src/signals.rs",
    "tests/processes/erased.rs",
    "tests/processes/forking.rs",
    "tests/processes/strangers.rs",
    "tests/hosts/forgetful.rs",
    "cli/src/bench/put_pair.rs",
];
/// The files that may read the environment: settings in one place, launchers' variables in one, hwloc's in one, libfabric's in one and where a
/// job sets one of them, `RUST_LOG` in one, PATH in one, all names that are set in one (doctor looks for typing mistakes); and what is not
/// part of the library or the program.
pub(super) const ENVIRONMENT: &[&str] = &[
    "rendezvous/src/launch/environment.rs",
    "src/hardware/hwloc.rs",
    "transport/src/ofi/variables.rs",
    "transport/src/log.rs",
    "cli/src/run/job.rs",
    "cli/src/run/program.rs",
    "cli/src/doctor/environment.rs",
    "src/group/tests/disagree.rs",
    "build.rs",
    "transport/build.rs",
    "transport/libfabric-sys/build.rs",
    "cli/build.rs",
    "python/build.rs",
    "tests/",
    "checker/tests/schedules/main.rs",
    "transport/tests/",
    "cli/tests/",
    "benches/",
    "transport/benches/",
    "examples/",
];
pub(super) const READS: &[&str] = &["env :: var", "env :: var_os", "env :: vars", "env :: vars_os"];
/// The files that make events. All others use the macros of these files, because events are otherwise lost if the program has no subscriber.
pub(super) const EVENTS: &[&str] = &["transport/src/log.rs", "python/src/log.rs"];
pub(super) const MAKES: &[&str] = &[
    "tracing :: error !",
    "tracing :: warn !",
    "tracing :: info !",
    "tracing :: debug !",
    "tracing :: trace !",
];
/// The room that every room may import.
pub(super) const EVERYBODYS: &str = "log";
/// The most lines of a file, with its tests.
pub(super) const LINES: usize = 600;
