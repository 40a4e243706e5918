//! Addresses of a [`Mux`](super::Mux): which processes reach each other by shared memory, and the addresses of both parts.

use crate::Address;

/// The first bytes of an address; the last of them is the version.
const MAGIC: &[u8; 12] = b"unisono-mux\x01";

/// The parts of an address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct AddressParts<'a> {
    pub(super) scope: u128,
    /// Empty where there is no shared memory.
    pub(super) shm: &'a [u8],
    pub(super) fabric: &'a [u8],
}

impl<'a> AddressParts<'a> {
    pub(super) fn address(&self) -> Address {
        let Self { scope, shm, fabric } = self;
        let lens = [shm, fabric].map(|part| (part.len() as u64).to_le_bytes());
        Address([MAGIC, &scope.to_le_bytes()[..], lens.as_flattened(), shm, fabric].concat())
    }

    pub(super) fn parse(bytes: &'a [u8]) -> Option<Self> {
        let (scope, rest) = bytes.strip_prefix(MAGIC)?.split_first_chunk()?;
        let (shm, rest) = rest.split_first_chunk()?;
        let (fabric, rest) = rest.split_first_chunk()?;
        let [shm, fabric] = [shm, fabric].map(|len| usize::try_from(u64::from_le_bytes(*len)).ok());
        let (shm, rest) = rest.split_at_checked(shm?)?;
        (Some(rest.len()) == fabric).then_some(Self { scope: u128::from_le_bytes(*scope), shm, fabric: rest })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_whole_or_none() {
        for (shm, fabric) in [(&b"near"[..], &b"a far address"[..]), (b"", b"far"), (b"", b"")] {
            let parts = AddressParts { scope: 7 << 100, shm, fabric };
            let Address(bytes) = parts.address();
            assert_eq!(AddressParts::parse(&bytes), Some(parts));
            for cut in 0..bytes.len() {
                assert_eq!(AddressParts::parse(&bytes[..cut]), None, "{cut} bytes");
                assert_eq!(AddressParts::parse(&bytes[bytes.len() - cut..]), None, "the last {cut} bytes");
            }
            assert_eq!(AddressParts::parse(&[&bytes[..], &[0]].concat()), None);
            for place in [MAGIC.len() - 1, MAGIC.len() + 16, MAGIC.len() + 24 + 7] {
                let mut other = bytes.clone();
                other[place] ^= 0x80;
                assert_eq!(AddressParts::parse(&other), None, "byte {place}");
            }
        }
    }
}
