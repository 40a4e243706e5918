//! Buffers in memory that was made elsewhere, a part of a memfd, over every kind of transport: the file shows the result of an all_reduce,
//! ranks that share memory reduce in place, and no mapping is left afterwards.

use std::{fs, os::unix::fs::FileExt, sync::Barrier};

use unisono_transport::{mux::Mux, shm};

use super::{one_shot::in_one_shot, *};
use crate::{
    buffer::tests::{memfd, memory_of},
    observed::{Observed, Withheld},
    sim::{Config as Simulated, Fabric},
};

const PAGE: usize = 4096;

/// The numbers of descriptors and mappings of this process that name this memfd.
fn uses(name: &str) -> (usize, usize) {
    let links =
        fs::read_dir("/proc/self/fd").unwrap().filter_map(|entry| fs::read_link(entry.ok()?.path()).ok());
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    let files = links.filter(|link| link.to_string_lossy().contains(name)).count();
    (files, maps.lines().filter(|line| line.contains(name)).count())
}

/// Each rank reduces a part of a separate memfd, twice, over this transport; `elsewhere` says which ranks have such memory.
fn reduces(
    ranks: usize,
    count: usize,
    open: impl Fn() -> Box<dyn Transport>,
    in_place: bool,
    elsewhere: fn(Rank) -> bool,
) {
    static NEXT: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(0);
    let name = format!("part-{}-", NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed));
    let (bytes, all_dropped) = (4 * count, Barrier::new(ranks));
    world_over(
        ranks,
        open,
        |_| {},
        |group| {
            let me = group.rank();
            let file = memfd(&format!("{name}{me}"), PAGE + bytes + 8);
            file.write_all_at(&[7; 8], (PAGE - 8) as u64).unwrap();
            file.write_all_at(&[8; 8], (PAGE + bytes) as u64).unwrap();
            let mut buffer = if elsewhere(me) {
                Buffer::<u32>::of(&group, memory_of(&file, PAGE, bytes)).unwrap()
            } else {
                group.buffer(count).unwrap()
            };
            for round in 1..3 {
                // The values come through the file, and then through the buffer.
                let given: Vec<_> = (0..count).map(|at| (at * (me + round)) as u32).collect();
                if elsewhere(me) && round == 1 {
                    file.write_all_at(bytemuck::cast_slice(&given), PAGE as u64).unwrap();
                } else {
                    buffer.copy_from_slice(&given);
                }
                let (was, ()) = in_one_shot(&group, || group.all_reduce(&mut buffer, ReduceOp::Sum).unwrap());
                assert_eq!(was, in_place, "{count} among {ranks}, round {round}");
                let factor = ranks * (ranks - 1) / 2 + ranks * round;
                assert!((0..count).all(|at| buffer[at] as usize == at * factor));
                let mut seen = vec![0_u32; count];
                file.read_exact_at(bytemuck::cast_slice_mut(&mut seen), PAGE as u64).unwrap();
                assert!(!elsewhere(me) || seen == buffer[..]);
            }
            let mut beside = [0; 8];
            for (at, byte) in [(PAGE - 8, 7), (PAGE + bytes, 8)] {
                file.read_exact_at(&mut beside, at as u64).unwrap();
                assert_eq!(beside, [byte; 8], "what lies beside the part");
            }
            drop(group);
            // The buffer outlives the group, and is still memory of the file.
            buffer[0] = 77;
            file.read_exact_at(&mut beside[..4], PAGE as u64).unwrap();
            assert!(!elsewhere(me) || beside[..4] == 77_u32.to_ne_bytes());
            drop((buffer, file));
            all_dropped.wait();
            assert_eq!(uses(&name), (0, 0));
        },
    );
}

fn over_shm() -> Box<dyn Transport> {
    Box::new(shm::Endpoint::open().unwrap())
}

#[test]
fn ranks_that_share_memory_reduce_it_in_place() {
    for ranks in [2, 3] {
        for count in [1 << 12, 50_001] {
            reduces(ranks, count, over_shm, true, |_| true);
            // One rank has such memory, and the others have memory that the transport has allocated.
            reduces(ranks, count, over_shm, true, |rank| rank == 1);
            let hub = Hub::new();
            reduces(ranks, count, || Box::new(hub.open()), true, |_| true);
            let hub = Hub::new();
            let mux = || -> Box<dyn Transport> {
                Box::new(Mux::new(5, Some(shm::Endpoint::open().unwrap()), Box::new(hub.open())))
            };
            reduces(ranks, count, mux, true, |_| true);
        }
    }
}

#[test]
fn ranks_that_do_not_share_memory_reduce_it_by_messages() {
    let fabric = Fabric::new(Simulated::default());
    reduces(3, 50_001, || Box::new(fabric.open()), false, |_| true);
    let hub = Hub::new();
    let withheld =
        || -> Box<dyn Transport> { Box::new(Observed::withholding(Box::new(hub.open()), Withheld::Memory)) };
    reduces(3, 50_001, withheld, false, |_| true);
}

/// A schedule's steps put messages to such memory, and its owner writes to it.
#[test]
fn messages_land_in_it() {
    world_over(
        2,
        over_shm,
        |_| {},
        |group| {
            let (me, bytes) = (group.rank(), 1 << 20);
            let file = memfd("landing", bytes);
            let mut buffer = Buffer::<u8>::of(&group, memory_of(&file, 0, bytes)).unwrap();
            for round in 0..20_u8 {
                let mut sent = vec![round; bytes];
                if me == 0 {
                    group.send(&sent, 1).unwrap();
                    sent.fill(99);
                } else {
                    group.recv(&mut buffer, 0).unwrap();
                    let mut seen = vec![0; bytes];
                    file.read_exact_at(&mut seen, 0).unwrap();
                    assert!(seen == sent && buffer[..] == sent, "round {round}");
                }
            }
        },
    );
}

#[test]
fn memory_that_does_not_fit_the_elements_is_refused() {
    let group = ProcessGroup::with(Config::default(), Box::new(Hub::new().open()), None).unwrap();
    let file = memfd("odd", 100);
    let error = Buffer::<u32>::of(&group, memory_of(&file, 0, 99)).unwrap_err();
    assert!(matches!(error, Error::Argument { call: "Buffer::of", .. }), "{error:?}");
    let message = error.to_string();
    assert!(
        message.contains("99 bytes at 0x") && message.contains("no whole number of elements of 4 bytes"),
        "{message}"
    );
    assert_eq!(Buffer::<u8>::of(&group, memory_of(&file, 0, 99)).unwrap().len(), 99);
}
