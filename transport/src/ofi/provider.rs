//! Facts about each provider that it does not report itself: one row each.
//!
//! Sources are paths in libfabric's repository, as of v1.17.0 and v2.5.1 unless said otherwise.

/// The facts about one provider.
#[derive(Clone, Copy, Debug)]
pub(super) struct Provider {
    /// libfabric's name for it, layers included.
    pub(super) name: &'static str,
    /// True if its endpoints have IP addresses, so that an interface must be chosen.
    pub(super) by_ip: bool,
    /// True if its addresses belong to NICs whose network may differ from that of the store.
    pub(super) own_network: bool,
    /// True if all its NICs reach each other, so that processes of one host may take different ones.
    pub(super) interchangeable: bool,
    /// True if registering pins no page (a software provider only adds an entry to a table).
    pub(super) cheap_registration: bool,
    /// True if hints must ask for peers on this host and on others (`FI_LOCAL_COMM`, `FI_REMOTE_COMM`).
    pub(super) wants_locality: bool,
    /// The most writes from one peer that may be under way before the target polls; `usize::MAX` if there is no bound.
    pub(super) arrivals_per_peer: usize,
    /// How a user can allow more writes under way to an endpoint, in words; may be empty.
    pub(super) more_arrivals: &'static str,
    /// The longest write with immediate data (bytes), if the provider reports more than it can do.
    pub(super) max_put: usize,
    /// True if a write with immediate data takes one source only, or more of them by a detour. Then it is begun by
    /// `fi_writedata`, and none is injected.
    pub(super) one_source: bool,
    /// True if it writes to the kernel's sockets ([`crate::Limits::sockets`]). Then an injected write, too, may wait in its queue,
    /// unseen, until the endpoint polls; so none is injected, and the end of every put can be reported
    /// (docs/decisions/047-no-inject-where-queued.md).
    pub(super) sockets: bool,
    /// True if its completion queue's descriptor does not signal arrivals: it stays readable for good, or is made so by
    /// polling alone.
    pub(super) stuck_descriptor: bool,
    /// True if an endpoint crashes if it answers the first put of a peer that has been closed.
    pub(super) crashes_on_lost_peer: bool,
    /// True if closing an endpoint while puts arrive may crash, so that it polls until none does.
    pub(super) drains_before_close: bool,
    pub(super) crashes_on_close: bool,
    /// The advice if it is refused; may be empty.
    pub(super) remedy: &'static str,
}

impl Provider {
    /// The reason for a refusal, followed by what would help.
    pub(super) fn refusal(&self, reason: String) -> String {
        if self.remedy.is_empty() { reason } else { format!("{reason}; {}", self.remedy) }
    }
}

/// The facts about a provider without a row: nothing is assumed.
const UNKNOWN: Provider = Provider {
    name: "",
    by_ip: false,
    own_network: false,
    interchangeable: false,
    cheap_registration: false,
    wants_locality: false,
    arrivals_per_peer: usize::MAX,
    more_arrivals: "",
    max_put: usize::MAX,
    one_source: false,
    sockets: false,
    stuck_descriptor: false,
    crashes_on_lost_peer: false,
    drains_before_close: false,
    crashes_on_close: false,
    remedy: "",
};

const PROVIDERS: &[Provider] = &[
    Provider {
        name: "efa",
        interchangeable: true,
        // The provider cuts a longer write, and each piece has the immediate: the first that lands would report all
        // (prov/efa/src/rdm/efa_rdm_ope.c, efa_rdm_ope_post_remote_write; efa_env.c, efa_write_segment_size).
        max_put: 1 << 30,
        // It has a descriptor from 2.5 on where FI_EFA_ENABLE_SHM_TRANSFER is 0. The NIC's event stays in it, and no other is asked
        // for, unless a thread sleeps in fi_cq_sread (prov/efa/src/rdm/efa_rdm_cq.c, efa_rdm_cq_wait_try).
        stuck_descriptor: true,
        // It turns several sources into sends, which the peer's processor puts in place (prov/efa/src/rdm/efa_rdm_rma.h,
        // efa_rdm_rma_should_write_using_rdma).
        one_source: true,
        remedy: "it needs an Elastic Fabric Adapter (/sys/class/infiniband/efa_*) and a libfabric built with efa",
        ..UNKNOWN
    },
    Provider {
        name: "cxi",
        interchangeable: true,
        more_arrivals: "cxi takes about as many as FI_UNIVERSE_SIZE says (by default 1024), of which 65 for each rank are enough",
        // FI_REMOTE_CQ_DATA is no flag of its fi_writemsg (prov/cxi/src/cxip_rma.c, CXIP_WRITEMSG_ALLOWED_FLAGS).
        one_source: true,
        // Writes with immediate data came with 2.5, and are off by default (man/fi_cxi.7.md).
        remedy: "it needs a Slingshot NIC (/dev/cxi*), libfabric 2.5 or later and FI_CXI_ENABLE_WRITEDATA=1; for more than 16 \
               ranks FI_UNIVERSE_SIZE too, 65 times as many",
        ..UNKNOWN
    },
    Provider {
        name: "psm3",
        // Only polling raises it, when it finds something; no NIC does (prov/psm3/src/psmx3_cq.c, psmx3_cq_enqueue_event).
        stuck_descriptor: true,
        remedy: "it needs an Omni-Path or RoCE NIC it knows and a libfabric built with psm3",
        ..UNKNOWN
    },
    Provider {
        name: "opx",
        // It takes a locality that hints leave out as not wanted, and then sends by the NIC to ranks of this host too, and to
        // itself (prov/opx/src/fi_opx_init.c, fi_opx_fillinfo; include/rdma/opx/fi_opx_hfi1_transport.h, fi_opx_hfi1_tx_is_shm).
        wants_locality: true,
        // It has no fi_inject_writedata, not even one that returns an error (prov/opx/src/fi_opx_rma.c).
        one_source: true,
        // Writes with immediate data came with 2.1.
        remedy: "it needs an Omni-Path NIC (/dev/hfi1_*) and libfabric 2.1 or later, built with opx",
        ..UNKNOWN
    },
    Provider {
        name: "verbs;ofi_rxm",
        by_ip: true,
        own_network: true,
        // Each write with immediate data consumes a posted receive of the connection; ofi_rxm posts
        // FI_OFI_RXM_MSG_RX_SIZE of them (prov/rxm/src/rxm_init.c, default 128).
        arrivals_per_peer: 128,
        remedy: "it needs an RDMA NIC with an IP address (`rdma link`, `ibv_devices`) that has immediate data; \
               on soft-RoCE set FI_UNIVERSE_SIZE=32, for its completion queues are short",
        ..UNKNOWN
    },
    Provider {
        name: "tcp",
        by_ip: true,
        cheap_registration: true,
        sockets: true,
        remedy: "it has reliable datagrams from libfabric 1.18 on; before that ask for `net` or `tcp;ofi_rxm`",
        ..UNKNOWN
    },
    Provider {
        name: "net",
        by_ip: true,
        cheap_registration: true,
        // What the socket does not take stays in the endpoint's queue (prov/net/src/xnet_progress.c,
        // xnet_tx_queue_insert).
        sockets: true,
        // Each completion raises the queue's signal, and fi_trywait, which should lower it, does nothing
        // (prov/net/src/xnet_cq.c, xnet_report_success; xnet_progress.c, xnet_trywait).
        stuck_descriptor: true,
        remedy: "it exists in libfabric 1.16 and 1.17 only; from 1.18 on ask for `tcp`",
        ..UNKNOWN
    },
    Provider {
        name: "tcp;ofi_rxm",
        by_ip: true,
        cheap_registration: true,
        sockets: true,
        // When a connection ends in the middle of an arriving write, `tcp` reports the failed write with no
        // context and ofi_rxm follows the null pointer (prov/rxm/src/rxm_cq.c, rxm_handle_comp_error; seen
        // in 1.17.0 and 2.5.1). An endpoint left open does not meet it; one whose peer dies may.
        crashes_on_close: true,
        ..UNKNOWN
    },
];

/// The vendor of soft-RoCE's devices (drivers/infiniband/sw/rxe/rxe_param.h in Linux), as libfabric writes it.
const SOFT_ROCE: &str = "0xffffff";

/// The facts about this provider.
pub(super) fn facts(name: &str) -> Provider {
    PROVIDERS.iter().find(|row| row.name == name).copied().unwrap_or(UNKNOWN)
}

/// The facts about this provider with a device of this vendor and this version of libfabric.
///
/// When a connection ends, `ofi_rxm` frees it and then reads what had arrived through it, and posts the receive buffer of each such
/// write to freed memory: SIGSEGV (prov/rxm/src/rxm_conn.c, `rxm_close_conn`, in all versions up to 2.6.0; fixed after it by
/// 697688386). The drivers of NICs drop what has arrived together with the queue pair (`mlx5_destroy_qp` in rdma-core's
/// providers/mlx5), soft-RoCE's does not. Draining avoids it for an endpoint's own end; at a peer's end it may still happen
/// (docs/decisions/046-soft-roce-drain.md).
///
/// `efa` reaches peers of this host through an endpoint of libfabric's `shm` (prov/efa/src/efa_shm.c). There a first put asks the
/// peer to map the sender's memory by its name, which closing the sender takes away; then the peer follows a null pointer
/// (prov/shm/src/smr_progress.c, `smr_progress_connreq`, 1.17 to 1.22; in 2.0 it does not).
pub(super) fn facts_with(name: &str, vendor: &str, version: (u32, u32)) -> Provider {
    Provider {
        drains_before_close: name == "verbs;ofi_rxm" && vendor == SOFT_ROCE,
        crashes_on_lost_peer: name == "efa" && version < (2, 0),
        ..facts(name)
    }
}

/// The number of writes to an endpoint that a provider holds until the endpoint polls, apart from its completion queue. `size`
/// gives the number in a variable of libfabric, `switch` the truth value in one.
///
/// Writes with immediate data go through cxi's queue of control events, which has 64 bytes for each and ends the process when it
/// overruns (prov/cxi/src/cxip_ctrl.c, cxip_ep_ctrl_init and cxip_ep_ctrl_eq_progress). Four are reserved there; registering memory
/// and closing a registration bring two each.
pub(super) fn room(
    name: &str,
    size: impl Fn(&str) -> Option<usize>,
    switch: impl Fn(&str) -> Option<bool>,
) -> usize {
    const EVENT: usize = 64;
    if name != "cxi" {
        return usize::MAX;
    }
    let most = size("FI_CXI_CTRL_RX_EQ_MAX_SIZE").unwrap_or(64 << 20);
    let bytes = size("FI_UNIVERSE_SIZE").unwrap_or(1024).saturating_mul(EVENT).min(most);
    // The queue has whole pages, of which 4 KiB are the smallest.
    let events = bytes.max(1).checked_next_multiple_of(4096).unwrap_or(bytes) / EVENT;
    // Each write brings two events where matches are reported too, for which there are 256 more (cxip_ep_ctrl_init).
    let matches = switch("FI_CXI_MR_MATCH_EVENTS") == Some(true);
    (if matches { (events + 256) / 2 } else { events }).saturating_sub(8)
}

/// Why a provider is never taken, whether it fits or not; `None` for those that may be.
pub(super) fn never(name: &str) -> Option<&'static str> {
    (name == "shm").then_some(
        "libfabric's shm is not used here; `unisono_transport::shm` serves ranks of one host instead",
    )
}

/// The names of all rows.
pub(super) fn names() -> impl Iterator<Item = &'static str> {
    PROVIDERS.iter().map(|row| row.name)
}

/// The providers that a request means with this version of libfabric, the best first. Without a request: those that reach other
/// hosts, fast NICs before TCP. `psm3` is left out because it also works on plain Ethernet.
pub(super) fn expand(request: Option<&str>, version: (u32, u32)) -> Vec<String> {
    // Until 1.17 the reliable datagrams of `tcp` lived in `net` (man/fi_tcp.7.md, NOTES).
    let tcp = if version >= (1, 18) { ["tcp", "tcp;ofi_rxm"] } else { ["net", "tcp;ofi_rxm"] };
    let names: Vec<&str> = match request {
        None => ["efa", "cxi", "opx", "verbs;ofi_rxm"].into_iter().chain(tcp).collect(),
        Some("tcp") => tcp.to_vec(),
        Some("verbs") => vec!["verbs;ofi_rxm"],
        Some(exact) => vec![exact],
    };
    names.into_iter().map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tcp_means_what_the_version_has() {
        assert_eq!(expand(Some("tcp"), (1, 17)), ["net", "tcp;ofi_rxm"]);
        assert_eq!(expand(Some("tcp"), (1, 18)), ["tcp", "tcp;ofi_rxm"]);
        assert_eq!(expand(Some("tcp"), (2, 5)), ["tcp", "tcp;ofi_rxm"]);
    }

    #[test]
    fn cxi_holds_what_its_queue_of_control_events_does() {
        let room = |universe, most| {
            let size = |asked: &str| match asked {
                "FI_UNIVERSE_SIZE" => universe,
                "FI_CXI_CTRL_RX_EQ_MAX_SIZE" => most,
                _ => None,
            };
            room("cxi", size, |_| None)
        };
        assert_eq!(room(None, None), 1024 - 8);
        assert_eq!(room(Some(10_000), None), 10_048 - 8, "whole pages of 64 events");
        assert_eq!(room(Some(1), None), 64 - 8);
        assert_eq!(room(Some(usize::MAX), None), (1 << 20) - 8);
        assert_eq!(room(Some(10_000), Some(65_536)), 1024 - 8);
        assert!(room(Some(usize::MAX), Some(usize::MAX)) > 1 << 20);
        let switched =
            |on| super::room("cxi", |_| None, |asked| (asked == "FI_CXI_MR_MATCH_EVENTS").then_some(on));
        assert_eq!(switched(true), (1024 + 256) / 2 - 8, "two events a write");
        assert_eq!(switched(false), 1024 - 8);
        assert_eq!(super::room("tcp", |_| Some(1), |_| Some(true)), usize::MAX);
    }

    #[test]
    fn soft_roce_is_drained_before_it_is_closed_and_nics_are_not() {
        assert!(facts_with("verbs;ofi_rxm", SOFT_ROCE, (1, 17)).drains_before_close);
        assert!(!facts_with("verbs;ofi_rxm", "0x15b3", (1, 17)).drains_before_close);
        assert!(!facts_with("tcp", SOFT_ROCE, (1, 17)).drains_before_close);
    }

    #[test]
    fn efa_crashes_where_the_shm_under_it_does() {
        let crashes = |name, version| facts_with(name, "", version).crashes_on_lost_peer;
        assert!(crashes("efa", (1, 17)) && crashes("efa", (1, 22)) && !crashes("efa", (2, 0)));
        assert!(!crashes("tcp", (1, 17)));
    }

    #[test]
    fn other_names_stand_for_themselves() {
        assert_eq!(expand(Some("verbs"), (2, 5)), ["verbs;ofi_rxm"]);
        assert_eq!(expand(Some("tcp;ofi_rxm"), (1, 17)), ["tcp;ofi_rxm"]);
        assert_eq!(expand(Some("no such thing"), (1, 17)), ["no such thing"]);
    }
}
