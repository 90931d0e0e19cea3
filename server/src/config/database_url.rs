//! Database URLs, which may name several hosts. sqlx parses URLs of one host, so the list is split
//! into one URL per host.

use sqlx::postgres::PgConnectOptions;
use tenure_store::hosts::Hosts;

use super::SettingError;

const FORM: &str = "write postgres://user:password@host:5432/database";
/// Printed instead of a secret.
pub const MASK: &str = "***";
/// Values of `target_session_attrs` that match a server's behaviour.
const READ_WRITE: [&str; 2] = ["read-write", "primary"];

/// Errors repeat neither the value nor the parser's message, which may contain the password.
pub(super) fn parse(setting: &str, url: &str) -> Result<Hosts, SettingError> {
    let wrong = |fix: &str| SettingError::secret(setting, fix);
    let parts = Parts::of(url).ok_or_else(|| wrong(FORM))?;
    let urls = parts.urls().map_err(wrong)?;
    let options: Result<Vec<PgConnectOptions>, _> = urls.iter().map(|url| url.parse().map(without_brackets)).collect();
    Hosts::new(options.map_err(|_| wrong(FORM))?).ok_or_else(|| wrong(FORM))
}

/// Returns a valid URL without its passwords.
#[must_use]
pub fn masked(url: &str) -> String {
    let url = match url.split_once('?') {
        Some((start, query)) => {
            let pairs: Vec<String> = query.split('&').map(masked_parameter).collect();
            format!("{start}?{}", pairs.join("&"))
        }
        None => url.to_owned(),
    };
    // A password may contain any character, so the last @ counts.
    let user = url.split_once("://").and_then(|(scheme, rest)| Some((scheme, rest.rsplit_once('@')?)));
    match user.and_then(|(scheme, (user, place))| Some((scheme, user.split_once(':')?.0, place))) {
        Some((scheme, name, place)) => format!("{scheme}://{name}:{MASK}@{place}"),
        None => url,
    }
}

fn masked_parameter(pair: &str) -> String {
    match pair.split_once('=') {
        Some((name, _)) if name.contains("password") => format!("{name}={MASK}"),
        _ => pair.to_owned(),
    }
}

/// With brackets, sqlx would resolve an IPv6 address as a name and compare that with certificates.
fn without_brackets(options: PgConnectOptions) -> PgConnectOptions {
    let address = options.get_host().strip_prefix('[').and_then(|host| host.strip_suffix(']')).map(str::to_owned);
    match address {
        Some(address) => options.host(&address),
        None => options,
    }
}

/// A URL, split as far as hosts need it.
struct Parts<'a> {
    /// Everything before the hosts: `postgres://user:password@`.
    start: &'a str,
    hosts: &'a str,
    path: &'a str,
    /// Query parameters other than those below.
    others: Vec<&'a str>,
    query_hosts: Option<&'a str>,
    query_ports: Option<&'a str>,
    session: Option<&'a str>,
}

impl<'a> Parts<'a> {
    fn of(url: &'a str) -> Option<Self> {
        let rest = url.strip_prefix("postgres://").or_else(|| url.strip_prefix("postgresql://"))?;
        let begin = url.len() - rest.len();
        let authority = rest.find(['/', '?', '#']).unwrap_or(rest.len());
        let user = rest[..authority].rfind('@').map_or(0, |at| at + 1);
        let (path, query) = rest[authority..].split_once('?').unwrap_or((&rest[authority..], ""));
        let mut parts = Self {
            start: &url[..begin + user],
            hosts: &rest[user..authority],
            path,
            others: Vec::new(),
            query_hosts: None,
            query_ports: None,
            session: None,
        };
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            match pair.split_once('=') {
                Some(("host", value)) => parts.query_hosts = Some(value),
                Some(("port", value)) => parts.query_ports = Some(value),
                Some(("target_session_attrs", value)) => parts.session = Some(value),
                _ => parts.others.push(pair),
            }
        }
        Some(parts)
    }

    fn urls(&self) -> Result<Vec<String>, &'static str> {
        if self.session.is_some_and(|session| !READ_WRITE.contains(&session)) {
            return Err(
                "write target_session_attrs=read-write, or leave it out: a server always uses the host that accepts \
                        writes",
            );
        }
        let list = |text: &str| text.replace("%2C", ",").replace("%2c", ",");
        let hosts = list(self.query_hosts.unwrap_or(self.hosts));
        let ports = self.query_ports.map(list).unwrap_or_default();
        let (hosts, ports): (Vec<&str>, Vec<&str>) = (hosts.split(',').collect(), ports.split(',').collect());
        // For a single host, sqlx has a default.
        if hosts.len() > 1 && hosts.contains(&"") {
            return Err("give each host of the list a name, as in postgres://user:password@one:5432,two:5432/database");
        }
        if ports.len() > 1 && ports.len() != hosts.len() {
            return Err("give one port for all hosts, or one for each: host=one,two&port=5432,5433");
        }
        let url = |(number, host): (usize, &&str)| {
            let port = ports.get(number).or(ports.first()).filter(|port| !port.is_empty());
            // First, because the last parameter wins: `hostaddr` overrides `host`.
            let mut query: Vec<String> = self.query_hosts.map(|_| format!("host={host}")).into_iter().collect();
            query.extend(port.map(|port| format!("port={port}")));
            query.extend(self.others.iter().map(|&pair| pair.to_owned()));
            let host = match self.query_hosts {
                // A URL with a user needs a host; the query overrides it.
                Some(_) if self.hosts.is_empty() && self.start.ends_with('@') => "localhost",
                Some(_) => self.hosts,
                None => host,
            };
            let mark = if query.is_empty() { "" } else { "?" };
            format!("{}{host}{}{mark}{}", self.start, self.path, query.join("&"))
        };
        Ok(hosts.iter().enumerate().map(url).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SETTING: &str = "--database-url (DATABASE_URL)";

    fn places(url: &str) -> Vec<String> {
        let hosts = parse(SETTING, url).unwrap_or_else(|error| panic!("{url}: {error}"));
        let place = |options: &PgConnectOptions| match options.get_socket() {
            Some(socket) => format!("{}:{}", socket.display(), options.get_port()),
            None => format!("{}:{}", options.get_host(), options.get_port()),
        };
        (0..hosts.len()).map(|host| place(hosts.get(host))).collect()
    }

    #[test]
    fn url_names_one_or_several_hosts() {
        for (url, expected) in [
            ("postgres://u:p@a/d", vec!["a:5432"]),
            ("postgresql://u:p@a:5433/d?sslmode=disable", vec!["a:5433"]),
            ("postgres://u:p@a:5433,b:5434/d", vec!["a:5433", "b:5434"]),
            ("postgres://u:p@a,b,c/d?target_session_attrs=read-write", vec!["a:5432", "b:5432", "c:5432"]),
            ("postgres://u:p@a,b/d?port=6000", vec!["a:6000", "b:6000"]),
            ("postgres://u:p@[::1]:5433,[::2]/d", vec!["::1:5433", "::2:5432"]),
            ("postgres://u:p@/d?host=a,b&port=5433,5434", vec!["a:5433", "b:5434"]),
            ("postgres://u:p@/d?host=a%2Cb&port=5433", vec!["a:5433", "b:5433"]),
            ("postgres:///d?host=/run/one,/run/two&user=u", vec!["/run/one:5432", "/run/two:5432"]),
            ("postgres://u:p%2Cq%40r@a:1,b:2/d?application_name=x,y", vec!["a:1", "b:2"]),
        ] {
            assert_eq!(places(url), expected, "{url}");
        }
        let both = parse(SETTING, "postgres://me:hunter2@a,b/d?sslmode=disable").unwrap();
        for host in 0..2 {
            let options = both.get(host);
            assert_eq!((options.get_username(), options.get_database()), ("me", Some("d")));
            assert!(format!("{:?}", options.get_ssl_mode()).contains("Disable"));
        }
    }

    #[test]
    fn url_error_is_one_line_without_password() {
        for (url, fix) in [
            ("mysql://me:hunter2@a/d", "postgres://user:password@host:5432/database"),
            ("postgres://me:hunter2@a:nan,b/d", "postgres://user:password@host:5432/database"),
            ("postgres://me:hunter2@a,b:70000/d", "postgres://user:password@host:5432/database"),
            ("postgres://me:hunter2@a,,b/d", "each host of the list"),
            ("postgres://me:hunter2@a,/d", "each host of the list"),
            ("postgres://me:hunter2@/d?host=a,b,c&port=1,2", "one for each"),
            ("postgres://me:hunter2@a,b/d?target_session_attrs=any", "target_session_attrs=read-write"),
            ("postgres://me:hunter2@a/d?target_session_attrs=prefer-standby", "target_session_attrs=read-write"),
        ] {
            let error = parse(SETTING, url).map(drop).unwrap_err().to_string();
            assert!(error.contains(SETTING) && error.contains(fix), "{url}: {error}");
            assert!(!error.contains("hunter2") && !error.contains('\n'), "{url}: {error}");
        }
    }

    #[test]
    fn masked_url_has_no_password() {
        for (url, expected) in [
            ("postgres://me:hunter2@a:5433,b/d?sslmode=disable", "postgres://me:***@a:5433,b/d?sslmode=disable"),
            ("postgres://me:hunter2@[::1]/d", "postgres://me:***@[::1]/d"),
            ("postgres://me:hunter2@x:hunter2@a/d", "postgres://me:***@a/d"),
            ("postgres://me:1/hunter2@a/d", "postgres://me:***@a/d"),
            ("postgres://me@a/d", "postgres://me@a/d"),
            ("postgresql://a/d", "postgresql://a/d"),
            ("postgres:///d?host=/run/x&user=me&password=hunter2", "postgres:///d?host=/run/x&user=me&password=***"),
            (
                "postgres://a/d?password=hunter2&application_name=x@y",
                "postgres://a/d?password=***&application_name=x@y",
            ),
        ] {
            assert_eq!(masked(url), expected);
        }
    }
}
