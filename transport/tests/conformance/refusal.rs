//! Invalid puts, addresses and regions are refused with a typed error, and the endpoint still works.

use std::time::{Duration, Instant};

use unisono_transport::{
    Address, Error, Memory, Notify, Peer, Posted, Put, Region, RemoteRegion, Source, Target, Transport,
    inproc::Hub,
};

use crate::{
    kit::{
        self, Endpoint, FIRST, Opener, Outcome, Tally, bytes_of, ensure, filled, pattern, put_all, remote,
        until,
    },
    sim,
};

/// The endpoints still work: one put lands.
fn still_works(here: &mut dyn Transport, there: &mut dyn Transport) -> Outcome {
    let window = there.register(Memory::map(5000)?)?;
    let bytes = pattern(77, 5000);
    let source = filled(here, &bytes)?;
    let (mut ours, mut theirs) = (Tally::default(), Tally::default());
    let mut posted = false;
    until("a put after the refusals", || {
        if !posted {
            posted = put_all(here, &source, remote(&window)?, 0, 5)? == Posted::Yes;
        }
        ours.poll(here)?;
        theirs.poll(there)?;
        Ok(!theirs.arrived.is_empty())
    })?;
    theirs.expect([5], [])?;
    ensure!(bytes_of(&window, 0, 5000)? == bytes, "the put after the refusals is damaged");
    Ok(())
}

pub(crate) fn out_of_bounds(opener: &mut Opener) -> Outcome {
    let (mut here, mut there) = opener.pair()?;
    let source = filled(&mut *here, &[0; 100])?;
    for (offset, len) in [(0, 101), (100, 1), (101, 0), (usize::MAX, 1), (1, usize::MAX), (50, 51)] {
        let refused = matches!(Source::new(&source, offset, len), Err(Error::Bounds { region: 100, .. }));
        ensure!(refused, "{len} bytes from {offset} of 100 are taken for a source");
    }
    let window = there.register(Memory::map(100)?)?;
    let region = remote(&window)?;
    for offset in [1, 100, u64::MAX, u64::MAX - 50] {
        let outcome = put_all(&mut *here, &source, region, offset, 0);
        ensure!(matches!(outcome, Err(Error::Bounds { .. })), "100 bytes to {offset} of 100: {outcome:?}");
    }
    still_works(&mut *here, &mut *there)
}

pub(crate) fn malformed(opener: &mut Opener) -> Outcome {
    let (mut here, mut there) = opener.pair()?;
    let limits = here.limits().clone();
    let source = filled(&mut *here, &pattern(0, 1000))?;
    let window = there.register(Memory::map(1000)?)?;
    let target = Target { region: remote(&window)?, offset: 0 };
    let one = Source::new(&source, 0, 1)?;
    let nothing = Source::new(&source, 0, 0)?;
    let many = vec![one; limits.max_sources + 1];
    let cases: [(&str, Peer, &[Source<'_>]); 6] = [
        ("no source", FIRST, &[]),
        ("no byte", FIRST, &[nothing]),
        ("no byte in two sources", FIRST, &[nothing, nothing]),
        ("too many sources", FIRST, &many),
        ("an unknown peer", Peer(1), &[one]),
        ("a peer beyond all", Peer(u32::MAX), &[one]),
    ];
    for (what, to, sources) in cases {
        let outcome = kit::put(
            &mut *here,
            &Put { to, sources, target, immediate: 0, token: 0, notify: Notify::IfNotInjected, fetch: false },
        );
        ensure!(matches!(outcome, Err(Error::BadPut { .. })), "a put with {what}: {outcome:?}");
    }
    still_works(&mut *here, &mut *there)
}

pub(crate) fn unregistered(opener: &mut Opener) -> Outcome {
    let (mut here, mut there) = opener.pair()?;
    let limits = here.limits().clone();
    let len = limits.max_inject + 1000;
    let bytes = pattern(4, len);
    let source = Region::unregistered(Memory::map(len)?);
    kit::write(&source, 0, &bytes)?;
    let window = there.register(Memory::map(len)?)?;
    let region = remote(&window)?;
    if limits.local_registration {
        let outcome = put_all(&mut *here, &source, region, 0, 1);
        ensure!(matches!(outcome, Err(Error::BadPut { .. })), "an unregistered source: {outcome:?}");
    } else {
        let mut theirs = Tally::default();
        let mut posted = false;
        until("a put from unregistered memory", || {
            if !posted {
                posted = put_all(&mut *here, &source, region, 0, 1)? == Posted::Yes;
            }
            Tally::default().poll(&mut *here)?;
            theirs.poll(&mut *there)?;
            Ok(!theirs.arrived.is_empty())
        })?;
        ensure!(bytes_of(&window, 0, len)? == bytes, "a put from unregistered memory is damaged");
    }
    if limits.max_inject > 0 {
        // Injected bytes are copied, so they may come from anywhere.
        let small = Region::unregistered(Memory::map(1)?);
        kit::write(&small, 0, &[0x42])?;
        let (mut posted, mut theirs) = (false, Tally::default());
        until("an injected put from unregistered memory", || {
            if !posted {
                posted = put_all(&mut *here, &small, region, 3, 2)? == Posted::Yes;
            }
            Tally::default().poll(&mut *here)?;
            theirs.poll(&mut *there)?;
            Ok(theirs.arrived.contains_key(&2))
        })?;
        ensure!(bytes_of(&window, 3, 1)? == [0x42], "an injected put from unregistered memory is damaged");
    }
    still_works(&mut *here, &mut *there)
}

pub(crate) fn foreign_address(opener: &mut Opener) -> Outcome {
    let (mut here, mut there) = opener.pair()?;
    let own = there.address().0.clone();
    let mut cut = own.clone();
    cut.pop();
    let mut grown = own.clone();
    grown.push(1);
    let mut strangers = vec![
        Vec::new(),
        vec![0; 3],
        vec![0xff; 16],
        vec![0xff; 300],
        own.get(1..).unwrap_or_default().to_vec(),
        own.get(..own.len() / 2).unwrap_or_default().to_vec(),
        cut,
        grown,
    ];
    strangers.push(Hub::new().open().address().0.clone());
    strangers.push(sim::Fabric::new(sim::Config::default()).open().address().0.clone());
    for stranger in strangers {
        let outcome = here.connect(&Address(stranger.clone()));
        ensure!(matches!(outcome, Err(Error::BadAddress { .. })), "the address {stranger:x?}: {outcome:?}");
    }
    still_works(&mut *here, &mut *there)
}

pub(crate) fn one_peer_per_address(opener: &mut Opener) -> Outcome {
    let (mut here, mut there) = opener.pair()?;
    let mut third = opener.open()?;
    let again = here.connect(there.address())?;
    ensure!(again == FIRST, "the same address gave {again:?} the second time");
    let second = here.connect(third.address())?;
    ensure!(second == Peer(1), "the second address gave {second:?}");
    let own = here.address().clone();
    let myself = here.connect(&own)?;
    ensure!(myself == Peer(2), "its own address gave {myself:?}");
    ensure!(here.connect(&own)? == Peer(2), "its own address gave another peer the second time");
    third.poll(&mut Vec::new())?;
    still_works(&mut *here, &mut *there)
}

/// A stranger that knows an endpoint's address but no keys cannot write to its memory, and does not disturb its peers.
pub(crate) fn guessed_keys(opener: &mut Opener) -> Outcome {
    const GUESSES: u64 = 24;
    let (mut here, mut there) = opener.pair()?;
    let window = filled(&mut *there, &[0x11; 256])?;
    let own = remote(&window)?;
    if own.key <= u64::from(u32::MAX) && own.key > GUESSES {
        // The NIC's driver has chosen it (docs/security.md).
        return still_works(&mut *here, &mut *there);
    }
    still_works(&mut *here, &mut *there)?;
    let mut theirs = Tally::default();
    let mut stranger = None;
    for key in 0..GUESSES {
        let endpoint: &mut Endpoint = match &mut stranger {
            Some(endpoint) => endpoint,
            none => {
                let mut endpoint = opener.open()?;
                endpoint.connect(there.address())?;
                none.insert(endpoint)
            }
        };
        let source = filled(&mut **endpoint, &[0x77; 64])?;
        let (mut posted, mut broken, mut ours) = (false, false, Tally::default());
        let began = Instant::now();
        // Whether and when the stranger learns of it depends on its provider.
        while !broken && began.elapsed() < Duration::from_millis(if posted { 20 } else { 2000 }) {
            if !posted {
                match put_all(&mut **endpoint, &source, RemoteRegion { key, ..own }, 0, 9) {
                    Ok(answer) => posted = answer == Posted::Yes,
                    Err(Error::Completion { .. } | Error::Call { .. }) => broken = true,
                    Err(other) => return Err(other.into()),
                }
            }
            broken |= ours.poll(&mut **endpoint).is_err();
            theirs.poll(&mut *there)?;
        }
        if broken {
            stranger = None;
        }
        ensure!(theirs.arrived.is_empty(), "a put under the key {key} has arrived: {:?}", theirs.arrived);
    }
    ensure!(bytes_of(&window, 0, 256)? == [0x11; 256], "bytes were written under a key that was guessed");
    still_works(&mut *here, &mut *there)
}
