//! The parts of an endpoint's address: libfabric's address format, the provider's name, and libfabric's own address.

use crate::Address;

/// The beginning of an address, which distinguishes it from those of other transports.
const MAGIC: &[u8; 4] = b"ofi1";

/// The address of an endpoint of this provider with this name in this format.
pub(super) fn of(format: u32, provider: &str, name: &[u8]) -> Address {
    let len = u32::try_from(provider.len()).unwrap_or(0);
    Address([&MAGIC[..], &format.to_le_bytes(), &len.to_le_bytes(), provider.as_bytes(), name].concat())
}

/// The parts of an address: its format, its provider's name, and what libfabric made.
pub(super) fn parts(address: &Address) -> Option<(u32, &[u8], &[u8])> {
    let (magic, rest) = address.0.split_first_chunk::<4>()?;
    let (format, rest) = rest.split_first_chunk::<4>()?;
    let (len, rest) = rest.split_first_chunk::<4>()?;
    let (provider, name) = rest.split_at_checked(usize::try_from(u32::from_le_bytes(*len)).ok()?)?;
    (magic == MAGIC).then_some((u32::from_le_bytes(*format), provider, name))
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr, SocketAddr};

    use super::*;
    use crate::{
        Transport,
        ofi::{Ofi, Options},
    };

    #[test]
    fn over_tcp_peers_connect_to_where_the_endpoint_listens() {
        let towards: IpAddr = Ipv4Addr::LOCALHOST.into();
        let options = Options { provider: Some("tcp".into()), towards: Some(towards), ..Options::default() };
        let ofi = Ofi::open(&options).unwrap();
        let at: SocketAddr = ofi.limits().listens.parse().unwrap();
        assert_eq!(at.ip(), towards);
        std::net::TcpStream::connect(at).unwrap();
    }

    #[test]
    fn what_is_no_address_has_no_parts() {
        assert_eq!(parts(&Address(b"ofi1".to_vec())), None);
        assert_eq!(parts(&Address(b"memory 7 and more than that".to_vec())), None);
    }
}
