//! Objects that are dropped, in any order, are not used afterwards and cause no hang.

use std::{
    collections::HashSet,
    time::{Duration, Instant},
};

use unisono_transport::{Error, Limits, Memory, Notify, Posted, Put, Region, Source, Target, Transport};

use crate::kit::{
    self, FIRST, Opener, Outcome, Tally, bytes_of, ensure, filled, linger, pattern, put_all, remote, until,
};

/// The transport keeps the sources of a put under way, even if it is the only one.
pub(crate) fn source_let_go(opener: &mut Opener) -> Outcome {
    let (mut here, mut there) = opener.pair()?;
    let len = here.limits().max_inject + 300_000;
    let window = there.register(Memory::map(len)?)?;
    let bytes = pattern(6, len);
    let mut source = Some(filled(&mut *here, &bytes)?);
    let (mut ours, mut theirs) = (Tally::default(), Tally::default());
    let mut scribbled = Vec::new();
    until("a put whose source was let go", || {
        if let Some(held) = &source
            && put_all(&mut *here, held, remote(&window)?, 0, 8)? == Posted::Yes
        {
            source = None;
            // Their next owner writes to the pages.
            for _ in 0..4 {
                scribbled.push(filled(&mut *here, &vec![0xff; len])?);
            }
        }
        ours.poll(&mut *here)?;
        theirs.poll(&mut *there)?;
        Ok(!theirs.arrived.is_empty() && !ours.sent.is_empty())
    })?;
    ensure!(
        bytes_of(&window, 0, len)? == bytes,
        "the put's bytes are not those of the source that was let go"
    );
    Ok(())
}

/// Short puts that ask for it are reported as sent, as long ones are anyway, each once; and what was reported so lands, though the
/// endpoint that it came from is closed, and what was copied as it was when it was put.
pub(crate) fn reported(opener: &mut Opener) -> Outcome {
    const COUNT: u32 = 3;
    let Limits { max_inject: inject, max_copied: copied, .. } = *opener.open()?.limits();
    ensure!(copied >= inject, "puts of {inject} bytes are copied, but only {copied} are said to be");
    for len in [1, inject.max(1), inject + 1, copied.max(1), copied + 1, 50_000] {
        let (mut here, mut there) = opener.pair()?;
        let window = there.register(Memory::map(COUNT as usize * len)?)?;
        let target = |number: u32| {
            Ok::<_, Box<dyn std::error::Error>>(Target {
                region: remote(&window)?,
                offset: u64::from(number) * len as u64,
            })
        };
        let bytes = pattern(1, len);
        let source = filled(&mut *here, &bytes)?;
        let sources = [Source::new(&source, 0, len)?];
        let (mut ours, mut theirs) = (Tally::default(), Tally::default());
        let mut next = 0;
        until(&format!("{len} bytes to be reported as sent"), || {
            if next < COUNT {
                let (token, target) = (u64::from(next) + 7, target(next)?);
                let put = Put {
                    to: FIRST,
                    sources: &sources,
                    target,
                    immediate: next,
                    token,
                    notify: Notify::Always,
                    fetch: false,
                };
                if len <= inject {
                    kit::write(&source, 0, &bytes)?;
                }
                next += u32::from(kit::put(&mut *here, &put)? == Posted::Yes);
                if len <= inject {
                    kit::write(&source, 0, &pattern(2, len))?;
                }
            }
            // As little as can be: but without the peer's help there is no connection, and some fetch what is long.
            if !ours.poll(&mut *here)? {
                theirs.poll(&mut *there)?;
            }
            Ok(ours.sent.len() == COUNT as usize)
        })?;
        ours.expect([], (0..COUNT).map(|number| u64::from(number) + 7))?;
        drop(here);
        until(&format!("{len} bytes of an endpoint that has closed"), || {
            theirs.poll(&mut *there)?;
            Ok(theirs.arrived.len() == COUNT as usize)
        })?;
        theirs.expect(0..COUNT, [])?;
        ensure!(
            bytes_of(&window, 0, COUNT as usize * len)? == bytes.repeat(COUNT as usize),
            "they are damaged"
        );
    }
    Ok(())
}

/// Two endpoints and their regions, with puts under way, are dropped in every order.
pub(crate) fn drop_orders(opener: &mut Opener) -> Outcome {
    for order in [[0, 1, 2, 3], [3, 2, 1, 0], [1, 0, 3, 2], [2, 0, 3, 1], [1, 3, 0, 2], [2, 3, 0, 1]] {
        let (mut here, mut there) = opener.pair()?;
        let window = there.register(Memory::map(100_000)?)?;
        let source = filled(&mut *here, &pattern(0, 100_000))?;
        first_put(&mut *here, &mut *there, &source, &window)?;
        for immediate in 2..6 {
            let _ = put_all(&mut *here, &source, remote(&window)?, 0, immediate)?;
        }
        let (mut here, mut there, mut window, mut source) =
            (Some(here), Some(there), Some(window), Some(source));
        for which in order {
            match which {
                0 => drop(here.take()),
                1 => drop(there.take()),
                2 => drop(window.take()),
                _ => drop(source.take()),
            }
        }
    }
    Ok(())
}

/// Puts that have arrived at an endpoint that is not polled do no harm when either end is closed.
pub(crate) fn unread(opener: &mut Opener) -> Outcome {
    for (len, closes_first) in [(8, true), (8, false), (2_000, true), (2_000, false)] {
        let (mut here, mut there) = opener.pair()?;
        let window = there.register(Memory::map(len)?)?;
        let source = filled(&mut *here, &pattern(1, len))?;
        let mut theirs = first_put(&mut *here, &mut *there, &source, &window)?;
        for immediate in 2..10 {
            let _ = put_all(&mut *here, &source, remote(&window)?, 0, immediate)?;
        }
        linger(Duration::from_millis(20), || {
            Tally::default().poll(&mut *here)?;
            Ok(())
        })?;
        if closes_first {
            drop(there);
            drop(here);
        } else {
            drop(here);
            linger(Duration::from_millis(20), || {
                // That the other has closed may be an error.
                let _ = theirs.poll(&mut *there);
                Ok(())
            })?;
        }
    }
    Ok(())
}

/// Regions are registered here and dropped by another thread during puts.
pub(crate) fn regions_beside_traffic(opener: &mut Opener) -> Outcome {
    let (mut here, mut there) = opener.pair()?;
    let window = there.register(Memory::map(10_000)?)?;
    let bytes = pattern(2, 10_000);
    let source = filled(&mut *here, &bytes)?;
    let (give, take) = std::sync::mpsc::channel();
    let dropper = std::thread::spawn(move || take.into_iter().count());
    let (rounds, mut next) = (300, 0);
    let (mut ours, mut theirs) = (Tally::default(), Tally::default());
    until("traffic beside dropped regions", || {
        if next == theirs.arrived.len() && next < rounds {
            give.send(here.register(Memory::map(4096)?)?)?;
            give.send(there.register(Memory::map(4096)?)?)?;
            if put_all(&mut *here, &source, remote(&window)?, 0, u32::try_from(next)?)? == Posted::Yes {
                next += 1;
            }
        }
        ours.poll(&mut *here)?;
        theirs.poll(&mut *there)?;
        Ok(theirs.arrived.len() == rounds)
    })?;
    drop(give);
    let dropped = dropper.join().map_err(|_| "the dropping thread panicked")?;
    ensure!(dropped >= 2 * rounds, "{dropped} regions were dropped");
    ensure!(bytes_of(&window, 0, 10_000)? == bytes, "the bytes are damaged");
    Ok(())
}

/// Puts all of `source` into the other's window, and waits until it has landed.
fn first_put(
    here: &mut dyn Transport,
    there: &mut dyn Transport,
    source: &Region,
    window: &Region,
) -> Result<Tally, Box<dyn std::error::Error>> {
    let mut theirs = Tally::default();
    let mut posted = false;
    until("a put that lands", || {
        if !posted {
            posted = put_all(here, source, remote(window)?, 0, 1)? == Posted::Yes;
        }
        Tally::default().poll(here)?;
        theirs.poll(there)?;
        Ok(!theirs.arrived.is_empty())
    })?;
    Ok(theirs)
}

/// Puts go from and to new memory, though it lies where other memory has just been: libfabric keeps registrations that were closed, and
/// must hear that their memory went.
pub(crate) fn place_of_others(opener: &mut Opener) -> Outcome {
    const LEN: usize = 256 << 10;
    let (mut here, mut there) = opener.pair()?;
    let mut places = HashSet::new();
    for round in 0..16 {
        let bytes = pattern(round, LEN);
        let (source, window) = (here.allocate(LEN)?, there.allocate(LEN)?);
        places.extend([source.base(), window.base()]);
        kit::write(&source, 0, &bytes)?;
        first_put(&mut *here, &mut *there, &source, &window)?;
        ensure!(bytes_of(&window, 0, LEN)? == bytes, "round {round} brought other bytes");
    }
    ensure!(places.len() < 32, "no memory was at the place of other memory");
    Ok(())
}

/// A put into a region whose registration was closed is an error at one end, or has no effect. It is never reported as an arrival, and
/// never writes to memory that now belongs to another region.
pub(crate) fn taken_back(opener: &mut Opener) -> Outcome {
    let (mut here, mut there) = opener.pair()?;
    let len = here.limits().max_inject + 20_000;
    let window = there.register(Memory::map(len)?)?;
    let source = filled(&mut *here, &vec![0x77; len])?;
    let mut theirs = first_put(&mut *here, &mut *there, &source, &window)?;
    let stale = remote(&window)?;
    drop(window);
    let canary = filled(&mut *there, &vec![0x11; len])?;
    let mut broken = false;
    let mut posted = false;
    linger(Duration::from_millis(300), || {
        if broken {
            return Ok(());
        }
        let mut step = || -> Result<(), Error> {
            if !posted {
                posted = put_all(&mut *here, &source, stale, 0, 2)? == Posted::Yes;
            }
            Tally::default().poll(&mut *here)?;
            theirs.poll(&mut *there)?;
            Ok(())
        };
        match step() {
            Ok(()) => {}
            Err(Error::Completion { .. } | Error::Call { .. }) => broken = true,
            Err(other) => return Err(other.into()),
        }
        Ok(())
    })?;
    ensure!(!theirs.arrived.contains_key(&2), "a put into a region that was taken back has arrived");
    ensure!(bytes_of(&canary, 0, len)? == vec![0x11; len], "it was written into another region");
    Ok(())
}

/// After its endpoint is dropped, a region belongs to its owner alone: puts of peers no longer write to it.
pub(crate) fn outlives(opener: &mut Opener) -> Outcome {
    let (mut here, mut there) = opener.pair()?;
    let len = here.limits().max_inject + 20_000;
    let window = there.register(Memory::map(len)?)?;
    let source = filled(&mut *here, &vec![0x77; len])?;
    first_put(&mut *here, &mut *there, &source, &window)?;
    let target = remote(&window)?;
    kit::write(&window, 0, &vec![0x11; len])?;
    drop(there);
    linger(Duration::from_millis(300), || {
        // Another case checks whether that is an error.
        let put = put_all(&mut *here, &source, target, 0, 2);
        let polled = Tally::default().poll(&mut *here);
        ensure!(
            !matches!(put, Err(Error::BadPut { .. } | Error::Bounds { .. })),
            "the put is wrong: {put:?}"
        );
        drop(polled);
        Ok(())
    })?;
    ensure!(bytes_of(&window, 0, len)? == vec![0x11; len], "it was written after its endpoint was dropped");
    Ok(())
}

/// A put to an endpoint that was dropped ends with an error that names the peer, or remains under way. It does not block, and no error
/// names another peer.
pub(crate) fn peer_gone(opener: &mut Opener) -> Outcome {
    let (mut here, mut there) = opener.pair()?;
    let mut third = opener.open()?;
    here.connect(third.address())?;
    let window = there.register(Memory::map(50_000)?)?;
    let source = filled(&mut *here, &pattern(0, 50_000))?;
    let region = remote(&window)?;
    first_put(&mut *here, &mut *there, &source, &window)?;
    drop((there, window));
    let began = Instant::now();
    let mut seen = None;
    while seen.is_none() && began.elapsed() < Duration::from_secs(1) {
        let sources = [Source::new(&source, 0, source.len())?];
        let put = Put {
            to: FIRST,
            sources: &sources,
            target: Target { region, offset: 0 },
            immediate: 2,
            token: 2,
            notify: Notify::IfNotInjected,
            fetch: false,
        };
        let before = Instant::now();
        let outcome = kit::put(&mut *here, &put).map(|_| ()).and_then(|()| here.poll(&mut Vec::new()));
        ensure!(before.elapsed() < Duration::from_secs(5), "a put and a poll took {:?}", before.elapsed());
        third.poll(&mut Vec::new())?;
        seen = outcome.err();
    }
    match seen {
        None | Some(Error::Call { .. } | Error::Completion { peer: Some(FIRST) | None, .. }) => Ok(()),
        Some(other) => Err(format!("a peer that is gone gave: {other:?}").into()),
    }
}
