//! Mapped memory of a peer: a rank reads it in place after a word was published there, and a notification wakes a rank that sleeps.

use std::time::{Duration, Instant};

use unisono_transport::{Mapping, Memory, Region, RemoteRegion, Transport};

use crate::kit::{
    self, FIRST, Opener, Outcome, PATIENCE, Tally, bytes_of, ensure, pattern, publish, published, remote,
    until,
};

/// The bytes of a region: enough to be shared by every transport that maps.
const LEN: usize = 64 << 10;
/// The sleep that nobody waits for, since it is ended.
const LONG: Duration = Duration::from_secs(20);
/// A sleep that lasts longer was not ended: generous, for the machine may be busy.
const PROMPT: Duration = Duration::from_secs(10);

/// Two ends, each with its own region and its view of the other's.
type Ends = [(kit::Endpoint, Region, Region); 2];

/// True if one end can map what the other allocates.
pub(crate) fn near(here: &dyn Transport, there: &dyn Transport) -> bool {
    let (ours, theirs) = (here.limits(), there.limits());
    ours.maps && ours.shares == theirs.shares
}

/// Asks for a region of the other's until that is decided.
fn map(
    here: &mut dyn Transport,
    there: &mut dyn Transport,
    region: &RemoteRegion,
) -> Result<Option<Region>, Box<dyn std::error::Error>> {
    let mut decided = None;
    until("a region that is mapped, or is not", || {
        match here.map(FIRST, region)? {
            Mapping::Yes(view) => decided = Some(Some(view)),
            Mapping::No => decided = Some(None),
            Mapping::NotYet => {
                Tally::default().poll(here)?;
                Tally::default().poll(there)?;
            }
        }
        Ok(decided.is_some())
    })?;
    Ok(decided.flatten())
}

/// Two ends that have mapped each other's memory, of which one has allocated its own and one shares it; nothing if this transport cannot.
fn ends(opener: &mut Opener) -> Result<Option<Ends>, Box<dyn std::error::Error>> {
    let (mut here, mut there) = opener.pair()?;
    let (ours, theirs) = (here.allocate(LEN)?, there.share(LEN)?);
    let near = near(&*here, &*there);
    ensure!(!near || remote(&theirs)?.mappable, "what was allocated cannot be mapped");
    let view = map(&mut *here, &mut *there, &remote(&theirs)?)?;
    let back = map(&mut *there, &mut *here, &remote(&ours)?)?;
    ensure!(view.is_some() == near && back.is_some() == near, "mapped: {near}, {view:?}, {back:?}");
    Ok(view.zip(back).map(|(view, back)| [(here, ours, view), (there, theirs, back)]))
}

/// Sleeps until the other has published this number, or a later one.
fn await_word(
    end: &mut dyn Transport,
    view: &Region,
    number: u64,
) -> Result<u32, Box<dyn std::error::Error>> {
    let (mut parks, began) = (0, Instant::now());
    while published(view, 0)? < number {
        end.park(LONG, &[], &mut || published(view, 0).is_ok_and(|word| word >= number))?;
        Tally::default().poll(end)?;
        parks += 1;
        ensure!(began.elapsed() < PROMPT, "word {number} came after {:?}, {parks} sleeps", began.elapsed());
    }
    Ok(parks)
}

/// Where the bytes of a round lie, and how many there are.
fn place(round: u32) -> (usize, usize) {
    let (slot, lens) = ((round % 2) as usize, [1, 24, 25, 4096, 20_000]);
    (64 + slot * LEN / 2, lens[(round % 5) as usize])
}

/// Both words are 0. In every round each end writes bytes to its own memory, publishes the round's number, and reads the other's in place. `seeds` are
/// this end's and the other's. The other may be one round ahead, in the other half.
pub(crate) fn talk(
    end: &mut dyn Transport,
    [own, view]: [&Region; 2],
    rounds: u32,
    seeds: [u32; 2],
) -> Outcome {
    for round in 1..=rounds {
        let (at, len) = place(round);
        kit::write(own, at, &pattern(round ^ (seeds[0] << 16), len))?;
        publish(own, 0, round.into())?;
        end.notify(&[FIRST])?;
        await_word(end, view, round.into())?;
        ensure!(
            bytes_of(view, at, len)? == pattern(round ^ (seeds[1] << 16), len),
            "round {round}: {len} bytes are damaged"
        );
    }
    Ok(())
}

/// What the end with this seed has written last is there.
pub(crate) fn last(view: &Region, rounds: u32, seed: u32) -> Outcome {
    let (at, len) = place(rounds);
    ensure!(published(view, 0)? == rounds.into(), "{} was published last", published(view, 0)?);
    ensure!(bytes_of(view, at, len)? == pattern(rounds ^ (seed << 16), len), "its bytes are gone");
    Ok(())
}

pub(crate) fn read_in_place(opener: &mut Opener) -> Outcome {
    let Some([here, there]) = ends(opener)? else { return Ok(()) };
    let go = |(mut end, own, view): (kit::Endpoint, Region, Region), seeds| {
        talk(&mut *end, [&own, &view], 300, seeds).map_err(|error| error.to_string())
    };
    let other = std::thread::spawn(move || go(there, [2, 1]));
    go(here, [1, 2])?;
    other.join().map_err(|_| "the other end panicked")??;
    Ok(())
}

/// Only what was allocated can be mapped, whatever a peer says of it.
pub(crate) fn registered(opener: &mut Opener) -> Outcome {
    let (mut here, mut there) = opener.pair()?;
    let window = there.register(Memory::map(LEN)?)?;
    let region = remote(&window)?;
    let wanted = region.mappable && near(&*here, &*there);
    for mappable in [region.mappable, true] {
        let view = map(&mut *here, &mut *there, &RemoteRegion { mappable, ..region })?;
        ensure!(view.is_some() == wanted, "mapped: {}, and should be: {wanted}", view.is_some());
    }
    Ok(())
}

/// A key that is gone, or a region of another length, gives nothing; and what is there is mapped afterwards as ever.
pub(crate) fn nowhere(opener: &mut Opener) -> Outcome {
    let (mut here, mut there) = opener.pair()?;
    let near = near(&*here, &*there);
    let (gone, kept) = (there.allocate(LEN)?, there.allocate(LEN)?);
    kit::write(&gone, 8, &pattern(1, 100))?;
    kit::write(&kept, 8, &pattern(2, 100))?;
    let stale = remote(&gone)?;
    let view = map(&mut *here, &mut *there, &stale)?;
    drop(gone);
    for _ in 0..2 {
        let again = map(&mut *here, &mut *there, &stale)?;
        ensure!(again.is_none(), "a region that is gone is mapped");
    }
    if let Some(view) = view {
        ensure!(
            bytes_of(&view, 8, 100)? == pattern(1, 100),
            "the bytes of a region that is gone are damaged"
        );
    }
    let region = remote(&kept)?;
    let never = RemoteRegion { key: region.key ^ 1, ..region };
    let longer = RemoteRegion { len: region.len + 1, ..region };
    for wrong in [never, longer] {
        let view = map(&mut *here, &mut *there, &wrong)?;
        ensure!(view.is_none(), "{wrong:?} is mapped");
    }
    let view = map(&mut *here, &mut *there, &region)?;
    ensure!(view.is_some() == near, "mapped: {}", view.is_some());
    view.map_or(Ok(()), |view| {
        ensure!(bytes_of(&view, 8, 100)? == pattern(2, 100), "its bytes are damaged");
        Ok(())
    })
}

/// It stays until it is dropped: after the peer's region, the peer's endpoint and this one.
pub(crate) fn outlives(opener: &mut Opener) -> Outcome {
    for order in [[0, 1, 2], [1, 2, 0], [2, 0, 1]] {
        let Some([(here, _ours, view), (there, theirs, _)]) = ends(opener)? else { return Ok(()) };
        kit::write(&theirs, 8, &pattern(3, LEN - 8))?;
        publish(&theirs, 0, 9)?;
        let (mut here, mut there, mut theirs) = (Some(here), Some(there), Some(theirs));
        for which in order {
            match which {
                0 => drop(theirs.take()),
                1 => drop(there.take()),
                _ => drop(here.take()),
            }
            ensure!(published(&view, 0)? == 9, "order {order:?}: a word is gone");
            ensure!(bytes_of(&view, 8, LEN - 8)? == pattern(3, LEN - 8), "order {order:?}: bytes are gone");
        }
    }
    Ok(())
}

/// It is asked, and then there is no sleep; if it is not ready, there is one.
pub(crate) fn ready(opener: &mut Opener) -> Outcome {
    let Some([(mut here, ..), _there]) = ends(opener)? else { return Ok(()) };
    let (mut asked, began) = (0, Instant::now());
    for _ in 0..3 {
        here.park(LONG, &[], &mut || {
            asked += 1;
            true
        })?;
    }
    ensure!(asked >= 3, "asked {asked} times whether it is ready in 3 sleeps");
    ensure!(began.elapsed() < PROMPT, "it slept for {:?} though it was ready", began.elapsed());
    // What set up the wire may end some sleeps early.
    let nap = Duration::from_millis(20);
    let began = Instant::now();
    for _ in 0..20 {
        here.park(nap, &[], &mut || false)?;
    }
    ensure!(began.elapsed() > nap, "it does not sleep");
    Ok(())
}

/// A sleep ends promptly when the peer notifies, and not much more often than that.
pub(crate) fn notified(opener: &mut Opener) -> Outcome {
    const ROUNDS: u64 = 5;
    let Some([(mut here, _ours, view), (mut there, theirs, _)]) = ends(opener)? else { return Ok(()) };
    let sleeper = std::thread::spawn(move || -> Result<u32, String> {
        (1..=ROUNDS)
            .map(|round| await_word(&mut *here, &view, round).map_err(|error| error.to_string()))
            .sum()
    });
    for round in 1..=ROUNDS {
        std::thread::sleep(Duration::from_millis(40));
        publish(&theirs, 0, round)?;
        there.notify(&[FIRST])?;
    }
    let parks = sleeper.join().map_err(|_| "the sleeper panicked")??;
    ensure!(parks < 50, "{parks} sleeps for {ROUNDS} notices: it spins");
    Ok(())
}

/// The peer publishes and notifies after this end has looked, and before it sleeps.
pub(crate) fn between(opener: &mut Opener) -> Outcome {
    let Some([(mut here, _ours, view), (mut there, theirs, _)]) = ends(opener)? else { return Ok(()) };
    for round in 1..=20 {
        let began = Instant::now();
        let mut outcome = Ok(());
        here.park(LONG, &[], &mut || {
            let seen = published(&view, 0).is_ok_and(|word| word >= round);
            outcome = publish(&theirs, 0, round).and_then(|()| Ok(there.notify(&[FIRST])?));
            seen
        })?;
        outcome?;
        ensure!(began.elapsed() < PROMPT, "round {round}: it slept for {:?}", began.elapsed());
    }
    Ok(())
}

/// Two ends that sleep as soon as they have to wait.
pub(crate) fn many_rounds(opener: &mut Opener) -> Outcome {
    const ROUNDS: u64 = 1500;
    let Some([here, there]) = ends(opener)? else { return Ok(()) };
    let go = |(mut end, own, view): (kit::Endpoint, Region, Region)| -> Result<(), String> {
        for round in 1..=ROUNDS {
            publish(&own, 0, round).map_err(|error| error.to_string())?;
            end.notify(&[FIRST]).map_err(|error| error.to_string())?;
            await_word(&mut *end, &view, round).map_err(|error| error.to_string())?;
        }
        Ok(())
    };
    let began = Instant::now();
    let other = std::thread::spawn(move || go(there));
    go(here)?;
    other.join().map_err(|_| "the other end panicked")??;
    ensure!(began.elapsed() < PATIENCE, "{ROUNDS} rounds took {:?}", began.elapsed());
    Ok(())
}
