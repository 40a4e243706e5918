//! Finds the providers that libfabric offers here, and the one that each request would take, if it does not take shared memory.

use std::{fmt, net::IpAddr};

use serde::Serialize;
use unisono_transport::ofi::{self, Options};

use super::{
    report::Section,
    shared::{SHM, SharedMemory},
};

/// The usual requests to libfabric.
const REQUESTS: [&str; 2] = ["tcp", "verbs"];

/// One thing that libfabric offers, or shared memory.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(super) struct OfferedProvider {
    /// The provider's name.
    pub(super) name: String,
    /// The provider's own version; empty if it offered nothing.
    pub(super) version: String,
    /// The device; empty if it offered nothing.
    pub(super) device: String,
    /// The address it would send from.
    pub(super) address: Option<IpAddr>,
    /// True if it would be tried, in the order of candidates.
    pub(super) fits: bool,
    /// True if it would be tried first.
    pub(super) taken: bool,
    /// The reason why it fits, or why not and what to do about it.
    pub(super) reason: String,
}

impl OfferedProvider {
    /// Its device and address.
    fn place(&self) -> String {
        let address = self.address.map(|address| address.to_string()).unwrap_or_default();
        format!("{} {address}", self.device).trim().to_owned()
    }

    /// Its name, device and address.
    fn words(&self) -> String {
        match self.place() {
            place if place.is_empty() || place == self.name => self.name.clone(),
            place => format!("{} on {place}", self.name),
        }
    }
}

/// A request for a provider.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum ProviderRequest {
    /// Nothing, so that the library chooses, for ranks that are all on one host.
    OneHost,
    /// The same for ranks of several hosts.
    Hosts,
    /// A provider, or shared memory, by its name.
    Named(String),
}

impl ProviderRequest {
    pub(super) fn is_shm(&self) -> bool {
        matches!(self, Self::Named(name) if name == SHM)
    }
}

impl fmt::Display for ProviderRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::OneHost => "by default, on one host",
            Self::Hosts => "by default, between hosts",
            Self::Named(name) => name,
        })
    }
}

/// The result of one request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct RequestResult {
    /// What is asked for.
    pub(super) request: ProviderRequest,
    /// True if it is the user's request or the default, and not for information.
    pub(super) asked: bool,
    /// What would be tried first, or why there is nothing.
    pub(super) taken: Result<OfferedProvider, String>,
    /// What would be tried if that does not work: the other providers that fit.
    pub(super) next: Vec<OfferedProvider>,
}

impl RequestResult {
    /// The result of a request that takes shared memory.
    fn shared(request: ProviderRequest, shared: &SharedMemory) -> Self {
        let shm = OfferedProvider {
            name: SHM.to_owned(),
            fits: true,
            taken: true,
            reason: "it is unisono's own shared memory, which does not use libfabric".to_owned(),
            ..OfferedProvider::default()
        };
        let opens = shared.opens.clone().unwrap_or(Ok(()));
        Self { request, asked: true, taken: opens.map(|()| shm), next: Vec::new() }
    }

    /// The result of a request to libfabric, and all candidates.
    fn surveyed(request: ProviderRequest, asked: bool, options: &Options) -> (Self, Vec<OfferedProvider>) {
        let provider = match &request {
            ProviderRequest::Named(name) => Some(name.clone()),
            ProviderRequest::OneHost | ProviderRequest::Hosts => None,
        };
        let survey = ofi::survey(&Options { provider, ..options.clone() });
        let offered = |candidate| {
            let ofi::Candidate { name, version, domain: device, address, fits, taken, reason } = candidate;
            OfferedProvider { name, version, device, address, fits, taken, reason }
        };
        let survey = survey.map(|all| all.into_iter().map(offered).collect::<Vec<_>>());
        let (failed, survey) = (survey.as_ref().err().map(ToString::to_string), survey.unwrap_or_default());
        let mut next: Vec<OfferedProvider> = Vec::new();
        for candidate in survey.iter().filter(|candidate| candidate.fits) {
            // Only the best address of each provider is listed.
            if next.iter().all(|other| other.name != candidate.name) {
                next.push(candidate.clone());
            }
        }
        // The survey begins with the providers that the request means.
        let why = || failed.or_else(|| survey.first().map(refusal)).unwrap_or_else(|| "there is none".into());
        let taken = if next.is_empty() { Err(why()) } else { Ok(next.remove(0)) };
        (Self { request, asked, taken, next }, survey)
    }
}

/// What libfabric and shared memory offer.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct Providers {
    /// The provider asked for.
    pub(super) provider: Option<String>,
    /// The interface asked for.
    pub(super) interface: Option<String>,
    /// The result of each request: of the one that was made, or of the defaults and the usual ones.
    pub(super) ways: Vec<RequestResult>,
    /// If a request to libfabric was narrowed, and none gets a provider: what would be tried first otherwise.
    pub(super) otherwise: Option<OfferedProvider>,
    /// All candidates of the first request to libfabric.
    pub(super) candidates: Vec<OfferedProvider>,
}

impl Providers {
    /// `options.provider` and `options.interface` narrow what is asked for.
    pub(super) fn gather(options: &Options, shared: &SharedMemory) -> Self {
        let mut found = Self {
            provider: options.provider.clone(),
            interface: options.interface.as_ref().map(ToString::to_string),
            ..Self::default()
        };
        let mut requests = Vec::new();
        match &options.provider {
            Some(name) if name == SHM => {
                found.ways.push(RequestResult::shared(ProviderRequest::Named(name.clone()), shared));
            }
            Some(name) => requests.push(ProviderRequest::Named(name.clone())),
            None => {
                found.ways.push(RequestResult::shared(ProviderRequest::OneHost, shared));
                requests.push(ProviderRequest::Hosts);
                requests.extend(REQUESTS.map(|name| ProviderRequest::Named(name.to_owned())));
            }
        }
        for (at, request) in requests.into_iter().enumerate() {
            let (way, candidates) = RequestResult::surveyed(request, at == 0, options);
            found.ways.push(way);
            if at == 0 {
                found.candidates = candidates;
            }
        }
        let narrowed = options.provider.is_some() || options.interface.is_some();
        let mut asked = found.ways.iter().filter(|way| way.request != ProviderRequest::OneHost);
        if narrowed && asked.all(|way| way.taken.is_err()) {
            let open = Options { provider: None, interface: None, ..options.clone() };
            found.otherwise = RequestResult::surveyed(ProviderRequest::Hosts, false, &open).0.taken.ok();
        }
        found
    }

    pub(super) fn judge(&self) -> Section {
        let mut section = Section::new("providers");
        let interface = self.interface.as_ref();
        let narrowed = interface.map_or_else(String::new, |interface| format!(" on interface {interface}"));
        for RequestResult { request, asked, taken, .. } in &self.ways {
            match taken {
                Ok(taken) => section.ok(format!("{request}: {}; {}", taken.words(), taken.reason)),
                Err(_) if *request == ProviderRequest::OneHost => {
                    section.note(format!("{request}: as between hosts, because there is no shared memory"));
                }
                Err(_) if request.is_shm() => section.problem(
                    format!("{request}: there is no shared memory"),
                    self.way_out("see shared memory above"),
                ),
                Err(reason) if *asked => section.problem(
                    format!("{request}: no provider fits{narrowed}; {reason}"),
                    self.way_out(
                        "unset FI_PROVIDER if it is set; FI_LOG_LEVEL=info makes libfabric log more",
                    ),
                ),
                Err(reason) => section.note(format!("{request}: none; {reason}")),
            }
        }
        // The candidates that are not taken, a line for each provider and reason.
        let mut rest: Vec<([&str; 2], Vec<String>)> = Vec::new();
        let mentioned = |candidate: &OfferedProvider| {
            self.ways.iter().any(|way| match &way.taken {
                Ok(taken) => taken.words() == candidate.words(),
                Err(why) => *why == refusal(candidate),
            })
        };
        for candidate in self.candidates.iter().filter(|candidate| !mentioned(candidate)) {
            let (about, place) = ([&*candidate.name, &*candidate.reason], candidate.place());
            match rest.iter_mut().find(|(other, _)| *other == about) {
                Some((_, places)) => places.push(place),
                None => rest.push((about, vec![place])),
            }
        }
        for ([name, reason], mut places) in rest {
            places.retain(|place| !place.is_empty() && place != name);
            let places = if places.is_empty() { String::new() } else { format!(" on {}", places.join(", ")) };
            section.note(format!("not taken: {name}{places}: {reason}"));
        }
        section
    }

    /// What to do if the request gets nothing: what would be taken without it, and `advice`.
    fn way_out(&self, advice: &str) -> String {
        let asked = match (&self.provider, &self.interface) {
            (Some(_), None) => "--provider and UNISONO_PROVIDER",
            (None, Some(_)) => "--interface and UNISONO_INTERFACE",
            _ => "--provider, --interface, UNISONO_PROVIDER and UNISONO_INTERFACE",
        };
        match &self.otherwise {
            Some(other) => {
                format!("without {asked} it would be {} between hosts; otherwise: {advice}", other.words())
            }
            None => advice.to_owned(),
        }
    }
}

/// Why a candidate is refused, with its name.
fn refusal(candidate: &OfferedProvider) -> String {
    format!("{}: {}", candidate.name, candidate.reason)
}
