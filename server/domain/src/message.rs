//! Messages of the poll API: ids, receipts and queue names on the wire.
//!
//! A message is a pending run as seen by a poller. Its id encodes the run's numbers, so it needs no
//! index or storage.

use std::fmt;
use std::str::FromStr;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use tenure_api::states::Priority;
use uuid::Uuid;

/// Dequeue count from which the metrics report a message as alarming.
pub const DEQUEUES_ALARMING: i32 = 10;

/// The `message`-th message of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MessageId {
    pub seq: i64,
    pub run: i16,
    /// `pending.message`.
    pub message: i32,
}

impl MessageId {
    /// Encodes a UUID of version 8, RFC 9562.
    ///
    /// ```text
    /// 48 bits: message | version | 12 bits: run | variant | 62 bits: seq
    /// ```
    #[must_use]
    pub fn to_uuid(self) -> Uuid {
        let message = u128::from(self.message.cast_unsigned());
        let run = u128::from(self.run.cast_unsigned() & 0xfff);
        let seq = u128::from(self.seq.cast_unsigned()) & ((1 << 62) - 1);
        Uuid::from_u128(message << 80 | 8 << 76 | run << 64 | 0b10 << 62 | seq)
    }

    /// Decodes a UUID; none if it is not a message id.
    pub fn from_uuid(uuid: Uuid) -> Option<Self> {
        let bits = uuid.as_u128();
        let message = i32::try_from(bits >> 80).ok()?;
        let run = i16::try_from(bits >> 64 & 0xfff).ok()?;
        let seq = i64::try_from(bits & ((1 << 62) - 1)).ok()?;
        let found = Self { seq, run, message };
        (found.to_uuid() == uuid).then_some(found)
    }
}

/// A pop receipt: proves that its holder received the message last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Receipt(pub i64);

/// Makes each receipt begin with `+/+/`, so a poller that does not URL-encode fails at the first
/// message.
const TELLTALE: [u8; 3] = [0xfb, 0xff, 0xbf];

impl fmt::Display for Receipt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut bytes = [0; 11];
        bytes[..3].copy_from_slice(&TELLTALE);
        bytes[3..].copy_from_slice(&self.0.to_be_bytes());
        f.write_str(&STANDARD.encode(bytes))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotAReceipt;

impl FromStr for Receipt {
    type Err = NotAReceipt;

    fn from_str(text: &str) -> Result<Self, NotAReceipt> {
        let bytes = STANDARD.decode(text).map_err(|_| NotAReceipt)?;
        let number = bytes.strip_prefix(&TELLTALE).and_then(|rest| rest.try_into().ok()).ok_or(NotAReceipt)?;
        Ok(Self(i64::from_be_bytes(number)))
    }
}

/// The poll API's queue for a task queue and priority: `queue-<key>-<1..7>`, 7 for the highest.
/// Satisfies Azure's naming rules, and is parsed without a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct QueueName {
    pub queue: i32,
    pub priority: Priority,
}

impl fmt::Display for QueueName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "queue-{}-{}", self.queue, 7 - self.priority.code())
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotAQueue;

impl FromStr for QueueName {
    type Err = NotAQueue;

    fn from_str(text: &str) -> Result<Self, NotAQueue> {
        let (queue, level) = text.strip_prefix("queue-").and_then(|rest| rest.split_once('-')).ok_or(NotAQueue)?;
        let queue = queue.parse().map_err(|_| NotAQueue)?;
        let level: i16 = level.parse().map_err(|_| NotAQueue)?;
        let code = 7_i16.checked_sub(level).ok_or(NotAQueue)?;
        let name = Self { queue, priority: Priority::from_code(code).ok_or(NotAQueue)? };
        if name.to_string() == text { Ok(name) } else { Err(NotAQueue) }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The run is no longer pending or past its deadline, or the message was deleted or is in
    /// another queue.
    NoSuchMessage,
    /// Another poller has received the message, or its visibility was changed.
    ReceiptNotCurrent,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KnownMessage {
    /// None if no poller has received the message.
    pub receipt: Option<i64>,
}

pub fn check(known: Option<KnownMessage>, receipt: Receipt) -> Result<(), Refusal> {
    match known {
        None => Err(Refusal::NoSuchMessage),
        Some(KnownMessage { receipt: Some(current) }) if current == receipt.0 => Ok(()),
        Some(KnownMessage { receipt: Some(_) | None }) => Err(Refusal::ReceiptNotCurrent),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn only_the_current_receipt_changes_a_message() {
        let known = |receipt| Some(KnownMessage { receipt });
        assert_eq!(check(None, Receipt(1)), Err(Refusal::NoSuchMessage));
        assert_eq!(check(known(None), Receipt(1)), Err(Refusal::ReceiptNotCurrent));
        assert_eq!(check(known(Some(2)), Receipt(1)), Err(Refusal::ReceiptNotCurrent));
        assert_eq!(check(known(Some(1)), Receipt(1)), Ok(()));
    }

    #[test]
    fn unencoded_receipt_is_refused() {
        let text = Receipt(-7).to_string();
        assert_eq!(text.parse(), Ok(Receipt(-7)));
        assert_eq!(text.replace('+', " ").parse::<Receipt>(), Err(NotAReceipt));
        for bad in ["", "+/+/", "AAAA", "+/+/AAAAAAAAAAA", "+/+/AAAAAAAAAAAAAA=="] {
            assert_eq!(bad.parse::<Receipt>(), Err(NotAReceipt), "{bad}");
        }
    }

    #[test]
    fn names_of_queues_have_one_form() {
        let name = QueueName { queue: 17, priority: Priority::ALL[0] };
        assert_eq!(name.to_string(), "queue-17-7");
        assert_eq!("queue-17-7".parse(), Ok(name));
        for bad in [
            "",
            "queue-17",
            "queue-17-0",
            "queue-17-8",
            "queue-017-7",
            "queue-+1-7",
            "Queue-17-7",
            "queue-1-7-7",
            "queue-1-07",
        ] {
            assert_eq!(bad.parse::<QueueName>(), Err(NotAQueue), "{bad}");
        }
    }

    proptest! {
        #[test]
        fn ids_and_receipts_survive_the_wire(seq in 0_i64..1 << 62, run in 0_i16..=1000, message in 0_i32.., receipt: i64) {
            let id = MessageId { seq, run, message };
            let uuid: Uuid = id.to_uuid().to_string().parse().unwrap();
            prop_assert_eq!((uuid.get_version_num(), uuid.get_variant()), (8, uuid::Variant::RFC4122));
            prop_assert_eq!(MessageId::from_uuid(uuid), Some(id));
            let text = Receipt(receipt).to_string();
            prop_assert!(text.contains('+') && text.contains('/') && text.ends_with('='));
            prop_assert_eq!(text.parse(), Ok(Receipt(receipt)));
        }

        #[test]
        fn most_uuids_are_no_message(bits: u128) {
            let uuid = Uuid::from_u128(bits);
            if let Some(id) = MessageId::from_uuid(uuid) {
                prop_assert_eq!(id.to_uuid(), uuid);
            }
        }
    }
}
