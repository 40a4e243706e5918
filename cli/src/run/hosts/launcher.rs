//! The launcher of a job on several hosts: calls them, finds an address of the store that all reach, and starts the ranks.

use std::{
    io,
    net::{IpAddr, SocketAddr},
    sync::mpsc::{Receiver, RecvTimeoutError},
    time::{Duration, Instant},
};

use serde::de::DeserializeOwned;
use unisono::rendezvous::StoreServer;

use super::{
    agent::{HostHello, Task},
    assign::{HostSpec, assign},
    ssh::{self, CalledHost},
};
use crate::{
    run::{
        end::End,
        job::{self, Job, JobPlace},
        program::Program,
        ranks::{Event, JobMembers, RankProcesses},
        signals,
    },
    words,
};

/// How long hosts have to answer.
const PATIENCE: Duration = Duration::from_secs(60);
/// The time that the other hosts have once one has not answered.
const AFTER_FAILURE: Duration = Duration::from_secs(3);
/// The most addresses of the store that hosts try.
const MOST_ADDRESSES: usize = 8;

/// A host that has answered.
struct Host {
    call: CalledHost,
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

/// Starts the ranks of a job on several hosts and returns when all have ended, as a job of this host does.
pub(in crate::run) fn run(asked: &[HostSpec], total: Option<u32>, mut program: Program) -> io::Result<End> {
    let wanted = assign(asked, total).map_err(io::Error::other)?;
    let (tell, events) = job::begin()?;
    let mut calls = Vec::new();
    for (asked, ranks) in asked.iter().zip(wanted).filter(|(_, ranks)| *ranks != Some(0)) {
        let number = u32::try_from(calls.len()).map_err(io::Error::other)?;
        calls.push((CalledHost::start(number, &asked.name, tell.clone())?, ranks));
    }
    let prepared = greet(calls, &events).and_then(|hosts| prepare(hosts, total.is_none(), &events));
    let (hosts, store, token, addresses) = match prepared {
        Ok(prepared) => prepared,
        Err(Early::End(end)) => return Ok(end),
        Err(Early::Error(error)) => return Err(error),
    };
    let mut ranks = RankProcesses::new(JobMembers::Hosts(Vec::new()), tell)?;
    let master = master(&hosts, &addresses);
    let world = hosts.iter().map(|host| host.ranks).sum();
    let directory = std::env::current_dir()?;
    program.environment.splice(..0, job::forwarded());
    let mut first = 0;
    for (number, (host, store)) in (0..).zip(hosts.into_iter().zip(addresses)) {
        let line = &host.call.line;
        let task = Task {
            host: line.host.clone(),
            directory: directory.clone(),
            job: Job { ranks: host.ranks, program: program.clone() },
            place: JobPlace { first, world, meet: job::meet(store, token.clone(), master.clone()) },
        };
        first += host.ranks;
        line.say(&serde_json::to_string(&task)?);
        ranks.take(number, host.call.finish()?)?;
    }
    Ok(job::verdict(store, ranks.supervise(&events, None)))
}

/// Serves the store, and finds for each host an address at which it reaches the store.
fn prepare(
    hosts: Vec<Host>,
    tells: bool,
    events: &Receiver<Event>,
) -> Result<(Vec<Host>, StoreServer, String, Vec<SocketAddr>), Early> {
    let world = hosts.iter().map(|host| u64::from(host.ranks)).sum::<u64>();
    let world = u32::try_from(world).map_err(io::Error::other)?;
    if tells {
        let each: Vec<_> = hosts.iter().map(|it| format!("{} on {}", it.ranks, it.call.line.host)).collect();
        let (ranks, each) = (words::some(world as usize, "rank"), each.join(", "));
        crate::complain!("unisono run: {ranks}: {each}; -n N starts N");
    }
    job::make_room(world, 3 + 4)?;
    let token = job::token()?;
    // The second address is for hosts without IPv6.
    let store = job::serve("[::]:0", world, &token).or_else(|_| job::serve("0.0.0.0:0", world, &token))?;
    let port = store.address().port();
    let addresses: Vec<_> = candidates(&hosts).into_iter().map(|ip| SocketAddr::new(ip, port)).collect();
    let places = serde_json::to_string(&addresses).map_err(io::Error::from)?;
    hosts.iter().for_each(|host| host.call.line.say(&places));
    let names: Vec<_> = hosts.iter().map(|host| host.call.line.host.as_str()).collect();
    let reached = answers(&names, events)?;
    let none = |at: usize| {
        let shown: Vec<_> = addresses.iter().map(ToString::to_string).collect();
        io::Error::other(format!(
            "{} reaches this host, where ranks meet, at none of {}: see that its firewall and this one's let TCP \
             from there through, or start the job on one of its hosts",
            names[at],
            shown.join(", ")
        ))
    };
    let addresses = choose(&addresses, &reached).map_err(none)?;
    Ok((hosts, store, token, addresses))
}

/// Waits for the first answer of each host.
fn greet(calls: Vec<(CalledHost, Option<u32>)>, events: &Receiver<Event>) -> Result<Vec<Host>, Early> {
    let names: Vec<_> = calls.iter().map(|(call, _)| call.line.host.as_str()).collect();
    let hellos: Vec<HostHello> = answers(&names, events)?;
    let own = env!("CARGO_PKG_VERSION");
    let others: Vec<_> = names.iter().zip(&hellos).filter(|(_, hello)| hello.unisono != own).collect();
    for (name, HostHello { unisono, .. }) in &others {
        crate::complain!(
            "unisono run: host {name}: it has unisono {unisono}, and this is {own}: install the same version on all hosts"
        );
    }
    if !others.is_empty() {
        return Err(Early::End(End::Status(1)));
    }
    let hosts = calls.into_iter().zip(hellos);
    let host = hosts.map(|((call, ranks), hello)| Host { call, ranks: ranks.unwrap_or(hello.cores), hello });
    Ok(host.collect())
}

/// Waits for an answer of each host. Prints which cannot answer.
fn answers<A: DeserializeOwned>(names: &[&str], events: &Receiver<Event>) -> Result<Vec<A>, Early> {
    // Of each host its answer, `Some(None)` if it cannot answer.
    let mut all: Vec<Option<Option<A>>> = names.iter().map(|_| None).collect();
    let mut until = Instant::now() + PATIENCE;
    while all.iter().any(Option::is_none) {
        match events.recv_timeout(until.saturating_duration_since(Instant::now())) {
            Ok(Event::Answered(number, answer)) => {
                let at = usize::try_from(number).map_err(io::Error::other)?;
                let answer = answer.and_then(|line| {
                    serde_json::from_str(&line).map_err(|error| {
                        format!("the unisono there has another protocol than this one ({error}): install the same version on all hosts")
                    })
                });
                if let Err(problem) = &answer {
                    crate::complain!("unisono run: host {}: {problem}", names[at]);
                    until = until.min(Instant::now() + AFTER_FAILURE);
                }
                all[at] = Some(answer.ok());
            }
            Ok(Event::Signal(signal)) if signals::stops(signal) => signals::stop_here(),
            Ok(Event::Signal(signal)) => return Err(Early::End(End::Signal(signal))),
            Ok(_) => {}
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {
                if !all.iter().any(|answer| matches!(answer, Some(None))) {
                    let missing = names.iter().zip(&all).filter(|(_, answer)| answer.is_none());
                    let missing: Vec<_> = missing.map(|(name, _)| *name).collect();
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
    all.into_iter().flatten().collect::<Option<_>>().ok_or(Early::End(End::Status(1)))
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
fn choose(addresses: &[SocketAddr], reached: &[Vec<bool>]) -> Result<Vec<SocketAddr>, usize> {
    let reaches = |host: &[bool], at: usize| host.get(at).copied().unwrap_or(false);
    let common = (0..addresses.len()).find(|&at| reached.iter().all(|host| reaches(host, at)));
    let of = |(number, host): (usize, &Vec<bool>)| {
        let own = || (0..addresses.len()).find(|&at| reaches(host, at));
        common.or_else(own).map(|at| addresses[at]).ok_or(number)
    };
    reached.iter().enumerate().map(of).collect()
}

/// The address of rank 0's host, and a port that is free there, for programs whose rank 0 serves something itself.
fn master(hosts: &[Host], addresses: &[SocketAddr]) -> (String, u16) {
    let Some((first, store)) = hosts.first().zip(addresses.first()) else { return (String::new(), 0) };
    let here = ssh::is_here(&first.call.line.host);
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
        let choose = |reached: &[&[bool]]| {
            choose(&addresses, &reached.iter().map(|it| it.to_vec()).collect::<Vec<_>>())
        };
        assert_eq!(choose(&[&[true, true, false], &[false, true, true]]), Ok(vec![addresses[1]; 2]));
        let apart = choose(&[&[true, false, false], &[false, false, true]]);
        assert_eq!(apart, Ok(vec![addresses[0], addresses[2]]));
        assert_eq!(choose(&[&[true, false, false], &[false, false, false]]), Err(1));
        assert_eq!(choose(&[&[true], &[]]), Err(1));
    }
}
