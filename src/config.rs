//! Every setting there is: a field of [`Config`], and a row of the table that names its variable.

mod store;
mod thread;
mod token;

use std::{path::PathBuf, time::Duration};

use unisono_schedule::{Rank, windows};
use unisono_transport::ofi::Interfaces;

pub use self::{
    store::StoreAddress,
    thread::ThreadCores,
    token::{Job, Token},
};
use crate::{
    error::{Error, Result},
    reduce::Reduction,
};

/// How a process joins a group and how the group works. Fields marked *alike* must be the same on every
/// rank, which is checked at join; the others are each rank's own affair.
///
/// The default is a world of one, with the defaults of [`Config::variables`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// This process's rank.
    pub rank: Rank,
    /// The world size, from 1 to 524288; alike.
    pub ranks: usize,
    /// Its number among the ranks of this machine, where it is known.
    pub local_rank: Option<usize>,
    /// How many ranks this machine has, where it is known.
    pub local_ranks: Option<usize>,
    /// Where ranks meet; alike. A world of one needs none.
    pub store: Option<StoreAddress>,
    /// What the launcher calls this job, which tells it from others that might meet it at the same store; alike. Not a secret.
    pub job: String,
    /// What proves to the store, and the store's to this process, that both belong to the job; alike.
    pub token: Token,
    /// The libfabric provider; alike. `None`: the first of efa, cxi, opx, verbs and tcp that works; `shm`, which ends at
    /// the machine, and `psm3` are taken only if asked for.
    pub provider: Option<String>,
    /// The network interfaces or cards that may be used: names (`eth0`, `mlx5_0`), addresses and networks (`10.0.0.0/8`) after
    /// commas, or, after a `^`, all but these. `None`: the one that leads to the store.
    pub interface: Option<Interfaces>,
    /// How long anything that waits for another rank may take, 300 s by default.
    pub timeout: Duration,
    /// How long joining may take, until the last rank has come: 60 s by default.
    pub join_timeout: Duration,
    /// The unit of pipelining, in bytes: from 16 to 64 MiB; alike. `None`: 512 KiB if there are two ranks, on one host, and
    /// 256 KiB otherwise. Where the limit on locked memory of any rank is too small for so large windows, all take a smaller
    /// one, and that one warns of it.
    pub chunk: Option<usize>,
    /// How many chunks are worked on side by side: from 1 to 64, 2 by default; alike. With `bulk_slots` at most 64 in all.
    pub lanes: usize,
    /// How many chunks from one neighbour may wait on one lane: from 2 to 64, 2 by default; alike.
    pub bulk_slots: usize,
    /// The largest message of schedules with one lane (small data), in bytes: from 128 to 1 MiB, 32 KiB by default; alike.
    pub eager: usize,
    /// How many such messages from one neighbour may wait: from 2 to 64, 8 by default; alike.
    pub eager_slots: usize,
    /// Whether windows and buffers are asked for in huge pages, not by default; where there are none, they have others.
    pub huge_pages: bool,
    /// How long a wait polls hot before it yields its processor between polls, for 200 µs at most, and then sleeps; both
    /// get shorter where waits are long. `None`: 20 µs, but not at all where the ranks of this machine outnumber the
    /// processors that they may run on.
    pub spin: Option<Duration>,
    /// Where the thread runs that goes on with asynchronous calls while nobody waits, and wakes whoever awaits them.
    /// `None`: wherever the process may run.
    pub thread_cores: Option<ThreadCores>,
    /// The algorithms that may be taken; alike. Names after commas, all but those after a `^`, lists for one
    /// collective alone after its name and a colon, semicolons between lists: `ring`, `^ring`,
    /// `all_reduce:two_shot,ring;broadcast:binomial`; one list for each, and one for all. Where none of them can do what is
    /// called, others do it. `None`: all.
    pub algorithm: Option<String>,
    /// The file of a table of choices that `unisono tune` has measured; alike in its contents. `None`: the built-in
    /// table alone.
    pub tuning: Option<PathBuf>,
    /// The most bytes that one object may take, 1 GiB by default; alike. What a rank is told to make room for is no more
    /// than that, and a value that was not meant to be sent is an error on all ranks.
    pub object_limit: usize,
    /// What is asked of reductions beyond their result; alike.
    pub reduction: Reduction,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            rank: 0,
            ranks: 1,
            local_rank: None,
            local_ranks: None,
            store: None,
            job: String::new(),
            token: Token::default(),
            provider: None,
            interface: None,
            timeout: Duration::from_secs(300),
            join_timeout: Duration::from_secs(60),
            chunk: None,
            lanes: windows::LANES,
            bulk_slots: windows::BULK_SLOTS,
            eager: windows::EAGER_BYTES,
            eager_slots: windows::EAGER_SLOTS,
            huge_pages: false,
            spin: None,
            thread_cores: None,
            algorithm: None,
            tuning: None,
            object_limit: 1 << 30,
            reduction: Reduction::Fastest,
        }
    }
}

/// The longest that anything may take.
const YEAR: Duration = Duration::from_secs(365 * 86400);

type Set = fn(&mut Config, &str) -> std::result::Result<(), String>;

/// A variable of the environment that this library reads.
#[derive(Clone, Copy, Debug)]
pub struct Variable {
    /// Its name.
    pub name: &'static str,
    /// What it means and which values it takes.
    pub meaning: &'static str,
    /// What holds where it is not set.
    pub default: &'static str,
    /// Sets the field; `None` for those that [`crate::launch`] reads.
    set: Option<Set>,
}

/// All variables. The launchers' own are in [`crate::launch`].
const VARIABLES: &[Variable] = &[
    launch("UNISONO_RANK", "this process's rank, from 0; goes before what a launcher sets", "the launcher's"),
    launch("UNISONO_WORLD_SIZE", "how many ranks there are", "the launcher's"),
    launch("UNISONO_LOCAL_RANK", "this process's number on its host", "the launcher's, or unknown"),
    launch("UNISONO_LOCAL_WORLD_SIZE", "how many ranks this host has", "the launcher's, or unknown"),
    launch(
        "UNISONO_STORE",
        "where ranks meet: tcp://host:port (rank 0 serves it), tcp+served://host:port (another process does), \
         file:///directory (shared by all ranks)",
        "from MASTER_ADDR and MASTER_PORT, or the launcher",
    ),
    launch(
        "UNISONO_TOKEN",
        "the job's secret, any text: a process without it can neither become a rank nor pass for the store",
        "none, with a warning if other hosts can reach the store",
    ),
    launch("UNISONO_TOKEN_FILE", "a file that holds it, which this user or root alone may read", "none"),
    knob(
        "UNISONO_PROVIDER",
        "the libfabric provider, for instance tcp, shm or verbs",
        "the first of efa, cxi, opx, verbs and tcp that works; shm (one host) and psm3 only if asked for",
        |config, text| name(text).map(|name| config.provider = Some(name)),
    ),
    knob(
        "UNISONO_INTERFACE",
        "the network interfaces or NICs that may be used, by names, addresses and networks: eth0; 10.0.0.0/8,mlx5_0; all but \
         these: ^docker0,lo",
        "the one that leads to the store",
        |config, text| text.parse().map(|interfaces| config.interface = Some(interfaces)),
    ),
    knob(
        "UNISONO_TIMEOUT",
        "how long waiting for another rank may take: 300, 5s, 200ms",
        "300s",
        |config, text| parse_duration(text).map(|time| config.timeout = time),
    ),
    knob(
        "UNISONO_JOIN_TIMEOUT",
        "how long joining may take, until the last rank has come",
        "60s",
        |config, text| parse_duration(text).map(|time| config.join_timeout = time),
    ),
    knob(
        "UNISONO_CHUNK",
        "the unit of pipelining in bytes: 131072, 256K, 4M, auto",
        "auto: 512K between two ranks of one host, else 256K",
        |config, text| {
            config.chunk = if text == "auto" { None } else { Some(parse_size(text)?) };
            Ok(())
        },
    ),
    knob("UNISONO_LANES", "how many chunks are processed at the same time", "2", |config, text| {
        number(text).map(|lanes| config.lanes = lanes)
    }),
    knob("UNISONO_BULK_SLOTS", "slots for chunks, for each peer and lane", "2", |config, text| {
        number(text).map(|slots| config.bulk_slots = slots)
    }),
    knob(
        "UNISONO_EAGER",
        "the largest message of schedules with one lane, in bytes",
        "32K",
        |config, text| parse_size(text).map(|size| config.eager = size),
    ),
    knob("UNISONO_EAGER_SLOTS", "slots for such messages, for each peer", "8", |config, text| {
        number(text).map(|slots| config.eager_slots = slots)
    }),
    knob("UNISONO_HUGE_PAGES", "whether windows and buffers use huge pages: 1 or 0", "0", |config, text| {
        config.huge_pages = match text {
            "1" | "true" | "on" | "yes" => true,
            "0" | "false" | "off" | "no" => false,
            _ => return Err("wanted 1 or 0".into()),
        };
        Ok(())
    }),
    knob(
        "UNISONO_SPIN",
        "how long a wait polls before it yields between polls, and then sleeps: 0, 20us, 1ms, auto",
        "auto: 20us, or 0 if a host has more ranks than processors",
        |config, text| {
            config.spin = if text == "auto" { None } else { Some(parse_duration(text)?) };
            Ok(())
        },
    ),
    knob(
        "UNISONO_THREAD_CORES",
        "processors of the progress thread: auto, or one for each rank of the host: 3; 2,3; 0,4-7",
        "wherever the process may run",
        |config, text| ThreadCores::parse(text).map(|cores| config.thread_cores = Some(cores)),
    ),
    knob(
        "UNISONO_ALGORITHM",
        "the algorithms that may be taken: ring; ^ring; all_reduce:two_shot,ring;broadcast:binomial",
        "the fastest, as measured and, beyond 8 ranks, by the cost model",
        |config, text| name(text).map(|name| config.algorithm = Some(name)),
    ),
    knob("UNISONO_TUNING", "a file that unisono tune has written", "none", |config, text| {
        name(text).map(|name| config.tuning = Some(name.into()))
    }),
    knob("UNISONO_OBJECT_LIMIT", "the most bytes that one object may take", "1G", |config, text| {
        parse_size(text).map(|size| config.object_limit = size)
    }),
    knob(
        "UNISONO_REDUCTION",
        "fastest, or reproducible: the same bits whatever algorithm, chunk or provider",
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
    /// All variables that this library reads of its own, for people to read.
    #[must_use]
    pub fn variables() -> &'static [Variable] {
        VARIABLES
    }

    /// Reads the settings (not who this process is) that `variable` gives by name.
    ///
    /// # Errors
    /// [`Error::Config`] for a value that has no sense.
    pub fn set_from(&mut self, variable: &impl Fn(&str) -> Option<String>) -> Result<()> {
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

    /// Checks that the settings have sense together.
    ///
    /// # Errors
    /// [`Error::Config`] names the field, what it was and what would be right.
    pub fn validate(&self) -> Result<()> {
        self.validate_meeting()?;
        let ranks = self.ranks;
        let within = |name: &str, value: usize, least: usize, most: usize| {
            check(name, &value, (least..=most).contains(&value), || format!("must be from {least} to {most}"))
        };
        if let Some(local) = self.local_ranks {
            within("local_ranks", local, 1, ranks)?;
            if let Some(rank) = self.local_rank {
                check("local_rank", &rank, rank < local, || {
                    format!("must be less than local_ranks {local}")
                })?;
            }
        }
        if let Some(chunk) = self.chunk {
            within("chunk", chunk, 16, 64 << 20)?;
        }
        within("lanes", self.lanes, 1, 64)?;
        within("bulk_slots", self.bulk_slots, 2, 64)?;
        check(
            "lanes × bulk_slots",
            &(self.lanes * self.bulk_slots),
            self.lanes * self.bulk_slots <= 64,
            || "must be at most 64: each is a chunk that a neighbour may send unasked".into(),
        )?;
        within("eager", self.eager, 128, 1 << 20)?;
        within("eager_slots", self.eager_slots, 2, 64)?;
        for (name, time) in [("timeout", self.timeout), ("join_timeout", self.join_timeout)] {
            let sensible = !time.is_zero() && time <= YEAR;
            check(name, &format!("{time:?}"), sensible, || {
                "must be longer than 0 and at most a year".into()
            })?;
        }
        Ok(())
    }

    /// The same of settings that [`set_from`](Self::set_from) has read: what is wrong has the name of the variable that
    /// set it, and its text.
    ///
    /// # Errors
    /// As [`validate`](Self::validate).
    pub fn validate_from(&self, variable: &impl Fn(&str) -> Option<String>) -> Result<()> {
        self.validate().map_err(|error| match error {
            Error::Config { name, value, problem } => {
                let name_of = |field: &str| format!("UNISONO_{}", field.to_uppercase());
                let names: Vec<_> = name.split(" × ").map(name_of).collect();
                match &names[..] {
                    [one] if variable(one).is_some() => {
                        Error::Config { name: one.clone(), value: variable(one), problem }
                    }
                    [_, _] => Error::Config { name: names.join(" × "), value, problem },
                    _ => Error::Config { name, value, problem },
                }
            }
            other => other,
        })
    }

    /// Checks what it takes to meet the others, and so to tell them of what is wrong beyond that.
    pub(crate) fn validate_meeting(&self) -> Result<()> {
        let ranks = self.ranks;
        check("ranks", &ranks, (1..=1 << 19).contains(&ranks), || format!("must be from 1 to {}", 1 << 19))?;
        check("rank", &self.rank, self.rank < ranks, || format!("must be less than the world size {ranks}"))?;
        check("store", &"none", self.store.is_some() || ranks == 1, || {
            format!("{ranks} ranks need a place to meet, for instance tcp://host:port of rank 0's machine")
        })?;
        Ok(())
    }

    /// What must be alike on all ranks, by name.
    #[must_use]
    pub fn alike(&self) -> Vec<(&'static str, String)> {
        let or_auto = |choice: &Option<String>| choice.clone().unwrap_or_else(|| "auto".into());
        vec![
            ("version", env!("CARGO_PKG_VERSION").into()),
            ("ranks", self.ranks.to_string()),
            ("provider", or_auto(&self.provider)),
            ("chunk", self.chunk.map_or_else(|| "auto".into(), |bytes| bytes.to_string())),
            ("lanes", self.lanes.to_string()),
            ("bulk_slots", self.bulk_slots.to_string()),
            ("eager", self.eager.to_string()),
            ("eager_slots", self.eager_slots.to_string()),
            ("algorithm", or_auto(&self.algorithm)),
            ("object_limit", self.object_limit.to_string()),
            ("reduction", self.reduction.name().into()),
        ]
    }

    /// Who this process is, for the rendezvous.
    #[must_use]
    pub fn member(&self) -> Member {
        let job = Job { id: self.job.clone(), token: self.token.clone() };
        Member { rank: self.rank, ranks: self.ranks, job }
    }
}

/// Who this process is, and in which job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// Its rank.
    pub rank: Rank,
    /// The world size.
    pub ranks: usize,
    /// The job.
    pub job: Job,
}

/// FNV-1a: short, and the same everywhere, which the standard library's hashes do not promise.
pub(crate) fn fnv(bytes: &[u8]) -> u64 {
    fnv_of_words(bytes.iter().map(|&byte| u64::from(byte)))
}

/// The same of words, each at once: where there are thousands of them.
pub(crate) fn fnv_of_words(words: impl Iterator<Item = u64>) -> u64 {
    words.fold(0xcbf2_9ce4_8422_2325, |hash, word| (hash ^ word).wrapping_mul(0x0100_0000_01b3))
}

/// Reads a number of bytes: `4096`, `256K`, `4M`, `1G`; the letters are powers of 1024, and `KiB` or `KB`
/// mean the same as `K`.
///
/// # Errors
/// What is wrong with it, in words.
pub fn parse_size(text: &str) -> std::result::Result<usize, String> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let unit = unit.trim().to_ascii_lowercase();
    let shift = match unit.strip_suffix("ib").or_else(|| unit.strip_suffix('b')).unwrap_or(&unit) {
        "" => 0,
        "k" => 10,
        "m" => 20,
        "g" => 30,
        _ => return Err("wanted a number of bytes such as 4096, 256K or 4M".into()),
    };
    let number: usize = number.parse().map_err(|error: std::num::ParseIntError| match error.kind() {
        std::num::IntErrorKind::PosOverflow => "too large".to_owned(),
        _ => "wanted a number of bytes such as 4096, 256K or 4M".to_owned(),
    })?;
    number.checked_mul(1 << shift).ok_or_else(|| "too large".into())
}

/// Reads a time: `300` (seconds), `1.5s`, `200ms`, `20us`, `10min`.
///
/// # Errors
/// What is wrong with it, in words.
pub fn parse_duration(text: &str) -> std::result::Result<Duration, String> {
    let wrong = || "wanted a time such as 300 (seconds), 5s, 200ms or 20us".to_owned();
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let number: f64 = number.parse().map_err(|_| wrong())?;
    let scale = match unit.trim() {
        "" | "s" => 1.0,
        "ms" => 1e-3,
        "us" | "µs" => 1e-6,
        "min" => 60.0,
        _ => return Err(wrong()),
    };
    // A year is as good as for ever, and sums with it do not overflow.
    Duration::try_from_secs_f64((number * scale).min(YEAR.as_secs_f64())).map_err(|_| wrong())
}

fn number(text: &str) -> std::result::Result<usize, String> {
    text.parse().map_err(|_| "wanted a number".into())
}

fn name(text: &str) -> std::result::Result<String, String> {
    if text.is_empty() { Err("wanted a name".into()) } else { Ok(text.into()) }
}

fn check(name: &str, value: &impl ToString, right: bool, wanted: impl FnOnce() -> String) -> Result<()> {
    if right {
        return Ok(());
    }
    Err(Error::Config { name: name.into(), value: Some(value.to_string()), problem: wanted() })
}

#[cfg(test)]
mod tests {
    use super::*;

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
        assert!(include_str!("../docs/settings.md").ends_with(&table), "wanted at its end:\n{table}");
    }

    #[test]
    fn every_variable_sets_its_field_and_the_table_tells_the_defaults() {
        for row in VARIABLES.iter().filter(|row| row.set.is_some()) {
            let value = match row.name {
                "UNISONO_PROVIDER" | "UNISONO_INTERFACE" | "UNISONO_ALGORITHM" | "UNISONO_TUNING" => "tcp",
                "UNISONO_TIMEOUT" | "UNISONO_JOIN_TIMEOUT" | "UNISONO_SPIN" => "7ms",
                "UNISONO_CHUNK" | "UNISONO_EAGER" | "UNISONO_OBJECT_LIMIT" => "4K",
                "UNISONO_REDUCTION" => "reproducible",
                "UNISONO_LANES" | "UNISONO_BULK_SLOTS" | "UNISONO_EAGER_SLOTS" => "3",
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

    #[test]
    fn what_has_no_sense_is_refused_with_its_name_and_value() {
        for (name, value, words) in [
            ("UNISONO_CHUNK", "8", "from 16 to 67108864"),
            ("UNISONO_CHUNK", "65M", "from 16 to"),
            ("UNISONO_CHUNK", "1T", "such as 4096, 256K or 4M"),
            ("UNISONO_CHUNK", "99999999999G", "too large"),
            ("UNISONO_LANES", "0", "from 1 to 64"),
            ("UNISONO_LANES", "33", "at most 64"),
            ("UNISONO_EAGER_SLOTS", "65", "from 2 to 64"),
            // With one slot a rank cannot pass on what it holds: a ring would stand still.
            ("UNISONO_BULK_SLOTS", "1", "from 2 to 64"),
            ("UNISONO_TIMEOUT", "0", "longer than 0"),
            ("UNISONO_TIMEOUT", "-1s", "such as 300 (seconds)"),
            ("UNISONO_SPIN", "5 parsecs", "such as 300 (seconds)"),
            ("UNISONO_HUGE_PAGES", "2", "wanted 1 or 0"),
        ] {
            let error = set(name, value).unwrap_err();
            let Error::Config { value: Some(_), problem, .. } = &error else { panic!("{error}") };
            assert!(problem.contains(words), "{error}");
            // It may be wrong only together with another.
            let together = format!("UNISONO_LANES × UNISONO_BULK_SLOTS={}: ", 66);
            let told = error.to_string();
            assert!(told.starts_with(&format!("{name}={value}: ")) || told.starts_with(&together), "{told}");
        }
        let alone = Config { ranks: 2, ..Config::default() };
        assert!(alone.validate().unwrap_err().to_string().contains("need a place to meet"));
        assert!(Config { rank: 1, ..Config::default() }.validate().is_err());
    }

    #[test]
    fn sizes_and_times() {
        for (text, size) in
            [("0", 0), ("4096", 4096), ("256K", 256 << 10), ("4 MiB", 4 << 20), ("1gb", 1 << 30)]
        {
            assert_eq!(parse_size(text), Ok(size), "{text}");
        }
        for (text, millis) in
            [("300", 300_000), ("5s", 5_000), ("200ms", 200), ("1.5 s", 1_500), ("2min", 120_000)]
        {
            assert_eq!(parse_duration(text), Ok(Duration::from_millis(millis)), "{text}");
        }
        assert_eq!(parse_duration("20us"), Ok(Duration::from_micros(20)));
        assert!(
            parse_duration("1e400s").is_err()
                && parse_duration("..").is_err()
                && parse_duration("s").is_err()
        );
        assert!(parse_duration("99999999999999999999").is_ok(), "a very long time is one that never ends");
    }

    #[test]
    fn what_must_be_alike_is_listed_and_nothing_else() {
        let usual = Config::default().alike();
        assert_eq!(
            Config { rank: 0, timeout: Duration::from_secs(1), huge_pages: true, ..Config::default() }
                .alike(),
            usual
        );
        let changed = [
            Config { chunk: Some(64), ..Config::default() },
            Config { lanes: 1, ..Config::default() },
            Config { bulk_slots: 1, ..Config::default() },
            Config { eager: 128, ..Config::default() },
            Config { eager_slots: 1, ..Config::default() },
            Config { ranks: 3, ..Config::default() },
            Config { object_limit: 1, ..Config::default() },
            Config { provider: Some("tcp".into()), ..Config::default() },
            Config { algorithm: Some("ring".into()), ..Config::default() },
            Config { reduction: Reduction::Reproducible, ..Config::default() },
        ];
        assert!(changed.iter().all(|config| config.alike() != usual));
    }

    #[test]
    fn stores_are_written_as_they_are_read() {
        for text in
            ["tcp://node01:29500", "tcp://[::1]:0", "tcp+served://10.0.0.1:65535", "file:///shared/dir"]
        {
            assert_eq!(StoreAddress::parse(text).unwrap().to_string(), text);
        }
        for text in ["", "node01:1", "tcp://node01", "tcp://:1", "tcp://a:65536", "file://here", "udp://a:1"]
        {
            assert!(StoreAddress::parse(text).is_err(), "{text}");
        }
    }
}
