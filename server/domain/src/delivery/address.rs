//! Addresses to which webhooks may be delivered. Clients choose the URLs, so addresses within the
//! operator's network are refused unless the operator allows them.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

/// A block of addresses, such as `10.0.0.0/8`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cidr {
    address: IpAddr,
    prefix: u8,
}

const fn v4(a: u8, b: u8, c: u8, d: u8, prefix: u8) -> Cidr {
    Cidr { address: IpAddr::V4(Ipv4Addr::new(a, b, c, d)), prefix }
}

const fn v6(first: u16, second: u16, prefix: u8) -> Cidr {
    Cidr { address: IpAddr::V6(Ipv6Addr::new(first, second, 0, 0, 0, 0, 0, 0)), prefix }
}

/// IPv4 blocks that are not public, by the registry of special-purpose addresses.
const SPECIAL_V4: [Cidr; 15] = [
    v4(0, 0, 0, 0, 8),
    v4(10, 0, 0, 0, 8),
    // Shared by the customers of a provider.
    v4(100, 64, 0, 0, 10),
    v4(127, 0, 0, 0, 8),
    // Link-local, with the metadata services of clouds.
    v4(169, 254, 0, 0, 16),
    v4(172, 16, 0, 0, 12),
    v4(192, 0, 0, 0, 24),
    v4(192, 0, 2, 0, 24),
    v4(192, 88, 99, 0, 24),
    v4(192, 168, 0, 0, 16),
    v4(198, 18, 0, 0, 15),
    v4(198, 51, 100, 0, 24),
    v4(203, 0, 113, 0, 24),
    // Multicast.
    v4(224, 0, 0, 0, 4),
    // Reserved, and broadcast.
    v4(240, 0, 0, 0, 4),
];
/// All public IPv6 addresses are here.
const GLOBAL_V6: Cidr = v6(0x2000, 0, 3);
/// Blocks of [`GLOBAL_V6`] that are not public, or have an IPv4 address within.
const SPECIAL_V6: [Cidr; 4] = [
    // Protocols of the IETF, among them Teredo.
    v6(0x2001, 0, 23),
    v6(0x2001, 0x0db8, 32),
    // 6to4.
    v6(0x2002, 0, 16),
    v6(0x3fff, 0, 20),
];

impl Cidr {
    #[must_use]
    pub fn contains(&self, address: IpAddr) -> bool {
        let high_bits = |bits: u128, width: u8| match self.prefix {
            0 => 0,
            prefix => bits >> (width - prefix),
        };
        match (self.address, address) {
            (IpAddr::V4(own), IpAddr::V4(other)) => {
                high_bits(own.to_bits().into(), 32) == high_bits(other.to_bits().into(), 32)
            }
            (IpAddr::V6(own), IpAddr::V6(other)) => high_bits(own.to_bits(), 128) == high_bits(other.to_bits(), 128),
            (IpAddr::V4(_), IpAddr::V6(_)) | (IpAddr::V6(_), IpAddr::V4(_)) => false,
        }
    }
}

impl fmt::Display for Cidr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.prefix)
    }
}

impl FromStr for Cidr {
    type Err = String;

    /// Parses a block, or an address alone.
    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("{text:?} is not a block of addresses such as 10.0.0.0/8");
        let (address, prefix) = text.split_once('/').map_or((text, None), |(address, prefix)| (address, Some(prefix)));
        let address: IpAddr = address.parse().map_err(|_| wrong())?;
        let width: u8 = if address.is_ipv4() { 32 } else { 128 };
        let prefix = match prefix {
            None => width,
            Some(prefix) => prefix.parse::<u8>().ok().filter(|prefix| *prefix <= width).ok_or_else(wrong)?,
        };
        Ok(Self { address, prefix })
    }
}

/// Addresses that the operator allows beyond public ones.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct DeliverTo(Vec<Cidr>);

impl DeliverTo {
    #[must_use]
    pub fn new(blocks: Vec<Cidr>) -> Self {
        Self(blocks)
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// True if the operator has listed the address. An IPv4 address mapped into IPv6 is that IPv4
    /// address.
    #[must_use]
    pub fn lists(&self, address: IpAddr) -> bool {
        self.0.iter().any(|block| block.contains(address) || block.contains(address.to_canonical()))
    }

    /// True if encrypted messages may be sent there.
    #[must_use]
    pub fn allows(&self, address: IpAddr) -> bool {
        is_public(address) || self.lists(address)
    }
}

/// IPv4 addresses within IPv6 ones (mapped, NAT64, 6to4) do not count as public.
fn is_public(address: IpAddr) -> bool {
    let is_special = |blocks: &[Cidr]| blocks.iter().any(|block| block.contains(address));
    match address {
        IpAddr::V4(_) => !is_special(&SPECIAL_V4),
        IpAddr::V6(_) => GLOBAL_V6.contains(address) && !is_special(&SPECIAL_V6),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn only_public_addresses_are_allowed_by_default() {
        let nothing_listed = DeliverTo::default();
        for public in ["1.1.1.1", "9.255.255.255", "100.63.255.255", "100.128.0.0", "172.15.0.1", "172.32.0.1"] {
            assert!(nothing_listed.allows(ip(public)), "{public}");
        }
        for public in ["192.0.1.1", "192.167.0.1", "198.17.0.1", "198.20.0.1", "223.255.255.255", "2606:4700::1111"] {
            assert!(nothing_listed.allows(ip(public)), "{public}");
        }
        for refused in [
            "0.0.0.0",
            "0.1.2.3",
            "10.0.0.1",
            "100.64.0.1",
            "100.127.255.255",
            "127.0.0.1",
            "127.255.255.254",
            "169.254.169.254",
            "172.16.0.1",
            "172.31.255.255",
            "192.0.0.170",
            "192.0.2.1",
            "192.88.99.1",
            "192.168.1.1",
            "198.18.0.1",
            "198.19.255.255",
            "198.51.100.1",
            "203.0.113.1",
            "224.0.0.1",
            "239.255.255.255",
            "240.0.0.1",
            "255.255.255.255",
            "::",
            "::1",
            "::ffff:127.0.0.1",
            "::ffff:1.1.1.1",
            "::127.0.0.1",
            "64:ff9b::7f00:1",
            "64:ff9b:1::7f00:1",
            "100::1",
            "2001::1",
            "2001:20::1",
            "2001:db8::1",
            "2002:7f00:1::",
            "3fff::1",
            "4000::1",
            "fc00::1",
            "fd00:ec2::254",
            "fe80::1",
            "fec0::1",
            "ff02::1",
        ] {
            assert!(!nothing_listed.allows(ip(refused)), "{refused}");
        }
    }

    #[test]
    fn listed_block_allows_its_addresses_alone() {
        let blocks = ["10.1.0.0/16", "127.0.0.1", "fd00::/8", "64:ff9b::/96"];
        let listed = DeliverTo::new(blocks.map(|text| text.parse::<Cidr>().unwrap()).into());
        for allowed in ["10.1.2.3", "127.0.0.1", "::ffff:10.1.2.3", "::ffff:127.0.0.1", "fd12::1", "64:ff9b::7f00:1"] {
            assert!(listed.allows(ip(allowed)) && listed.lists(ip(allowed)), "{allowed}");
        }
        for refused in ["10.2.0.1", "127.0.0.2", "::1", "fe80::1", "169.254.169.254", "64:ff9b:0:0:0:1::"] {
            assert!(!listed.allows(ip(refused)), "{refused}");
        }
        assert!(listed.allows(ip("1.1.1.1")) && !listed.lists(ip("1.1.1.1")));
        let all = DeliverTo::new(vec!["0.0.0.0/0".parse().unwrap(), "::/0".parse().unwrap()]);
        assert!(all.lists(ip("10.2.0.1")) && all.lists(ip("::1")));
    }

    #[test]
    fn block_is_an_address_with_a_prefix() {
        for (text, shown) in [("10.0.0.0/8", "10.0.0.0/8"), ("::1", "::1/128"), ("1.2.3.4", "1.2.3.4/32")] {
            assert_eq!(text.parse::<Cidr>().unwrap().to_string(), shown);
        }
        for wrong in ["", "10", "10.0.0.0/33", "10.0.0.0/", "10.0.0.0/-1", "::/129", "localhost", "10.0.0.0/8/8"] {
            assert!(wrong.parse::<Cidr>().is_err(), "{wrong}");
        }
    }
}
