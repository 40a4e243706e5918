//! The self-test: two ranks form a group and reduce, over every provider that fits.

use serde::Serialize;

use super::{
    group::{self, Reduced},
    providers::{Candidate, Providers},
    report::Section,
};

/// A request, and the result of the trial of its provider.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Trial {
    /// The provider asked for; `None` if the library chooses.
    pub(super) request: Option<String>,
    /// Whether it is the user's request or the default, and not for information.
    pub(super) asked: bool,
    /// The provider that comes first, if it did not work, and why.
    pub(super) failed: Option<(String, String)>,
    /// The one that worked.
    pub(super) success: Option<Reduced>,
}

/// All trials.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct SelfTest {
    /// One for each provider.
    pub(super) trials: Vec<Trial>,
}

impl SelfTest {
    pub(super) fn gather(providers: &Providers) -> Self {
        let with = |provider: Option<&str>, taken: &Candidate| {
            let address = taken.address.map(|address| address.to_string());
            group::try_out(provider, providers.interface.as_deref().or(address.as_deref()))
        };
        let mut found = Self::default();
        let mut tried = Vec::new();
        for (at, way) in providers.ways.iter().enumerate() {
            let Ok(taken) = &way.taken else { continue };
            // Several requests may get the same provider.
            if tried.contains(&taken) {
                continue;
            }
            tried.push(taken);
            let mut trial =
                Trial { request: way.request.clone(), asked: at == 0, failed: None, success: None };
            // By its exact name: otherwise the group would try the next provider, which would hide why the first failed.
            match with(Some(&taken.name), taken) {
                Ok(success) => trial.success = Some(success),
                Err(reason) => {
                    trial.failed = Some((taken.name.clone(), reason));
                    if way.request.as_ref() != Some(&taken.name) {
                        trial.success = with(way.request.as_deref(), taken).ok();
                    }
                }
            }
            found.trials.push(trial);
        }
        found
    }

    /// The providers that work.
    pub(super) fn working(&self) -> Vec<&str> {
        let mut names: Vec<&str> = Vec::new();
        for success in self.trials.iter().filter_map(|trial| trial.success.as_ref()) {
            if !names.contains(&success.provider.as_str()) {
                names.push(&success.provider);
            }
        }
        names
    }

    /// The provider that is the default, or that was asked for, if it works.
    pub(super) fn chosen(&self) -> Option<&Reduced> {
        self.trials.iter().find(|trial| trial.asked)?.success.as_ref()
    }

    pub(super) fn judge(&self) -> Section {
        let mut section = Section::new("self-test");
        for Trial { request, asked, failed, success } in &self.trials {
            let request = request.as_deref().unwrap_or("by default");
            if let Some((name, reason)) = failed {
                let text = format!("{request}: {name} fits, but does not work: {reason}");
                let mut mend = "see the environment above and the limits below; FI_LOG_LEVEL=info makes libfabric log more"
                    .to_owned();
                if name.starts_with("verbs") {
                    mend += "; on soft-RoCE set FI_UNIVERSE_SIZE=32";
                }
                // A provider that nobody asked for may fail.
                if *asked && success.is_none() {
                    section.problem(text, mend);
                } else {
                    section.warn(text, mend);
                }
            }
            if let Some(reduced) = success {
                section.ok(format!("{request}: {}", reduced.words()));
            }
        }
        if self.trials.is_empty() {
            section.problem("there is no provider to test", "see the providers above");
        }
        section
    }
}
