//! The launcher of a job on several hosts: calls them, finds an address of the store that all reach, and starts the ranks.

use std::{
    ffi::OsString,
    io,
    net::{IpAddr, SocketAddr},
    sync::mpsc::{Receiver, RecvTimeoutError},
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process_group};
use unisono::rendezvous::StoreServer;

use super::{
    assign::{Asked, assign},
    ssh::{self, Call},
};
use crate::{
    run::{
        end::End,
        job,
        link::{Connected, HostHello, Line, Mark, Marked, Places, Reached, Said, Task},
        ranks::{Event, JobMembers, Ranks},
        signals,
        sink::Output,
    },
    words,
};

/// How long hosts have to answer.
const PATIENCE: Duration = Duration::from_secs(60);
/// The time that the other hosts have once one has not answered.
const AFTER_FAILURE: Duration = Duration::from_secs(3);
/// The most addresses of the store that hosts try.
const MOST_ADDRESSES: usize = 8;

/// A job on several hosts.
#[derive(Debug)]
pub(in crate::run) struct Launcher {
    pub(in crate::run) hosts: Vec<Asked>,
    pub(in crate::run) ranks: Option<u32>,
    pub(in crate::run) program: OsString,
    pub(in crate::run) arguments: Vec<OsString>,
    pub(in crate::run) environment: Vec<(OsString, OsString)>,
    pub(in crate::run) output: Output,
}

/// A host that has answered.
struct Host {
    name: String,
    call: Call,
    line: Line,
    hello: HostHello,
    ranks: u32,
}

/// What ends the job before there are ranks.
enum Early {
    End(End),
    Error(io::Error),
}

impl From<io::Error> for Early {
    fn from(error: io::Error) -> Self {
        Self::Error(error)
    }
}

impl Launcher {
    /// Starts the ranks and returns when all have ended, as a job of this host does.
    pub(in crate::run) fn run(self) -> io::Result<End> {
        let wanted = assign(&self.hosts, self.ranks).map_err(io::Error::other)?;
        let (tell, events) = job::begin()?;
        let mut calls = Vec::new();
        for (asked, ranks) in self.hosts.iter().zip(wanted).filter(|(_, ranks)| *ranks != Some(0)) {
            let number = u32::try_from(calls.len()).map_err(io::Error::other)?;
            match Call::start(number, &asked.name, tell.clone()) {
                Ok(call) => calls.push((asked.name.clone(), call, ranks)),
                Err(error) => {
                    calls.iter().for_each(|(_, call, _)| close(call));
                    return Err(error);
                }
            }
        }
        let mut ranks = Ranks::new(JobMembers::Hosts(Vec::new()), tell.clone())?;
        let mut hosts = match greet(calls, &events) {
            Ok(hosts) => hosts,
            Err(Early::End(end)) => {
                ranks.supervise(&events, Some(end));
                return Ok(end);
            }
            Err(Early::Error(error)) => return Err(error),
        };
        let prepared = self.prepare(&mut hosts, &events);
        let (store, token, addresses) = match prepared {
            Ok(prepared) => prepared,
            Err(early) => {
                hosts.iter().for_each(|host| close(&host.call));
                ranks.supervise(&events, Some(End::Status(1)));
                return match early {
                    Early::End(end) => Ok(end),
                    Early::Error(error) => Err(error),
                };
            }
        };
        let (mark, master) = (job::token()?, master(&hosts, &addresses));
        let world = hosts.iter().map(|host| host.ranks).sum();
        let directory = std::env::current_dir()?;
        let environment: Vec<_> =
            job::forwarded().into_iter().chain(self.environment.iter().cloned()).collect();
        let mut first = 0;
        for (number, (host, store)) in (0..).zip(hosts.into_iter().zip(addresses)) {
            let task = Task {
                mark: mark.clone(),
                host: host.name.clone(),
                first,
                ranks: host.ranks,
                world,
                store,
                token: token.clone(),
                master: master.clone(),
                directory: directory.clone(),
                program: self.program.clone(),
                arguments: self.arguments.clone(),
                environment: environment.clone(),
                output: self.output,
            };
            first += host.ranks;
            host.line.say(&serde_json::to_string(&task)?);
            let (child, output, errors) = host.call.finish()?;
            let tell = tell.clone();
            let failed = move |status| drop(tell.send(Event::Failed(status)));
            let output = Marked::new(output, &Mark::new(mark.clone()), failed);
            ranks.take(number, Connected { child, line: host.line, output, errors })?;
        }
        Ok(job::verdict(store, ranks.supervise(&events, None)))
    }

    /// Serves the store, and finds for each host an address at which it reaches the store.
    fn prepare(
        &self,
        hosts: &mut [Host],
        events: &Receiver<Event>,
    ) -> Result<(StoreServer, String, Vec<SocketAddr>), Early> {
        let world = hosts.iter().map(|host| u64::from(host.ranks)).sum::<u64>();
        let world = u32::try_from(world).map_err(io::Error::other)?;
        if self.ranks.is_none() {
            let each: Vec<_> = hosts.iter().map(|host| format!("{} on {}", host.ranks, host.name)).collect();
            crate::complain!(
                "unisono run: {}: {}; -n N starts N",
                words::some(world as usize, "rank"),
                each.join(", ")
            );
        }
        job::make_room(world, 3 + 4)?;
        let token = job::token()?;
        // The second address is for hosts without IPv6.
        let store =
            job::serve("[::]:0", world, &token).or_else(|_| job::serve("0.0.0.0:0", world, &token))?;
        let addresses: Vec<_> =
            candidates(hosts).into_iter().map(|ip| SocketAddr::new(ip, store.address().port())).collect();
        let places =
            serde_json::to_string(&Places { addresses: addresses.clone() }).map_err(io::Error::from)?;
        for host in &*hosts {
            host.line.say(&places);
            host.call.read_more();
        }
        let names: Vec<_> = hosts.iter().map(|host| host.name.clone()).collect();
        let answers = answers(&names, events)?;
        let reached: Vec<Reached> = answers
            .into_iter()
            .filter_map(|said| if let Said::Reached(it) = said { Some(it) } else { None })
            .collect();
        let chosen = choose(&addresses, &reached.iter().map(|it| &it.reached[..]).collect::<Vec<_>>());
        match chosen {
            Ok(addresses) => Ok((store, token, addresses)),
            Err(at) => {
                let shown: Vec<_> = addresses.iter().map(ToString::to_string).collect();
                Err(Early::Error(io::Error::other(format!(
                    "{} reaches this host, where ranks meet, at none of {}: see that its firewall and this one's let TCP \
                     from there through, or start the job on one of its hosts",
                    names[at],
                    shown.join(", ")
                ))))
            }
        }
    }
}

/// Waits for the first answer of each host. Ends all calls if one cannot answer.
fn greet(calls: Vec<(String, Call, Option<u32>)>, events: &Receiver<Event>) -> Result<Vec<Host>, Early> {
    let names: Vec<_> = calls.iter().map(|(name, ..)| name.clone()).collect();
    let hellos = match answers(&names, events) {
        Ok(hellos) => hellos,
        Err(early) => {
            calls.iter().for_each(|(_, call, _)| close(call));
            return Err(early);
        }
    };
    let mut hosts = Vec::new();
    for ((name, mut call, ranks), said) in calls.into_iter().zip(hellos) {
        let (Said::HostHello(hello), Some(input)) = (said, call.child.stdin.take()) else {
            return Err(Early::Error(io::Error::other(format!(
                "{name} answered another question than was asked"
            ))));
        };
        let line = Line::new(name.clone(), input);
        let ranks = ranks.unwrap_or(hello.cores);
        hosts.push(Host { name, call, line, hello, ranks });
    }
    Ok(hosts)
}

/// Waits for an answer of each host. Prints which cannot answer.
fn answers(names: &[String], events: &Receiver<Event>) -> Result<Vec<Said>, Early> {
    let mut all: Vec<Option<Said>> = names.iter().map(|_| None).collect();
    let (mut failed, mut until) = (vec![false; names.len()], Instant::now() + PATIENCE);
    while all.iter().zip(&failed).any(|(answer, failed)| answer.is_none() && !failed) {
        match events.recv_timeout(until.saturating_duration_since(Instant::now())) {
            Ok(Event::Answered(number, answer)) => {
                let at = usize::try_from(number).map_err(io::Error::other)?;
                match answer {
                    Ok(said) => all[at] = Some(said),
                    Err(problem) => {
                        crate::complain!("unisono run: host {}: {problem}", names[at]);
                        failed[at] = true;
                        until = until.min(Instant::now() + AFTER_FAILURE);
                    }
                }
            }
            Ok(Event::Signal(signal)) if signals::stops(signal) => signals::stop_here(),
            Ok(Event::Signal(signal)) => return Err(Early::End(End::Signal(signal))),
            Ok(_) => {}
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {
                if !failed.contains(&true) {
                    let missing = names.iter().zip(&all).filter(|(_, answer)| answer.is_none());
                    let missing: Vec<_> = missing.map(|(name, _)| name.as_str()).collect();
                    let (missing, first) = (missing.join(", "), missing[0]);
                    crate::complain!(
                        "unisono run: no answer from {missing} for {} s; see whether `ssh {first} true` ends",
                        PATIENCE.as_secs()
                    );
                }
                return Err(Early::End(End::Status(1)));
            }
        }
    }
    if failed.contains(&true) {
        return Err(Early::End(End::Status(1)));
    }
    Ok(all.into_iter().flatten().collect())
}

/// Ends a call: the host ends what it has begun.
fn close(call: &Call) {
    // This fails only if the process has ended.
    let _ = kill_process_group(Pid::from_child(&call.child), Signal::KILL);
}

/// The addresses of this host at which others may reach it, the likeliest first: those from which ssh came, and those of its
/// interfaces. Only if no other host takes part, the loopback.
fn candidates(hosts: &[Host]) -> Vec<IpAddr> {
    let seen: Vec<IpAddr> = hosts.iter().filter_map(|host| host.hello.from).collect();
    let outside = |ip: &IpAddr| !ip.is_loopback() && !ip.is_unspecified();
    let alone = hosts.iter().all(|host| host.hello.from.is_none_or(|ip| !outside(&ip)));
    let own = if_addrs::get_if_addrs().unwrap_or_default();
    let own = own.iter().map(if_addrs::Interface::ip).filter(|ip| match ip {
        IpAddr::V4(ip) => !ip.is_link_local(),
        IpAddr::V6(ip) => !ip.is_unicast_link_local(),
    });
    let loopback: IpAddr = [127, 0, 0, 1].into();
    let mut all = Vec::new();
    for ip in alone.then_some(loopback).into_iter().chain(seen.into_iter().chain(own).filter(outside)) {
        if !all.contains(&ip) {
            all.push(ip);
        }
    }
    all.truncate(MOST_ADDRESSES);
    all
}

/// For each host an address of the store that it reaches: the same for all, if there is one; or which host reaches none.
fn choose(addresses: &[SocketAddr], reached: &[&[bool]]) -> Result<Vec<SocketAddr>, usize> {
    let reaches = |host: &[bool], at: usize| host.get(at).copied().unwrap_or(false);
    let common = (0..addresses.len()).find(|&at| reached.iter().all(|host| reaches(host, at)));
    let of = |(number, host): (usize, &&[bool])| {
        let own = || (0..addresses.len()).find(|&at| reaches(host, at));
        common.or_else(own).map(|at| addresses[at]).ok_or(number)
    };
    reached.iter().enumerate().map(of).collect()
}

/// The address of rank 0's host, and a port that is free there, for programs whose rank 0 serves something itself.
fn master(hosts: &[Host], addresses: &[SocketAddr]) -> (String, u16) {
    let Some((first, store)) = hosts.first().zip(addresses.first()) else { return (String::new(), 0) };
    let here = ssh::is_here(&first.name);
    let at = if here { Some(store.ip()) } else { first.hello.at };
    (at.map_or_else(|| first.hello.host.clone(), |ip| ip.to_string()), first.hello.port)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_store_has_one_address_if_all_reach_it() {
        let addresses: Vec<SocketAddr> =
            ["10.0.0.1:5", "10.1.0.1:5", "10.2.0.1:5"].iter().map(|it| it.parse().unwrap()).collect();
        let choose = |reached: &[&[bool]]| choose(&addresses, reached);
        assert_eq!(choose(&[&[true, true, false], &[false, true, true]]), Ok(vec![addresses[1]; 2]));
        let apart = choose(&[&[true, false, false], &[false, false, true]]);
        assert_eq!(apart, Ok(vec![addresses[0], addresses[2]]));
        assert_eq!(choose(&[&[true, false, false], &[false, false, false]]), Err(1));
        assert_eq!(choose(&[&[true], &[]]), Err(1));
    }
}
