//! Asks libfabric for providers (`fi_getinfo`), and finds out why one does not fit.
//!
//! If a provider does not fit, `fi_getinfo` only says "no data". So the requirements are dropped one at a time: if the provider is
//! offered without a requirement, that one excluded it.
#![allow(unsafe_code)]

use std::{
    ffi::CString,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    ptr::{self, NonNull},
};

use unisono_libfabric_sys as sys;

use super::{call, provider, version::library_version};
use crate::Error;

/// The interface version to use with a library of this version: 1.17, that of the oldest one supported, or 1.18 if the library has
/// it. Below 1.18 efa does not let NICs of its first two generations write by themselves (prov/efa/src/rdm/efa_rdm_util.c,
/// `efa_rdm_get_use_device_rdma`; all other differences concern memory of GPUs).
const fn spoken(library: (u32, u32)) -> u32 {
    let newer = library.0 > 1 || library.1 >= 18;
    (1 << 16) | if newer { 18 } else { 17 }
}

/// Memory registration modes that are supported (see `memory.rs`).
const MR_MODES: u64 = sys::FI_MR_LOCAL
    | sys::FI_MR_VIRT_ADDR
    | sys::FI_MR_ALLOCATED
    | sys::FI_MR_PROV_KEY
    | sys::FI_MR_ENDPOINT;

/// One or more `fi_info` of libfabric.
#[derive(Debug)]
pub(super) struct Info(NonNull<sys::fi_info>);

// SAFETY: plain data on libfabric's heap, not tied to a thread.
unsafe impl Send for Info {}
// SAFETY: never changed once made.
unsafe impl Sync for Info {}

impl Info {
    fn empty() -> Result<Self, Error> {
        // SAFETY: without a template it allocates an empty one.
        call::made("fi_allocinfo", unsafe { sys::fi_allocinfo() }).map(Self)
    }

    fn copy(entry: &sys::fi_info) -> Result<Self, Error> {
        // SAFETY: copies the one entry; the copy's `next` is null.
        call::made("fi_dupinfo", unsafe { sys::fi_dupinfo(ptr::from_ref(entry)) }).map(Self)
    }

    /// Copies of the list's entries, each alone.
    fn entries(&self) -> impl Iterator<Item = Result<Self, Error>> {
        // SAFETY: a list that libfabric made and `self` owns; attributes are checked by `whole`.
        std::iter::successors(Some(self.raw()), |entry| unsafe { entry.next.as_ref() })
            .filter(|entry| whole(entry))
            .map(Self::copy)
    }

    pub(super) fn raw(&self) -> &sys::fi_info {
        // SAFETY: owned and never null.
        unsafe { self.0.as_ref() }
    }

    pub(super) fn pointer(&self) -> *mut sys::fi_info {
        self.0.as_ptr()
    }

    pub(super) fn domain(&self) -> &sys::fi_domain_attr {
        // SAFETY: `whole` has seen that it is there.
        unsafe { &*self.raw().domain_attr }
    }

    pub(super) fn tx(&self) -> &sys::fi_tx_attr {
        // SAFETY: as above.
        unsafe { &*self.raw().tx_attr }
    }

    pub(super) fn endpoint(&self) -> &sys::fi_ep_attr {
        // SAFETY: as above.
        unsafe { &*self.raw().ep_attr }
    }

    /// The provider's full name.
    pub(super) fn provider(&self) -> String {
        // SAFETY: `whole` has seen that it is there; the name is a string or null.
        unsafe { call::text((*self.raw().fabric_attr).prov_name) }
    }

    /// The provider's own version.
    pub(super) fn version(&self) -> (u32, u32) {
        // SAFETY: `whole` has seen that it is there.
        let version = unsafe { (*self.raw().fabric_attr).prov_version };
        (version >> 16, version & 0xffff)
    }

    /// The device's name.
    pub(super) fn device(&self) -> String {
        // SAFETY: a string of libfabric, or null.
        unsafe { call::text(self.domain().name) }
    }

    /// The number of the device's vendor, as text; empty where it is unknown.
    pub(super) fn vendor(&self) -> String {
        self.of_nic(|nic| nic.vendor_id)
    }

    /// The number of the device's model, as text; empty where it is unknown.
    pub(super) fn model(&self) -> String {
        self.of_nic(|nic| nic.device_id)
    }

    fn of_nic(&self, which: impl Fn(&sys::fi_device_attr) -> *mut std::ffi::c_char) -> String {
        // SAFETY: what is not null was made by libfabric and lives as long as the entry; such a number is a string or null.
        unsafe {
            let attributes = self.raw().nic.as_ref().and_then(|nic| nic.device_attr.as_ref());
            attributes.map(|nic| call::text(which(nic))).unwrap_or_default()
        }
    }

    /// The device's place on the PCI bus, as the system names it; `None` where it is unknown.
    pub(super) fn bus(&self) -> Option<String> {
        // SAFETY: what is not null was made by libfabric and lives as long as the entry.
        let bus = unsafe { self.raw().nic.as_ref()?.bus_attr.as_ref()? };
        if bus.bus_type != sys::FI_BUS_PCI {
            return None;
        }
        // SAFETY: on this type of bus it is the union's part for it, which is numbers.
        let sys::fi_pci_attr { domain_id, bus_id, device_id, function_id } = unsafe { bus.attr.pci };
        Some(format!("{domain_id:04x}:{bus_id:02x}:{device_id:02x}.{function_id:x}"))
    }

    /// The address it would send from, if it is an IP address.
    pub(super) fn ip(&self) -> Option<IpAddr> {
        let entry = self.raw();
        if entry.src_addr.is_null() {
            return None;
        }
        // SAFETY: libfabric says how many bytes of address there are.
        let bytes = unsafe { std::slice::from_raw_parts(entry.src_addr.cast::<u8>(), entry.src_addrlen) };
        socket_in(entry.addr_format, bytes).map(|at| at.ip())
    }

    /// True if both sides must know each other's address before either writes, as on efa's second fabric, `efa-direct`
    /// (`fi_efa(7)`, "Limitations"). Ranks learn an address when they first send there.
    fn meets_first(&self) -> bool {
        // SAFETY: `whole` has seen that it is there; the name is a string or null.
        unsafe { call::text((*self.raw().fabric_attr).name) == "efa-direct" }
    }
}

impl Drop for Info {
    fn drop(&mut self) {
        // SAFETY: owned, and freed once.
        unsafe { sys::fi_freeinfo(self.0.as_ptr()) };
    }
}

/// True if it has all parts that this crate reads.
fn whole(entry: &sys::fi_info) -> bool {
    !(entry.fabric_attr.is_null()
        || entry.domain_attr.is_null()
        || entry.ep_attr.is_null()
        || entry.tx_attr.is_null()
        || entry.rx_attr.is_null())
}

/// The IP address and the port in a `sockaddr`, if it has them: family (2 bytes), port (2), then the address, which in an IPv6 address
/// comes after 4 bytes of flow information.
pub(super) fn socket_in(format: u32, bytes: &[u8]) -> Option<SocketAddr> {
    let family = u16::from_ne_bytes(*bytes.first_chunk()?);
    let port = u16::from_be_bytes(*bytes.get(2..)?.first_chunk()?);
    let ip = match (format, family) {
        (sys::FI_SOCKADDR_IN, _) | (sys::FI_SOCKADDR, 2) => {
            Ipv4Addr::from(*bytes.get(4..)?.first_chunk::<4>()?).into()
        }
        (sys::FI_SOCKADDR_IN6, _) | (sys::FI_SOCKADDR, 10) => {
            Ipv6Addr::from(*bytes.get(8..)?.first_chunk::<16>()?).into()
        }
        _ => return None,
    };
    Some(SocketAddr::new(ip, port))
}

/// The requirements for a provider.
#[derive(Clone)]
struct Ask {
    provider: Option<String>,
    from: Option<IpAddr>,
    wanted: Vec<Requirement>,
}

/// The parts of hints in which requirements stand.
struct Hints<'h> {
    caps: &'h mut u64,
    mode: &'h mut u64,
    domain: &'h mut sys::fi_domain_attr,
    endpoint: &'h mut sys::fi_ep_attr,
    tx: &'h mut sys::fi_tx_attr,
    /// The capabilities that the provider wants to be asked for together with writes.
    locality: u64,
}

/// A requirement in words, and in hints.
type Requirement = (&'static str, fn(&mut Hints<'_>));

/// A provider that takes one source only does not meet it.
const GATHERS: Requirement = ("writes gathered from two places (iov_limit)", |hints| hints.tx.iov_limit = 2);

/// It is an argument of `fi_getinfo`.
const SOURCE: Requirement = ("the wanted source address", |_| ());

/// Every requirement but the provider's name.
const REQUIREMENTS: [Requirement; 9] = [
    ("reliable datagrams (FI_EP_RDM)", |hints| hints.endpoint.type_ = sys::FI_EP_RDM),
    ("one-sided writes (FI_RMA, FI_WRITE, FI_REMOTE_WRITE)", |hints| {
        *hints.caps = sys::FI_RMA | sys::FI_WRITE | sys::FI_REMOTE_WRITE | hints.locality;
    }),
    // Exactly four: ofi_rxm passes it to verbs, which has no more.
    ("4 bytes of immediate data with a write (cq_data_size)", |hints| hints.domain.cq_data_size = 4),
    ("a memory registration mode that is supported here (mr_mode)", |hints| {
        *hints.mode = sys::FI_CONTEXT | sys::FI_CONTEXT2;
        hints.domain.mr_mode = i32::try_from(MR_MODES).unwrap_or(0);
    }),
    ("being driven by one thread at a time (FI_THREAD_DOMAIN)", |hints| {
        hints.domain.threading = sys::FI_THREAD_DOMAIN;
    }),
    ("progress by the caller (FI_PROGRESS_MANUAL)", |hints| {
        // SAFETY: sets fields of these attributes.
        unsafe { sys::ask_for_manual_progress(hints.domain) };
    }),
    ("completion queues that do not overrun (FI_RM_ENABLED)", |hints| {
        hints.domain.resource_mgmt = sys::FI_RM_ENABLED;
    }),
    GATHERS,
    SOURCE,
];

impl Ask {
    fn all(provider: Option<&str>, from: Option<IpAddr>) -> Self {
        let one_source = provider.is_some_and(|name| provider::facts(name).one_source);
        let wanted = REQUIREMENTS.iter().filter(|(words, _)| !one_source || *words != GATHERS.0);
        Self { provider: provider.map(str::to_owned), from, wanted: wanted.copied().collect() }
    }

    fn hints(&self) -> Result<Info, Error> {
        let hints = Info::empty()?;
        // SAFETY: freshly allocated, and owned here alone.
        let raw = unsafe { &mut *hints.0.as_ptr() };
        if !whole(raw) {
            return Err(Error::Unexpected { call: "fi_allocinfo", value: "an incomplete fi_info".into() });
        }
        // SAFETY: `whole` has seen that they are there; each is apart from the others.
        let (domain, endpoint, tx, fabric) =
            unsafe { (&mut *raw.domain_attr, &mut *raw.ep_attr, &mut *raw.tx_attr, &mut *raw.fabric_attr) };
        // "Any mode" is every bit that may ever exist.
        raw.mode = !0;
        // The two lowest bits, the modes before 1.5, are excluded: each is refused together with any other
        // (prov/util/src/util_attr.c, ofi_check_mr_mode).
        domain.mr_mode = i32::MAX & !3;
        let wants_locality = self.provider.as_ref().is_some_and(|name| provider::facts(name).wants_locality);
        let locality = if wants_locality { sys::FI_LOCAL_COMM | sys::FI_REMOTE_COMM } else { 0 };
        let (caps, mode) = (&mut raw.caps, &mut raw.mode);
        let mut parts = Hints { caps, mode, domain, endpoint, tx, locality };
        self.wanted.iter().for_each(|(_, ask)| ask(&mut parts));
        if let Some(provider) = &self.provider {
            let name = CString::new(provider.as_str()).map_err(|_| Error::NoProvider {
                asked: format!("provider {provider:?}"),
                report: "a provider's name has no zero byte".into(),
            })?;
            // SAFETY: a string; `fi_freeinfo` frees its copy on C's heap.
            fabric.prov_name = unsafe { sys::strdup(name.as_ptr()) };
        }
        Ok(hints)
    }

    /// Everything that fits, in libfabric's order; `None` if nothing does.
    fn query(&self) -> Result<Option<Info>, Error> {
        let hints = self.hints()?;
        let from = self.from.filter(|_| self.wanted.iter().any(|(words, _)| *words == SOURCE.0));
        let node = from.and_then(|from| CString::new(from.to_string()).ok());
        let (node, flags) = node.as_ref().map_or((ptr::null(), 0), |node| (node.as_ptr(), sys::FI_SOURCE));
        let version = spoken(library_version());
        let mut found: *mut sys::fi_info = ptr::null_mut();
        // SAFETY: the strings and the hints live through the call.
        let result =
            unsafe { sys::fi_getinfo(version, node, ptr::null(), flags, hints.pointer(), &raw mut found) };
        match i64::from(result) {
            0 => Ok(NonNull::new(found).map(Info)),
            code if code == -call::NO_DATA => Ok(None),
            code => {
                Err(call::failure("fi_getinfo", code, self.provider.as_deref().unwrap_or_default(), None))
            }
        }
    }

    /// The requirement that excludes the provider, in words.
    fn why_not(&self) -> Result<String, Error> {
        for (at, (words, _)) in self.wanted.iter().enumerate() {
            let mut relaxed = self.clone();
            relaxed.wanted.remove(at);
            if relaxed.query()?.is_some() {
                return Ok(match self.from {
                    Some(from) if *words == SOURCE.0 => format!("it cannot send from {from}"),
                    _ => format!("it lacks {words}"),
                });
            }
        }
        // No single requirement excludes it: drop them one after another, and name those that were dropped when it appears.
        for count in 1..=self.wanted.len() {
            let (dropped, left) = self.wanted.split_at(count);
            if (Self { wanted: left.to_vec(), ..self.clone() }).query()?.is_some() {
                let dropped: Vec<_> = dropped.iter().map(|(words, _)| *words).collect();
                return Ok(format!("it lacks several of: {}", dropped.join(", ")));
            }
        }
        Ok("it is not built into this libfabric, or finds no device".into())
    }
}

/// All offers of one provider that fit; empty if none does.
pub(super) fn fitting(name: &str, from: Option<IpAddr>) -> Result<Vec<Info>, Error> {
    let list = Ask::all(Some(name), from).query()?;
    let mut infos: Vec<_> = list.iter().flat_map(Info::entries).collect::<Result<_, _>>()?;
    // A name may also return providers that are layered over it: take exactly this one.
    infos.retain(|info| info.provider() == name && !info.meets_first());
    Ok(infos)
}

/// Why nothing of a provider fits, and what would help.
pub(super) fn refusal(name: &str, from: Option<IpAddr>) -> Result<String, Error> {
    Ok(provider::facts(name).refusal(Ask::all(Some(name), from).why_not()?))
}

/// The names of all providers that the library finds here, whether they fit or not; some stand there more than once.
pub(super) fn present() -> Result<Vec<String>, Error> {
    let found = Ask { provider: None, from: None, wanted: Vec::new() }.query()?;
    found.iter().flat_map(Info::entries).map(|info| Ok(info?.provider())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn with_every_requirement_dropped_providers_show_themselves() {
        let present = present().unwrap();
        assert!(present.contains(&"tcp".to_owned()), "{present:?}");
    }

    #[test]
    fn only_opx_is_asked_for_local_and_remote_peers() {
        let asked = |name| {
            let hints = Ask::all(Some(name), None).hints().unwrap();
            hints.raw().caps & (sys::FI_LOCAL_COMM | sys::FI_REMOTE_COMM)
        };
        assert_eq!(asked("opx"), sys::FI_LOCAL_COMM | sys::FI_REMOTE_COMM);
        // An address of tcp reaches only one of them.
        assert_eq!([asked("tcp"), asked("psm3")], [0, 0]);
    }

    #[test]
    fn no_library_is_spoken_to_beyond_its_version() {
        let version = |major: u32, minor: u32| (major << 16) | minor;
        assert_eq!(spoken((1, 17)), version(1, 17));
        assert_eq!(spoken((1, 18)), version(1, 18));
        assert_eq!(spoken((1, 22)), version(1, 18));
        assert_eq!(spoken((2, 0)), version(1, 18));
    }
}
