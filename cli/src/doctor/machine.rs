//! The machine's processors and caches, and how much of them this process may use.

use std::time::Duration;

use serde::Serialize;

use super::{
    files::Files,
    report::Section,
    topology::{Cache, Layout},
};
use crate::words::{size64, some};

/// The machine's processors, and how many of them this process may use.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Machine {
    /// The processor's name.
    pub(super) model: Option<String>,
    /// The topology, or hwloc's error.
    pub(super) layout: Result<Layout, String>,
    /// How many hardware threads this process may run on.
    pub(super) bound: Option<usize>,
    /// How many of them it may use at once: fewer if its control group's time is limited.
    pub(super) usable: Option<usize>,
    /// The limit of its control group's time, in processors; `None` if there is none.
    pub(super) quota: Option<f64>,
    /// The ranks that run here.
    pub(super) ranks: Ranks,
}

/// The ranks of this machine.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct Ranks {
    /// Their number, if it is known.
    pub(super) count: Option<usize>,
    /// Whether this process is one of them, whose binding may differ from that of the others.
    pub(super) launched: bool,
    /// How long their waits spin, if it is configured.
    pub(super) spin: Option<Duration>,
}

impl Machine {
    pub(super) fn gather(files: &Files, ranks: Ranks) -> Self {
        Self {
            model: files.text("/proc/cpuinfo").and_then(|text| model(&text)),
            layout: Layout::read(),
            bound: rustix::thread::sched_getaffinity(None)
                .ok()
                .and_then(|processors| usize::try_from(processors.count()).ok()),
            usable: std::thread::available_parallelism().ok().map(usize::from),
            quota: quota(files),
            ranks,
        }
    }

    pub(super) fn judge(&self) -> Section {
        let mut section = Section::new("machine");
        if let Some(model) = &self.model {
            section.note(model.clone());
        }
        match &self.layout {
            Ok(layout) => {
                section.ok(format!(
                    "{} in {}, {}",
                    some(layout.cores, "core"),
                    some(layout.packages, "package"),
                    some(layout.threads, "hardware thread")
                ));
                for node in &layout.nodes {
                    let number = node.number.map_or_else(|| "?".into(), |number| number.to_string());
                    let memory = node.memory.map_or_else(|| "unknown".into(), size64);
                    section.note(format!(
                        "NUMA node {number}: {}, {memory} of memory",
                        some(node.cores, "core")
                    ));
                }
                let cache = |cache: &Cache| {
                    format!(
                        "{} {} x {}",
                        cache.name,
                        cache.count,
                        cache.size.map_or_else(|| "?".into(), size64)
                    )
                };
                let caches: Vec<_> = layout.caches.iter().map(cache).collect();
                if !caches.is_empty() {
                    section.note(format!("caches: {}", caches.join(", ")));
                }
            }
            Err(error) if cfg!(not(feature = "hwloc")) => section.note(error.clone()),
            Err(error) => section.warn(
                format!("hwloc cannot read the topology of the machine: {error}"),
                "try `lstopo`; unset HWLOC_XMLFILE and HWLOC_SYNTHETIC if they are set",
            ),
        }
        let (threads, allowed) =
            self.layout.as_ref().map_or((0, 0), |layout| (layout.threads, layout.allowed));
        let mut why = Vec::new();
        if let Some(quota) = self.quota {
            why.push(format!("its control group's limit is the time of {quota:.1} processors"));
        }
        if allowed < threads {
            why.push(format!("its control group has {allowed} of them"));
        }
        let why = if why.is_empty() { String::new() } else { format!(" ({})", why.join("; ")) };
        if let Some(bound) = self.bound.filter(|&bound| self.ranks.launched && bound < allowed) {
            // The other ranks may be bound to other threads, so whether ranks share threads is unknown.
            section.note(format!("this rank is bound to {bound} of the {threads} hardware threads{why}"));
            return section;
        }
        if let Some(usable) = self.usable.filter(|&usable| usable < threads) {
            section.warn(
                format!("this process may use {usable} of the {threads} hardware threads{why}"),
                "if that is not wanted: widen the binding (`taskset -p $$`, srun --cpu-bind) or the container's limit \
                 (docker --cpus, --cpuset-cpus)",
            );
        }
        self.judge_ranks(&mut section);
        section
    }

    /// Whether ranks share hardware threads, as ranks decide it when they join: by the threads that all of them together may use.
    fn judge_ranks(&self, section: &mut Section) {
        let known = self.layout.as_ref().ok().map(|layout| layout.threads);
        let (Some(ranks), Some(threads)) = (self.ranks.count, self.usable.or(known)) else { return };
        let still = self.ranks.spin == Some(Duration::ZERO);
        if ranks <= threads {
            let words = format!("{} have a hardware thread each", some(ranks, "rank"));
            return if still {
                section.note(format!("{words}, but waits do not spin: UNISONO_SPIN is 0"));
            } else {
                section.ok(words);
            };
        }
        let shared = format!("{} would share {}", some(ranks, "rank"), some(threads, "hardware thread"));
        if self.ranks.spin.is_none() || still {
            section.warn(
                format!("{shared}: waits yield instead of spinning"),
                format!("it works, but every message waits for its receiver to be scheduled; start at most {threads} here"),
            );
        } else {
            section.warn(
                format!(
                    "{shared}, but waits spin because UNISONO_SPIN is set: they keep other ranks from running"
                ),
                format!("unset UNISONO_SPIN, or start at most {threads} here"),
            );
        }
    }
}

/// The processor's name in the text of `/proc/cpuinfo`.
fn model(cpuinfo: &str) -> Option<String> {
    let line = cpuinfo.lines().find(|line| line.starts_with("model name"))?;
    line.split_once(':').map(|(_, name)| name.trim().to_owned()).filter(|name| !name.is_empty())
}

/// The lowest limit of the time of this process's control group and of all above it, in processors.
fn quota(files: &Files) -> Option<f64> {
    let groups = files.text("/proc/self/cgroup")?;
    let mut least: Option<f64> = None;
    for line in groups.lines() {
        let mut fields = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(group)) = (fields.next(), fields.next()) else { continue };
        // Version 2 has one tree without controllers' names; version 1 one tree for each set of them.
        let mount = if controllers.is_empty() {
            "/sys/fs/cgroup".to_owned()
        } else if controllers.split(',').any(|controller| controller == "cpu") {
            format!("/sys/fs/cgroup/{controllers}")
        } else {
            continue;
        };
        let mut group = group.trim_end_matches('/');
        loop {
            let found = limit(files, &format!("{mount}{group}"));
            least = match (least, found) {
                (Some(least), Some(found)) => Some(least.min(found)),
                (least, found) => least.or(found),
            };
            let Some((parent, _)) = group.rsplit_once('/') else { break };
            group = parent;
        }
    }
    least
}

/// The limit of one control group, in processors.
fn limit(files: &Files, group: &str) -> Option<f64> {
    let (quota, period): (f64, f64) = match files.text(&format!("{group}/cpu.max")) {
        // "max 100000" is no limit.
        Some(text) => {
            let (quota, period) = text.split_once(' ')?;
            (quota.parse().ok()?, period.parse().ok()?)
        }
        // -1 is no limit.
        None => (
            files.number(&format!("{group}/cpu.cfs_quota_us"))?,
            files.number(&format!("{group}/cpu.cfs_period_us"))?,
        ),
    };
    (quota > 0.0 && period > 0.0).then_some(quota / period).filter(|limit| limit.is_finite())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn this_machine_has_sane_values() {
        let machine = Machine::gather(&Files::below("/"), Ranks::default());
        assert!(machine.bound.is_some_and(|bound| bound > 0 && machine.usable <= Some(bound)));
        assert!(machine.usable.is_some_and(|usable| usable > 0));
        assert!(machine.quota.is_none_or(|quota| quota > 0.0));
    }

    /// A tree with these files, and the limit it makes.
    fn quota_of(tree: &[(&str, &str)]) -> Option<f64> {
        let directory = tempfile::tempdir().unwrap();
        for (path, text) in tree {
            let path = directory.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        quota(&Files::below(directory.path()))
    }

    #[test]
    fn the_narrowest_limit_of_the_control_groups_counts() {
        let group = ("proc/self/cgroup", "0::/job/step\n");
        let cpu = |max| ("sys/fs/cgroup/job/step/cpu.max", max);
        assert_eq!(quota_of(&[group, cpu("150000 100000\n")]), Some(1.5));
        let above = ("sys/fs/cgroup/job/cpu.max", "50000 100000\n");
        assert_eq!(quota_of(&[group, cpu("150000 100000\n"), above]), Some(0.5));
        assert_eq!(quota_of(&[group, cpu("max 100000\n")]), None);
        let version_1 = [
            ("proc/self/cgroup", "4:memory:/x\n1:cpu,cpuacct:/\n"),
            ("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "200000\n"),
            ("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000\n"),
        ];
        assert_eq!(quota_of(&version_1), Some(2.0));
    }

    #[test]
    fn odd_control_groups_are_unknown() {
        for text in ["", "nonsense", "::", "0::", "0::/../..", "1:cpu"] {
            assert_eq!(quota_of(&[("proc/self/cgroup", text)]), None, "{text}");
        }
        for max in ["", "max", "0 0", "1 0", "-1 100000", "inf 1", "a b", "1 2 3"] {
            let tree = [("proc/self/cgroup", "0::/\n"), ("sys/fs/cgroup/cpu.max", max)];
            assert_eq!(quota_of(&tree), None, "{max}");
        }
        assert_eq!(model("processor: 0\nmodel name\n"), None);
        assert_eq!(model("model name\t: A chip\n").as_deref(), Some("A chip"));
    }
}
