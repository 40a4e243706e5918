//! Puts land completely, with their immediates, each exactly once.

use std::{
    collections::HashSet,
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

use unisono_transport::{
    Address, Event, Limits, Memory, Notify, Peer, Posted, Put, Region, RemoteRegion, Source, Target,
};

use crate::kit::{
    self, Endpoint, FIRST, Opener, Outcome, PATIENCE, Tally, bytes_of, ensure, filled, linger, pattern,
    put_all, remote, until,
};

/// The sizes at which something may change: around the inject limit, pages and the usual buffers.
pub(crate) fn every_size(opener: &mut Opener) -> Outcome {
    let (mut here, mut there) = opener.pair()?;
    let limits = here.limits().clone();
    let inject = limits.max_inject;
    let mut sizes = vec![1, 2, 7, 8, 4095, 4096, 4097, 65536, (1 << 20) + 1];
    sizes.extend([inject.saturating_sub(1), inject, inject + 1]);
    sizes.retain(|size| (1..=limits.max_put).contains(size));
    let largest = sizes.iter().copied().max().unwrap_or(1);
    let margin = 3;
    let window = there.register(Memory::map(largest + 2 * margin)?)?;
    for (immediate, len) in (0_u32..).zip(sizes) {
        kit::write(&window, 0, &vec![0xee; window.len()])?;
        let bytes = pattern(immediate, len);
        let source = filled(&mut *here, &bytes)?;
        let region = remote(&window)?;
        let (mut ours, mut theirs) = (Tally::default(), Tally::default());
        let mut posted = false;
        let large = len > inject;
        until(&format!("{len} bytes"), || {
            if !posted {
                posted = put_all(&mut *here, &source, region, margin as u64, immediate)? == Posted::Yes;
            }
            ours.poll(&mut *here)?;
            theirs.poll(&mut *there)?;
            Ok(posted && !theirs.arrived.is_empty() && ours.sent.is_empty() != large)
        })?;
        linger(Duration::from_millis(1), || {
            ours.poll(&mut *here)?;
            theirs.poll(&mut *there)?;
            Ok(())
        })?;
        theirs.expect([immediate], [])?;
        ours.expect([], large.then_some(immediate.into()))?;
        ensure!(
            theirs.lens.iter().all(|reported| *reported == len),
            "{len} bytes, of which {:?} are reported",
            theirs.lens
        );
        ensure!(bytes_of(&window, margin, len)? == bytes, "of {len} bytes not all are as they were sent");
        ensure!(bytes_of(&window, 0, margin)? == [0xee; 3], "bytes before the target were written");
        ensure!(
            bytes_of(&window, margin + len, margin)? == [0xee; 3],
            "bytes behind the target were written"
        );
    }
    Ok(())
}

/// Several sources are joined in order, without empty ones; sources that are copied may change at once; and the end of a put is
/// reported if that is wanted.
pub(crate) fn gathered(opener: &mut Opener) -> Outcome {
    let (mut here, mut there) = opener.pair()?;
    let limits = here.limits().clone();
    let most = limits.max_sources;
    ensure!(most >= 1, "{most} sources");
    let bytes = pattern(9, 200_000);
    let source = filled(&mut *here, &bytes)?;
    let other = filled(&mut *here, &pattern(10, 5000))?;
    let window = there.register(Memory::map(300_000)?)?;
    let mut lists = vec![vec![8], vec![100_000]];
    if most >= 2 {
        let two = [
            [3, 5],
            [0, 9],
            [9, 0],
            [40, 8],
            [64, 64],
            [64, 65],
            [0, 100_000],
            [64, 65_536],
            [1, 1],
            [40, 8192],
        ];
        lists.extend(two.map(|list| list.to_vec()));
    }
    if most >= 4 {
        lists.extend([vec![1, 0, 2, 0], vec![40_000, 1, 0, 77], vec![8, 8, 8, 8], vec![3, 0, 0, 3]]);
    }
    let kinds = [Notify::IfNotInjected, Notify::IfNotCopied, Notify::Always];
    let cases = kinds.into_iter().flat_map(|notify| lists.iter().map(move |list| (notify, list)));
    for (immediate, (notify, list)) in (0_u32..).zip(cases) {
        let mut wanted = Vec::new();
        let mut sources = Vec::new();
        for (turn, len) in list.iter().copied().enumerate() {
            let from = if turn % 2 == 1 && len <= other.len() { &other } else { &source };
            sources.push(Source::new(from, turn, len.min(from.len() - turn))?);
            wanted.extend(bytes_of(from, turn, len.min(from.len() - turn))?);
        }
        let what = format!("sources of {list:?} bytes, {notify:?}");
        let target = Target { region: remote(&window)?, offset: 17 };
        let put = Put { to: FIRST, sources: &sources, target, immediate, token: 3, notify, fetch: false };
        let ends = put.notifies(&limits);
        let copied = !ends || put.len() <= limits.max_inject;
        let (mut ours, mut theirs) = (Tally::default(), Tally::default());
        let mut posted = false;
        until(&what, || {
            if !posted {
                posted = kit::put(&mut *here, &put)? == Posted::Yes;
                if posted && copied {
                    [&source, &other].into_iter().try_for_each(|from| kit::write(from, 0, &[0xee; 256]))?;
                }
            }
            ours.poll(&mut *here)?;
            theirs.poll(&mut *there)?;
            Ok(posted && !theirs.arrived.is_empty() && ours.sent.is_empty() != ends)
        })?;
        linger(Duration::from_millis(1), || {
            ours.poll(&mut *here)?;
            theirs.poll(&mut *there)?;
            Ok(())
        })?;
        theirs.expect([immediate], [])?;
        ours.expect([], ends.then_some(3))?;
        ensure!(bytes_of(&window, 17, wanted.len())? == wanted, "{what}: not as they were, in order");
        kit::write(&source, 0, &bytes)?;
        kit::write(&other, 0, &pattern(10, other.len()))?;
    }
    Ok(())
}

/// Puts that are copied from a source that changes after each put land with the bytes of that time, even if they wait behind more bytes
/// than a socket takes; and their ends are not awaited.
pub(crate) fn copies(opener: &mut Opener) -> Outcome {
    const COUNT: u32 = 40;
    let (mut here, mut there) = opener.pair()?;
    let Limits { max_copied: most, max_put, .. } = *here.limits();
    let long = max_put.min(8 << 20);
    let large = filled(&mut *here, &pattern(0, long))?;
    let elsewhere = there.register(Memory::map(long)?)?;
    let before = remote(&elsewhere)?;
    let mut sizes = vec![1, most / 2, most];
    sizes.retain(|len| (1..=most).contains(len));
    for len in sizes {
        let window = there.register(Memory::map(COUNT as usize * len)?)?;
        let source = filled(&mut *here, &pattern(0, len))?;
        let region = remote(&window)?;
        let (mut ours, mut theirs) = (Tally::default(), Tally::default());
        let mut next = 0;
        until(&format!("{COUNT} copies of {len} bytes"), || {
            while next <= COUNT {
                kit::write(&source, 0, &pattern(next, len))?;
                let all = [Source::new(&source, 0, len)?];
                let posted = if next == 0 {
                    put_all(&mut *here, &large, before, 0, 0)?
                } else {
                    let target = Target { region, offset: u64::from(next - 1) * len as u64 };
                    kit::put(
                        &mut *here,
                        &Put {
                            to: FIRST,
                            sources: &all,
                            target,
                            immediate: next,
                            token: 3,
                            notify: Notify::IfNotCopied,
                            fetch: false,
                        },
                    )?
                };
                kit::write(&source, 0, &pattern(0, len))?;
                if posted == Posted::Full {
                    break;
                }
                next += 1;
            }
            ours.poll(&mut *here)?;
            theirs.poll(&mut *there)?;
            Ok(theirs.arrived.len() == 1 + COUNT as usize && !ours.sent.is_empty())
        })?;
        theirs.expect(0..=COUNT, [])?;
        ours.expect([], [0])?;
        let wanted: Vec<u8> = (1..=COUNT).flat_map(|number| pattern(number, len)).collect();
        ensure!(bytes_of(&window, 0, wanted.len())? == wanted, "{len} bytes: not as they were");
    }
    Ok(())
}

/// All 32 bits of an immediate arrive, and the length too where it is reported.
pub(crate) fn immediates(opener: &mut Opener) -> Outcome {
    let (mut here, mut there) = opener.pair()?;
    let window = there.register(Memory::map(64)?)?;
    let source = filled(&mut *here, &[1, 2, 3])?;
    for immediate in [0, 1, 0x7fff_ffff, 0x8000_0000, 0xdead_beef, u32::MAX] {
        let mut events = Vec::new();
        let mut posted = false;
        until(&format!("immediate {immediate:#x}"), || {
            if !posted {
                posted = put_all(&mut *here, &source, remote(&window)?, 0, immediate)? == Posted::Yes;
            }
            Tally::default().poll(&mut *here)?;
            there.poll(&mut events)?;
            Ok(!events.is_empty())
        })?;
        let right = matches!(events[..], [Event::Arrived { immediate: seen, len }]
            if seen == immediate && len.is_none_or(|len| len == 3));
        ensure!(right, "3 bytes with immediate {immediate:#x} gave {events:?}");
    }
    Ok(())
}

/// Puts until there is no room, while the peer does not poll; then all of them land, each exactly once.
pub(crate) fn flood(opener: &mut Opener) -> Outcome {
    let (mut here, mut there) = opener.pair()?;
    let limits = here.limits().clone();
    let most = limits.arrivals.min(limits.arrivals_per_peer);
    let slot = 20_000;
    let count = u32::try_from(most.min(1500))?;
    let window = there.register(Memory::map(count as usize * slot)?)?;
    let region = remote(&window)?;
    let bytes: Vec<Vec<u8>> = (0..16).map(|seed| pattern(seed, slot)).collect();
    let sources = bytes.iter().map(|bytes| filled(&mut *here, bytes)).collect::<Result<Vec<_>, _>>()?;
    // Sixteen large ones to one small one, so that room runs out before the arrivals do.
    let len_of = |number: u32| if number % 16 == 5 { limits.max_inject.clamp(1, 8) } else { slot };
    let mut next = 0;
    let mut was_full = false;
    let (mut ours, mut theirs) = (Tally::default(), Tally::default());
    until("a flood", || {
        // Not a poll before there is no room left.
        while next < count {
            let len = len_of(next);
            let Some(source) = sources.get(next as usize % 16) else { return Err("no source".into()) };
            let sources = [Source::new(source, 0, len)?];
            let target = Target { region, offset: u64::from(next) * slot as u64 };
            let put = Put {
                to: FIRST,
                sources: &sources,
                target,
                immediate: next,
                token: next.into(),
                notify: Notify::IfNotInjected,
                fetch: false,
            };
            if kit::put(&mut *here, &put)? == Posted::Full {
                was_full = true;
                break;
            }
            next += 1;
        }
        ours.poll(&mut *here)?;
        theirs.poll(&mut *there)?;
        Ok(theirs.arrived.len() == count as usize
            && ours.sent.len() == (0..count).filter(|number| len_of(*number) > limits.max_inject).count())
    })?;
    theirs.expect(0..count, [])?;
    ours.expect([], (0..count).filter(|number| len_of(*number) > limits.max_inject).map(u64::from))?;
    for number in 0..count {
        let len = len_of(number);
        let landed = bytes_of(&window, number as usize * slot, len)?;
        let wanted = bytes.get(number as usize % 16).and_then(|bytes| bytes.get(..len));
        ensure!(wanted == Some(&landed[..]), "message {number} of the flood is not as it was sent");
    }
    // Where this many may arrive, room must have run out before. It need not where the arrivals are fewer than the puts an
    // endpoint has room for: over memory, which has no other bound, and over verbs with its 128 of a peer.
    ensure!(was_full || count as usize == most, "{count} puts at once and never full");
    Ok(())
}

/// Thousands of small puts, with as many under way as the limits allow.
pub(crate) fn small_flood(opener: &mut Opener) -> Outcome {
    let (mut here, mut there) = opener.pair()?;
    let limits = here.limits().clone();
    let most = limits.arrivals.min(limits.arrivals_per_peer);
    let count = 6000_u32;
    let window = there.register(Memory::map(8)?)?;
    let source = filled(&mut *here, &[7; 8])?;
    let (mut ours, mut theirs) = (Tally::default(), Tally::default());
    let mut next = 0;
    until("a flood of small puts", || {
        while next < count
            && (next as usize) < theirs.arrived.len() + most
            && put_all(&mut *here, &source, remote(&window)?, 0, next)? == Posted::Yes
        {
            next += 1;
        }
        ours.poll(&mut *here)?;
        theirs.poll(&mut *there)?;
        Ok(theirs.arrived.len() == count as usize
            && (limits.max_inject >= 8 || ours.sent.len() == count as usize))
    })?;
    theirs.expect(0..count, [])?;
    ours.expect([], (0..count).filter(|_| limits.max_inject < 8).map(u64::from))
}

/// Two streams in opposite directions, in one thread.
pub(crate) fn both_ways(opener: &mut Opener) -> Outcome {
    let (mut here, mut there) = opener.pair()?;
    let (slots, count, len) = (8_u32, 200_u32, 50_000_usize);
    let windows = [
        here.register(Memory::map(slots as usize * len)?)?,
        there.register(Memory::map(slots as usize * len)?)?,
    ];
    let [mine, others] = [remote(&windows[0])?, remote(&windows[1])?];
    let bytes = pattern(1, len);
    let sources = [filled(&mut *here, &bytes)?, filled(&mut *there, &bytes)?];
    let mut tallies = [Tally::default(), Tally::default()];
    let mut next = [0_u32; 2];
    until("two streams", || {
        for (side, transport, region) in [(0, &mut here, others), (1, &mut there, mine)] {
            // A slot is reused when the message before it in that slot has arrived over there.
            let landed = u32::try_from(tallies[1 - side].arrived.len())?;
            while next[side] < count && next[side] < landed + slots {
                let number = next[side];
                let sources = [Source::new(&sources[side], 0, 1 + number as usize * 249)?];
                let target = Target { region, offset: u64::from(number % slots) * len as u64 };
                let put = Put {
                    to: FIRST,
                    sources: &sources,
                    target,
                    immediate: number,
                    token: number.into(),
                    notify: Notify::IfNotInjected,
                    fetch: false,
                };
                if kit::put(&mut **transport, &put)? == Posted::Full {
                    break;
                }
                next[side] += 1;
            }
            tallies[side].poll(&mut **transport)?;
        }
        Ok(tallies.iter().all(|tally| tally.arrived.len() == count as usize))
    })?;
    let inject = here.limits().max_inject;
    let large = move || (0..count).filter(move |number| 1 + *number as usize * 249 > inject).map(u64::from);
    until("the last acknowledgements", || {
        tallies[0].poll(&mut *here)?;
        tallies[1].poll(&mut *there)?;
        Ok(tallies.iter().all(|tally| tally.sent.len() == large().count()))
    })?;
    tallies.iter().try_for_each(|tally| tally.expect(0..count, large()))
}

/// Each of three endpoints writes to all three, itself included.
pub(crate) fn each_to_each(opener: &mut Opener) -> Outcome {
    let mut nodes = [opener.open()?, opener.open()?, opener.open()?];
    let addresses: Vec<Address> = nodes.iter().map(|endpoint| endpoint.address().clone()).collect();
    let (rounds, len) = (5_usize, 10_000_usize);
    let mut windows = Vec::new();
    let mut sources = Vec::new();
    for (rank, endpoint) in (0_u32..).zip(&mut nodes) {
        for (wanted, address) in (0_u32..).zip(&addresses) {
            let peer = endpoint.connect(address)?;
            ensure!(
                peer == Peer(wanted),
                "peers count from 0 in order of connecting: {peer:?} is the {wanted}th"
            );
        }
        windows.push(endpoint.register(Memory::map(3 * rounds * len)?)?);
        sources.push(filled(&mut **endpoint, &pattern(rank, len))?);
    }
    let mut queue: Vec<(usize, u32, usize)> = Vec::new();
    for from in 0..3 {
        for to in 0..3 {
            queue.extend((0..rounds).map(|round| (from, to, round)));
        }
    }
    let mut tallies = [Tally::default(), Tally::default(), Tally::default()];
    until("nine streams", || {
        let mut left = Vec::new();
        for (from, to, round) in queue.drain(..) {
            let slot = from * rounds + round;
            let target = Target { region: remote(&windows[to as usize])?, offset: (slot * len) as u64 };
            let sources = [Source::new(&sources[from], 0, len)?];
            let immediate = u32::try_from(slot)?;
            let put = Put {
                to: Peer(to),
                sources: &sources,
                target,
                immediate,
                token: slot as u64 * 4 + u64::from(to),
                notify: Notify::IfNotInjected,
                fetch: false,
            };
            if kit::put(&mut *nodes[from], &put)? == Posted::Full {
                left.push((from, to, round));
            }
        }
        queue = left;
        for (endpoint, tally) in nodes.iter_mut().zip(&mut tallies) {
            tally.poll(&mut **endpoint)?;
        }
        Ok(tallies.iter().all(|tally| tally.arrived.len() == 3 * rounds))
    })?;
    for (to, tally) in tallies.iter().enumerate() {
        let wanted: HashSet<u32> = (0..u32::try_from(3 * rounds)?).collect();
        ensure!(
            tally.arrived.keys().copied().collect::<HashSet<_>>() == wanted,
            "endpoint {to} got {tally:?}"
        );
        for from in 0..3_u32 {
            for round in 0..rounds {
                let landed = bytes_of(&windows[to], (from as usize * rounds + round) * len, len)?;
                ensure!(
                    landed == pattern(from, len),
                    "endpoint {to}: round {round} of {from} is not as it was sent"
                );
            }
        }
    }
    Ok(())
}

/// Three threads, each with its endpoint, write to each other and park when there is nothing to do.
pub(crate) fn threads(opener: &mut Opener) -> Outcome {
    const RANKS: usize = 3;
    const ROUNDS: u32 = 60;
    const LEN: usize = 3000;

    /// An endpoint, and where it is written to and writes from.
    struct Rank {
        endpoint: Endpoint,
        window: Region,
        source: Region,
    }

    fn run(me: usize, rank: Rank, all: &[(Address, RemoteRegion)], done: &AtomicUsize) -> Outcome {
        let Rank { mut endpoint, window, source } = rank;
        let peers =
            all.iter().map(|(address, _)| endpoint.connect(address)).collect::<Result<Vec<_>, _>>()?;
        let mut queue: Vec<(usize, u32)> =
            (0..ROUNDS).flat_map(|round| (0..RANKS).map(move |to| (to, round))).collect();
        queue.reverse();
        let mut tally = Tally::default();
        let all_of_it = RANKS * ROUNDS as usize;
        let quiet = |tally: &Tally, limit: usize| tally.sent.len() == if LEN > limit { all_of_it } else { 0 };
        until(&format!("thread {me}"), || {
            while let Some((to, round)) = queue.last().copied() {
                let slot = u32::try_from(me)? * ROUNDS + round;
                let sources = [Source::new(&source, 0, LEN)?];
                let target = Target { region: all[to].1, offset: u64::from(slot) * LEN as u64 };
                let token = u64::from(slot) * 8 + to as u64;
                let put = Put {
                    to: peers[to],
                    sources: &sources,
                    target,
                    immediate: slot,
                    token,
                    notify: Notify::IfNotInjected,
                    fetch: false,
                };
                if kit::put(&mut *endpoint, &put)? == Posted::Full {
                    break;
                }
                queue.pop();
            }
            if !tally.poll(&mut *endpoint)? {
                endpoint.park(Duration::from_millis(50), &[], &mut || false)?;
            }
            Ok(queue.is_empty()
                && tally.arrived.len() == all_of_it
                && quiet(&tally, endpoint.limits().max_inject))
        })?;
        for slot in 0..all_of_it {
            let from = u32::try_from(slot / ROUNDS as usize)?;
            ensure!(
                bytes_of(&window, slot * LEN, LEN)? == pattern(from, LEN),
                "thread {me}: message {slot} is damaged"
            );
        }
        // The others may still need this one's progress.
        done.fetch_add(1, Ordering::Relaxed);
        until("the other threads", || {
            endpoint.poll(&mut Vec::new())?;
            Ok(done.load(Ordering::Relaxed) == RANKS)
        })
    }

    // Whatever may fail before the threads meet is done before there are any: no thread waits without end.
    let (mut ranks, mut all) = (Vec::new(), Vec::new());
    for me in 0..u32::try_from(RANKS)? {
        let mut endpoint = opener.open()?;
        let window = endpoint.register(Memory::map(RANKS * ROUNDS as usize * LEN)?)?;
        let source = filled(&mut *endpoint, &pattern(me, LEN))?;
        all.push((endpoint.address().clone(), remote(&window)?));
        ranks.push(Rank { endpoint, window, source });
    }
    let (all, done) = (&all, &AtomicUsize::new(0));
    std::thread::scope(|scope| {
        let run =
            |(me, rank)| scope.spawn(move || run(me, rank, all, done).map_err(|error| error.to_string()));
        let threads: Vec<_> = ranks.into_iter().enumerate().map(run).collect();
        for thread in threads {
            thread.join().map_err(|_| format!("a thread panicked within {PATIENCE:?}"))??;
        }
        Ok(())
    })
}
