//! Checks that a setting is the same on all ranks, and makes the failure of a provider that cannot reach all of them.

use std::collections::BTreeMap;

use unisono_schedule::Rank;

use crate::error::{Failure, clean, rank_list};

/// The provider's name in the error, and the error's advice.
pub(super) const PROVIDER: &str = "the provider (UNISONO_PROVIDER)";
pub(super) const PROVIDER_ADVICE: &str =
    "; set it to one that all hosts have: `unisono doctor` says on each what the others lack there";

/// The most characters of a rank's setting in the error.
const SHOWN: usize = 200;

/// The failure if the ranks' settings (in the order of ranks) differ. It says which ranks have which.
pub(super) fn alike(name: &str, settings: &[String], advice: &str) -> Result<(), Failure> {
    let mut camps: BTreeMap<String, Vec<Rank>> = BTreeMap::new();
    for (rank, setting) in settings.iter().enumerate() {
        camps.entry(clean(setting, SHOWN)).or_default().push(rank);
    }
    if camps.len() <= 1 {
        return Ok(());
    }
    let camps: Vec<_> = camps.iter().map(|(what, ranks)| format!("{what} on {}", rank_list(ranks))).collect();
    let problem = format!("must be alike on all ranks, and is {}{advice}", camps.join("; "));
    Err(Failure::Settings { name: name.to_owned(), problem })
}

/// The failure if the ranks must use this provider, and it cannot reach all of them because of `problem`.
pub(super) fn cannot_reach(provider: &str, problem: &str) -> Failure {
    let problem = format!("{problem}; or let ranks meet by tcp or verbs, which reach all of them");
    Failure::Settings { name: format!("UNISONO_PROVIDER={provider}"), problem }
}
