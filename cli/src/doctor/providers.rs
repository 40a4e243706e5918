//! Which providers libfabric offers here, and which one each request would take.

use std::net::IpAddr;

use serde::Serialize;
use unisono_transport::ofi::{self, Options};

use super::report::Section;

/// The usual requests.
const REQUESTS: [&str; 3] = ["tcp", "shm", "verbs"];

/// One thing that libfabric offers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Candidate {
    /// The provider's name.
    pub(super) name: String,
    /// The provider's own version; empty if it offered nothing.
    pub(super) version: String,
    /// The device; empty if it offered nothing.
    pub(super) device: String,
    /// The address it would send from.
    pub(super) address: Option<IpAddr>,
    /// Whether it would be tried first.
    pub(super) taken: bool,
    /// Why, or why not and what to do about it.
    pub(super) reason: String,
}

impl From<ofi::Candidate> for Candidate {
    fn from(candidate: ofi::Candidate) -> Self {
        let ofi::Candidate { name, version, domain, address, taken, reason, .. } = candidate;
        Self { name, version, device: domain, address, taken, reason }
    }
}

impl Candidate {
    /// Its device and address.
    fn place(&self) -> String {
        let mut words = Vec::new();
        words.extend((!self.device.is_empty()).then(|| self.device.clone()));
        words.extend(self.address.map(|address| address.to_string()));
        words.join(" ")
    }

    /// Its name, device and address.
    fn words(&self) -> String {
        match self.place() {
            place if place.is_empty() || place == self.name => self.name.clone(),
            place => format!("{} on {place}", self.name),
        }
    }
}

/// The provider that one request would get.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Way {
    /// The provider asked for; `None` if the library chooses.
    pub(super) request: Option<String>,
    /// What would be tried first, or why there is nothing.
    pub(super) taken: Result<Candidate, String>,
}

/// The providers that libfabric offers.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct Providers {
    /// The provider asked for.
    pub(super) provider: Option<String>,
    /// The interface asked for.
    pub(super) interface: Option<String>,
    /// The result of each request: of the one that was made, or of the default and the usual ones.
    pub(super) ways: Vec<Way>,
    /// If no request gets a provider: what would be tried first without a request.
    pub(super) otherwise: Option<Candidate>,
    /// All candidates of the first of these requests.
    pub(super) candidates: Vec<Candidate>,
}

impl Providers {
    /// `options.provider` and `options.interface` narrow what is asked for.
    pub(super) fn gather(options: &Options) -> Self {
        let mut found = Self {
            provider: options.provider.clone(),
            interface: options.interface.as_ref().map(ToString::to_string),
            ..Self::default()
        };
        let mut requests = vec![options.provider.clone()];
        if options.provider.is_none() {
            requests.extend(REQUESTS.map(|request| Some(request.to_owned())));
        }
        for request in requests {
            let survey = ofi::survey(&Options { provider: request.clone(), ..options.clone() });
            let taken = match survey {
                Ok(survey) => {
                    let survey: Vec<Candidate> = survey.into_iter().map(Candidate::from).collect();
                    let taken = survey.iter().find(|candidate| candidate.taken).cloned();
                    // The survey begins with what the request means.
                    let why = || survey.first().map_or_else(|| "there is none".into(), refusal);
                    let taken = taken.ok_or_else(why);
                    if found.ways.is_empty() {
                        found.candidates = survey;
                    }
                    taken
                }
                Err(error) => Err(error.to_string()),
            };
            found.ways.push(Way { request, taken });
        }
        let narrowed = options.provider.is_some() || options.interface.is_some();
        if narrowed && found.ways.iter().all(|way| way.taken.is_err()) {
            let open = Options { provider: None, interface: None, ..options.clone() };
            let survey = ofi::survey(&open).unwrap_or_default();
            found.otherwise = survey.into_iter().find(|candidate| candidate.taken).map(Candidate::from);
        }
        found
    }

    pub(super) fn judge(&self) -> Section {
        let mut section = Section::new("providers");
        for (at, way) in self.ways.iter().enumerate() {
            let request = way.request.as_deref().unwrap_or("by default");
            match &way.taken {
                Ok(taken) => section.ok(format!("{request}: {}; {}", taken.words(), taken.reason)),
                // The first is what was asked for, the others are for information.
                Err(reason) if at == 0 => section.problem(
                    format!("{request}: no provider fits{}; {reason}", self.narrowed()),
                    self.way_out(),
                ),
                Err(reason) => section.note(format!("{request}: none; {reason}")),
            }
        }
        // The candidates that are not taken, a line for each provider and reason.
        let mut rest: Vec<(&str, &str, Vec<String>)> = Vec::new();
        let told = |candidate: &Candidate| {
            self.ways.iter().any(|way| match &way.taken {
                Ok(taken) => taken.words() == candidate.words(),
                Err(why) => *why == refusal(candidate),
            })
        };
        for candidate in self.candidates.iter().filter(|candidate| !told(candidate)) {
            let place = candidate.place();
            match rest
                .iter_mut()
                .find(|(name, reason, _)| (*name, *reason) == (&candidate.name, &candidate.reason))
            {
                Some((_, _, places)) => places.push(place),
                None => rest.push((&candidate.name, &candidate.reason, vec![place])),
            }
        }
        for (name, reason, mut places) in rest {
            places.retain(|place| !place.is_empty() && place != name);
            let places = if places.is_empty() { String::new() } else { format!(" on {}", places.join(", ")) };
            section.note(format!("not taken: {name}{places}: {reason}"));
        }
        section
    }

    /// What to do if the request gets no provider.
    fn way_out(&self) -> String {
        let way_out = "unset FI_PROVIDER if it is set; FI_LOG_LEVEL=info makes libfabric log more; Debian's \
                       libfabric1 has tcp and shm built in";
        let asked = match (&self.provider, &self.interface) {
            (Some(_), None) => "--provider and UNISONO_PROVIDER",
            (None, Some(_)) => "--interface and UNISONO_INTERFACE",
            _ => "--provider, --interface, UNISONO_PROVIDER and UNISONO_INTERFACE",
        };
        self.otherwise.as_ref().map_or_else(
            || way_out.to_owned(),
            |other| format!("without {asked} it would be {}; otherwise: {way_out}", other.words()),
        )
    }

    /// What narrows the choice, in words.
    fn narrowed(&self) -> String {
        self.interface.as_ref().map_or_else(String::new, |interface| format!(" on interface {interface}"))
    }
}

/// Why a candidate is refused, with its name.
fn refusal(candidate: &Candidate) -> String {
    format!("{}: {}", candidate.name, candidate.reason)
}
