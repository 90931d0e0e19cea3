use super::*;
use proptest::prelude::*;

#[test]
fn slugid_encodes_version_4_uuid() {
    let uuid = Uuid::parse_str("f47ac10b-58cc-4372-a567-0e02b2c3d479").unwrap();
    let id = SlugId::from_uuid(uuid).unwrap();
    assert_eq!(id.to_string(), "9HrBC1jMQ3KlZw4CssPUeQ");
    assert_eq!("9HrBC1jMQ3KlZw4CssPUeQ".parse(), Ok(id));
}

#[test]
fn malformed_slugid_is_refused() {
    for text in [
        "",
        "abc",
        "9HrBC1jMQ3KlZw4CssPUeR",
        "9HrBC1jMU3KlZw4CssPUeQ",
        "9HrBC1jM 3KlZw4CssPUeQ",
        "9HrBC1jMQ3KlZw4CssPUeQ=",
    ] {
        assert!(text.parse::<SlugId>().is_err(), "{text}");
    }
}

proptest! {
    #[test]
    fn every_slugid_round_trips(bytes in any::<[u8; 16]>()) {
        let id = SlugId::from_random(bytes);
        prop_assert_eq!(id.to_string().parse(), Ok(id));
        // Clients may choose ids that Tenure would not make.
        let foreign = SlugId::from_uuid(uuid::Builder::from_random_bytes(bytes).into_uuid()).unwrap();
        prop_assert_eq!(foreign.to_string().parse(), Ok(foreign));
    }

    #[test]
    fn generated_id_never_begins_with_dash(bytes in any::<[u8; 16]>()) {
        let text = SlugId::from_random(bytes).to_string();
        prop_assert!(text.starts_with(|first: char| matches!(first, 'A'..='Z' | 'a'..='f')), "{}", text);
    }
}

#[test]
fn queue_ids_must_match_patterns() {
    for good in ["p/w", "Prov_1-x/w-1", "a/b0"] {
        assert_eq!(good.parse::<TaskQueueId>(), TaskQueueId::read_full(good), "{good}");
        assert_eq!(TaskQueueId::read_full(good).unwrap().as_str(), good);
    }
    for bad in ["p/", "/w", "p/W", "p/w-", "p/1w", "p/w/x", "p p/w", "p/w\n", "", "W", "1w", "w-"] {
        assert!(bad.parse::<TaskQueueId>().is_err(), "{bad:?}");
        assert!(TaskQueueId::read_full(bad).is_err(), "{bad:?}");
    }
    assert!("x".repeat(38).parse::<SchedulerId>().is_ok());
    assert!("x".repeat(39).parse::<SchedulerId>().is_err());
    assert!("".parse::<ProjectId>().is_err());
    assert!("a/b.c-d_e".parse::<ProjectId>().is_ok());
}

#[test]
fn short_queue_name_is_in_default_provisioner() {
    let short: TaskQueueId = "mail-1".parse().unwrap();
    assert_eq!((short.as_str(), short.provisioner_id(), short.worker_type()), ("default/mail-1", "default", "mail-1"));
    let strict = TaskQueueId::read_full("mail-1").unwrap_err().to_string();
    assert!(strict.starts_with("\"mail-1\" is not a valid taskQueueId: it must match ^["), "{strict}");
    assert!(serde_json::from_value::<TaskQueueId>("mail-1".into()).is_err(), "answers have the full name");
}

#[test]
fn refused_queue_name_has_suggestion() {
    for (text, suggestion) in [
        ("web/send_email", "web/send-email"),
        ("send_email", "send-email"),
        ("Web.App/Send Email", "Web-App/send-email"),
        ("/mail", "default/mail"),
        ("a/b/c", "a/b-c"),
        ("web/_2fa_", "web/q2fa"),
        ("web/", "web/queue"),
        ("", "queue"),
        ("\u{e9}/\u{e9}", "-/queue"),
    ] {
        let refusal = text.parse::<TaskQueueId>().unwrap_err().to_string();
        assert!(refusal.contains("a-z, 0-9 and -") && refusal.ends_with(&format!("Try {suggestion:?}")), "{refusal}");
    }
}

proptest! {
    #[test]
    fn suggested_queue_name_is_valid(text in any::<String>(), long in "[a-zA-Z0-9_-]{0,50}/?[a-zA-Z0-9_-]{0,50}") {
        for text in [text, long] {
            let suggestion = nearest_queue(&text);
            prop_assert!(suggestion.parse::<TaskQueueId>().is_ok(), "{}", suggestion);
            if text.parse::<TaskQueueId>().is_ok() {
                prop_assert_eq!(suggestion, text);
            }
        }
    }
}

#[test]
fn artifact_names_are_printable_and_limited() {
    for good in ["public/logs/live.log", "/", "//a", "a b%2Fc", "..", "~"] {
        assert!(good.parse::<ArtifactName>().is_ok(), "{good}");
    }
    for bad in ["", "a\n", "\u{7f}", "\u{e9}", "\0", &"x".repeat(ARTIFACT_NAME_MAX + 1)] {
        assert!(bad.parse::<ArtifactName>().is_err(), "{bad:?}");
    }
    assert!("x".repeat(ARTIFACT_NAME_MAX).parse::<ArtifactName>().is_ok());
}

#[test]
fn content_type_fits_a_header() {
    for good in ["a", "text/plain", "text/plain; charset=utf-8", &"x".repeat(CONTENT_TYPE_MAX)] {
        assert!(good.parse::<ContentType>().is_ok(), "{good}");
    }
    for bad in ["", " ", " a", "a ", "a\r\nb", "\u{e9}", &"x".repeat(CONTENT_TYPE_MAX + 1)] {
        assert!(bad.parse::<ContentType>().is_err(), "{bad:?}");
    }
}

#[test]
fn reference_url_fits_a_header() {
    for good in ["https://example.com/a?b#c", "http://h:1", "HTTPS://[::1]/", "https://a:b@c"] {
        assert!(good.parse::<ReferenceUrl>().is_ok(), "{good}");
    }
    let long = format!("https://{}", "x".repeat(REFERENCE_URL_MAX));
    for bad in ["", "x", "/relative", "//h/x", ":x", "https:", "https://", "https:///x", "https://?x", "https://#x"] {
        assert!(bad.parse::<ReferenceUrl>().is_err(), "{bad:?}");
    }
    for bad in ["https://h/ x", "https://h/\r\nX: y", "https://\u{e9}", "https:h", " https://h", &long] {
        assert!(bad.parse::<ReferenceUrl>().is_err(), "{bad:?}");
    }
}

#[test]
fn reference_url_is_http_or_https() {
    let others = ["javascript", "JaVaScRiPt", "data", "file", "ftp", "ws", "wss", "blob", "vbscript", "httpx", "xhttp"];
    for scheme in others {
        for rest in ["//example.com/x", "alert(1)", "//x/%0aalert(1)"] {
            let bad = format!("{scheme}:{rest}");
            assert!(bad.parse::<ReferenceUrl>().is_err(), "{bad}");
        }
    }
}

#[test]
fn run_numbers_are_limited() {
    assert_eq!("1000".parse(), Ok(RunId(1000)));
    for bad in ["", "1001", "-1", "x", "99999999999"] {
        assert!(bad.parse::<RunId>().is_err(), "{bad}");
    }
}
