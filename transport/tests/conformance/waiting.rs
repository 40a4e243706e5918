//! Parking ends with an arrival, with its timeout, or when another thread wakes it, whichever comes first.

use std::{
    io::{Read, Write},
    os::{fd::AsFd, unix::net::UnixStream},
    time::{Duration, Instant},
};

use unisono_transport::{Memory, Posted};

use crate::kit::{Opener, Outcome, Tally, ensure, filled, put_all, remote, until};

pub(crate) fn timeout(opener: &mut Opener) -> Outcome {
    let (mut here, mut there) = opener.pair()?;
    Tally::default().poll(&mut *there)?;
    for milliseconds in [0, 1, 20, 100] {
        let timeout = Duration::from_millis(milliseconds);
        let began = Instant::now();
        here.park(timeout, &[], &mut || false)?;
        // Generous, for the machine may be busy; what is looked for is sleeping without end.
        ensure!(began.elapsed() < timeout + Duration::from_secs(2), "{timeout:?} took {:?}", began.elapsed());
    }
    Ok(())
}

/// A thread that parks is woken by a put from another thread, and does not spin meanwhile.
pub(crate) fn arrival(opener: &mut Opener) -> Outcome {
    let (mut here, mut there) = opener.pair()?;
    let wakes = there.limits().wakes;
    let window = there.register(Memory::map(8)?)?;
    let region = remote(&window)?;
    let (rounds, pause) = (5_u32, Duration::from_millis(40));
    let (sender, receiver) = std::sync::mpsc::channel::<()>();

    let sleeper = std::thread::spawn(move || -> Result<(u32, Duration), String> {
        let mut tally = Tally::default();
        let mut parks = 0;
        let began = Instant::now();
        for round in 0..rounds {
            until("an arrival while parked", || {
                if !tally.poll(&mut *there)? {
                    there.park(Duration::from_secs(20), &[], &mut || false)?;
                    parks += 1;
                }
                Ok(tally.arrived.contains_key(&round))
            })
            .map_err(|error| error.to_string())?;
            sender.send(()).map_err(|error| error.to_string())?;
        }
        Ok((parks, began.elapsed()))
    });
    let source = filled(&mut *here, &[1; 8])?;
    for round in 0..rounds {
        std::thread::sleep(pause);
        let mut posted = false;
        until("a put to a parked peer", || {
            if !posted {
                posted = put_all(&mut *here, &source, region, 0, round)? == Posted::Yes;
            }
            Tally::default().poll(&mut *here)?;
            match receiver.try_recv() {
                Ok(()) => Ok(true),
                Err(std::sync::mpsc::TryRecvError::Empty) => Ok(false),
                Err(error) => Err(error.into()),
            }
        })?;
    }
    let (parks, took) = sleeper.join().map_err(|_| "the parked thread panicked")??;
    ensure!(took < Duration::from_secs(10), "{rounds} arrivals took {took:?}: parking does not wake");
    if wakes {
        // Setting up the wire wakes it a few times too.
        ensure!(parks < 50 * rounds, "{parks} parks for {rounds} arrivals: it spins instead of sleeping");
    }
    Ok(())
}

/// A thread that parks is woken by another, whether it sleeps already or not yet.
pub(crate) fn wake(opener: &mut Opener) -> Outcome {
    let (mut here, mut there) = opener.pair()?;
    Tally::default().poll(&mut *there)?;
    let waker = here.waker();
    let (mut woken, began) = (0, Instant::now());
    // Before: the next park returns at once, and the one after it sleeps again.
    waker.wake();
    here.park(Duration::from_secs(20), &[], &mut || false)?;
    ensure!(began.elapsed() < Duration::from_secs(10), "a park after a wake took {:?}", began.elapsed());
    let (ready, sleeps) = std::sync::mpsc::channel::<()>();
    let sleeper = std::thread::spawn(move || -> Result<Duration, String> {
        let began = Instant::now();
        while sleeps.try_recv().is_err() {
            here.park(Duration::from_secs(20), &[], &mut || false).map_err(|error| error.to_string())?;
        }
        Ok(began.elapsed())
    });
    // Those without a descriptor to wait on nap, and when they wake is not judged.
    while !sleeper.is_finished() && woken < 100 {
        std::thread::sleep(Duration::from_millis(20));
        if woken == 2 {
            ready.send(())?;
        }
        waker.wake();
        woken += 1;
    }
    let took = sleeper.join().map_err(|_| "the parked thread panicked")??;
    ensure!(took < Duration::from_secs(10), "{woken} wakes took {took:?}");
    Ok(())
}

/// A thread that parks beside a descriptor is woken by that too, and by its timeout and its waker as otherwise.
pub(crate) fn beside(opener: &mut Opener) -> Outcome {
    let (mut here, mut there) = opener.pair()?;
    Tally::default().poll(&mut *there)?;
    let (mut near, mut far) = UnixStream::pair()?;
    near.set_nonblocking(true)?;
    let began = Instant::now();
    here.park(Duration::from_millis(20), &[near.as_fd()], &mut || false)?;
    here.waker().wake();
    here.park(Duration::from_secs(20), &[near.as_fd()], &mut || false)?;
    let writer = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(40));
        far.write_all(&[1, 2]).map(|()| far)
    });
    let mut byte = [0];
    while near.read(&mut byte).is_err() {
        Tally::default().poll(&mut *here)?;
        here.park(Duration::from_secs(20), &[near.as_fd()], &mut || false)?;
    }
    let _far = writer.join().map_err(|_| "the writing thread panicked")??;
    // It is readable still.
    here.park(Duration::from_secs(20), &[near.as_fd()], &mut || false)?;
    near.read_exact(&mut byte)?;
    ensure!(byte == [2], "parking read the descriptor");
    ensure!(began.elapsed() < Duration::from_secs(10), "parking beside it took {:?}", began.elapsed());
    Ok(())
}
