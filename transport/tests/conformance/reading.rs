//! Memory of a peer's process that need be neither registered nor mapped: it is read where it lies, or that is an error.

use crate::{
    kit::{self, FIRST, Opener, Outcome, Tally, ensure, pattern, until},
    mapping::near,
};

/// Two ends, and whether the first can read the process of the second: always if they share memory, since they are in one process.
fn ends(opener: &mut Opener) -> Result<(kit::Endpoint, kit::Endpoint, bool), Box<dyn std::error::Error>> {
    let (mut here, mut there) = opener.pair()?;
    let near = near(&*here, &*there);
    until("a peer whose memory can be read", || {
        Tally::default().poll(&mut *here)?;
        Tally::default().poll(&mut *there)?;
        Ok(here.reads(FIRST)? || !near)
    })?;
    ensure!(near || !here.reads(FIRST)?, "the memory of a distant process can be read");
    Ok((here, there, near))
}

/// Every length and place is read exactly.
pub(crate) fn exact(opener: &mut Opener) -> Outcome {
    let (mut here, _there, reads) = ends(opener)?;
    let theirs = pattern(7, 3 << 20);
    for (from, len) in [(0, 0), (0, 1), (5, 4096), (4095, 2), (1, 1 << 20), (17, (2 << 20) + 3), (0, 3 << 20)]
    {
        if !reads {
            break;
        }
        let around = pattern(8, len + 2);
        let mut ours = around.clone();
        kit::read(&mut *here, theirs[from..].as_ptr(), &mut ours[1..=len])?;
        ensure!(ours[1..=len] == theirs[from..from + len], "{len} bytes from {from} differ");
        ensure!(ours[0] == around[0] && ours[len + 1] == around[len + 1], "bytes around {len} bytes changed");
    }
    Ok(())
}

/// What is read when the peer has closed its endpoint may be of another: that is an error, although the process lives.
pub(crate) fn closed(opener: &mut Opener) -> Outcome {
    let (mut here, there, _) = ends(opener)?;
    let (bytes, mut into) = (pattern(9, 100), vec![0; 100]);
    drop(there);
    let read = kit::read(&mut *here, bytes.as_ptr(), &mut into);
    ensure!(read.as_ref().is_err_and(|error| error.peer() == Some(FIRST)), "a closed peer: {read:?}");
    Ok(())
}

/// Bytes that are not there are an error that names the peer, and the endpoint goes on.
pub(crate) fn absent(opener: &mut Opener) -> Outcome {
    let (mut here, _there, reads) = ends(opener)?;
    let (bytes, mut into) = (pattern(9, 100), vec![0; 100]);
    for at in [0_usize, 4096, usize::MAX - 50] {
        let read = kit::read(&mut *here, std::ptr::without_provenance(at), &mut into);
        let error = read.err().ok_or("bytes that are not there were read")?;
        ensure!(error.peer() == Some(FIRST), "{error:?} does not name the peer");
    }
    let read = kit::read(&mut *here, bytes.as_ptr(), &mut into);
    ensure!(read.is_ok() == reads && (!reads || into == bytes), "after an error: {read:?}");
    Tally::default().poll(&mut *here)?;
    Ok(())
}
