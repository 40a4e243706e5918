//! The lower bound of the time of a collective.

use std::{cmp::Reverse, collections::BinaryHeap};

use super::{Fabric, Path};
use crate::Collective;

/// The least time (s) that any algorithm needs for a collective of `bytes` bytes (the whole vector of an all_reduce, a reduce or a
/// broadcast, one rank's block otherwise) among `ranks` ranks. It is the greatest of
/// - the time to reach all ranks, or to hear from all: ⌈log2 n⌉ hops where a rank is busy with a message until it has arrived
///   (Ernie Chan, Marcel Heimlich, Avi Purkayastha and Robert van de Geijn, "Collective communication: theory, practice, and
///   experience", Concurrency and Computation 19(13), 2007), and less where, as here, it may send the next one meanwhile (Richard
///   Karp, Abhijit Sahay, Eunice Santos and Klaus Erik Schauser, "Optimal broadcast and summation in the LogP model", SPAA 1993);
/// - one hop, and the bytes that go at least through the port of the busiest rank and its path inside the host or, between
///   hosts, through the ports of the busiest host, whose ranks count as one (Chan et al., table 1; for an all_reduce also
///   Pitch Patarasuk and Xin Yuan, 2009: 2(n-1)/n of the vector);
/// - the processor time of an average rank for taking, putting and reducing these bytes.
#[must_use]
pub fn lower_bound(collective: Collective, ranks: usize, bytes: usize, fabric: &Fabric) -> f64 {
    if ranks < 2 {
        return 0.0;
    }
    let (n, m) = (ranks as f64, bytes as f64);
    let others = n - 1.0;
    let hosts = fabric.hosts(ranks);
    // Bytes through the busiest rank's port; through the ports of the busiest host, which has `here` ranks; and those that an
    // average rank moves and reduces.
    let here = fabric.ranks_per_host.clamp(1, ranks) as f64;
    let away = n - here;
    let (port, host, moved, reduced) = match collective {
        Collective::AllReduce => {
            let (ranks, hosts) = (2.0 * others / n * m, 2.0 * (1.0 - 1.0 / hosts as f64) * m);
            (ranks, hosts, ranks, others / n * m)
        }
        Collective::ReduceScatter => (others * m, away * m, others * m, others * m),
        Collective::AllGather => (others * m, away * m, others * m, 0.0),
        Collective::Broadcast => (m, m, others / n * m, 0.0),
        Collective::Barrier => (0.0, 0.0, 0.0, 0.0),
        Collective::Reduce => (m, m, others / n * m, others / n * m),
        Collective::Gather | Collective::Scatter => (others * m, away * m, others * m / n, 0.0),
        Collective::AllToAll => (others * m, here * away * m, others * m, 0.0),
    };
    let (near, far) = (fabric.path(true), &fabric.between);
    // The least cost of a message on the paths that are used.
    let used = [(near, here > 1.0), (far, hosts > 1)];
    let least = |of: fn(&Path) -> f64| {
        let costs = used.iter().filter(|(_, used)| *used).map(|(path, _)| of(path));
        costs.fold(f64::INFINITY, f64::min)
    };
    let (send, receive) = (least(|path| path.send_overhead), least(|path| path.receive_overhead));
    let hop = least(|path| path.send_overhead + path.latency + path.receive_overhead);
    // A rank may use its port and the path inside at once.
    let together: f64 = used.iter().filter(|(_, used)| *used).map(|(path, _)| path.bandwidth).sum();
    // Hearing from all ranks is reaching them in reverse.
    let (tells, hears) = match collective {
        Collective::Broadcast | Collective::Scatter => (true, false),
        Collective::Reduce | Collective::Gather => (false, true),
        _ => (true, true),
    };
    let telling = if tells { spread(ranks, hop, send) } else { 0.0 };
    let hearing = if hears { spread(ranks, hop, receive) } else { 0.0 };
    let per_byte = least(|path| path.send_per_byte + path.receive_per_byte);
    let work = moved * per_byte + reduced / fabric.reduction + others / n * (send + receive);
    let cores = hosts as f64 * fabric.cores.max(1) as f64;
    let work = work * (n / cores).max(1.0);
    let ports = fabric.ports.max(1) as f64 * far.bandwidth;
    let host = if hosts > 1 { host / ports } else { 0.0 };
    telling.max(hearing).max(hop + port / together).max(host).max(work)
}

/// The least time (s) until `ranks` ranks know what one knows, if telling another takes `hop` and a rank that knows can begin to
/// tell another every `gap`.
fn spread(ranks: usize, hop: f64, gap: f64) -> f64 {
    if gap <= 0.0 {
        return hop;
    }
    // The agenda has the times at which ranks that know can tell another. The earliest does, and adds two times: its own next one,
    // and the first of the rank that it told.
    let key = |time: f64| Reverse(time.max(0.0).to_bits());
    let mut agenda = BinaryHeap::from([key(0.0)]);
    let mut latest = 0.0;
    for _ in 1..ranks {
        let Some(Reverse(bits)) = agenda.pop() else { break };
        let begun = f64::from_bits(bits);
        latest = begun + hop;
        agenda.push(key(begun + gap));
        agenda.push(key(latest));
    }
    latest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rank_busy_until_arrival_doubles_those_who_know() {
        for (ranks, hops) in [(2, 1.0), (3, 2.0), (4, 2.0), (5, 3.0), (8, 3.0), (9, 4.0), (1024, 10.0)] {
            assert_eq!(spread(ranks, 1.0, 1.0), hops, "{ranks} ranks");
        }
        assert_eq!(spread(1000, 3.0, 0.0), 3.0);
        assert_eq!(spread(5, 3.0, 1.0), 6.0, "four ranks hear it from one");
    }

    #[test]
    fn bytes_bound_large_collectives() {
        let fabric = Fabric { reduction: f64::INFINITY, ranks_per_host: 1, ..Fabric::NDR400 };
        let near = |got: f64, wanted: f64| (got / wanted - 1.0).abs() < 1e-3;
        let bytes = 4 << 30;
        let wanted = bytes as f64 / fabric.between.bandwidth;
        assert!(near(lower_bound(Collective::Broadcast, 8, bytes, &fabric), wanted));
        assert!(near(lower_bound(Collective::AllReduce, 8, bytes, &fabric), 1.75 * wanted));
        assert!(near(lower_bound(Collective::AllGather, 8, bytes, &fabric), 7.0 * wanted));
        assert_eq!(lower_bound(Collective::AllReduce, 1, bytes, &fabric), 0.0);
    }
}
