//! The launcher of a job on several hosts: calls them, finds an address of the store that all reach, and starts the ranks.

use std::{
    io,
    net::{IpAddr, SocketAddr},
    sync::mpsc::{Receiver, RecvTimeoutError},
    time::{Duration, Instant},
};

use unisono::rendezvous::StoreServer;

use super::{
    assign::{HostSpec, assign},
    ssh::{self, CalledHost},
};
use crate::{
    run::{
        end::End,
        job,
        link::{HostChannel, HostHello, HostMark, MarkedOutput, Places, Said, Task},
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
    name: String,
    call: CalledHost,
    line: HostChannel,
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
        calls.push((asked.name.clone(), CalledHost::start(number, &asked.name, tell.clone())?, ranks));
    }
    let mut ranks = RankProcesses::new(JobMembers::Hosts(Vec::new()), tell.clone())?;
    let prepared = greet(calls, &events).and_then(|hosts| prepare(hosts, total.is_none(), &events));
    let (hosts, store, token, addresses) = match prepared {
        Ok(prepared) => prepared,
        Err(early) => {
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
    program.environment.splice(..0, job::forwarded());
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
            program: program.clone(),
        };
        first += host.ranks;
        host.line.say(&serde_json::to_string(&task)?);
        let (child, output, errors) = host.call.finish()?;
        let tell = tell.clone();
        let failed = move |status| drop(tell.send(Event::Failed(status)));
        let output = MarkedOutput::new(output, &HostMark::new(mark.clone()), failed);
        ranks.take(number, host.line, child, output, errors)?;
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
        let each: Vec<_> = hosts.iter().map(|host| format!("{} on {}", host.ranks, host.name)).collect();
        let (ranks, each) = (words::some(world as usize, "rank"), each.join(", "));
        crate::complain!("unisono run: {ranks}: {each}; -n N starts N");
    }
    job::make_room(world, 3 + 4)?;
    let token = job::token()?;
    // The second address is for hosts without IPv6.
    let store = job::serve("[::]:0", world, &token).or_else(|_| job::serve("0.0.0.0:0", world, &token))?;
    let port = store.address().port();
    let addresses: Vec<_> = candidates(&hosts).into_iter().map(|ip| SocketAddr::new(ip, port)).collect();
    let places = Places { addresses: addresses.clone() };
    let places = serde_json::to_string(&places).map_err(io::Error::from)?;
    hosts.iter().for_each(|host| host.line.say(&places));
    let names: Vec<_> = hosts.iter().map(|host| host.name.as_str()).collect();
    let answers = answers(&names, events)?;
    let reached = answers.iter().map(|said| if let Said::Reached(it) = said { &it.reached[..] } else { &[] });
    match choose(&addresses, &reached.collect::<Vec<_>>()) {
        Ok(addresses) => Ok((hosts, store, token, addresses)),
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

/// Waits for the first answer of each host.
fn greet(
    calls: Vec<(String, CalledHost, Option<u32>)>,
    events: &Receiver<Event>,
) -> Result<Vec<Host>, Early> {
    let names: Vec<_> = calls.iter().map(|(name, ..)| name.as_str()).collect();
    let hellos = answers(&names, events)?;
    let host = |((name, mut call, ranks), said): ((String, CalledHost, Option<u32>), Said)| {
        let (Said::HostHello(hello), Some(input)) = (said, call.child.stdin.take()) else {
            let problem = format!("{name} answered another question than was asked");
            return Err(Early::Error(io::Error::other(problem)));
        };
        let (line, ranks) = (HostChannel::new(name.clone(), input), ranks.unwrap_or(hello.cores));
        Ok(Host { name, call, line, hello, ranks })
    };
    calls.into_iter().zip(hellos).map(host).collect()
}

/// Waits for an answer of each host. Prints which cannot answer.
fn answers(names: &[&str], events: &Receiver<Event>) -> Result<Vec<Said>, Early> {
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
    if failed.contains(&true) {
        return Err(Early::End(End::Status(1)));
    }
    Ok(all.into_iter().flatten().collect())
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
