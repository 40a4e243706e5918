//! Reads the kernel's figures on this process's control group: where they are, its limit on memory, and the processes that were killed
//! for memory.

use std::fs;

use serde::Serialize;

use crate::words::size64;

/// Returns the text of a file of /proc or /sys; `None` if it cannot be read.
pub(crate) type ReadText<'f> = dyn Fn(&str) -> Option<String> + 'f;

/// A limit on the memory of a control group and those within it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct MemoryLimit {
    /// The limit in bytes.
    pub(crate) bytes: u64,
    /// The memory in use, in bytes.
    pub(crate) used: Option<u64>,
    /// The directory of the group.
    pub(crate) group: String,
}

/// The directories of this process's control group and of those around it, the nearest first, where a controller's files are, and true
/// if they are those of version 1. `None` if the system has no control groups, or does not show them here.
pub(crate) fn groups(text: &ReadText<'_>, controller: &str) -> Option<(Vec<String>, bool)> {
    let has = |list: &str| list.split(',').any(|it| it == controller);
    let groups = text("/proc/self/cgroup")?;
    let (line, first) = match groups.lines().find(|line| line.split(':').nth(1).is_some_and(has)) {
        Some(line) => (line, true),
        None => (groups.lines().find(|line| line.starts_with("0::"))?, false),
    };
    let path = line.splitn(3, ':').nth(2)?;
    let mounts = text("/proc/self/mountinfo")?;
    let (root, mount) = mounts.lines().find_map(|line| {
        let (place, kind) = line.split_once(" - ")?;
        let mut kind = kind.split(' ');
        let right = match (kind.next()?, kind.nth(1)) {
            ("cgroup", Some(options)) => first && has(options),
            ("cgroup2", _) => !first,
            _ => false,
        };
        let mut place = place.split(' ').skip(3);
        if right { Some((place.next()?, place.next()?)) } else { None }
    })?;
    // In a container, the mount may show this process's group only.
    let below = path.strip_prefix(root.trim_end_matches('/')).filter(|_| !path.contains("..")).unwrap_or("");
    let mut directory = format!("{mount}{}", below.trim_end_matches('/'));
    let mut directories = vec![directory.clone()];
    while directory.len() > mount.len() {
        directory.truncate(directory.rfind('/')?);
        directories.push(directory.clone());
    }
    Some((directories, first))
}

/// The directories of the control groups that account for this process's memory, the nearest first, and the names of their files with
/// limit, use and kills.
fn memory_files(text: &ReadText<'_>) -> Option<(Vec<String>, [&'static str; 3])> {
    let (directories, first) = groups(text, "memory")?;
    let names = match first {
        true => ["memory.limit_in_bytes", "memory.usage_in_bytes", "memory.oom_control"],
        false => ["memory.max", "memory.current", "memory.events"],
    };
    Some((directories, names))
}

/// The number of processes that were killed for memory, from a file with a counter in each line.
fn counter(text: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix("oom_kill ")?.trim().parse().ok())
}

/// The lowest limit on memory that the control groups of this process have.
pub(crate) fn memory_limit(text: &ReadText<'_>) -> Option<MemoryLimit> {
    let (directories, [limit, used, _]) = memory_files(text)?;
    let number = |directory: &str, name| text(&format!("{directory}/{name}"))?.trim().parse::<u64>().ok();
    let limits = directories.iter().filter_map(|directory| {
        // Without a limit there is the word `max`, or the largest number of pages.
        let bytes = number(directory, limit).filter(|&bytes| bytes < 1 << 62)?;
        Some(MemoryLimit { bytes, used: number(directory, used), group: directory.clone() })
    });
    limits.min_by_key(|limit| limit.bytes)
}

/// The numbers of processes that the kernel had killed for memory at some time: of this control group, and of this host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Kills {
    group: Option<u64>,
    host: Option<u64>,
}

impl Kills {
    pub(crate) fn now() -> Self {
        Self::from(&|path| fs::read_to_string(path).ok())
    }

    fn from(text: &ReadText<'_>) -> Self {
        let killed = |file: &str| counter(&text(file)?);
        let group = memory_files(text)
            .and_then(|(directories, [.., events])| killed(&format!("{}/{events}", directories.first()?)));
        Self { group, host: killed("/proc/vmstat") }
    }

    /// A text on the processes that the kernel has killed for memory since, and on how sure it is that a rank was among them.
    /// `killed` is true if the rank ended by SIGKILL.
    pub(crate) fn since(&self, killed: bool) -> Option<String> {
        let limit = memory_limit(&|path| fs::read_to_string(path).ok());
        self.until(Self::now(), limit.as_ref(), killed)
    }

    fn until(&self, now: Self, limit: Option<&MemoryLimit>, killed: bool) -> Option<String> {
        let more = |now: Option<u64>, before: Option<u64>| {
            usize::try_from(now?.checked_sub(before?)?).ok().filter(|&more| more > 0)
        };
        let group = more(now.group, self.group);
        let (count, of, sure) = match (group, more(now.host, self.host)) {
            (Some(count), _) if killed => (count, "of this control group", "most likely this rank"),
            (Some(count), _) => (count, "of this control group", "perhaps one that this rank had started"),
            // If the group has a counter, none of its processes was killed.
            (None, Some(count)) if killed && now.group.is_none() => {
                (count, "on this host", "perhaps this rank")
            }
            _ => return None,
        };
        let limit = limit.filter(|_| group.is_some());
        let limit =
            limit.map_or_else(String::new, |limit| format!(", whose limit is {}", size64(limit.bytes)));
        let count = match count {
            1 => "1 process".to_owned(),
            count => format!("{count} processes"),
        };
        Some(format!("out of memory: since the job began, the kernel has killed {count} {of}{limit}, {sure}"))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    /// These files: their paths and texts.
    fn files(all: &[(&str, &str)]) -> impl Fn(&str) -> Option<String> + use<> {
        let all: HashMap<_, _> =
            all.iter().map(|(path, text)| ((*path).to_owned(), (*text).to_owned())).collect();
        move |path| all.get(path).cloned()
    }

    const UNIFIED: &str = "30 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n";

    #[test]
    fn the_lowest_limit_of_the_groups_around_a_process_counts() {
        let files = files(&[
            ("/proc/self/cgroup", "0::/system.slice/job.scope/step\n"),
            ("/proc/self/mountinfo", UNIFIED),
            ("/sys/fs/cgroup/system.slice/job.scope/step/memory.max", "max\n"),
            (
                "/sys/fs/cgroup/system.slice/job.scope/step/memory.events",
                "low 0\noom 3\noom_kill 2\noom_group_kill 0\n",
            ),
            ("/sys/fs/cgroup/system.slice/job.scope/memory.max", "314572800\n"),
            ("/sys/fs/cgroup/system.slice/job.scope/memory.current", "1048576\n"),
            ("/sys/fs/cgroup/system.slice/memory.max", "629145600\n"),
            ("/proc/vmstat", "pgfault 7\noom_kill 9\n"),
        ]);
        let group = "/sys/fs/cgroup/system.slice/job.scope".to_owned();
        let wanted = MemoryLimit { bytes: 300 << 20, used: Some(1 << 20), group };
        assert_eq!(memory_limit(&files), Some(wanted));
        assert_eq!(Kills::from(&files), Kills { group: Some(2), host: Some(9) });
    }

    #[test]
    fn groups_of_the_first_version_and_of_containers_are_found() {
        let old = "31 23 0:27 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n\
                   32 23 0:28 /docker/7 /sys/fs/cgroup/memory rw shared:5 - cgroup cgroup rw,memory\n";
        let old = files(&[
            ("/proc/self/cgroup", "5:cpu:/x\n4:memory:/docker/7\n0::/\n"),
            ("/proc/self/mountinfo", old),
            ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "1000\n"),
            ("/sys/fs/cgroup/memory/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 4\n"),
        ]);
        assert_eq!(memory_limit(&old).map(|limit| limit.bytes), Some(1000));
        assert_eq!(Kills::from(&old), Kills { group: Some(4), host: None });
        // A namespace of control groups.
        let pod = files(&[
            ("/proc/self/cgroup", "0::/\n"),
            ("/proc/self/mountinfo", UNIFIED),
            ("/sys/fs/cgroup/memory.max", "2000\n"),
        ]);
        assert_eq!(memory_limit(&pod).map(|limit| limit.bytes), Some(2000));
        // The process was moved out of the namespace's root.
        let moved = files(&[
            ("/proc/self/cgroup", "0::/../other\n"),
            ("/proc/self/mountinfo", UNIFIED),
            ("/sys/fs/cgroup/memory.max", "9223372036854771712\n"),
        ]);
        assert_eq!(memory_limit(&moved), None);
        let none = files(&[]);
        assert_eq!((memory_limit(&none), Kills::from(&none)), (None, Kills { group: None, host: None }));
    }

    #[test]
    fn it_says_how_sure_it_is() {
        let kills = |group, host| Kills { group, host };
        let limit = MemoryLimit { bytes: 300 << 20, used: None, group: String::new() };
        let message =
            |before: Kills, now, killed| before.until(now, Some(&limit), killed).unwrap_or_default();
        let group = message(kills(Some(1), Some(1)), kills(Some(2), Some(2)), true);
        assert!(
            group.contains("1 process of this control group, whose limit is 300 MiB, most likely this rank"),
            "{group}"
        );
        let child = message(kills(Some(1), None), kills(Some(3), None), false);
        assert!(
            child.contains("2 processes") && child.ends_with("perhaps one that this rank had started"),
            "{child}"
        );
        let host = message(kills(None, Some(1)), kills(None, Some(2)), true);
        assert!(host.ends_with("1 process on this host, perhaps this rank"), "{host}");
        for (before, now, killed) in [
            (kills(Some(1), Some(1)), kills(Some(1), Some(2)), true),
            (kills(None, Some(1)), kills(None, Some(2)), false),
            (kills(None, None), kills(None, None), true),
            (kills(Some(2), Some(2)), kills(Some(1), Some(1)), true),
        ] {
            assert_eq!(message(before, now, killed), "", "{before:?} {now:?}");
        }
    }
}
