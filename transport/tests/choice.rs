//! The choice of a provider, and the reasons for those that are not chosen.

use std::net::{IpAddr, Ipv4Addr};

use unisono_transport::{
    Error, Transport,
    ofi::{Ofi, Options, library_version, survey},
};

fn tcp() -> Options {
    Options { provider: Some("tcp".into()), towards: Some(Ipv4Addr::LOCALHOST.into()), ..Options::default() }
}

#[allow(clippy::panic, reason = "fails the test that calls it")]
fn refusal(options: &Options) -> String {
    match Ofi::open(options) {
        Err(Error::NoProvider { report, .. }) => report,
        other => panic!("{options:?} gave {other:?}"),
    }
}

#[test]
fn tcp_is_what_this_version_has_and_goes_the_way_that_was_asked_for() {
    let survey = survey(&tcp()).unwrap();
    let taken: Vec<_> = survey.iter().filter(|candidate| candidate.taken).collect();
    let [taken] = taken[..] else { panic!("not one is taken: {survey:?}") };
    assert_eq!(taken.name, if library_version() >= (1, 18) { "tcp" } else { "net" });
    assert_eq!(taken.address, Some(IpAddr::V4(Ipv4Addr::LOCALHOST)));
    assert!(taken.reason.contains("127.0.0.1"), "{}", taken.reason);
    assert_eq!(Ofi::open(&tcp()).unwrap().limits().provider, taken.name);
    assert!(survey.iter().all(|candidate| !candidate.reason.is_empty()));
    // What would be tried comes first, and is of this request alone.
    assert_eq!(survey.iter().find(|candidate| candidate.fits), Some(taken));
    let fitting = survey.iter().filter(|candidate| candidate.fits);
    let alien = fitting.filter(|it| !["tcp", "net", "tcp;ofi_rxm"].contains(&it.name.as_str()));
    assert_eq!(alien.count(), 0, "{survey:?}");
}

#[test]
fn a_provider_that_lacks_something_is_told_what() {
    // Before 1.18 `tcp` has connections only, and by its exact name it is asked for in the survey.
    let survey = survey(&tcp()).unwrap();
    let Some(candidate) = survey.iter().find(|candidate| candidate.name == "tcp") else {
        panic!("no line for tcp: {survey:?}")
    };
    if library_version() < (1, 18) {
        assert!(candidate.reason.contains("lacks reliable datagrams"), "{}", candidate.reason);
        assert!(candidate.reason.contains("1.18"), "{}", candidate.reason);
    } else {
        assert!(candidate.taken, "{}", candidate.reason);
    }
}

#[test]
fn an_unknown_provider_is_refused_with_a_reason() {
    let report = refusal(&Options { provider: Some("no such".into()), ..Options::default() });
    assert!(report.contains("no such: it is not built into this libfabric"), "{report}");
}

#[test]
fn libfabrics_shm_is_refused_and_listed_with_what_serves_instead() {
    let shm = Options { provider: Some("shm".into()), ..Options::default() };
    let report = refusal(&shm);
    let words = ["shm: libfabric's shm is not used", "`unisono_transport::shm` serves ranks of one host"];
    assert!(words.iter().all(|words| report.contains(words)), "{report}");
    let listed = |options| {
        let mut survey = survey(options).unwrap();
        survey.retain(|candidate| candidate.name == "shm");
        survey
    };
    // Asked for by name it is listed always, otherwise where this libfabric has it.
    let (asked, offered) = (listed(&shm), listed(&tcp()));
    assert!(asked.len() == 1 && offered.len() <= 1, "{asked:?} {offered:?}");
    for candidate in asked.iter().chain(&offered) {
        assert!(!candidate.taken && report.contains(&candidate.reason), "{candidate:?}");
    }
}

#[test]
fn an_unknown_interface_is_refused_with_those_there_are() {
    let interface = Some("no such".parse().unwrap());
    let report = refusal(&Options { interface, towards: None, ..tcp() });
    assert!(report.contains("no device no such, only") && report.contains("lo"), "{report}");
}

#[test]
fn an_address_that_is_not_ours_is_refused() {
    // From the block reserved for documentation, which no host has.
    let interface = Some("203.0.113.77".parse().unwrap());
    let report = refusal(&Options { interface, towards: None, ..tcp() });
    assert!(report.contains("203.0.113.77") && report.contains("lo 127.0.0.1"), "{report}");
}

#[test]
fn a_network_that_no_interface_is_in_is_refused_with_those_there_are() {
    let interface = Some("203.0.113.0/24".parse().unwrap());
    let report = refusal(&Options { interface, towards: None, ..tcp() });
    assert!(report.contains("no device 203.0.113.0/24, only") && report.contains("lo 127.0.0.1"), "{report}");
}

#[test]
fn an_interface_is_found_by_its_network_and_by_not_being_another() {
    let taken = |interface: &str| {
        let interface = Some(interface.parse().unwrap());
        let found = survey(&Options { interface, towards: None, ..tcp() }).unwrap();
        found.into_iter().find(|candidate| candidate.taken).and_then(|candidate| candidate.address)
    };
    assert_eq!(taken("127.0.0.0/8"), Some(Ipv4Addr::LOCALHOST.into()));
    assert_ne!(taken("^lo"), Some(Ipv4Addr::LOCALHOST.into()));
    assert_eq!(taken("no such,203.0.113.0/24,lo"), Some(Ipv4Addr::LOCALHOST.into()));
}

#[test]
fn ranks_that_meet_beside_the_cards_network_use_the_cards_all_the_same() {
    let addresses = |provider: &str, name: &str| -> Vec<IpAddr> {
        let options = Options { provider: Some(provider.into()), ..Options::default() };
        let of = survey(&options).unwrap().into_iter().filter(|candidate| candidate.name.starts_with(name));
        of.filter_map(|candidate| candidate.address).collect()
    };
    let nics = addresses("verbs", "verbs;ofi_rxm");
    let others = addresses("tcp", if library_version() >= (1, 18) { "tcp" } else { "net" });
    let beside = others.into_iter().find(|ip| ip.is_ipv4() && !ip.is_loopback() && !nics.contains(ip));
    let (Some(beside), false) = (beside, nics.is_empty()) else {
        let required = std::env::var("UNISONO_TEST_PROVIDERS").is_ok_and(|names| names.contains("verbs"));
        assert!(
            !required,
            "it must run here, but the NICs have {nics:?}, and beside them there is {beside:?}"
        );
        println!(
            "SKIPPED: ranks that meet beside their NICs: there is no RDMA NIC with an address beside another network"
        );
        return;
    };
    let verbs = Options { provider: Some("verbs".into()), towards: Some(beside), ..Options::default() };
    for options in [verbs.clone(), Options { provider: None, ..verbs }] {
        let survey = survey(&options).unwrap();
        let taken = survey.iter().find(|candidate| candidate.taken).unwrap();
        assert_eq!(taken.name, "verbs;ofi_rxm", "{options:?}: {survey:?}");
        assert!(nics.iter().any(|nic| taken.address == Some(*nic)), "{taken:?}");
        assert!(taken.reason.contains("is not a NIC's address"), "{}", taken.reason);
        assert_eq!(Ofi::open(&options).unwrap().limits().provider, taken.name);
    }
}
