//! Tests of rosters: they lose nothing, they are small, and broken ones are refused.

mod imagined;

use self::imagined::entries;
use super::*;

impl Roster {
    /// The bytes of memory that it takes.
    fn memory(&self) -> usize {
        let names = |names: &[String]| names.iter().map(|it| it.len() + size_of::<String>()).sum::<usize>();
        let cores = |cores: &Cores| size_of::<Cores>() + 4 * cores.processors.len();
        size_of::<Self>()
            + self.host_of.memory()
            + self.records.memory()
            + names(&self.names)
            + names(&self.devices)
            + self.cores.iter().map(cores).sum::<usize>()
            + size_of_val(&*self.scopes)
    }
}

#[test]
fn a_roster_holds_what_the_ranks_told() {
    for (ranks, per_host, shm) in [(1, 1, false), (2, 1, true), (5, 2, false), (300, 1, false), (70, 8, true)]
    {
        let mut all = entries(ranks, per_host, shm);
        // One rank is different from all others.
        let odd = &mut all[ranks / 2];
        (odd.nic.at, odd.nic.store) = (None, "fe80::1".parse().ok());
        (odd.nic.device, odd.nic.mtu, odd.address) = (String::new(), 0, vec![1; 100]);
        odd.cores.processors = (0..64).collect();
        let roster = Roster::of(&all);
        let bytes = roster.bytes();
        assert_eq!(Roster::parse(&bytes, ranks), Ok(roster.clone()));
        for (rank, entry) in all.iter().enumerate() {
            assert_eq!(roster.entry(rank).as_ref(), Some(entry), "rank {rank} of {ranks}");
            let contact = roster.contact(rank).unwrap();
            assert_eq!((contact.address.0, contact.host), (entry.address.clone(), entry.host.name.clone()));
            assert_eq!(roster.mailbox(rank).unwrap().words(), entry.mailbox);
            let peer = roster.peer(rank).unwrap();
            assert_eq!(
                (peer.host, peer.cores, peer.megabits),
                (entry.host.id, &entry.cores, entry.nic.megabits)
            );
            assert_eq!(roster.hosts()[rank], entry.host.id);
            assert_eq!(peer.shares.map(|scope| scope as usize), shm.then_some(rank / per_host));
        }
        assert!(roster.entry(ranks).is_none() && roster.peer(ranks).is_none());
    }
}

#[test]
fn a_rank_takes_at_most_64_bytes() {
    for (ranks, per_host, shm) in [(1000, 64, false), (1000, 64, true), (1000, 1, false), (10_000, 64, true)]
    {
        let roster = Roster::of(&entries(ranks, per_host, shm));
        let (sent, held) = (roster.bytes().len() / ranks, roster.memory() / ranks);
        println!(
            "{ranks} ranks, {per_host} a host, shared memory {shm}: {sent} bytes a rank sent, {held} held"
        );
        assert!(sent <= 64 && (held <= 64 || per_host == 1), "{sent}, {held}");
    }
}

#[test]
fn what_is_no_roster_is_refused() {
    let roster = Roster::of(&entries(5, 2, true));
    let bytes = roster.bytes();
    for ranks in [0, 1, 4, 6, usize::MAX] {
        let message = Roster::parse(&bytes, ranks).unwrap_err();
        assert!(message.contains("it has 5 ranks on 3 hosts"), "{message}");
    }
    for len in 0..bytes.len() {
        assert!(Roster::parse(&bytes[..len], 5).is_err(), "{len} of {} bytes", bytes.len());
    }
    let broken = |change: fn(&mut Roster)| {
        let mut broken = roster.clone();
        change(&mut broken);
        Roster::parse(&broken.bytes(), 5).unwrap_err()
    };
    assert_eq!(broken(|it| it.hosts = 2), "a column has another length");
    assert_eq!(
        broken(|it| it.host_of = Columns::of(&vec![vec![9]; 5], &[0; 5])),
        "the record of rank 0 is broken"
    );
    let changes: [fn(&mut Roster); 4] = [
        |it| drop(it.names.pop()),
        |it| it.devices.clear(),
        |it| drop(it.cores.pop()),
        |it| it.scopes.clear(),
    ];
    for change in changes {
        assert!(broken(change).starts_with("the record of rank "));
    }
}
