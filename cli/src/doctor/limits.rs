//! Resource limits of the system, compared with what a rank needs.

use rustix::process::{Resource, getrlimit};
use serde::Serialize;
use unisono::config::Config;
use unisono_schedule::{
    cost::control_memory,
    select::neighbours,
    windows::{BULK_SLOTS, EAGER_SLOTS, stride},
};

use super::{
    files::Files,
    group::Reduced,
    report::{Section, or_unknown},
    self_test::SelfTest,
};
use crate::{
    cgroup::{self, MemoryLimit},
    words::{size64, some},
};

/// The number of the capability to lock memory without limit (CAP_IPC_LOCK).
const IPC_LOCK: u32 = 14;
/// The smallest chunk to which windows shrink where the limit on locked memory is small.
const LEAST_CHUNK: usize = 4 << 10;

/// A limit of this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Limit {
    /// The limit in force; `None` if there is none.
    pub(super) soft: Option<u64>,
    /// The highest limit that the process may set.
    pub(super) hard: Option<u64>,
}

fn limit(resource: Resource) -> Limit {
    let limit = getrlimit(resource);
    Limit { soft: limit.current, hard: limit.maximum }
}

/// The memory that windows take.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Windows {
    /// The world size.
    pub(super) ranks: usize,
    /// How many of them are on this machine.
    pub(super) here: usize,
    /// Bytes per rank: without and with staging, which is for providers that send from registered memory only.
    pub(super) bytes: (u64, u64),
    /// Bytes per rank, staging included, with the smallest chunks.
    pub(super) least: u64,
}

impl Windows {
    /// Uses the formula in docs/wire.md, for messages from as many ranks as the table of algorithms may need.
    pub(super) fn of(config: &Config, ranks: usize, here: usize) -> Self {
        let (eager, bulk) = neighbours(ranks);
        let (eager, bulk) = (eager as u64, bulk as u64);
        let slot = |bytes: usize| stride(bytes) as u64;
        let eager_window = EAGER_SLOTS as u64 * slot(config.eager());
        let bulk_window = |chunk: usize| config.lanes as u64 * BULK_SLOTS as u64 * slot(chunk);
        let of = |chunk: usize| {
            let staging = 2 * config.lanes.max(2) as u64 * slot(chunk.max(config.eager()));
            let windows = eager * eager_window + bulk * bulk_window(chunk) + control_memory(ranks) as u64;
            (windows, windows + staging)
        };
        Self { ranks, here, bytes: of(config.chunk), least: of(config.chunk.min(LEAST_CHUNK)).1 }
    }
}

/// The system's limits for a rank.
#[derive(Clone, Debug, Serialize)]
pub(super) struct SystemLimits {
    /// Locked memory in bytes.
    pub(super) memlock: Limit,
    /// `Some(true)` if this process may lock more (CAP_IPC_LOCK, of the first user namespace).
    pub(super) may_lock: Option<bool>,
    /// Open files.
    pub(super) files: Limit,
    /// The limit on memory of this control group or one around it.
    pub(super) memory: Option<MemoryLimit>,
    /// Transparent huge pages: `always`, `madvise` or `never`.
    pub(super) transparent: Option<String>,
    /// The algorithm of TCP congestion control: `cubic`, `bbr` and so on.
    pub(super) congestion_control: Option<String>,
    pub(super) rdma: bool,
    /// What windows need.
    pub(super) windows: Windows,
}

impl SystemLimits {
    pub(super) fn gather(files: &Files, windows: Windows) -> Self {
        let status = files.text("/proc/self/status");
        let may_lock = status.as_deref().and_then(|status| capable(status, IPC_LOCK));
        let transparent = files.text("/sys/kernel/mm/transparent_hugepage/enabled");
        Self {
            memlock: limit(Resource::Memlock),
            may_lock: may_lock.map(|may| may && first_user_namespace(files)),
            files: limit(Resource::Nofile),
            memory: cgroup::memory_limit(&|path| files.text(path)),
            transparent: transparent.and_then(|text| chosen(&text)),
            congestion_control: files.text("/proc/sys/net/ipv4/tcp_congestion_control"),
            rdma: !files.names("/sys/class/infiniband").is_empty(),
            windows,
        }
    }

    pub(super) fn judge(&self, self_test: &SelfTest) -> Section {
        let mut section = Section::new("limits");
        self.judge_locked(self_test.between_hosts(), &mut section);
        self.judge_memory(&mut section);
        self.judge_files(&mut section);
        section.note(format!("transparent huge pages: {}", or_unknown(&self.transparent)));
        self.judge_tcp(self_test.on_one_host(), &mut section);
        section
    }

    fn judge_locked(&self, chosen: Option<&Reduced>, section: &mut Section) {
        let (windows, staged) = self.windows.bytes;
        let need = if chosen.is_none_or(|chosen| chosen.staging) { staged } else { windows };
        let enough = self.memlock.soft.is_none_or(|limit| limit >= need);
        let need = format!("windows for {} need {} per rank", some(self.windows.ranks, "rank"), size64(need));
        let Some(limit) = self.memlock.soft else {
            return section.ok(format!("locked memory: no limit; {need}"));
        };
        let limit_is = format!("locked memory: {}", size64(limit));
        if self.may_lock == Some(true) {
            return section.ok(format!("{limit_is}, but this process may lock more (CAP_IPC_LOCK); {need}"));
        }
        let mend = "raise it: `ulimit -l unlimited`, memlock in /etc/security/limits.conf, LimitMEMLOCK=infinity for \
                    slurmd and other services, docker run --ulimit memlock=-1";
        let pins = chosen.is_some_and(|chosen| chosen.pins);
        if !pins && !self.rdma {
            let why = chosen.map_or_else(
                || "there is no RDMA device".to_owned(),
                |chosen| format!("{} locks none", chosen.provider),
            );
            section.ok(format!("{limit_is}; {need}, but {why}"));
        } else if enough {
            section.ok(format!("{limit_is}; {need}, and registered buffers need more"));
        } else if limit >= self.windows.least {
            section
                .warn(format!("{limit_is}, but {need}: chunks would be made smaller, which is slower"), mend);
        } else if pins {
            section.problem(
                format!(
                    "{limit_is}, but {need}, and even with the smallest chunks {}",
                    size64(self.windows.least)
                ),
                mend,
            );
        } else {
            section.warn(format!("{limit_is}, but {need}: RDMA devices will not work"), mend);
        }
    }

    fn judge_memory(&self, section: &mut Section) {
        let Some(MemoryLimit { bytes, used, group }) = &self.memory else { return };
        let Windows { here, bytes: (_, each), .. } = self.windows;
        let need = each.saturating_mul(here as u64);
        let used_is = used.map_or_else(String::new, |used| format!(", of which {} are in use", size64(used)));
        let words = format!("memory: {}{used_is}, by the limit of the control group {group}", size64(*bytes));
        let need_is = format!("windows of {} here may take {}", some(here, "rank"), size64(need));
        if bytes.saturating_sub(used.unwrap_or(0)) >= need {
            section.ok(format!("{words}; {need_is}"));
        } else {
            section.warn(
                format!("{words}, but {need_is}: the kernel would kill ranks (SIGKILL)"),
                "ask for more memory (Slurm's --mem, Kubernetes' resources.limits.memory, docker run --memory), or start fewer \
                 ranks on this host",
            );
        }
    }

    fn judge_files(&self, section: &mut Section) {
        let Some(limit) = self.files.soft else {
            return section.ok("open files: no limit");
        };
        // A connection in each direction to every rank, with its timers and events, and other files.
        let need = 4 * self.windows.ranks as u64 + 64;
        let words = format!("open files: {limit}");
        if limit >= need {
            section.ok(words);
        } else {
            section.warn(
                format!("{words}, but {} over TCP may need {need}", some(self.windows.ranks, "rank")),
                format!("raise it: `ulimit -n {need}`"),
            );
        }
    }

    fn judge_tcp(&self, chosen: Option<&Reduced>, section: &mut Section) {
        let Some(name) = &self.congestion_control else { return };
        let words = format!("TCP congestion control: {name}");
        let used = chosen.is_none_or(|chosen| chosen.sockets);
        if used && name.starts_with("bbr") {
            section.warn(
                format!("{words}, which paces: large messages between ranks on one machine may take twice the time"),
                "`sysctl net.ipv4.tcp_congestion_control=cubic`, which affects new connections",
            );
        } else {
            section.note(words);
        }
    }
}

/// True if this process is in the first user namespace, or in one that has all its users. In others, the capability to lock memory
/// has no effect.
fn first_user_namespace(files: &Files) -> bool {
    let map = files.text("/proc/self/uid_map");
    // Without user namespaces there is no such file.
    map.is_none_or(|map| map.split_whitespace().eq(["0", "0", "4294967295"]))
}

/// `Some(true)` if the text of `/proc/self/status` says that a capability is in force.
fn capable(status: &str, capability: u32) -> Option<bool> {
    let mask = status.lines().find_map(|line| line.strip_prefix("CapEff:"))?;
    Some(u64::from_str_radix(mask.trim(), 16).ok()? >> capability & 1 == 1)
}

/// The choice in brackets: `always [madvise] never`.
fn chosen(text: &str) -> Option<String> {
    let (_, rest) = text.split_once('[')?;
    rest.split_once(']').map(|(chosen, _)| chosen.to_owned())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn this_machine_has_sane_values() {
        let limits = SystemLimits::gather(&Files::below("/"), Windows::of(&Config::default(), 4, 4));
        assert!(limits.files.soft.is_none_or(|files| files > 3));
        assert!(limits.may_lock.is_some());
    }

    #[test]
    fn nothing_is_known_without_the_files() {
        let directory = tempfile::tempdir().unwrap();
        let limits =
            SystemLimits::gather(&Files::below(directory.path()), Windows::of(&Config::default(), 4, 4));
        assert_eq!((limits.may_lock, limits.transparent, limits.rdma), (None, None, false));
        assert_eq!((limits.congestion_control, limits.memory), (None, None));
    }

    #[test]
    fn a_control_group_with_too_little_memory_for_the_windows_is_a_warning() {
        let limits_with = |bytes| {
            let windows = Windows::of(&Config::default(), 4, 4);
            let mut limits = SystemLimits::gather(&Files::below("/nowhere"), windows);
            let group = "/sys/fs/cgroup/job".to_owned();
            limits.memory = Some(MemoryLimit { bytes, used: Some(1 << 20), group });
            let mut section = Section::new("limits");
            limits.judge_memory(&mut section);
            format!("{section:?}")
        };
        let need = 4 * Windows::of(&Config::default(), 4, 4).bytes.1;
        let (enough, little) = (limits_with(need + (1 << 20)), limits_with(need + (1 << 20) - 1));
        assert!(
            enough.contains("by the limit of the control group /sys/fs/cgroup/job; windows of 4 ranks"),
            "{enough}"
        );
        assert!(little.contains("the kernel would kill ranks"), "{little}");
    }

    #[test]
    fn capabilities_of_a_user_namespace_lock_nothing() {
        let of = |map: Option<&str>| {
            let directory = tempfile::tempdir().unwrap();
            fs::create_dir_all(directory.path().join("proc/self")).unwrap();
            fs::write(directory.path().join("proc/self/status"), "CapEff:\t000001ffffffffff\n").unwrap();
            if let Some(map) = map {
                fs::write(directory.path().join("proc/self/uid_map"), map).unwrap();
            }
            SystemLimits::gather(&Files::below(directory.path()), Windows::of(&Config::default(), 4, 4))
                .may_lock
        };
        assert_eq!(of(Some("         0          0 4294967295\n")), Some(true));
        assert_eq!(of(None), Some(true));
        for map in ["         0       1000          1\n", "0 100000 65536", "0 1000 1\n1 100000 65536", ""] {
            assert_eq!(of(Some(map)), Some(false), "{map}");
        }
    }

    #[test]
    fn odd_files_are_unknown() {
        let directory = tempfile::tempdir().unwrap();
        for (path, text) in [
            ("proc/self/status", "CapEff:\tzz"),
            ("sys/kernel/mm/transparent_hugepage/enabled", "always madvise"),
        ] {
            let path = directory.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        let limits =
            SystemLimits::gather(&Files::below(directory.path()), Windows::of(&Config::default(), 4, 4));
        assert_eq!((limits.may_lock, limits.transparent), (None, None));
    }

    #[test]
    fn the_windows_of_two_ranks_are_as_documented() {
        // The test has its own settings, so that its figures do not depend on the defaults.
        let config = Config { chunk: 128 << 10, lanes: 4, ..Config::default() };
        let windows = Windows::of(&config, 2, 2);
        // One neighbour: 8 small slots and 4 lanes of 2 chunks; mailbox; staging.
        let wanted = 8 * (64 + 32_768) + 4 * 2 * (64 + 131_072) + 2 * 880 + 10_240 + 2 * 4 * (64 + 131_072);
        assert_eq!(windows.bytes, (wanted - 2 * 4 * (64 + 131_072), wanted));
        // Up to 8 ranks every rank may send to every other.
        assert!(Windows::of(&config, 8, 8).bytes.0 > 7 * (8 * 32_768 + 4 * 2 * 131_072));
        assert!(Windows::of(&config, 9, 9).bytes.0 < Windows::of(&config, 8, 8).bytes.0);
        assert!(windows.least < windows.bytes.0);
        let huge = Config { chunk: 64 << 20, lanes: 64, ..config };
        assert!(Windows::of(&huge, 1 << 20, 8).bytes.0 > 1 << 30);
        assert_eq!(capable("x\nCapEff:\t0000000000004000\n", IPC_LOCK), Some(true));
        assert_eq!(chosen("always [madvise] never").as_deref(), Some("madvise"));
    }
}
