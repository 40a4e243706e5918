//! The environment variables of this library: one table, which docs/settings.md repeats.

use unisono_core::{
    error::{Error, Result},
    reduce::Reduction,
};

use super::{
    Config, ThreadCores,
    parse::{name, number, parse_duration, parse_size},
};

/// Returns the value of a variable, if it is set.
pub type Lookup<'a> = &'a dyn Fn(&str) -> Option<String>;

type Set = fn(&mut Config, &str) -> std::result::Result<(), String>;

/// An environment variable that this library reads.
#[derive(Clone, Copy, Debug)]
pub struct Variable {
    /// Its name.
    pub name: &'static str,
    /// Its meaning and its values.
    pub meaning: &'static str,
    /// The default, if it is not set.
    pub default: &'static str,
    /// Sets the field; `None` for those that [`crate::launch`] or the Python package reads.
    set: Option<Set>,
}

/// All variables. Those of launchers are in [`crate::launch`].
const VARIABLES: &[Variable] = &[
    launch(
        "UNISONO_RANK",
        "this process's rank, from 0; with UNISONO_WORLD_SIZE it overrides the launcher's variables, and either alone is an error",
        "the launcher's",
    ),
    launch("UNISONO_WORLD_SIZE", "the number of ranks, from 1 to 524288", "the launcher's"),
    launch("UNISONO_LOCAL_RANK", "this process's number on its host", "the launcher's, or unknown"),
    launch("UNISONO_LOCAL_WORLD_SIZE", "the number of ranks on this host", "the launcher's, or unknown"),
    launch(
        "UNISONO_STORE",
        "the store through which ranks join: tcp://host:port (rank 0 serves it), tcp+served://host:port (another process \
         serves it), file:///directory (shared by all ranks)",
        "from MASTER_ADDR and MASTER_PORT, or the launcher",
    ),
    launch(
        "UNISONO_TOKEN",
        "the job's secret, any text: a process without it cannot become a rank, and ranks do not accept it as the store",
        "none, with a warning if other hosts can reach the store",
    ),
    launch("UNISONO_TOKEN_FILE", "a file with the token, which only this user or root may read", "none"),
    // The Python package reads these before it can load this library.
    launch(
        "UNISONO_LIBFABRIC",
        "for the Python package: the path of a libfabric.so.1 to load instead of all others",
        "the first one found in LD_LIBRARY_PATH, in the package and in the system",
    ),
    launch(
        "UNISONO_AS_GLOO",
        "for the Python package: 1 if unisono makes the groups of torch.distributed that are called gloo, or 0",
        "0",
    ),
    launch(
        "UNISONO_TORCH_CLASS",
        "for the Python package: the class of groups of torch.distributed: process-group or backend",
        "process-group if unisono is the only backend",
    ),
    knob(
        "UNISONO_PROVIDER",
        "the transport: shm (memory that ranks of one host share), a provider of libfabric such as tcp or verbs, or both, \
         such as shm,verbs",
        "shm between ranks of one host and user, and between hosts the first of efa, cxi, opx, verbs and tcp that works; psm3 \
         only if named here",
        |config, text| name(text).map(|name| config.provider = (name != "auto").then_some(name)),
    ),
    knob(
        "UNISONO_INTERFACE",
        "the network interfaces or NICs that ranks may use, by names, addresses and networks: eth0; 10.0.0.0/8,mlx5_0; all \
         except these: ^docker0,lo",
        "the interface on the route to the store",
        |config, text| text.parse().map(|interfaces| config.interface = Some(interfaces)),
    ),
    knob(
        "UNISONO_TIMEOUT",
        "the longest wait for another rank: 300, 5s, 200ms; longer than 0",
        "300s",
        |config, text| parse_duration(text).map(|time| config.timeout = time),
    ),
    knob(
        "UNISONO_JOIN_TIMEOUT",
        "the longest time of joining, until the last rank has joined; longer than 0",
        "60s",
        |config, text| parse_duration(text).map(|time| config.join_timeout = time),
    ),
    knob(
        "UNISONO_LEAVE_TIMEOUT",
        "the longest time that a rank that leaves waits for living ranks that have not begun to leave; longer than 0",
        "as long as they live",
        |config, text| parse_duration(text).map(|time| config.leave_timeout = Some(time)),
    ),
    knob(
        "UNISONO_CHUNK",
        "the unit of pipelining in bytes: 131072, 256K, 4M; from 16 to 64M",
        "256K",
        |config, text| parse_size(text).map(|bytes| config.chunk = bytes),
    ),
    knob(
        "UNISONO_LANES",
        "the number of chunks in progress at the same time, from 1 to 32",
        "2",
        |config, text| number(text).map(|lanes| config.lanes = lanes),
    ),
    knob(
        "UNISONO_SPIN",
        "the time that a wait polls before it yields between polls, and then sleeps: 0, 20us, 1ms, auto",
        "auto: 20us, or 0 if a host has more ranks than processors",
        |config, text| {
            config.spin = if text == "auto" { None } else { Some(parse_duration(text)?) };
            Ok(())
        },
    ),
    knob(
        "UNISONO_THREAD_CORES",
        "the processors of the progress thread: auto, or one for each rank of the host: 3; 2,3; 0,4-7",
        "all processors of the process",
        |config, text| ThreadCores::parse(text).map(|cores| config.thread_cores = Some(cores)),
    ),
    knob(
        "UNISONO_ALGORITHM",
        "the algorithms that calls may use: ring; ^ring; all_reduce:two_shot,ring;broadcast:binomial",
        "the fastest, by measurements inside a host and by the cost model between hosts",
        |config, text| name(text).map(|name| config.algorithm = Some(name)),
    ),
    knob(
        "UNISONO_PEER_READS",
        "yes, or no: whether this process and the others of its host may read all of each other's memory, which saves a copy",
        "yes",
        |config, text| {
            config.peer_reads = match text {
                "yes" => true,
                "no" => false,
                _ => return Err("wanted yes or no".into()),
            };
            Ok(())
        },
    ),
    knob("UNISONO_TUNING", "a file that unisono tune has written", "none", |config, text| {
        name(text).map(|name| config.tuning = Some(name.into()))
    }),
    knob("UNISONO_OBJECT_LIMIT", "the largest number of bytes of one object", "1G", |config, text| {
        parse_size(text).map(|size| config.object_limit = size)
    }),
    knob(
        "UNISONO_REDUCTION",
        "fastest, or reproducible: the same bits for every algorithm, chunk and provider",
        "fastest",
        |config, text| {
            let wanted = "wanted fastest or reproducible";
            Reduction::parse(text).ok_or_else(|| wanted.into()).map(|reduction| config.reduction = reduction)
        },
    ),
];

const fn launch(name: &'static str, meaning: &'static str, default: &'static str) -> Variable {
    Variable { name, meaning, default, set: None }
}

const fn knob(name: &'static str, meaning: &'static str, default: &'static str, set: Set) -> Variable {
    Variable { name, meaning, default, set: Some(set) }
}

impl Config {
    /// All `UNISONO_` variables, with their meanings and defaults.
    #[must_use]
    pub fn variables() -> &'static [Variable] {
        VARIABLES
    }

    /// Sets the fields whose variables are set; `variable` returns the value of a variable. Rank, world size, store and token are
    /// read by [`crate::launch`].
    ///
    /// # Errors
    /// [`Error::Config`] names a variable whose value is not valid.
    pub fn set_from(&mut self, variable: Lookup<'_>) -> Result<()> {
        for row in VARIABLES {
            let (Some(set), Some(value)) = (row.set, variable(row.name)) else { continue };
            set(self, value.trim()).map_err(|problem| Error::Config {
                name: row.name.into(),
                value: Some(value.clone()),
                problem: format!("{problem}; it is {}", row.meaning),
            })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::{super::StoreAddress, *};

    fn set(name: &str, value: &str) -> Result<Config> {
        let mut config = Config::default();
        let variable = |asked: &str| (asked == name).then(|| value.to_owned());
        config.set_from(&variable)?;
        config.validate_from(&variable)?;
        Ok(config)
    }

    #[test]
    fn the_settings_are_documented() {
        let row = |row: &Variable| format!("| `{}` | {} | {} |\n", row.name, row.meaning, row.default);
        let table: String = VARIABLES.iter().map(row).collect();
        assert!(include_str!("../../../docs/settings.md").ends_with(&table), "wanted at its end:\n{table}");
    }

    #[test]
    fn every_variable_sets_its_field_and_the_table_tells_the_defaults() {
        for row in VARIABLES.iter().filter(|row| row.set.is_some()) {
            let value = match row.name {
                "UNISONO_PROVIDER" | "UNISONO_INTERFACE" | "UNISONO_ALGORITHM" | "UNISONO_TUNING" => "tcp",
                "UNISONO_TIMEOUT" | "UNISONO_JOIN_TIMEOUT" | "UNISONO_LEAVE_TIMEOUT" | "UNISONO_SPIN" => {
                    "7ms"
                }
                "UNISONO_CHUNK" | "UNISONO_OBJECT_LIMIT" => "4K",
                "UNISONO_REDUCTION" => "reproducible",
                "UNISONO_LANES" => "3",
                "UNISONO_PEER_READS" => "no",
                _ => "1",
            };
            assert_ne!(set(row.name, value).unwrap(), Config::default(), "{}", row.name);
            // A default that is a value can be given as one, and changes nothing.
            if row.default.starts_with(|c: char| c.is_ascii_digit()) {
                assert_eq!(set(row.name, row.default).unwrap(), Config::default(), "{}", row.name);
            }
            assert!(set(row.name, "").is_err(), "{} takes an empty value", row.name);
        }
    }

    /// The ends of every range in the table are accepted, and values beyond them are refused.
    #[test]
    fn ranges_are_as_documented() {
        let with = |name: &str, value: usize| {
            let value = value.to_string();
            let of = |asked: &str| (asked == name).then(|| value.clone());
            let mut config = Config::default();
            config.set_from(&of).and_then(|()| config.validate_from(&of))
        };
        let mut ranges = Vec::new();
        for row in VARIABLES.iter().filter(|row| row.set.is_some()) {
            let Some((_, range)) = row.meaning.rsplit_once("from ") else { continue };
            let words: Vec<_> = range.split([' ', ';', ',']).collect();
            let [least, "to", most] = words[..3] else { panic!("{}: {range}", row.name) };
            let (least, most) = (parse_size(least).unwrap(), parse_size(most).unwrap());
            for value in [least, most] {
                with(row.name, value).unwrap_or_else(|error| panic!("{error}"));
            }
            for value in [least - 1, most + 1] {
                assert!(
                    with(row.name, value).is_err(),
                    "{}={value} is outside of {least} to {most}",
                    row.name
                );
            }
            ranges.push(row.name);
        }
        assert_eq!(ranges, ["UNISONO_CHUNK", "UNISONO_LANES"]);
        for name in ["UNISONO_TIMEOUT", "UNISONO_JOIN_TIMEOUT", "UNISONO_LEAVE_TIMEOUT"] {
            assert!(set(name, "1us").is_ok() && set(name, "0").is_err());
        }
        let store = StoreAddress::Tcp { host: "h".into(), port: 1, served: false };
        let ranks = |ranks| Config { ranks, store: Some(store.clone()), ..Config::default() }.validate();
        assert!(ranks(1).is_ok() && ranks(524_288).is_ok() && ranks(524_289).is_err() && ranks(0).is_err());
    }

    #[test]
    fn what_has_no_sense_is_refused_with_its_name_and_value() {
        for (name, value, words) in [
            ("UNISONO_CHUNK", "8", "from 16 to 67108864"),
            ("UNISONO_CHUNK", "65M", "from 16 to"),
            ("UNISONO_CHUNK", "1T", "such as 4096, 256K or 4M"),
            ("UNISONO_CHUNK", "99999999999G", "too large"),
            ("UNISONO_LANES", "0", "from 1 to 32"),
            ("UNISONO_LANES", "33", "from 1 to 32"),
            ("UNISONO_TIMEOUT", "0", "longer than 0"),
            ("UNISONO_TIMEOUT", "-1s", "such as 300 (seconds)"),
            ("UNISONO_SPIN", "5 parsecs", "such as 300 (seconds)"),
        ] {
            let error = set(name, value).unwrap_err();
            let Error::Config { value: Some(_), problem, .. } = &error else { panic!("{error}") };
            assert!(problem.contains(words), "{error}");
            assert!(error.to_string().starts_with(&format!("{name}={value}: ")), "{error}");
        }
        let alone = Config { ranks: 2, ..Config::default() };
        assert!(alone.validate().unwrap_err().to_string().contains("need a place to meet"));
        assert!(Config { rank: 1, ..Config::default() }.validate().is_err());
    }
}
