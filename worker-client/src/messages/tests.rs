use super::*;

const TASK: &str = "9HrBC1jMQ3KlZw4CssPUeQ";

fn queue() -> MessageQueue {
    MessageQueue {
        signed_poll_url: "http://h/m/q/messages?visibilitytimeout=300&sig=a%2Bb%3D".into(),
        signed_delete_url: "http://h/m/q/messages/{{messageId}}?popreceipt={{popReceipt}}&sig=a%2Bb%3D".into(),
    }
}

fn message(id: &str, pop_receipt: &str, text: &str) -> Message {
    Message { id: id.into(), pop_receipt: pop_receipt.into(), dequeue_count: 1, text: text.into() }
}

#[test]
fn poll_asks_for_1_to_32_messages() {
    for (most, number) in [(0, 1), (1, 1), (7, 7), (32, 32), (1000, 32)] {
        let url = queue().poll_url(most);
        assert_eq!(url, format!("http://h/m/q/messages?visibilitytimeout=300&sig=a%2Bb%3D&numofmessages={number}"));
    }
}

#[test]
fn id_and_receipt_are_fully_encoded() {
    for (id, receipt, expected) in [
        ("1-a", "Ab+/c==", "http://h/m/q/messages/1-a?popreceipt=Ab%2B%2Fc%3D%3D&sig=a%2Bb%3D"),
        ("a/b ?#%", "&x=é", "http://h/m/q/messages/a%2Fb%20%3F%23%25?popreceipt=%26x%3D%C3%A9&sig=a%2Bb%3D"),
        (
            "{{popReceipt}}",
            "{{messageId}}",
            "http://h/m/q/messages/%7B%7BpopReceipt%7D%7D?popreceipt=%7B%7BmessageId%7D%7D&sig=a%2Bb%3D",
        ),
    ] {
        let url = queue().delete_url(&message(id, receipt, "")).unwrap();
        assert_eq!(url, expected);
        assert_eq!(Url::parse(&url).unwrap().as_str(), expected);
    }
}

#[test]
fn delete_url_without_placeholders_is_refused() {
    for signed_delete_url in
        ["http://h/m/q/messages?sig=1", "http://h/q/{{messageId}}?sig=1", "http://h/q/x?{{popReceipt}}"]
    {
        let queue = MessageQueue { signed_delete_url: signed_delete_url.into(), ..queue() };
        assert!(matches!(queue.delete_url(&message("1", "r", "")), Err(Error::SignedUrl(_))), "{signed_delete_url}");
    }
}

#[test]
fn message_names_its_run() {
    let run = |json: &str| message("1", "r", &STANDARD.encode(json)).run();
    let named = run(&format!(r#"{{"taskId": "{TASK}", "runId": 3, "hintId": "x"}}"#)).unwrap();
    assert_eq!((named.0.to_string().as_str(), named.1.number()), (TASK, 3));
    for bad in ["", "{}", "[]", "null", r#"{"taskId": "x", "runId": 0}"#, &format!(r#"{{"taskId": "{TASK}"}}"#)] {
        assert!(matches!(run(bad), Err(Undecodable::Json(_))), "{bad}");
    }
    assert!(matches!(message("1", "r", "{}").run(), Err(Undecodable::Base64(_))));
}

#[test]
fn urls_are_renewed_five_minutes_early_or_at_half_life() {
    let minutes = |n: u64| Duration::from_secs(60 * n);
    assert_eq!(usable(minutes(30)), minutes(25));
    assert_eq!(usable(minutes(10)), minutes(5));
    assert_eq!(usable(minutes(4)), minutes(2));
    assert_eq!(usable(Duration::ZERO), SHORTEST_USE);
}
