//! How puts are copied, and the tricks for the kernel's sockets (`tcp`, `net`, `tcp;ofi_rxm`): all of them, in one place.
//!
//! Over a socket a put is a system call, and another (a poll) reports that its bytes have left. What the socket does not take waits
//! in a queue of the provider until somebody polls. Therefore:
//!
//! - No put is injected ([`Limits::max_inject`] is 0), so that the end of every put can be reported
//!   (docs/decisions/047-no-inject-where-queued.md).
//! - A put whose caller knows that it leaves at once needs no report ([`Notify::IfNotCopied`]): the library copies it
//!   (`FI_INJECT` of `fi_writemsg`) up to its own limit, and the endpoint up to [`STAGED`]
//!   (docs/decisions/026-copied-messages.md).
//! - The library's limit is 128 bytes unless a launcher raises it (`FI_TCP_MAX_INJECT` in [`LAUNCH_WITH`]).
//!
//! [`Limits::max_inject`]: crate::Limits::max_inject
//! [`Notify::IfNotCopied`]: crate::Notify::IfNotCopied
//! [`LAUNCH_WITH`]: super::LAUNCH_WITH

use unisono_libfabric_sys as sys;

use super::provider::Provider;

/// Up to this many bytes the endpoint copies where the library does not: 8 KiB and a header. To copy more takes longer than the poll
/// that reports that a put has left (measured: docs/decisions/026-copied-messages.md).
const STAGED: usize = (8 << 10) + 64;

/// Up to which length puts are copied when they begin, and by whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Copies {
    /// By the library.
    pub(super) library: usize,
    /// By the endpoint, if they are longer than that; 0 where it copies none.
    pub(super) endpoint: usize,
    /// As [`crate::Limits::max_inject`].
    pub(super) injected: usize,
}

impl Copies {
    /// Of a provider that copies so many bytes itself, and has this `mr_mode`. What must be registered is not copied by the endpoint:
    /// its copies are not.
    pub(super) fn of(facts: &Provider, inject_size: usize, mr_mode: u64) -> Self {
        let library = if facts.one_source { 0 } else { inject_size };
        let endpoint = if facts.sockets && mr_mode & sys::FI_MR_LOCAL == 0 { STAGED } else { 0 };
        Self { library, endpoint, injected: if facts.sockets { 0 } else { library } }
    }

    /// As [`crate::Limits::max_copied`].
    pub(super) fn most(self) -> usize {
        self.library.max(self.endpoint)
    }
}

#[cfg(test)]
mod tests {
    use super::{super::provider, *};

    #[test]
    fn over_sockets_more_is_copied_and_nothing_is_injected() {
        let of = |name, mode| Copies::of(&provider::facts(name), 128, mode);
        for name in ["tcp", "net", "tcp;ofi_rxm"] {
            assert_eq!(of(name, 0), Copies { library: 128, endpoint: STAGED, injected: 0 }, "{name}");
            assert_eq!(
                of(name, sys::FI_MR_LOCAL),
                Copies { library: 128, endpoint: 0, injected: 0 },
                "{name}"
            );
        }
        for name in ["shm", "verbs;ofi_rxm"] {
            assert_eq!(of(name, 0), Copies { library: 128, endpoint: 0, injected: 128 }, "{name}");
        }
        assert_eq!(
            of("efa", 0),
            Copies { library: 0, endpoint: 0, injected: 0 },
            "of one source none is injected"
        );
        assert_eq!([of("tcp", 0).most(), of("shm", 0).most()], [STAGED, 128]);
    }
}
