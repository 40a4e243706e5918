//! The one file of the engine that touches memory which puts read and write: headers, mailboxes, control messages and
//! staging. What steps do with elements is done in `buffer`, on the same ground.
//!
//! The functions are safe for the rest of the engine, because the protocol says who owns which bytes when (docs/wire.md), and
//! one thread at a time drives the engine:
//!
//! - A slot, and the place that a write or a piece of a message goes to, belongs to its sender from the credit or the clear
//!   to send for it on, and to its receiver from the arrival of the message's immediate on, until the receiver gives credit again.
//! - A part of a mailbox belongs to the one member that writes to it until its immediate has arrived, and then to the
//!   receiver until that has read it, at once. The member writes it again only when it knows of that:
//!   - a window is told again when it has been closed, which takes an answer of the rank that has read of it;
//!   - that a window is to be closed is told again after the answer, and answered again when it is told again;
//!   - a mismatch probe waits for the word that the one before was read ([`ControlKind::Read`](super::wire::ControlKind::Read)). Of
//!     those for messages from point to point only the immediate is looked at;
//!   - a clear to send goes when the operation of the one before is over, which it is not before a write, or what went through a
//!     slot because that was refused, has come from everyone who got it: of a schedule that has writes every source writes
//!     (`schedule::check`), and only after it has read the clear to send. So there are at most two of one rank at once;
//!   - the greeting and the end of a group are told once; of credits and `Read` only the immediate counts, and they come before
//!     the end.
//! - What puts are made from (control messages, headers, staging, scratch, borrowed memory) belongs to this engine. It changes only
//!   when no put reads it: a record and its header are free when their put has ended, a control message is written again when
//!   the peer has answered the one before, steps are proved not to write under their own puts.
//! - Where a peer may be written to, it has said itself: a window within its credit, a clear to send for one operation
//!   or message, a mailbox for the life of the group.
//!
//! What arrives against this is an error ([`Failure::Forged`](crate::Failure::Forged), `Failure::Protocol`) before memory is
//! touched for it.
#![allow(unsafe_code)]

use bytemuck::Pod;
use unisono_transport::{Error, Posted, Put, Region, Transport};

/// What lies there.
pub(crate) fn load<T: Pod>(region: &Region, at: usize) -> Result<T, Error> {
    let mut value = T::zeroed();
    // SAFETY: it belongs to this engine now: its immediate has arrived, or nobody but the engine writes there.
    unsafe { region.read(at, bytemuck::bytes_of_mut(&mut value))? };
    Ok(value)
}

/// Lays something there, to be put.
pub(crate) fn store<T: Pod>(region: &Region, at: usize, value: &T) -> Result<(), Error> {
    // SAFETY: what puts are made from is the engine's own, and no put that is under way reads these bytes.
    unsafe { region.write(at, bytemuck::bytes_of(value)) }
}

/// Begins a put.
pub(crate) fn put(transport: &mut dyn Transport, put: &Put<'_>) -> Result<Posted, Error> {
    // SAFETY: its source is kept as it is until the put has ended or was copied, and its target belongs to this sender until
    // the immediate has arrived.
    unsafe { transport.put(put) }
}
