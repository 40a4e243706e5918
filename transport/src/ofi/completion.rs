//! What the entries of a completion queue mean.
#![allow(unsafe_code)]

use super::{
    call,
    handle::{Cq, Domain},
    provider::Provider,
    put::Pool,
    sys,
};
use crate::{Error, Event, LibraryCall};

/// What a completion means: nothing if it is the end of a put that nobody wants to be told of.
pub(super) fn judge(
    pool: &mut Pool,
    facts: &Provider,
    entry: &sys::fi_cq_data_entry,
) -> Result<Option<Event>, Error> {
    let flags = entry.flags;
    let unexpected = |what: &str| Error::Unexpected {
        call: "fi_cq_read",
        value: format!("{what} (flags {flags:#x}, data {:#x})", entry.data),
    };
    if flags & sys::FI_REMOTE_CQ_DATA != 0 && flags & sys::FI_WRITE == 0 {
        let immediate = immediate(entry.data).ok_or_else(|| unexpected("an immediate beyond 32 bits"))?;
        let len = facts.arrival_len.then_some(entry.len);
        return Ok(Some(Event::Arrived { immediate, len }));
    }
    let put = pool.done(entry.op_context).ok_or_else(|| unexpected("a completion of no put of ours"))?;
    Ok(put.token.map(|token| Event::Sent { token }))
}

/// The immediate in what a completion tells. efa hands it on as a signed number in libfabric 1.18.0 to 1.19.0
/// (prov/efa/src/rdm: rxr_ep.c, recv_rdma_with_imm_completion; efa_rdm_ep_progress.c,
/// efa_rdm_ep_proc_ibv_recv_rdma_with_imm_completion): then its highest bit is repeated above it.
fn immediate(data: u64) -> Option<u32> {
    let extended = || i32::try_from(data.cast_signed()).ok().map(i32::cast_unsigned);
    u32::try_from(data).ok().or_else(extended)
}

/// The error that the queue holds.
pub(super) fn failure(queue: &Cq, domain: &Domain, pool: &Pool) -> Error {
    /// Newer libraries may know of fields behind those of the headers built against.
    #[repr(C)]
    struct Roomy {
        entry: sys::fi_cq_err_entry,
        _room: [u64; 8],
    }
    // SAFETY: numbers and pointers; zero asks the library to lend its own error data.
    let mut roomy: Roomy = unsafe { std::mem::zeroed() };
    let serial = domain.enter(LibraryCall::Poll);
    // SAFETY: the queue is open; one entry is written.
    let result = unsafe { sys::fi_cq_readerr(queue.as_ptr(), &raw mut roomy.entry, 0) };
    let entry = roomy.entry;
    let mut words = [0; 256];
    let detail = if result == 1 {
        // SAFETY: the queue is open; the text goes to `words` or is the library's own.
        unsafe {
            let text = sys::fi_cq_strerror(
                queue.as_ptr(),
                entry.prov_errno,
                entry.err_data,
                words.as_mut_ptr(),
                words.len(),
            );
            call::text(text)
        }
    } else {
        String::new()
    };
    drop(serial);
    if result != 1 {
        return Error::Unexpected { call: "fi_cq_readerr", value: result.to_string() };
    }
    let code = i64::from(entry.err);
    Error::Completion {
        peer: pool.peer(entry.op_context),
        code,
        reason: call::reason(code),
        provider_code: entry.prov_errno.into(),
        detail,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_immediate_is_taken_whether_or_not_its_sign_was_extended() {
        for sent in [0, 1, 0x7fff_ffff, 0x8000_0000, 0x8000_0001, u32::MAX] {
            assert_eq!(immediate(sent.into()), Some(sent));
            assert_eq!(immediate(i64::from(sent.cast_signed()).cast_unsigned()), Some(sent));
        }
        // Above 31 bits that are 0, and where not all of the upper half are 1, there is more than an immediate.
        for data in [1 << 32, 0xffff_ffff_0000_0000, 0xffff_ffff_7fff_ffff, 0xffff_fffe_8000_0000, 1 << 63] {
            assert_eq!(immediate(data), None, "{data:#x}");
        }
    }
}
