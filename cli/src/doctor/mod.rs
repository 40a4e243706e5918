//! `unisono doctor`: finds why unisono does not run here, or runs slowly.
//!
//! Each topic has a file with a function that collects facts (`gather`) and a pure one that assesses them (`judge`).
//! Sections are printed as they are done. Shared memory and each provider are tried by two ranks that form a group, in separate
//! processes, so that one that crashes or hangs is reported and does not end the report.

use std::{
    fs, io,
    io::{IsTerminal, Write},
    net::IpAddr,
    path::PathBuf,
    process::ExitCode,
    sync::mpsc,
    thread,
};

use serde::Serialize;
use serde_json::{Map, Value, json};
use unisono::config::StoreAddress;
use unisono_transport::ofi::Options;

mod environment;
mod files;
pub(crate) mod group;
mod interfaces;
mod limits;
mod machine;
mod picture;
mod providers;
mod ranks;
mod report;
mod self_test;
mod shared;
#[cfg(test)]
mod tests;
pub(crate) mod topology;
mod versions;

use self::{
    environment::Environment,
    files::Files,
    interfaces::NetworkDevices,
    limits::{SystemLimits, Windows},
    machine::{Machine, RanksHere},
    providers::Providers,
    report::{LineMark, Section},
    self_test::SelfTest,
    shared::SharedMemory,
    topology::GivenTopology,
    versions::Versions,
};
use crate::words::some;

/// The number of ranks for which memory and open files are judged if it is not given.
const RANKS: usize = 8;

/// Finds why unisono does not run here or is slow: checks shared memory, providers, limits, interfaces, cores and environment.
///
/// Every line has a mark: ok, warn, PROBLEM, or - for information. Lines with => say what to do. Over shared memory and over each
/// provider, two ranks on this machine form a group; other hosts are not contacted. The exit status is 0 if one of these works,
/// 1 otherwise.
#[derive(clap::Args)]
pub(crate) struct Doctor {
    /// Check only this libfabric provider, for instance tcp or verbs, or only shared memory: shm [default: UNISONO_PROVIDER].
    #[arg(long, value_parser = crate::meant::parse_provider)]
    provider: Option<String>,
    /// Let providers use only these network interfaces: names, addresses and networks separated by commas (eth0,10.0.0.0/8), or all except
    /// these (^docker0) [default: UNISONO_INTERFACE].
    #[arg(long)]
    interface: Option<unisono_transport::ofi::Interfaces>,
    /// Judge cores, memory and open files for this many ranks on this machine [default: the launcher's number; without a
    /// launcher, memory and open files for 8].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=65536))]
    ranks: Option<u32>,
    /// Also write everything to this file as one JSON object; with - write only that, to standard output.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

impl Doctor {
    /// Succeeds if shared memory or a provider works.
    pub(crate) fn run(self) -> io::Result<ExitCode> {
        let files = Files::below("/");
        let json_only = self.json.as_ref().is_some_and(|file| file.as_os_str() == "-");
        let (colours, facts) = (io::stdout().is_terminal(), Map::new());
        let mut out = Printer { quiet: json_only, colours, facts, sections: Vec::new() };

        out.show(Versions::gather(&files), Versions::judge)?;
        let environment = out.show(Environment::gather(), Environment::judge)?;
        let config = environment.config();
        let given = self.ranks.and_then(|ranks| usize::try_from(ranks).ok());
        let launched = environment.launched();
        let count = given.or_else(|| launched?.local_ranks);
        let ranks = RanksHere { count, launched: given.is_none() && launched.is_some(), spin: config.spin };
        let machine = match GivenTopology::of(&environment) {
            Some(topology) => Machine::described(topology.read_apart(), topology, ranks),
            None => Machine::gather(&files, ranks),
        };
        let machine = out.show(machine, Machine::judge)?;
        let interfaces =
            out.show(NetworkDevices::gather(&files, environment.master()), NetworkDevices::judge)?;

        let options = Options {
            provider: self.provider.or_else(|| config.provider.clone()),
            interface: self.interface.or_else(|| config.interface.clone()),
            towards: towards(&interfaces),
            process: launched.and_then(|launched| launched.local_rank).unwrap_or(0),
            ..Options::default()
        };
        let shared_memory = SharedMemory::gather(&files, options.provider.as_deref());
        let shared_memory = out.show(shared_memory, SharedMemory::judge)?;
        let providers = out.show(Providers::gather(&options, &shared_memory), Providers::judge)?;
        let self_test = out.show(SelfTest::gather(&providers), SelfTest::judge)?;
        if let Some(ranks) = ranks::judge(launched, count, &machine, &self_test) {
            out.print(ranks)?;
        }
        // Ranks have windows and connections for ranks on other machines too.
        let world = count.max(launched.map(|launch| launch.ranks)).unwrap_or(RANKS);
        let here = count.unwrap_or(RANKS).min(world);
        let limits = SystemLimits::gather(&files, Windows::of(&config, world, here));
        out.show(limits, |limits| limits.judge(&self_test))?;
        let verdict = verdict(&out.sections, &self_test);
        out.print(verdict)?;

        let works = !self_test.working().is_empty();
        if let Some(file) = &self.json {
            let Printer { mut facts, sections, .. } = out;
            facts.extend([("works".to_owned(), json!(works)), ("sections".to_owned(), json!(sections))]);
            let json = format!("{:#}\n", Value::from(facts));
            if json_only {
                io::stdout().lock().write_all(json.as_bytes())?;
            } else {
                fs::write(file, json).map_err(|error| {
                    io::Error::new(error.kind(), format!("cannot write {}: {error}", file.display()))
                })?;
            }
        }
        Ok(if works { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
}

/// The address to which the interface of ranks must lead: that of the store.
fn towards(interfaces: &NetworkDevices) -> Option<IpAddr> {
    let route = interfaces.route.as_ref()?;
    route.address.filter(|&address| !StoreAddress::names_itself(&route.host, address))
}

/// Prints sections, and keeps them and the facts that they are about for the JSON object.
struct Printer {
    quiet: bool,
    colours: bool,
    facts: Map<String, Value>,
    sections: Vec<Section>,
}

impl Printer {
    /// Prints the section about some facts. Its title is also their name in the JSON object.
    fn show<T: Serialize>(&mut self, facts: T, judge: impl FnOnce(&T) -> Section) -> io::Result<T> {
        let section = judge(&facts);
        self.facts.insert(section.title.replace([' ', '-'], "_"), serde_json::to_value(&facts)?);
        self.print(section).map(|()| facts)
    }

    fn print(&mut self, section: Section) -> io::Result<()> {
        if !self.quiet {
            let mut stdout = io::stdout().lock();
            stdout.write_all(section.render(self.colours).as_bytes())?;
            stdout.flush()?;
        }
        self.sections.push(section);
        Ok(())
    }
}

/// The summary.
fn verdict(sections: &[Section], self_test: &SelfTest) -> Section {
    let count = |mark| sections.iter().map(|section| section.count(mark)).sum::<usize>();
    let counts = [(count(LineMark::Problem), "problem"), (count(LineMark::Warn), "warning")];
    let counts: Vec<_> = counts.iter().filter(|(count, _)| *count > 0).map(|it| some(it.0, it.1)).collect();
    let marks = if counts.is_empty() { "no problems".to_owned() } else { counts.join(", ") };
    let mut section = Section::new("verdict");
    let working = self_test.working();
    if working.is_empty() {
        section.problem(format!("nothing works here; {marks}"), "start with the first PROBLEM above");
    } else if self_test.ends_at_the_host() {
        section.warn(
            format!("{} for ranks of one host, but nothing between hosts; {marks}", join(&working)),
            "start with the first PROBLEM above",
        );
    } else {
        section.ok(format!("{}; {marks}", join(&working)));
    }
    section
}

/// `net works`, `shm and tcp work`, `shm, verbs;ofi_rxm and tcp work`.
fn join(names: &[&str]) -> String {
    match names {
        [] => "nothing works".into(),
        [name] => format!("{name} works"),
        [names @ .., last] => format!("{} and {last} work", names.join(", ")),
    }
}

/// Begins `work` on another thread, which sends its result. If that does not come in time, the thread can be left alone: a call that
/// hangs cannot be stopped.
fn apart<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> mpsc::Receiver<T> {
    let (sender, receiver) = mpsc::channel();
    // Without a thread, nothing comes.
    drop(thread::Builder::new().spawn(move || drop(sender.send(work()))));
    receiver
}
