//! Immediates that were taken for signed numbers (efa).

/// The immediate in the data of a completion. efa passes it as a signed number in libfabric 1.18.0 to 1.19.0
/// (prov/efa/src/rdm: rxr_ep.c, recv_rdma_with_imm_completion; efa_rdm_ep_progress.c,
/// efa_rdm_ep_proc_ibv_recv_rdma_with_imm_completion): then its highest bit is repeated above it.
pub(in crate::ofi) fn immediate(data: u64) -> Option<u32> {
    let extended = || i32::try_from(data.cast_signed()).ok().map(i32::cast_unsigned);
    u32::try_from(data).ok().or_else(extended)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_immediate_is_taken_whether_or_not_its_sign_was_extended() {
        for sent in [0, 1, 0x7fff_ffff, 0x8000_0000, 0x8000_0001, u32::MAX] {
            assert_eq!(immediate(sent.into()), Some(sent));
            assert_eq!(immediate(i64::from(sent.cast_signed()).cast_unsigned()), Some(sent));
        }
        // Above 31 bits that are 0, and where not all of the upper half are 1, there is more than an immediate.
        for data in [1 << 32, 0xffff_ffff_0000_0000, 0xffff_ffff_7fff_ffff, 0xffff_fffe_8000_0000, 1 << 63] {
            assert_eq!(immediate(data), None, "{data:#x}");
        }
    }
}
