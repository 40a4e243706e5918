//! The network interfaces that may be used: parses the user's list, and finds an interface on it.

use std::{fmt, net::IpAddr, str::FromStr};

/// A list of network interfaces, by name, address or network, separated by commas; the first that exists is preferred. After a
/// `^`, all interfaces except those listed.
///
/// ```
/// use unisono_transport::ofi::Interfaces;
///
/// let some: Interfaces = "eth0,10.77.0.0/24".parse()?;
/// let all_but: Interfaces = "^docker0,lo".parse()?;
/// assert_eq!([some, all_but].map(|list| list.to_string()), ["eth0,10.77.0.0/24", "^docker0,lo"]);
/// # Ok::<(), String>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interfaces {
    /// True if the listed interfaces are those not to use.
    excluded: bool,
    listed: Vec<Interface>,
    /// The list as it was written.
    text: String,
}

/// An entry of the list.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Interface {
    /// The interface that has this address.
    Address(IpAddr),
    /// The interfaces that have an address in this network, whose prefix has this many bits.
    Network(IpAddr, u8),
    /// The device of this name, as libfabric names the domain.
    Name(String),
}

impl Interfaces {
    /// The only address that may be used, if the list is a single address.
    pub(super) fn address(&self) -> Option<IpAddr> {
        match (self.excluded, self.listed.as_slice()) {
            (false, [Interface::Address(address)]) => Some(*address),
            _ => None,
        }
    }

    /// The place of a device in the order of preference; `None` if it may not be used. If a provider's devices have no addresses
    /// (`by_ip` is false), only names count.
    pub(super) fn place(&self, device: &str, address: Option<IpAddr>, by_ip: bool) -> Option<usize> {
        let listed = || self.listed.iter().filter(|it| by_ip || matches!(it, Interface::Name(_)));
        let place = listed().position(|it| it.is(device, address));
        match (self.excluded, place) {
            (true, place) => place.is_none().then_some(0),
            (false, None) if listed().next().is_none() => Some(0),
            (false, place) => place,
        }
    }
}

impl Interface {
    fn is(&self, device: &str, address: Option<IpAddr>) -> bool {
        match self {
            Self::Name(name) => name == device,
            Self::Address(wanted) => address == Some(*wanted),
            Self::Network(network, bits) => {
                let differ = match (network, address) {
                    (IpAddr::V4(one), Some(IpAddr::V4(other))) => {
                        u128::from(one.to_bits() ^ other.to_bits()) << 96
                    }
                    (IpAddr::V6(one), Some(IpAddr::V6(other))) => one.to_bits() ^ other.to_bits(),
                    _ => return false,
                };
                differ.leading_zeros() >= u32::from(*bits)
            }
        }
    }
}

impl FromStr for Interfaces {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (excluded, list) = text.strip_prefix('^').map_or((false, text), |list| (true, list));
        let listed = list.split(',').map(|one| one.trim().parse()).collect::<Result<_, _>>()?;
        Ok(Self { excluded, listed, text: text.to_owned() })
    }
}

impl FromStr for Interface {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        const WANTED: &str = "wanted are names, addresses and networks separated by commas, eth0,10.0.0.0/8, with a ^ before \
                              the first if all others are to be used";
        if text.is_empty() {
            return Err(format!("one on the list is empty; {WANTED}"));
        }
        if text.starts_with('^') {
            return Err(format!("a ^ stands before the whole list, not before {text:?}; {WANTED}"));
        }
        let Some((address, bits)) = text.split_once('/') else {
            return Ok(text.parse().map_or_else(|_| Self::Name(text.to_owned()), Self::Address));
        };
        let address: IpAddr =
            address.parse().map_err(|_| format!("{address:?} before the / is not an address; {WANTED}"))?;
        let most = if address.is_ipv4() { 32 } else { 128 };
        match bits.parse() {
            Ok(bits) if bits <= most => Ok(Self::Network(address, bits)),
            _ => Err(format!("{bits:?} after the / is not a number of bits from 0 to {most}; {WANTED}")),
        }
    }
}

impl fmt::Display for Interfaces {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Which of a machine's interfaces a list names, in order of preference.
    fn chosen(list: &str, by_ip: bool) -> String {
        let list: Interfaces = list.parse().unwrap();
        let all = [
            ("lo", "127.0.0.1"),
            ("eth0", "10.77.0.1"),
            ("eth1", "10.88.0.1"),
            ("eth1", "fd77::1"),
            ("docker0", "172.17.0.1"),
        ];
        let mut places: Vec<_> = all
            .iter()
            .filter_map(|(name, ip)| Some((list.place(name, ip.parse().ok(), by_ip)?, *name, *ip)))
            .collect();
        places.sort_by_key(|it| it.0);
        places.iter().map(|(_, name, ip)| format!("{name} {ip}")).collect::<Vec<_>>().join(", ")
    }

    #[test]
    fn a_list_names_interfaces_by_name_address_and_network() {
        assert_eq!(chosen("eth1", true), "eth1 10.88.0.1, eth1 fd77::1");
        assert_eq!(chosen("10.88.0.1", true), "eth1 10.88.0.1");
        assert_eq!(chosen("10.77.0.0/24", true), "eth0 10.77.0.1");
        assert_eq!(chosen("10.0.0.0/8", true), "eth0 10.77.0.1, eth1 10.88.0.1");
        assert_eq!(chosen("0.0.0.0/0,eth1", true).matches(',').count(), 4);
        assert_eq!(chosen("fd00::/8", true), "eth1 fd77::1");
        assert_eq!(
            chosen("fd77::/127, docker0,10.77.0.9/24", true),
            "eth1 fd77::1, docker0 172.17.0.1, eth0 10.77.0.1"
        );
        assert_eq!(chosen("eth7", true), "");
    }

    #[test]
    fn a_list_after_a_caret_names_the_others() {
        assert_eq!(chosen("^docker0,lo", true), "eth0 10.77.0.1, eth1 10.88.0.1, eth1 fd77::1");
        assert_eq!(chosen("^127.0.0.0/8,eth1,172.16.0.0/12", true), "eth0 10.77.0.1");
    }

    #[test]
    fn where_devices_have_no_addresses_only_names_choose() {
        assert_eq!(chosen("eth0", false), "eth0 10.77.0.1");
        assert_eq!(chosen("10.77.0.0/24", false).matches(',').count(), 4);
        assert_eq!(chosen("10.77.0.0/24,eth1", false), "eth1 10.88.0.1, eth1 fd77::1");
        assert_eq!(chosen("^10.77.0.0/24,lo", false).matches(',').count(), 3);
    }

    #[test]
    fn what_has_no_sense_is_refused_with_words() {
        for (text, word) in [
            ("eth0,,lo", "empty"),
            ("", "empty"),
            ("^", "empty"),
            ("eth0,^lo", "before the whole list"),
            ("10.0.0.0/33", "from 0 to 32"),
            ("fd00::/129", "from 0 to 128"),
            ("10.0.0.0/", "not a number"),
            ("eth0/8", "not an address"),
        ] {
            let said = text.parse::<Interfaces>().unwrap_err();
            assert!(said.contains(word), "{text}: {said}");
        }
    }

    #[test]
    fn a_list_reads_as_it_was_written() {
        for text in ["eth0", "10.77.0.1", "^docker0,lo", "fd00::/8,eth1,10.0.0.0/8"] {
            assert_eq!(text.parse::<Interfaces>().unwrap().to_string(), text);
        }
    }
}
