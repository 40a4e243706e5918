//! Addresses of endpoints: the name of an abstract Unix socket, and the token that a peer shows there. Both are random.

use rustix::{
    io::Errno,
    rand::{GetRandomFlags, getrandom},
};

use crate::{Address, Error};

/// The provider's name in addresses, limits and errors.
pub const PROVIDER: &str = "shm";

/// What an address begins with; the last byte is the version of the format of rings and messages.
const MAGIC: [u8; 12] = *b"unisono-shm\x04";
/// The number of bytes of a name, and of a token.
const RANDOM: usize = 16;
/// The number of bytes of an address.
pub(super) const LEN: usize = MAGIC.len() + 2 * RANDOM;

/// Where an endpoint is reached.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct Place {
    name: [u8; RANDOM],
    token: [u8; RANDOM],
}

impl Place {
    /// A place that nobody else has and nobody can guess.
    pub(super) fn new() -> Result<Self, Error> {
        Ok(Self { name: random()?, token: random()? })
    }

    pub(super) fn parse(bytes: &[u8]) -> Option<Self> {
        let (name, token) = bytes.strip_prefix(&MAGIC)?.split_first_chunk()?;
        Some(Self { name: *name, token: token.try_into().ok()? })
    }

    /// That of an address.
    ///
    /// # Errors
    /// [`Error::BadAddress`] if it is none of such an endpoint.
    pub(super) fn of(address: &Address) -> Result<Self, Error> {
        Self::parse(&address.0).ok_or_else(|| bad(address, "it is of another kind or version"))
    }

    pub(super) fn bytes(&self) -> [u8; LEN] {
        let mut bytes = [0; LEN];
        let parts = MAGIC.iter().chain(&self.name).chain(&self.token);
        bytes.iter_mut().zip(parts).for_each(|(byte, part)| *byte = *part);
        bytes
    }

    pub(super) fn address(&self) -> Address {
        Address(self.bytes().into())
    }

    /// The socket's abstract name, which lies in the network namespace and in no directory.
    pub(super) fn name(&self) -> String {
        self.name.iter().fold("unisono-".to_owned(), |name, byte| name + &format!("{byte:02x}"))
    }

    pub(super) fn token(&self) -> [u8; RANDOM] {
        self.token
    }
}

pub(super) fn bad(address: &Address, reason: &str) -> Error {
    Error::BadAddress { address: address.clone(), provider: PROVIDER.into(), reason: reason.into() }
}

/// Random bytes of the system.
pub(super) fn random<const N: usize>() -> Result<[u8; N], Error> {
    let mut bytes = [0; N];
    match getrandom(&mut bytes, GetRandomFlags::empty()) {
        Ok(given) if given == N => Ok(bytes),
        Ok(_) => Err(Error::system("getrandom", "for names and keys", Errno::AGAIN)),
        Err(error) => Err(Error::system("getrandom", "for names and keys", error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_whole_or_none() {
        let place = Place::new().unwrap();
        let bytes = place.bytes();
        assert_eq!(Place::parse(&bytes), Some(place));
        assert_eq!(place.address().0, bytes);
        assert_ne!(Place::new().unwrap(), place);
        for cut in 0..LEN {
            assert_eq!(Place::parse(&bytes[..cut]), None, "{cut} bytes");
            assert_eq!(Place::parse(&bytes[LEN - cut..]), None, "the last {cut} bytes");
        }
        assert_eq!(Place::parse(&[&bytes[..], &[0]].concat()), None);
        let mut other = bytes;
        other[MAGIC.len() - 1] += 1;
        assert_eq!(Place::parse(&other), None, "another version");
    }
}
