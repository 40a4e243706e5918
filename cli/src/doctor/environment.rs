//! Environment variables: unisono's own, the launcher's, libfabric's.

use serde::Serialize;
use unisono::{
    Error,
    config::{Config, StoreAddress},
    launch::{self, RendezvousPoint},
};

use super::report::Section;

/// The prefix of the library's variables.
const OURS: &str = "UNISONO_";
/// The variable whose value is never shown.
const SECRET: &str = "UNISONO_TOKEN";
/// The variable that says where the loader looks for libraries first, and so decides which libfabric runs.
const LOADER: &str = "LD_LIBRARY_PATH";
/// hwloc's variable that names a file with a recorded topology.
const RECORDED: &str = "HWLOC_XMLFILE";
/// hwloc's variable that describes a topology.
const SYNTHETIC: &str = "HWLOC_SYNTHETIC";
/// The most edits (insertions, deletions, replacements, swaps) between a known name and one that is taken for a typing mistake.
const ALIKE: usize = 5;
/// The most characters of a value that are shown.
const SHOWN: usize = 120;

/// A variable that is set.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Setting {
    /// Its name.
    pub(super) name: String,
    /// Its value.
    pub(super) value: String,
}

/// A variable with the library's prefix that the library does not have.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Stray {
    /// Its name.
    pub(super) name: String,
    /// The name that was probably meant.
    pub(super) meant: Option<String>,
}

/// What a launcher tells this process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct LaunchInfo {
    /// The launcher's name.
    pub(super) launcher: &'static str,
    /// This process's rank.
    pub(super) rank: usize,
    /// The world size.
    pub(super) ranks: usize,
    /// Its number on this machine, and the number of ranks there.
    pub(super) local_rank: Option<usize>,
    pub(super) local_ranks: Option<usize>,
    /// Where the ranks meet, in words.
    pub(super) meeting: String,
    /// The host where they meet, if that is known.
    pub(super) host: Option<String>,
}

impl From<launch::Launch> for LaunchInfo {
    fn from(launch: launch::Launch) -> Self {
        let launch::Launch { launcher, rank, ranks, local_rank, local_ranks, rendezvous, .. } = launch;
        let (meeting, host) = match rendezvous {
            RendezvousPoint::Store(address) => (address.to_string(), host_of(address)),
            RendezvousPoint::ThisHost => ("a directory on this machine".into(), None),
            RendezvousPoint::None => ("no place, because this is the only rank".into(), None),
        };
        Self { launcher, rank, ranks, local_rank, local_ranks, meeting, host }
    }
}

/// The variables that matter.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct Environment {
    /// The library's variables that are set.
    pub(super) ours: Vec<Setting>,
    /// Variables with the library's prefix that it does not have.
    pub(super) strays: Vec<Stray>,
    /// Launchers' variables that are set.
    pub(super) launcher: Vec<Setting>,
    /// libfabric's variables that are set, that of the loader, and hwloc's.
    pub(super) libraries: Vec<Setting>,
    /// What the launcher tells, or what is wrong with that; `None` if there is no launcher.
    pub(super) launch: Option<Result<LaunchInfo, String>>,
    /// What is wrong with the library's variables.
    pub(super) wrong: Vec<String>,
}

impl Environment {
    /// Reads this process's environment.
    pub(super) fn gather() -> Self {
        let text = |text: std::ffi::OsString| text.to_string_lossy().into_owned();
        Self::of(std::env::vars_os().map(|(name, value)| (text(name), text(value))))
    }

    fn of(variables: impl Iterator<Item = (String, String)>) -> Self {
        let mut environment = Self::default();
        let mut all: Vec<_> = variables.map(|(name, value)| Setting { name, value }).collect();
        all.sort_by(|one, other| one.name.cmp(&other.name));
        let variable = |name: &str| all.iter().find(|it| it.name == name).map(|it| it.value.clone());
        if launch::is_set(&variable) {
            let launch = launch::detect(&variable).map(LaunchInfo::from);
            environment.launch = Some(launch.map_err(|error| error.to_string()));
        }
        let token = launch::token(&variable).err();
        for mut setting in all {
            if setting.name == SECRET {
                setting.value = format!("({} characters, not shown)", setting.value.chars().count());
            }
            if setting.name.starts_with(OURS) {
                if Config::variables().iter().any(|known| known.name == setting.name) {
                    environment.ours.push(setting);
                } else {
                    environment.strays.push(Stray { meant: nearest(&setting.name), name: setting.name });
                }
            } else if launch::variables().any(|known| known == setting.name) {
                environment.launcher.push(setting);
            } else if setting.name.starts_with("FI_")
                || [LOADER, RECORDED, SYNTHETIC].contains(&&*setting.name)
            {
                environment.libraries.push(setting);
            }
        }
        let mut config = Config::default();
        let variable = |name: &str| environment.value(name).map(str::to_owned);
        let settings = config.set_from(&variable).and_then(|()| config.validate_from(&variable)).err();
        let wrong = settings.into_iter().chain(environment.store().err()).chain(token);
        environment.wrong = wrong.map(|error| error.to_string()).collect();
        environment
    }

    /// The host in UNISONO_STORE, if it has one, or in MASTER_ADDR.
    fn store(&self) -> Result<Option<String>, Error> {
        let [store, master] = ["UNISONO_STORE", "MASTER_ADDR"].map(|name| Some((name, self.value(name)?)));
        let Some((name, value)) = store.or(master) else { return Ok(None) };
        let host = match store {
            Some(_) => StoreAddress::parse(value.trim()).map(host_of),
            None => launch::host_in(value).map(|host| Some(host.to_owned())),
        };
        host.map_err(|problem| Error::Config { name: name.into(), value: Some(value.into()), problem })
    }

    /// The value of a variable.
    pub(super) fn value(&self, name: &str) -> Option<&str> {
        let mut all = self.ours.iter().chain(&self.launcher).chain(&self.libraries);
        all.find(|setting| setting.name == name).map(|setting| setting.value.as_str())
    }

    /// The settings in force; the defaults if the environment has an error.
    pub(super) fn config(&self) -> Config {
        let mut config = Config::default();
        let set = config.set_from(&|name| self.value(name).map(str::to_owned));
        set.and_then(|()| config.validate()).map_or_else(|_| Config::default(), |()| config)
    }

    /// The host where ranks meet, if a variable names one.
    pub(super) fn master(&self) -> Option<String> {
        if let Some(Ok(launch)) = &self.launch {
            return launch.host.clone();
        }
        self.store().ok().flatten()
    }

    /// What a launcher tells this process, if there is one and it is valid.
    pub(super) fn launched(&self) -> Option<&LaunchInfo> {
        self.launch.as_ref()?.as_ref().ok()
    }

    pub(super) fn judge(&self) -> Section {
        let mut section = Section::new("environment");
        for stray in &self.strays {
            let mend = match &stray.meant {
                Some(meant) => format!("perhaps {meant} was meant"),
                None => format!("unset it; the names known are {}", known().collect::<Vec<_>>().join(", ")),
            };
            section.warn(format!("{} is set, but there is no such variable", stray.name), mend);
        }
        for wrong in &self.wrong {
            section.problem(wrong.clone(), "correct it or unset it");
        }
        match &self.launch {
            Some(Ok(LaunchInfo { launcher, rank, ranks, local_ranks, meeting, .. })) => {
                let here = local_ranks.map_or_else(String::new, |here| format!(", {here} of them here"));
                section.ok(format!("{launcher}: this is rank {rank} of {ranks}{here}; they meet at {meeting}"));
            }
            // This was reported above.
            Some(Err(problem)) if self.wrong.contains(problem) => {}
            Some(Err(problem)) => section.warn(
                problem.clone(),
                "a rank started with these variables would fail; `unisono run` and programs started in other ways are not \
                 affected",
            ),
            None => {}
        }
        for Setting { name, value } in self.ours.iter().chain(&self.launcher) {
            section.note(format!("{name}={}", short(value)));
        }
        for Setting { name, value } in &self.libraries {
            let set = format!("{name}={}", short(value));
            if name == "FI_PROVIDER" {
                let hidden = match value.strip_prefix('^') {
                    Some(hidden) => short(hidden),
                    None => "all other providers".to_owned(),
                };
                section.warn(
                    format!("{set} hides {hidden} from every program that uses libfabric"),
                    "unset it, and choose with UNISONO_PROVIDER",
                );
            } else {
                section.note(set);
            }
        }
        if section.lines.is_empty() {
            section.note("no variable of unisono, of a launcher or of libfabric is set");
        }
        section
    }
}

/// The host of a store, if only one can be.
fn host_of(address: StoreAddress) -> Option<String> {
    match address {
        StoreAddress::Tcp { host, .. } => Some(host),
        StoreAddress::Among { mut hosts, .. } if hosts.len() == 1 => hosts.pop(),
        _ => None,
    }
}

/// A value as one short line.
fn short(value: &str) -> String {
    let line: String = value.chars().map(|c| if c.is_control() { '?' } else { c }).take(SHOWN).collect();
    if line.chars().count() < value.chars().count() { format!("{line}...") } else { line }
}

/// The names of all variables of the library.
fn known() -> impl Iterator<Item = &'static str> {
    Config::variables().iter().map(|known| known.name)
}

/// The known name that is most like this one.
fn nearest(name: &str) -> Option<String> {
    let distance = |known: &str| strsim::damerau_levenshtein(&name.to_ascii_uppercase(), known);
    let (distance, known) = known().map(|known| (distance(known), known)).min()?;
    // Half of what follows the prefix must be right.
    let most = ALIKE.min(name.len().saturating_sub(OURS.len()) / 2);
    (distance <= most).then(|| known.to_owned())
}

#[cfg(test)]
mod tests {
    use super::{super::report::LineMark, *};

    fn environment(variables: &[(&str, &str)]) -> Environment {
        Environment::of(variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())))
    }

    #[test]
    fn typing_mistakes_are_recognised() {
        for (written, meant) in [
            ("UNISONO_PROVDER", Some("UNISONO_PROVIDER")),
            ("UNISONO_LANE", Some("UNISONO_LANES")),
            ("UNISONO_CHUNKS", Some("UNISONO_CHUNK")),
            ("UNISONO_lanes", Some("UNISONO_LANES")),
            ("UNISONO_THREADCORES", Some("UNISONO_THREAD_CORES")),
            ("UNISONO_", None),
            ("UNISONO_X", None),
            ("UNISONO_COFFEE_STRENGTH", None),
        ] {
            let strays = environment(&[(written, "1")]).strays;
            assert_eq!(strays, [Stray { name: written.into(), meant: meant.map(str::to_owned) }]);
        }
    }

    #[test]
    fn what_is_set_is_sorted_into_its_kind() {
        let found = environment(&[
            ("PATH", "/bin"),
            ("FI_PROVIDER", "tcp"),
            ("UNISONO_LANES", "2"),
            ("RANK", "1"),
            ("WORLD_SIZE", "8"),
            ("LOCAL_WORLD_SIZE", "4"),
            ("MASTER_ADDR", "10.0.0.1"),
            ("MASTER_PORT", "29500"),
        ]);
        assert_eq!(found.config().lanes, 2);
        let local_ranks = found.launched().and_then(|launch| launch.local_ranks);
        assert_eq!((local_ranks, found.master().as_deref()), (Some(4), Some("10.0.0.1")));
        assert_eq!((found.ours.len(), found.launcher.len(), found.libraries.len()), (1, 5, 1));
        assert!(found.wrong.is_empty(), "{found:?}");
        let line = &found.judge().lines[0].text;
        assert_eq!(line, "torchrun: this is rank 1 of 8, 4 of them here; they meet at tcp://10.0.0.1:29500");
    }

    #[test]
    fn incomplete_launcher_variables_are_named() {
        let found = environment(&[("RANK", "1"), ("MASTER_ADDR", "10.0.0.1")]);
        assert!(found.launch.as_ref().is_some_and(Result::is_err));
        let lines = found.judge().lines;
        assert!(lines[0].mark == LineMark::Warn && lines[0].text.contains("WORLD_SIZE"), "{lines:?}");
        assert_eq!(found.master().as_deref(), Some("10.0.0.1"));
        assert_eq!(environment(&[("MASTER_ADDR", "10.0.0.1")]).launch, None);
    }

    #[test]
    fn the_store_goes_before_the_master() {
        let master = |store| environment(&[("MASTER_ADDR", "a"), ("UNISONO_STORE", store)]).master();
        assert_eq!(master("tcp://[fd00::1]:1").as_deref(), Some("fd00::1"));
        assert_eq!(master("file:///tmp/x"), None);
        assert_eq!(master("nonsense"), None);
        assert_eq!(master(" tcp://a:1\n").as_deref(), Some("a"));
    }

    #[test]
    fn the_master_is_read_as_ranks_read_it() {
        let master = |host| environment(&[("MASTER_ADDR", host)]).master();
        for (written, meant) in [
            ("[fd00::1]", Some("fd00::1")),
            (" node0 ", Some("node0")),
            ("fe80::1%eth0", Some("fe80::1%eth0")),
            ("", None),
            ("[]", None),
            ("tcp://node0", None),
            ("node0:29500", None),
        ] {
            assert_eq!(master(written).as_deref(), meant, "{written}");
        }
        let wrong = &environment(&[("MASTER_ADDR", "node0:29500")]).wrong;
        assert!(matches!(&wrong[..], [wrong] if wrong.contains("a port in it, 29500")), "{wrong:?}");
    }

    #[test]
    fn a_token_is_not_shown() {
        let found = environment(&[("UNISONO_TOKEN", "geheim"), ("UNISONO_TOKEN_FILE", "/dev/zero")]);
        assert!(found.wrong.iter().any(|wrong| wrong.contains("unset one of them")), "{found:?}");
        let message = format!("{found:?} {:?} {}", found.judge(), serde_json::to_string(&found).unwrap());
        assert!(message.contains("(6 characters, not shown)") && !message.contains("geheim"), "{message}");
        let found = environment(&[("UNISONO_TOKEN_FILE", "/dev/zero")]);
        assert!(
            matches!(&found.wrong[..], [wrong] if wrong.contains("a regular file is wanted")),
            "{found:?}"
        );
    }

    #[test]
    fn an_invalid_store_is_reported_once() {
        let rank = [("UNISONO_RANK", "0"), ("UNISONO_WORLD_SIZE", "2")];
        for started in [&[][..], &rank] {
            let found = environment(&[started, &[("UNISONO_STORE", "tpc://x:1")]].concat());
            let lines = found.judge().lines;
            let messages: Vec<_> = lines.iter().filter(|line| line.text.contains("scheme \"tpc\"")).collect();
            assert!(matches!(messages[..], [line] if line.mark == LineMark::Problem), "{lines:?}");
        }
        assert!(environment(&[("UNISONO_STORE", "file:///x")]).wrong.is_empty());
    }

    #[test]
    fn what_a_filter_of_providers_hides() {
        let first_line = |filter| environment(&[("FI_PROVIDER", filter)]).judge().lines[0].text.clone();
        assert!(first_line("tcp,shm").starts_with("FI_PROVIDER=tcp,shm hides all other providers from "));
        assert!(first_line("^verbs,efa").starts_with("FI_PROVIDER=^verbs,efa hides verbs,efa from "));
    }

    #[test]
    fn wrong_values_are_told_and_do_not_count() {
        let found = environment(&[("UNISONO_LANES", "two"), ("LOCAL_WORLD_SIZE", "many")]);
        assert!(matches!(&found.wrong[..], [wrong] if wrong.contains("UNISONO_LANES")), "{found:?}");
        assert_eq!(found.config(), Config::default());
        assert_eq!(found.launched(), None);
        let found = environment(&[("UNISONO_LANES", "64")]);
        assert_eq!(found.wrong.len(), 1);
    }

    #[test]
    fn values_are_shown_in_one_short_line() {
        assert_eq!(short("a\nb\x1b[31m"), "a?b?[31m");
        assert_eq!(short(&"é".repeat(500)).chars().count(), SHOWN + 3);
    }
}
