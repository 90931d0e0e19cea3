use proptest::prelude::*;

use super::*;

const NAME: &str = "artifact/fN1SbArXTPSVFNUvaOlinQ/0/public/logs/live.log";
const PUT: Access<'_> = Access::Put { content_type: "text/plain; charset=utf-8" };
const NOW: i64 = 1_800_000_000_000;

fn key() -> SigningKey {
    SigningKey::new(b"key")
}

/// Verifies a URL as a server does.
fn check(access: Access<'_>, url: &str) -> Result<(), BlobUrlError> {
    let (path, query) = url.split_once('?').unwrap_or((url, ""));
    verify(&[key()], access, &name_of(path).ok_or(BlobUrlError::Signature)?, query, NOW)
}

#[test]
fn url_grants_only_its_own_access() {
    let put = sign(&key(), PUT, NAME, NOW + 1);
    let get = sign(&key(), Access::Get, NAME, NOW + 1);
    assert_eq!((check(PUT, &put), check(Access::Get, &get)), (Ok(()), Ok(())));
    assert_eq!(check(Access::Get, &put), Err(BlobUrlError::Signature));
    assert_eq!(check(PUT, &get), Err(BlobUrlError::Signature));
    assert_eq!(check(Access::Put { content_type: "text/html" }, &put), Err(BlobUrlError::Signature));
    assert_eq!(check(PUT, &put.replace("Credential=put", "Credential=get")), Err(BlobUrlError::Signature));
    // A signature for one access is invalid for the other, even with the matching word.
    assert_eq!(check(Access::Get, &put.replace("Credential=put", "Credential=get")), Err(BlobUrlError::Signature));
    assert_eq!(
        verify(&[SigningKey::new(b"other")], PUT, NAME, put.split_once('?').unwrap().1, NOW),
        Err(BlobUrlError::Signature)
    );
}

#[test]
fn url_expires_at_its_time() {
    assert_eq!(check(PUT, &sign(&key(), PUT, NAME, NOW)), Err(BlobUrlError::Expired));
    assert_eq!(check(PUT, &sign(&key(), PUT, NAME, NOW - 1)), Err(BlobUrlError::Expired));
    assert_eq!(check(PUT, &sign(&key(), PUT, NAME, i64::MIN)), Err(BlobUrlError::Expired));
    assert_eq!(check(PUT, &sign(&key(), PUT, NAME, i64::MAX)), Ok(()));
    let later = sign(&key(), PUT, NAME, NOW).replace(&NOW.to_string(), &(NOW + 1).to_string());
    assert_eq!(check(PUT, &later), Err(BlobUrlError::Signature));
}

#[test]
fn content_type_may_differ_in_case_and_spacing() {
    let put = sign(&key(), PUT, NAME, NOW + 1);
    for same in ["text/plain;charset=UTF-8", " Text/Plain ;  Charset=utf-8 "] {
        assert_eq!(check(Access::Put { content_type: same }, &put), Ok(()), "{same}");
    }
    for other in
        ["", "text/plain", "text/plain; charset=utf-16", "text/ plain;charset=utf-8", "text/plain;;charset=utf-8"]
    {
        assert_eq!(check(Access::Put { content_type: other }, &put), Err(BlobUrlError::Signature), "{other}");
    }
    // No content type equals an empty one.
    assert_eq!(
        check(Access::Put { content_type: "" }, &sign(&key(), Access::Put { content_type: "" }, NAME, NOW + 1)),
        Ok(())
    );
}

#[test]
fn any_key_and_parameter_order_verifies() {
    let url = sign(&key(), Access::Get, NAME, NOW + 1);
    let (path, query) = url.split_once('?').unwrap();
    assert_eq!(verify(&[SigningKey::new(b"new"), key()], Access::Get, NAME, query, NOW), Ok(()));
    assert_eq!(verify(&[], Access::Get, NAME, query, NOW), Err(BlobUrlError::Signature));
    let mut parts: Vec<&str> = query.split('&').collect();
    parts.reverse();
    assert_eq!(check(Access::Get, &format!("{path}?{}", parts.join("&"))), Ok(()));
}

#[test]
fn credential_is_first_parameter() {
    assert!(sign(&key(), PUT, NAME, NOW).starts_with(&format!("/artifacts/{NAME}?Credential=put&")));
}

#[test]
fn unknown_or_repeated_parameter_is_refused() {
    let url = sign(&key(), Access::Get, NAME, NOW + 1);
    assert_eq!(check(Access::Get, &format!("{url}&x=1")), Err(BlobUrlError::Parameter("x".to_owned())));
    for wrong in [format!("{url}&expires=9"), url.replace("expires", "Expires"), url.replace('?', "?&x=%ff&")] {
        assert!(check(Access::Get, &wrong).is_err(), "{wrong}");
    }
    for missing in ["Credential=get&", "signature="] {
        assert!(check(Access::Get, &url.replace(missing, "")).is_err(), "{missing}");
    }
}

/// Decodes a path like aiohttp: every escape that is unnecessary in a path.
fn requoted(path: &str) -> String {
    ["%3A=:", "%40=@", "%2C=,", "%28=(", "%29=)", "%21=!", "%24=$", "%27='", "%2A=*", "%3B=;", "%3D=="]
        .iter()
        .filter_map(|rule| rule.split_once('='))
        .fold(path.to_owned(), |path, (escaped, plain)| path.replace(escaped, plain))
}

#[test]
fn name_survives_path_rewriting_of_clients() {
    for name in [
        "public/a:b@c,d(e)f!g$h'i*j;k=l.log",
        "public/with space+plus&and%percent?question#hash.txt",
        "public/100%25.txt",
        "public/%2F.txt",
        "public//double///slashes",
        "public/../up/./here",
        "..",
        ".",
        "/",
        "/leading",
        "trailing/",
        "public/ümlaut-✓",
        "public/\\back|pipe\"quote<less>`tick^{brace}[bracket]~tilde",
    ] {
        let whole = format!("artifact/t/0/{name}");
        let url = sign(&key(), Access::Get, &whole, NOW + 1);
        let path = url.split_once('?').unwrap().0;
        assert!(!path.contains("//") && !path.contains("/.") && !path.ends_with('/'), "{path}");
        assert_eq!(check(Access::Get, &url), Ok(()), "{url}");
        assert_eq!(check(Access::Get, &requoted(&url)), Ok(()), "{}", requoted(&url));
        assert_eq!(check(Access::Get, &url.replace("%2F", "%2f")), Ok(()), "{url}");
    }
    assert_eq!(name_of("/artifacts/%ff"), None);
    assert_eq!(name_of("/other/x"), None);
}

proptest! {
    #[test]
    fn printable_name_round_trips(name in "[ -~]{1,300}", expires in NOW + 1..) {
        let url = sign(&key(), Access::Get, &name, expires);
        prop_assert!(url.bytes().all(|byte| byte.is_ascii_graphic()));
        prop_assert_eq!(check(Access::Get, &url), Ok(()));
    }

    #[test]
    fn url_with_changed_byte_is_refused(name in "[a-zA-Z0-9/._-]{1,60}", at in 0_usize..400, flip in 1_u8..128) {
        let url = sign(&key(), Access::Get, &name, NOW + 1);
        let mut bytes = url.clone().into_bytes();
        let at = at % bytes.len();
        bytes[at] ^= flip;
        let changed = String::from_utf8(bytes).unwrap();
        // Case changes in an escape and empty parameters do not matter.
        let alike = changed.eq_ignore_ascii_case(&url) && url[..at].ends_with('%') || url[..at - at.min(1)].ends_with('%');
        prop_assume!(!alike);
        prop_assert!(check(Access::Get, &changed).is_err(), "{changed}");
    }
}
