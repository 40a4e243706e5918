//! The one file of the engine that accesses memory which puts read and write: headers, mailboxes, control messages and
//! staging. Steps access elements in `buffer`, by the same rules.
//!
//! The functions are safe for the rest of the engine, because the protocol says who owns which bytes when (docs/wire.md), and
//! one thread at a time drives the engine:
//!
//! - The sender owns a slot, and the place of a write or of a piece of a message, from when it has the credit or the clear to
//!   send for it; the receiver owns it from the arrival of the message's immediate until it gives credit again.
//! - The one member that writes to a part of a mailbox owns it until its immediate has arrived; then the receiver owns it, and reads
//!   it at once. The member writes it again only when it knows that the receiver has read it:
//!   - a window is described again when it has been closed, which takes an answer of the rank that has read the description;
//!   - a request to close a window is repeated only after its answer, and answered again only if it is repeated;
//!   - a mismatch probe waits for the control message that says that the last one was read
//!     ([`ControlKind::Read`](super::wire::ControlKind::Read)). Of a probe for a message from point to point only the immediate counts;
//!   - a clear to send is sent when the operation of the last one has ended. It ends only after every rank that got that one has sent a
//!     write, or a message through a slot if the write was refused: in a schedule that has writes every source writes (the checker),
//!     and only after it has read the clear to send. So at most two of one rank exist at once;
//!   - a rank sends its handshake and its end of a communicator once; of credits and `Read` only the immediate counts, and they come
//!     before the end.
//! - This engine owns the sources of its puts (control messages, headers, staging, scratch, borrowed memory). They change only
//!   while no put reads them: a record and its header are free when their put has ended, a control message is written again when
//!   the peer has answered the last one, and the checker proves that steps do not write to the sources of their puts.
//! - A peer itself says where it may be written to: in a window within its credit, by a clear to send for one operation or message,
//!   and in a mailbox as long as the communicator exists.
//!
//! - Only its rank writes to a shared slot. Before a rank reads the slot of another, it has seen the number that was published there after
//!   the slot was written, and the writer waits until all have begun a later round before it writes there again (`comm/slots/mod.rs`).
//!
//! An arrival that breaks these rules is an error ([`Failure::Forged`](unisono_core::Failure::Forged), `Failure::Protocol`) before any
//! memory is accessed for it.
#![allow(unsafe_code)]

use std::sync::atomic::{AtomicU64, Ordering};

use bytemuck::Pod;
use unisono_transport::{Error, Posted, Put, Region, Transport};

/// Reads a value at an offset of a region, in bytes.
pub(crate) fn load<T: Pod>(region: &Region, at: usize) -> Result<T, Error> {
    let mut value = T::zeroed();
    // SAFETY: this engine owns the bytes now: their immediate has arrived, or only the engine writes there.
    unsafe { region.read(at, bytemuck::bytes_of_mut(&mut value))? };
    Ok(value)
}

/// Writes a value at an offset of a region, in bytes, to be put.
pub(crate) fn store<T: Pod>(region: &Region, at: usize, value: &T) -> Result<(), Error> {
    // SAFETY: the engine owns the sources of its puts, and no put in flight reads these bytes.
    unsafe { region.write(at, bytemuck::bytes_of(value)) }
}

/// A word of a region that one process writes and others read.
fn word(region: &Region, at: usize) -> Result<&AtomicU64, Error> {
    let base = region.base().wrapping_add(at).cast::<u64>();
    if at.saturating_add(size_of::<u64>()) > region.len() || !base.is_aligned() {
        return Err(Error::Bounds { offset: at, len: size_of::<u64>(), region: region.len() });
    }
    // SAFETY: within the region, which is borrowed, and aligned. All processes access these words as atomics, or before they are shared.
    Ok(unsafe { AtomicU64::from_ptr(base) })
}

/// Publishes a word in memory that others have mapped: a rank that reads it sees everything that this process wrote before.
pub(crate) fn publish(region: &Region, at: usize, value: u64) -> Result<(), Error> {
    word(region, at).map(|word| word.store(value, Ordering::Release))
}

/// Reads a word that the owner of a mapped region has [published](publish).
pub(crate) fn published(region: &Region, at: usize) -> Result<u64, Error> {
    word(region, at).map(|word| word.load(Ordering::Acquire))
}

/// Begins a put.
pub(crate) fn put(transport: &mut dyn Transport, put: &Put<'_>) -> Result<Posted, Error> {
    // SAFETY: its source does not change until the put has ended or was copied, and this sender owns its target until the
    // immediate has arrived.
    unsafe { transport.put(put) }
}
