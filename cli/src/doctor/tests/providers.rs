//! The report on shared memory and providers, on their trials, and the verdict.

use unisono_transport::ofi::Options;

use super::{
    super::{
        providers::{OfferedProvider, ProviderRequest, Providers, RequestResult},
        report::Section,
        self_test::SelfTest,
        shared::{SHM, SharedMemory},
        verdict,
    },
    says, tested, trial,
};

fn candidate(name: &str, device: &str, address: &str, taken: bool, reason: &str) -> OfferedProvider {
    OfferedProvider {
        name: name.into(),
        version: if device.is_empty() { String::new() } else { "117.0".into() },
        device: device.into(),
        address: address.parse().ok(),
        fits: taken,
        taken,
        reason: reason.into(),
    }
}

fn named(name: &str) -> ProviderRequest {
    ProviderRequest::Named(name.into())
}

fn way(request: ProviderRequest, asked: bool, taken: Result<OfferedProvider, String>) -> RequestResult {
    RequestResult { request, asked, taken, next: Vec::new() }
}

fn shared_memory(opens: Option<Result<(), String>>) -> SharedMemory {
    SharedMemory {
        opens,
        file_size: None,
        overcommit: Some("0".into()),
        kernel: Some("a64fc1dc".into()),
        network: Some("net:[4026531833]".into()),
        user: 1000,
        users: None,
    }
}

#[test]
fn no_provider() {
    let why = "it is not built into this libfabric, or finds no device";
    let providers = Providers {
        interface: Some("eth9".into()),
        ways: vec![
            way(ProviderRequest::OneHost, true, Err("refused".into())),
            way(ProviderRequest::Hosts, true, Err(format!("efa: {why}"))),
            way(named("tcp"), false, Err(format!("net: {why}"))),
        ],
        candidates: vec![
            candidate("efa", "", "", false, why),
            candidate("net", "", "", false, why),
            candidate("tcp;ofi_rxm", "", "", false, why),
        ],
        ..Providers::default()
    };
    let section = providers.judge();
    says(
        &section,
        "|providers
         |  -        by default, on one host: as between hosts, because there is no shared memory
         |  PROBLEM  by default, between hosts: no provider fits on interface eth9; efa: it is not built into
         |           this libfabric, or finds no device
         |           => unset FI_PROVIDER if it is set; FI_LOG_LEVEL=info makes libfabric log more
         |  -        tcp: none; net: it is not built into this libfabric, or finds no device
         |  -        not taken: tcp;ofi_rxm: it is not built into this libfabric, or finds no device",
    );
    let self_test = SelfTest::default();
    let tested = self_test.judge();
    says(
        &tested,
        "|self-test
         |  PROBLEM  there is no provider to test
         |           => see the providers above",
    );
    assert!(self_test.working().is_empty());
    says(
        &verdict(&[section, tested], &self_test),
        "|verdict
         |  PROBLEM  nothing works here; 2 problems
         |           => start with the first PROBLEM above",
    );
}

#[test]
fn shared_memory_that_opens_is_refused_or_is_not_asked_for() {
    let reaches = "|  -        it reaches ranks of the same host (kernel a64fc1dc), network namespace (net:[4026531833])
                   |           and user (1000 in unknown); containers share a network namespace by docker run
                   |           --network=host";
    says(
        &shared_memory(Some(Ok(()))).judge(),
        &format!(
            "|shared memory
             |  ok       an endpoint opens; the self-test below tries it with two ranks
             {reaches}"
        ),
    );
    let limited = SharedMemory { file_size: Some(1 << 20), ..shared_memory(Some(Ok(()))) };
    says(
        &limited.judge(),
        &format!(
            "|shared memory
             |  ok       an endpoint opens; the self-test below tries it with two ranks
             |  warn     the limit on file sizes is 1 MiB, and holds for memory that ranks share: messages into
             |           larger buffers are copied twice
             |           => `ulimit -f unlimited`
             {reaches}"
        ),
    );
    let strict = SharedMemory { overcommit: Some("2".into()), ..shared_memory(Some(Ok(()))) };
    says(
        &strict.judge(),
        &format!(
            "|shared memory
             |  ok       an endpoint opens; the self-test below tries it with two ranks
             |  warn     the system keeps strict account of memory (vm.overcommit_memory is 2): messages between
             |           ranks of this host are copied twice
             |           => `sysctl vm.overcommit_memory=0`, unless another program needs it
             {reaches}"
        ),
    );
    let refused = "a Unix socket (for peers to connect to): Permission denied (os error 13) (code 13)";
    says(
        &shared_memory(Some(Err(refused.into()))).judge(),
        &format!(
            "|shared memory
             |  warn     an endpoint does not open: a Unix socket (for peers to connect to): Permission denied (os
             |           error 13) (code 13). By default, ranks of this host use a provider then, which is slower
             |           => raise the limit if the reason is one; otherwise let the container's profiles (seccomp,
             |              AppArmor) allow memfd_create and Unix sockets
             {reaches}"
        ),
    );
    says(
        &shared_memory(None).judge(),
        "|shared memory
         |  -        not checked, because a provider is asked for, which ranks of one host use, too",
    );
    // Only shared memory is asked for, and libfabric is not.
    let asked = |opens| {
        let options = Options { provider: Some(SHM.into()), ..Options::default() };
        Providers::gather(&options, &shared_memory(Some(opens)))
    };
    let open = asked(Ok(()));
    assert!(open.candidates.is_empty());
    says(
        &open.judge(),
        "|providers
         |  ok       shm: shm; it is unisono's own shared memory, which does not use libfabric",
    );
    says(
        &Providers { otherwise: None, ..asked(Err(refused.into())) }.judge(),
        "|providers
         |  PROBLEM  shm: there is no shared memory
         |           => see shared memory above",
    );
}

#[test]
fn a_provider_of_several_addresses_and_one_that_fails() {
    let first = "it is on the route to 10.0.0.9";
    let second = "it fits, but net comes first";
    let net = candidate("net", "eth0", "10.0.0.1", true, first);
    let verbs = candidate("verbs;ofi_rxm", "mlx5_0", "10.1.0.1", true, "it fits");
    let providers = Providers {
        ways: vec![way(ProviderRequest::Hosts, true, Ok(net.clone())), way(named("verbs"), false, Ok(verbs))],
        candidates: vec![
            net,
            candidate("net", "lo", "127.0.0.1", false, second),
            candidate("net", "lo", "::1", false, second),
        ],
        ..Providers::default()
    };
    says(
        &providers.judge(),
        "|providers
         |  ok       by default, between hosts: net on eth0 10.0.0.1; it is on the route to 10.0.0.9
         |  ok       verbs: verbs;ofi_rxm on mlx5_0 10.1.0.1; it fits
         |  -        not taken: net on lo 127.0.0.1, lo ::1: it fits, but net comes first",
    );
    let next_best = trial(ProviderRequest::Hosts, true, &["verbs;ofi_rxm"], Some("net"));
    let failed = trial(named("verbs"), false, &["verbs;ofi_rxm"], None);
    let on_one_host = trial(ProviderRequest::OneHost, true, &[], Some(SHM));
    let self_test = SelfTest { trials: vec![on_one_host, next_best, failed] };
    let section = self_test.judge();
    says(
        &section,
        "|self-test
         |  ok       by default, on one host: 2 ranks form a group over shm and reduce correctly: 8 B in about
         |           12 us, 1 MiB in about 457 us
         |  warn     by default, between hosts: verbs;ofi_rxm fits, but does not work: it broke
         |           => see environment and interfaces above and limits below; FI_LOG_LEVEL=info makes
         |              libfabric log more; on soft-RoCE set FI_UNIVERSE_SIZE=32
         |  ok       by default, between hosts: 2 ranks form a group over net and reduce correctly: 8 B in
         |           about 12 us, 1 MiB in about 457 us; other hosts were not contacted
         |  warn     verbs: verbs;ofi_rxm fits, but does not work: it broke
         |           => see environment and interfaces above and limits below; FI_LOG_LEVEL=info makes
         |              libfabric log more; on soft-RoCE set FI_UNIVERSE_SIZE=32",
    );
    let names = [self_test.on_one_host(), self_test.between_hosts()].map(|it| it.unwrap().provider.as_str());
    assert_eq!(names, [SHM, "net"]);
    says(
        &verdict(&[section], &self_test),
        "|verdict
         |  ok       shm and net work; 2 warnings",
    );
}

#[test]
fn shared_memory_that_does_not_work_or_alone_works() {
    for request in [ProviderRequest::OneHost, named(SHM)] {
        let self_test = SelfTest { trials: vec![trial(request.clone(), true, &[SHM], None)] };
        let section = self_test.judge();
        let mut line = section.lines[0].clone();
        assert_eq!(line.text, format!("{request}: shm fits, but does not work: it broke"));
        line.text = "it".into();
        says(
            &Section { lines: vec![line], ..section },
            "|self-test
             |  PROBLEM  it
             |           => see environment and interfaces above and limits below",
        );
        assert!(self_test.working().is_empty() && !self_test.ends_at_the_host());
    }
    let none =
        SelfTest { trials: vec![trial(ProviderRequest::Hosts, true, &["net", "tcp;ofi_rxm"], None)] }.judge();
    assert_eq!(none.lines.len(), 1, "{none:?}");
    let message =
        "by default, between hosts: net fits, but does not work: it broke; tcp;ofi_rxm does not work either";
    assert_eq!(none.lines[0].text, message);
    let alone = tested(Some(SHM), None);
    let mut fabric = Section::new("providers");
    fabric.problem("no provider fits", "get one");
    says(
        &verdict(&[fabric], &alone),
        "|verdict
         |  warn     shm works for ranks of one host, but nothing between hosts; 1 problem
         |           => start with the first PROBLEM above",
    );
    let asked = SelfTest { trials: vec![trial(named(SHM), true, &[], Some(SHM))] };
    says(&verdict(&[], &asked), "|verdict\n|  ok       shm works; no problems");
}
