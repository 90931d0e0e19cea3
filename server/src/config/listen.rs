//! `--listen`: an address, or a host name that is looked up at once.

use std::net::{SocketAddr, ToSocketAddrs as _};

const EXAMPLE: &str = "127.0.0.1:8080 or localhost:8080";

/// Reads an address and a port. Of a name's addresses the first of IPv4 is taken, which is what most clients try.
pub fn parse_listen(text: &str) -> Result<SocketAddr, String> {
    if let Ok(address) = text.parse() {
        return Ok(address);
    }
    let (host, port) = text.rsplit_once(':').ok_or_else(|| format!("the port is missing: write {EXAMPLE}"))?;
    let port: u16 = port.parse().map_err(|_| format!("the port is no number from 0 to 65535: write {EXAMPLE}"))?;
    if host.is_empty() {
        return Err(format!(
            "the host is missing: write 127.0.0.1:{port} for this machine alone, or 0.0.0.0:{port} for all its \
             addresses"
        ));
    }
    if host.contains(':') {
        return Err(format!("an IPv6 address must be in brackets: write [::1]:{port}"));
    }
    let found = (host, port).to_socket_addrs();
    let found: Vec<SocketAddr> =
        found.map_err(|error| format!("the host name is not known ({error}): write {EXAMPLE}"))?.collect();
    let first = found.iter().find(|address| address.is_ipv4()).or(found.first());
    first.copied().ok_or_else(|| format!("the host name has no address: write {EXAMPLE}"))
}
