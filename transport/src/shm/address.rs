//! Addresses of endpoints: the name of an abstract Unix socket, the token that a peer shows there, and the token by which the peer knows
//! that the endpoint answers. All are random. Other users can read the name (/proc/net/unix), and neither of the tokens.

use crate::{Address, Error, keys::random};

/// The provider's name in addresses, limits and errors.
pub const PROVIDER: &str = "shm";

/// The first bytes of an address; the last of them is the version of the format of rings and messages.
const MAGIC: [u8; 12] = *b"unisono-shm\x06";
/// The name of an endpoint's listening socket, which no other endpoint has.
pub(super) type Name = [u8; 8];
/// A secret that only ranks of the job know.
pub(super) type EndpointToken = [u8; 12];

/// The number of bytes of an address.
pub(super) const LEN: usize = MAGIC.len() + size_of::<Name>() + 2 * size_of::<EndpointToken>();

/// The place where peers reach an endpoint.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct EndpointPlace {
    pub(super) name: Name,
    /// The first bytes of all that is sent to this endpoint.
    pub(super) token: EndpointToken,
    /// The first bytes of all that this endpoint answers.
    pub(super) proof: EndpointToken,
}

impl EndpointPlace {
    /// A place that no other endpoint has and no process can guess.
    pub(super) fn new() -> Result<Self, Error> {
        Ok(Self { name: random()?, token: random()?, proof: random()? })
    }

    pub(super) fn parse(bytes: &[u8]) -> Option<Self> {
        let (name, tokens) = bytes.strip_prefix(&MAGIC)?.split_first_chunk()?;
        let (token, proof) = tokens.split_first_chunk()?;
        Some(Self { name: *name, token: *token, proof: proof.try_into().ok()? })
    }

    /// The place in an address.
    ///
    /// # Errors
    /// [`Error::BadAddress`] if it is not the address of such an endpoint.
    pub(super) fn of(address: &Address) -> Result<Self, Error> {
        let bad = || Error::bad_address(address, PROVIDER, "it is of another kind or version");
        Self::parse(&address.0).ok_or_else(bad)
    }

    pub(super) fn bytes(&self) -> [u8; LEN] {
        let mut bytes = [0; LEN];
        let parts = MAGIC.iter().chain(&self.name).chain(&self.token).chain(&self.proof);
        bytes.iter_mut().zip(parts).for_each(|(byte, part)| *byte = *part);
        bytes
    }

    pub(super) fn address(&self) -> Address {
        Address(self.bytes().into())
    }

    /// The abstract name of the listening socket, which lies in the network namespace and in no directory.
    pub(super) fn socket_name(&self) -> String {
        self.name.iter().fold("unisono-".to_owned(), |name, byte| name + &format!("{byte:02x}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_whole_or_none() {
        let place = EndpointPlace::new().unwrap();
        let bytes = place.bytes();
        assert_eq!(EndpointPlace::parse(&bytes), Some(place));
        assert_eq!(place.address().0, bytes);
        assert_ne!(EndpointPlace::new().unwrap(), place);
        for cut in 0..LEN {
            assert_eq!(EndpointPlace::parse(&bytes[..cut]), None, "{cut} bytes");
            assert_eq!(EndpointPlace::parse(&bytes[LEN - cut..]), None, "the last {cut} bytes");
        }
        assert_eq!(EndpointPlace::parse(&[&bytes[..], &[0]].concat()), None);
        let mut other = bytes;
        other[MAGIC.len() - 1] += 1;
        assert_eq!(EndpointPlace::parse(&other), None, "another version");
    }
}
