//! Interprets the entries of a completion queue.
#![allow(unsafe_code)]

use unisono_libfabric_sys as sys;

use super::{
    call,
    handle::{Cq, Domain},
    post::Pool,
    workarounds::signed_immediate,
};
use crate::{Error, Event, LibraryCall};

/// The event that a completion reports.
pub(super) fn judge(pool: &mut Pool, entry: &sys::fi_cq_data_entry) -> Result<Event, Error> {
    let flags = entry.flags;
    let unexpected = |what: &str| Error::Unexpected {
        call: "fi_cq_read",
        value: format!("{what} (flags {flags:#x}, data {:#x})", entry.data),
    };
    if flags & sys::FI_REMOTE_CQ_DATA != 0 && flags & sys::FI_WRITE == 0 {
        let immediate = signed_immediate::immediate(entry.data)
            .ok_or_else(|| unexpected("an immediate beyond 32 bits"))?;
        // The entry's length cannot be relied on: `net` and `tcp` report 0 (prov/net/src/xnet_cq.c, xnet_report_success).
        return Ok(Event::Arrived { immediate, len: None });
    }
    let put = pool.done(entry.op_context).ok_or_else(|| unexpected("a completion of an unknown put"))?;
    Ok(Event::Sent { token: put.token })
}

/// The error that the queue holds.
pub(super) fn failure(queue: &Cq, domain: &Domain, pool: &Pool) -> Error {
    /// Newer libraries may have fields after those of the headers that were compiled against.
    #[repr(C)]
    struct Roomy {
        entry: sys::fi_cq_err_entry,
        _room: [u64; 8],
    }
    // SAFETY: numbers and pointers; zero asks the library to lend its own error data.
    let mut roomy: Roomy = unsafe { std::mem::zeroed() };
    let _serial = domain.enter(LibraryCall::Poll);
    // SAFETY: the queue is open; one entry is written.
    let result = unsafe { sys::fi_cq_readerr(queue.as_ptr(), &raw mut roomy.entry, 0) };
    if result != 1 {
        return Error::Unexpected { call: "fi_cq_readerr", value: result.to_string() };
    }
    let (entry, mut words) = (roomy.entry, [0; 256]);
    let (errno, data, len) = (entry.prov_errno, entry.err_data, words.len());
    // SAFETY: the queue is open; the text goes to `words` or is the library's own.
    let detail =
        unsafe { call::text(sys::fi_cq_strerror(queue.as_ptr(), errno, data, words.as_mut_ptr(), len)) };
    let code = i64::from(entry.err);
    Error::Completion {
        peer: pool.peer(entry.op_context),
        code,
        reason: call::reason(code),
        provider_code: entry.prov_errno.into(),
        detail,
    }
}
