//! Versions and settings of providers that lose writes, and are not taken.

/// What is wrong with a provider of this version (the provider's, not libfabric's) with a NIC of this model, and what to do; `None`
/// if nothing is known. `set` gives the truth value in a variable of libfabric.
pub(in crate::ofi) fn flaw(
    (name, model): (&str, &str),
    version: (u32, u32),
    set: impl Fn(&str) -> Option<bool>,
) -> Option<String> {
    // A NIC's write that finds no receive posted at its target fails, and its packet is put among those for receiving
    // (efa_rdm_ep_poll_ibv_cq in prov/efa/src/rdm/efa_rdm_ep_progress.c, rxr_ep.c before 1.19); in 1.18.0 none may be written to.
    // The first two models cannot be written to by the NIC, so that writes are messages there, as in 1.17.
    let lost = [(118, 0)..(118, 30), (119, 0)..(119, 10)];
    if name == "efa"
        && !["0xefa0", "0xefa1"].contains(&model)
        && lost.iter().any(|versions| versions.contains(&version))
        && set("FI_EFA_USE_DEVICE_RDMA") != Some(false)
    {
        let (minor, patch) = (version.0 % 100, version.1 / 10);
        return Some(format!(
            "in libfabric 1.{minor}.{patch} it loses writes by the NIC; take 1.18.3, 1.19.1 or later, or set \
             FI_EFA_USE_DEVICE_RDMA=0"
        ));
    }
    // A write that takes a shared receive is reported as a message, whose header ofi_rxm then reads in a buffer that nothing was
    // written to (prov/verbs/src/verbs_cq.c, vrb_poll_cq, VRB_OP_SRQ; 1.17 to 2.6).
    (name == "verbs;ofi_rxm" && set("FI_OFI_RXM_USE_SRX") == Some(true)).then(|| {
        "FI_OFI_RXM_USE_SRX is set, and with shared receives verbs takes a write for a message; unset it"
            .to_owned()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_and_settings_that_lose_writes_are_refused() {
        let refused = |name, version, variable, value: Option<bool>| {
            flaw((name, "0xefa2"), version, |asked| value.filter(|_| asked == variable)).is_some()
        };
        assert!(flaw(("efa", "0xefa1"), (118, 20), |_| None).is_none(), "it has no writes by the NIC");
        let efa = |version, value| refused("efa", version, "FI_EFA_USE_DEVICE_RDMA", value);
        for (version, lost) in [
            ((117, 10), false),
            ((118, 0), true),
            ((118, 20), true),
            ((118, 30), false),
            ((119, 0), true),
            ((119, 10), false),
            ((205, 10), false),
        ] {
            assert_eq!([efa(version, None), efa(version, Some(true))], [lost; 2], "{version:?}");
            assert!(!efa(version, Some(false)), "{version:?}");
            assert!(!refused("tcp", version, "", None), "{version:?}");
        }
        let shared = |name, value| refused(name, (117, 0), "FI_OFI_RXM_USE_SRX", value);
        assert!(shared("verbs;ofi_rxm", Some(true)) && !shared("tcp;ofi_rxm", Some(true)));
        assert!(!shared("verbs;ofi_rxm", Some(false)) && !shared("verbs;ofi_rxm", None));
    }
}
