//! Reads the hardware from the kernel's files. What they do not say is unknown, or as it is where there is only one.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
    fs, io,
    path::PathBuf,
};

use super::{Cache, Device, Hardware, NumaNode, Processors};
use crate::outside;

/// The most bytes read of one of these files.
const LONGEST: u64 = 64 << 10;
/// The list of processors that are on.
const ONLINE: &str = "sys/devices/system/cpu/online";

impl Hardware {
    /// This host's.
    ///
    /// ```
    /// let hardware = unisono::hardware::Hardware::here().unwrap();
    /// assert!(!hardware.cores.is_empty() && hardware.processors().len() >= hardware.cores.len());
    /// ```
    ///
    /// # Errors
    /// As [`below`](Self::below).
    pub fn here() -> io::Result<Self> {
        Self::below("/", Processors::allowed().ok())
    }

    /// The hardware described by a tree of files like `/sys`: the directory `root` has `sys/devices` and `sys/class`. `allowed` are the
    /// processors that this process may use, if they are known.
    ///
    /// Where the system does not say so, every processor is a core, and all are in one socket.
    ///
    /// # Errors
    /// If `sys/devices/system/cpu/online` cannot be read or is no list of processors, and `allowed` is not given.
    pub fn below(root: impl Into<PathBuf>, allowed: Option<Processors>) -> io::Result<Self> {
        let files = Files(root.into());
        let online = match files.processors(ONLINE).filter(|online| !online.is_empty()) {
            Some(online) => online,
            None => allowed.clone().ok_or_else(|| files.no_list(ONLINE))?,
        };
        let mut found =
            Self { allowed: allowed.unwrap_or_else(|| online.clone()).and(&online), ..Self::default() };
        let mut caches = BTreeMap::new();
        for processor in online.iter() {
            let cpu = format!("sys/devices/system/cpu/cpu{processor}");
            // The second names are those of kernels before 5.3.
            let set = |names: [&str; 2]| {
                let set = |name| files.processors(&format!("{cpu}/topology/{name}"));
                names
                    .into_iter()
                    .find_map(set)
                    .map(|set| set.and(&online))
                    .filter(|set| set.contains(processor))
            };
            let core = set(["core_cpus_list", "thread_siblings_list"]);
            found.cores.insert(core.unwrap_or_else(|| [processor].into_iter().collect()));
            let package = set(["package_cpus_list", "core_siblings_list"]);
            found.packages.insert(package.unwrap_or_else(|| online.clone()));
            for index in files.names(&format!("{cpu}/cache")) {
                files.cache(&format!("{cpu}/cache/{index}"), &online, &mut caches);
            }
        }
        let cache = |((Reverse(level), processors), size)| Cache { level, processors, size };
        found.caches = caches.into_iter().map(cache).collect();
        found.nodes = files.nodes(&online);
        found.devices = files.devices("sys/class/infiniband", true).collect();
        found.devices.extend(files.devices("sys/class/net", false));
        Ok(found)
    }
}

/// A tree of the kernel's files.
struct Files(PathBuf);

impl Files {
    fn text(&self, path: &str) -> Option<String> {
        outside::read_text(&self.0.join(path), LONGEST).ok()
    }

    fn number<T: std::str::FromStr>(&self, path: &str) -> Option<T> {
        self.text(path)?.trim().parse().ok()
    }

    fn processors(&self, path: &str) -> Option<Processors> {
        Processors::parse(&self.text(path)?)
    }

    /// Why there is no list of processors.
    fn no_list(&self, path: &str) -> io::Error {
        let path = self.0.join(path);
        match outside::read_text(&path, LONGEST) {
            Ok(text) => {
                let problem =
                    format!("{}: {:?} is no list of processors such as 0-3,8", path.display(), text.trim());
                io::Error::new(io::ErrorKind::InvalidData, problem)
            }
            Err(error) => io::Error::new(error.kind(), format!("cannot read {}: {error}", path.display())),
        }
    }

    /// The names in a directory, sorted; none if there is no such directory.
    fn names(&self, path: &str) -> BTreeSet<String> {
        let entries = fs::read_dir(self.0.join(path)).into_iter().flatten().flatten();
        entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
    }

    /// Adds the cache of a directory, with its level and its processors, if it holds data.
    fn cache(
        &self,
        directory: &str,
        online: &Processors,
        caches: &mut BTreeMap<(Reverse<u32>, Processors), Option<u64>>,
    ) {
        let text = |name| self.text(&format!("{directory}/{name}"));
        if text("type").is_some_and(|kind| kind.trim() == "Instruction") {
            return;
        }
        let level = self.number(&format!("{directory}/level"));
        let sharing = self.processors(&format!("{directory}/shared_cpu_list"));
        if let (Some(level), Some(sharing)) = (level, sharing) {
            let sharing = sharing.and(online);
            caches.entry((Reverse(level), sharing)).or_insert_with(|| bytes(text("size")?.trim()));
        }
    }

    fn nodes(&self, online: &Processors) -> Vec<NumaNode> {
        let directory = "sys/devices/system/node";
        let names = self.names(directory).into_iter();
        let numbers: BTreeSet<usize> =
            names.filter_map(|name| name.strip_prefix("node")?.parse().ok()).collect();
        let node = |number| {
            let file = |name: &str| format!("{directory}/node{number}/{name}");
            let memory = self.text(&file("meminfo")).and_then(|text| memory(&text));
            Some(NumaNode { number, processors: self.processors(&file("cpulist"))?.and(online), memory })
        };
        numbers.into_iter().filter_map(node).collect()
    }

    /// The devices of a class that have hardware of their own, unlike loopback or a bridge.
    fn devices(&self, class: &str, rdma: bool) -> impl Iterator<Item = Device> {
        let names = self.names(class).into_iter();
        names.filter(move |name| self.0.join(class).join(name).join("device").exists()).map(move |name| {
            // A virtio device has no file of its own, but its PCI function above has.
            let number = |place| self.number::<i64>(&format!("{class}/{name}/{place}/numa_node"));
            // -1 is unknown.
            let node = ["device", "device/.."].into_iter().find_map(number);
            Device { node: node.and_then(|node| usize::try_from(node).ok()), name, rdma }
        })
    }
}

/// `32768K` in bytes.
fn bytes(size: &str) -> Option<u64> {
    let digits = size.trim_end_matches(|unit: char| unit.is_ascii_alphabetic());
    let unit = match size.get(digits.len()..)? {
        "" => 1,
        "K" => 1 << 10,
        "M" => 1 << 20,
        "G" => 1 << 30,
        _ => return None,
    };
    digits.parse::<u64>().ok()?.checked_mul(unit)
}

/// The bytes in the line with `MemTotal:  24660000 kB` of a node's meminfo.
fn memory(text: &str) -> Option<u64> {
    let (_, after) = text.split_once("MemTotal:")?;
    let mut words = after.split_whitespace();
    let (number, unit) = (words.next()?.parse::<u64>().ok()?, words.next()?);
    number.checked_mul(1 << 10).filter(|_| unit == "kB")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A directory with these files.
    fn tree(files: &[(String, &str)]) -> tempfile::TempDir {
        let directory = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = directory.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        directory
    }

    fn read(files: &[(String, &str)], allowed: &str) -> Hardware {
        Hardware::below(tree(files).path(), Processors::parse(allowed)).unwrap()
    }

    fn told(sets: &BTreeSet<Processors>) -> Vec<String> {
        sets.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_tree_of_files_is_read_whole() {
        // Two sockets of two cores with two threads each; the last socket's second core is off.
        let mut files = vec![(ONLINE.to_owned(), "0-5\n")];
        let places =
            [("0-3", "0-1"), ("0-3", "0-1"), ("0-3", "2-3"), ("0-3", "2-3"), ("4-7", "4-5"), ("4-7", "4-5")];
        for (cpu, (package, core)) in places.into_iter().enumerate() {
            let file = |name: &str| format!("sys/devices/system/cpu/cpu{cpu}/{name}");
            // The older names serve as well.
            let names = if cpu < 4 {
                ["package_cpus_list", "core_cpus_list"]
            } else {
                ["core_siblings_list", "thread_siblings_list"]
            };
            files
                .extend(names.map(|name| file(&format!("topology/{name}"))).into_iter().zip([package, core]));
            for (index, level, kind, size, sharing) in [
                (0, "1", "Data", "48K", core),
                (1, "1", "Instruction", "32K", core),
                (3, "3", "Unified", "32768K\n", package),
            ] {
                let file = |name: &str| file(&format!("cache/index{index}/{name}"));
                files.extend([
                    (file("level"), level),
                    (file("type"), kind),
                    (file("size"), size),
                    (file("shared_cpu_list"), sharing),
                ]);
            }
        }
        let node = |name: &str| format!("sys/devices/system/node/{name}");
        files.extend([
            (node("node10/cpulist"), "\n"),
            (node("node0/cpulist"), "0-3"),
            (node("node0/meminfo"), "\nNode 0 MemTotal:       2048 kB\nNode 0 MemFree: 1 kB\n"),
            (node("node1/cpulist"), "4-7"),
            (node("online"), "0-1,10"),
            ("sys/class/infiniband/mlx5_0/device/numa_node".to_owned(), "1\n"),
            ("sys/class/net/eth0/device/numa_node".to_owned(), "-1\n"),
            ("sys/class/net/lo/flags".to_owned(), "0x9"),
        ]);
        let hardware = read(&files, "1,6");
        assert_eq!(told(&hardware.packages), ["0-3", "4,5"]);
        assert_eq!(told(&hardware.cores), ["0,1", "2,3", "4,5"]);
        assert_eq!(
            (hardware.processors().to_string(), hardware.allowed.to_string()),
            ("0-5".into(), "1".into())
        );
        let caches: Vec<_> =
            hardware.caches.iter().map(|it| (it.level, it.processors.to_string(), it.size)).collect();
        let (l3, l1) = (Some(32 << 20), Some(48 << 10));
        let cache = |level, list: &str, size| (level, list.to_owned(), size);
        assert_eq!(
            caches,
            [
                cache(3, "0-3", l3),
                cache(3, "4,5", l3),
                cache(1, "0,1", l1),
                cache(1, "2,3", l1),
                cache(1, "4,5", l1)
            ]
        );
        let nodes: Vec<_> =
            hardware.nodes.iter().map(|it| (it.number, it.processors.to_string(), it.memory)).collect();
        assert_eq!(
            nodes,
            [(0, "0-3".into(), Some(2 << 20)), (1, "4,5".into(), None), (10, String::new(), None)]
        );
        let device = |name: &str, rdma, node| Device { name: name.to_owned(), rdma, node };
        assert_eq!(hardware.devices, [device("mlx5_0", true, Some(1)), device("eth0", false, None)]);
    }

    #[test]
    fn what_is_missing_or_nonsense_is_unknown() {
        let cpu = |name: &str| format!("sys/devices/system/cpu/cpu0/{name}");
        let odd = [
            (ONLINE.to_owned(), "0,2"),
            (cpu("topology/core_cpus_list"), "7"),
            (cpu("topology/package_cpus_list"), "0-99999999999"),
            (cpu("cache/index0/level"), "-1"),
            (cpu("cache/index1/level"), "2"),
            (cpu("cache/index1/shared_cpu_list"), "0"),
            (cpu("cache/index1/size"), "18446744073709551615K"),
            ("sys/devices/system/node/node0/cpulist".to_owned(), "\u{fffd}"),
            ("sys/devices/system/node/nodeless".to_owned(), ""),
        ];
        let hardware = read(&odd, "0-3");
        assert_eq!(
            (told(&hardware.cores), told(&hardware.packages)),
            (vec!["0".into(), "2".into()], vec!["0,2".into()])
        );
        let cache = hardware.caches.first().unwrap();
        assert_eq!((hardware.caches.len(), cache.level, cache.size), (1, 2, None));
        assert!(hardware.nodes.is_empty() && hardware.devices.is_empty(), "{hardware:?}");
        assert_eq!(told(&read(&[], "3").cores), ["3"], "what is allowed is there");
    }

    #[test]
    fn without_any_processor_the_file_is_named() {
        let error =
            |files: &[(String, &str)]| Hardware::below(tree(files).path(), None).unwrap_err().to_string();
        let missing = error(&[]);
        assert!(
            missing.starts_with("cannot read /") && missing.contains("/sys/devices/system/cpu/online: "),
            "{missing}"
        );
        let nonsense = error(&[(ONLINE.to_owned(), "all\n")]);
        assert!(nonsense.ends_with("/online: \"all\" is no list of processors such as 0-3,8"), "{nonsense}");
    }

    #[test]
    fn this_host_has_a_sane_description() {
        let hardware = Hardware::here().unwrap();
        let all = hardware.processors();
        assert!(!hardware.allowed.is_empty() && all.include(&hardware.allowed), "{hardware:?}");
        assert!(hardware.packages.iter().all(|package| all.include(package)), "{hardware:?}");
        assert!(
            !hardware.packages.is_empty() && hardware.packages.len() <= hardware.cores.len(),
            "{hardware:?}"
        );
    }
}
