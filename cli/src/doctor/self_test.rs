//! The self-test: two ranks form a group and reduce, over shared memory and over every provider that fits.

use serde::Serialize;

use super::{
    group::{self, Reduced},
    providers::{OfferedProvider, ProviderRequest, Providers},
    report::Section,
    shared::SHM,
};

/// A request, and the result of the trial of the provider that it takes.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Trial {
    /// What is asked for.
    pub(super) request: ProviderRequest,
    /// True if it is the user's request or the default, and not for information.
    pub(super) asked: bool,
    /// What would be taken before the one that worked, but did not work, and why.
    pub(super) failed: Vec<(String, String)>,
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
        // The provider is named exactly: otherwise the group might try another, which would hide why the first failed.
        let over = |candidate: &OfferedProvider| {
            let address = candidate.address.map(|address| address.to_string());
            group::try_out(Some(&candidate.name), providers.interface.as_deref().or(address.as_deref()))
        };
        let mut found = Self::default();
        let mut tried = Vec::new();
        for way in &providers.ways {
            let Ok(taken) = &way.taken else { continue };
            // Several requests may get the same provider.
            if tried.contains(&taken) {
                continue;
            }
            tried.push(taken);
            let (request, asked) = (way.request.clone(), way.asked);
            let mut trial = Trial { request, asked, failed: Vec::new(), success: None };
            for candidate in std::iter::once(taken).chain(&way.next) {
                match over(candidate) {
                    Ok(success) => {
                        trial.success = Some(success);
                        break;
                    }
                    Err(reason) => trial.failed.push((candidate.name.clone(), reason)),
                }
            }
            // Ranks that cannot open shared memory work without it.
            if trial.success.is_none() && way.request == ProviderRequest::OneHost {
                trial.success = group::try_out(None, providers.interface.as_deref()).ok();
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

    /// What ranks of one host use by default, or what was asked for, if it works.
    pub(super) fn on_one_host(&self) -> Option<&Reduced> {
        self.asked().find_map(|trial| trial.success.as_ref())
    }

    /// What ranks of several hosts use by default, or what was asked for, if it works.
    pub(super) fn between_hosts(&self) -> Option<&Reduced> {
        self.asked().find(|trial| trial.request != ProviderRequest::OneHost)?.success.as_ref()
    }

    fn asked(&self) -> impl Iterator<Item = &Trial> {
        self.trials.iter().filter(|trial| trial.asked)
    }

    /// True if ranks of several hosts can form no group, though more than shared memory was asked for.
    pub(super) fn ends_at_the_host(&self) -> bool {
        self.working() == [SHM] && !self.trials.iter().any(|trial| trial.request.is_shm())
    }

    pub(super) fn judge(&self) -> Section {
        let mut section = Section::new("self-test");
        for Trial { request, asked, failed, success } in &self.trials {
            for (at, (name, reason)) in failed.iter().enumerate() {
                let mut text = format!("{request}: {name} fits, but does not work: {reason}");
                if success.is_none() {
                    // Mostly all fail for one reason.
                    if at > 0 {
                        break;
                    }
                    let others = failed.iter().skip(1);
                    others.for_each(|(name, _)| text += &format!("; {name} does not work either"));
                }
                let mut mend = "see environment and interfaces above and limits below".to_owned();
                if name != SHM {
                    mend += "; FI_LOG_LEVEL=info makes libfabric log more";
                }
                if name.starts_with("verbs") {
                    mend += "; on soft-RoCE set FI_UNIVERSE_SIZE=32";
                }
                // A provider that the user has not asked for may fail.
                if *asked && success.is_none() {
                    section.problem(text, mend);
                } else {
                    section.warn(text, mend);
                }
            }
            if let Some(reduced) = success {
                let not_seen =
                    if *request == ProviderRequest::Hosts { "; other hosts were not contacted" } else { "" };
                section.ok(format!("{request}: {}{not_seen}", reduced.words()));
            }
        }
        if self.trials.is_empty() {
            section.problem("there is no provider to test", "see the providers above");
        }
        section
    }
}
