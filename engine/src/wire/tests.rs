//! Tests that every bit pattern has a meaning, and that sizes are those of docs/wire.md.

use bytemuck::Zeroable;

use super::*;

/// Any bits of an immediate, and any bytes of what lies in a mailbox or before a message.
pub(crate) fn fuzz(bytes: &[u8]) {
    let Some((bits, rest)) = bytes.split_first_chunk::<4>() else { return };
    let immediate = Immediate::decode(u32::from_le_bytes(*bits));
    assert_eq!(Immediate::decode(immediate.encode()), immediate);
    let mut entry = MailboxEntry::zeroed();
    let len = rest.len().min(size_of::<MailboxEntry>());
    bytemuck::bytes_of_mut(&mut entry)[..len].copy_from_slice(&rest[..len]);
    let remote = entry.clear_to_send.remote();
    assert_eq!(remote.is_some(), entry.clear_to_send.start > 0);
    for operation in entry.mismatch_probes.iter().chain([&entry.clear_to_send.operation]) {
        crate::call::fuzz(*operation);
    }
    let mut header = MessageHeader::zeroed();
    let len = rest.len().min(HEADER);
    bytemuck::bytes_of_mut(&mut header)[..len].copy_from_slice(&rest[..len]);
    if let Some(message) = SlotMessage::of(&header) {
        assert_eq!(SlotMessage::of(&message.header(header.flow, header.number)), Some(message));
    }
}

#[cfg(test)]
#[test]
fn immediates_survive_the_wire() {
    let control = (0..16).map(ControlKind::from_code).flat_map(|about| {
        [(0, 0), (0, MAX_RANKS - 1), (4095, MAX_MEMBERS - 1), (7, 3)]
            .map(|(comm_id, from)| Immediate::ControlMessage { comm_id, from, about })
    });
    let samples = [
        Immediate::Data { flow: 0, way: FlowWay::Slots, number: 0 },
        Immediate::Data { flow: 0x1fff, way: FlowWay::Slots, number: 0xffff },
        Immediate::Data { flow: 0x1fff, way: FlowWay::Direct, number: 0xffff },
        Immediate::Credit { flow: 0x1fff, way: FlowWay::Direct, freed: 0xffff },
        Immediate::Credit { flow: 1, way: FlowWay::Slots, freed: 2 },
    ];
    for immediate in samples.into_iter().chain(control) {
        assert_eq!(Immediate::decode(immediate.encode()), immediate);
    }
}

#[cfg(test)]
#[test]
fn records_have_the_sizes_the_papers_say() {
    use unisono_schedule::windows::stride;

    assert_eq!((HEADER, size_of::<Window>(), size_of::<MailboxEntry>()), (40, 48, 440));
    assert_eq!(stride(1), 128);
    assert_eq!(stride(64), 128);
}
