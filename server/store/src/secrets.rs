//! The server's secret keys, and the keys derived from them.
//!
//! The operator configures one 32-byte secret, or several for rotation: the first signs and
//! encrypts, all verify and decrypt. HKDF-SHA256 derives a separate key for each purpose, so that
//! no purpose reveals the key of another.

use aes_gcm::aead::{Aead as _, KeyInit as _, Payload};
use aes_gcm::{Aes256Gcm, Nonce};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hkdf::Hkdf;
use sha2::Sha256;
use tenure_api::credentials::{AccessToken, SigningKey};
use tenure_api::worker_manager::WorkerSecret;

pub const SECRET_KEY_BYTES: usize = 32;
const NONCE_BYTES: usize = 12;

/// Purpose of a derived key. Changing its label makes stored data unreadable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// Encrypts access tokens in `clients`.
    ClientTokens,
    /// Signs credentials issued with a claim.
    TaskCredentials,
    PollUrls,
    PageSessions,
    /// Signs credentials issued at worker registration.
    WorkerCredentials,
    /// Digests secrets in `registered_workers`.
    WorkerSecrets,
    BlobUrls,
    KeyCheck,
    /// Encrypts secrets in `subscriptions`.
    Subscriptions,
}

impl Purpose {
    fn label(self) -> &'static [u8] {
        match self {
            Self::ClientTokens => b"tenure/client-tokens/v1",
            Self::TaskCredentials => b"tenure/task-credentials/v1",
            Self::PollUrls => b"tenure/poll-urls/v1",
            Self::PageSessions => b"tenure/page-sessions/v1",
            Self::WorkerCredentials => b"tenure/worker-credentials/v1",
            Self::WorkerSecrets => b"tenure/worker-secrets/v1",
            Self::BlobUrls => b"tenure/blob-urls/v1",
            Self::KeyCheck => b"tenure/key-check/v1",
            Self::Subscriptions => b"tenure/subscriptions/v1",
        }
    }
}

/// Does not contain the setting.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "secret key number {number} is not base64 of {SECRET_KEY_BYTES} bytes; `head -c 32 /dev/urandom | base64` makes one"
)]
pub struct InvalidSecretKey {
    number: usize,
}

/// Encrypted with another key, or for another client.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("no secret key decrypts it")]
pub struct Undecryptable;

/// Digits of a check value that name its key.
const KEY_NAME_DIGITS: usize = 8;

/// Identifies a secret key. It reveals nothing else, so it may be stored and shown.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyCheck(String);

impl KeyCheck {
    pub fn stored(text: &str) -> Self {
        Self(text.to_owned())
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Name of the key in messages.
    pub fn name(&self) -> &str {
        self.0.get(..KEY_NAME_DIGITS).unwrap_or(&self.0)
    }
}

/// In the operator's order.
#[derive(Clone)]
pub struct SecretKeys {
    derivers: Vec<Hkdf<Sha256>>,
    ciphers: Vec<Aes256Gcm>,
}

impl SecretKeys {
    /// Parses comma-separated base64 keys of 32 bytes.
    ///
    /// # Errors If one is invalid.
    pub fn parse(setting: &str) -> Result<Self, InvalidSecretKey> {
        let secrets = setting.split(',').enumerate().map(|(index, text)| {
            let mut secret = [0; SECRET_KEY_BYTES];
            // Extra byte, to detect longer secrets.
            let mut room = [0; SECRET_KEY_BYTES + 1];
            match STANDARD.decode_slice(text.trim(), &mut room) {
                Ok(SECRET_KEY_BYTES) => secret.copy_from_slice(&room[..SECRET_KEY_BYTES]),
                Ok(_) | Err(_) => return Err(InvalidSecretKey { number: index + 1 }),
            }
            Ok(secret)
        });
        let secrets: Vec<_> = secrets.collect::<Result<_, _>>()?;
        Ok(Self::new(&secrets))
    }

    fn new(secrets: &[[u8; SECRET_KEY_BYTES]]) -> Self {
        let derivers: Vec<_> = secrets.iter().map(|secret| Hkdf::<Sha256>::new(None, secret)).collect();
        Self { ciphers: ciphers(&derivers, Purpose::ClientTokens), derivers }
    }

    pub fn generate_setting() -> String {
        STANDARD.encode(random::<SECRET_KEY_BYTES>())
    }

    /// Sign with the first, accept any.
    pub fn signing_keys(&self, purpose: Purpose) -> Vec<SigningKey> {
        self.derivers.iter().map(|deriver| SigningKey::new(&derive(deriver, purpose))).collect()
    }

    #[must_use]
    pub fn checks(&self) -> Vec<KeyCheck> {
        let hex = |key: [u8; SECRET_KEY_BYTES]| key.iter().map(|byte| format!("{byte:02x}")).collect();
        self.derivers.iter().map(|deriver| KeyCheck(hex(derive(deriver, Purpose::KeyCheck)))).collect()
    }

    /// Moves the key with this check value to the front, if it is there.
    #[must_use]
    pub fn led_by(mut self, check: &KeyCheck) -> Self {
        if let Some(place) = self.checks().iter().position(|own| own == check) {
            self.derivers[..=place].rotate_right(1);
            self.ciphers[..=place].rotate_right(1);
        }
        self
    }

    /// Encrypts a token, bound to the client's id.
    pub fn encrypt_token(&self, client_id: &str, token: &AccessToken) -> Vec<u8> {
        seal(&self.ciphers, client_id, token.expose().as_bytes())
    }

    /// Decrypts a token with any of the keys.
    ///
    /// # Errors If none encrypted it for this client.
    pub fn decrypt_token(&self, client_id: &str, ciphertext: &[u8]) -> Result<AccessToken, Undecryptable> {
        let token = open(&self.ciphers, client_id, ciphertext)?;
        String::from_utf8(token).map(AccessToken::new).map_err(|_| Undecryptable)
    }
}

fn ciphers(derivers: &[Hkdf<Sha256>], purpose: Purpose) -> Vec<Aes256Gcm> {
    derivers.iter().map(|deriver| Aes256Gcm::new(&derive(deriver, purpose).into())).collect()
}

/// Encrypts with the first key, bound to the name of the owner.
fn seal(ciphers: &[Aes256Gcm], owner: &str, secret: &[u8]) -> Vec<u8> {
    let nonce = random::<NONCE_BYTES>();
    let payload = Payload { msg: secret, aad: owner.as_bytes() };
    let sealed = ciphers[0].encrypt(&Nonce::from(nonce), payload).expect("a secret is far below AES-GCM's limit");
    [&nonce[..], &sealed].concat()
}

fn open(ciphers: &[Aes256Gcm], owner: &str, ciphertext: &[u8]) -> Result<Vec<u8>, Undecryptable> {
    let (nonce, sealed) = ciphertext.split_first_chunk::<NONCE_BYTES>().ok_or(Undecryptable)?;
    let aad = owner.as_bytes();
    let open = |cipher: &Aes256Gcm| cipher.decrypt(&Nonce::from(*nonce), Payload { msg: sealed, aad }).ok();
    ciphers.iter().find_map(open).ok_or(Undecryptable)
}

/// Encrypts the secrets of subscriptions.
#[derive(Clone)]
pub struct SubscriptionSecrets {
    ciphers: Vec<Aes256Gcm>,
}

impl SubscriptionSecrets {
    pub fn new(keys: &SecretKeys) -> Self {
        Self { ciphers: ciphers(&keys.derivers, Purpose::Subscriptions) }
    }

    /// Encrypts a secret, bound to the name of its subscription.
    pub fn seal(&self, subscription: &str, secret: &[u8]) -> Vec<u8> {
        seal(&self.ciphers, subscription, secret)
    }

    /// Decrypts a secret with any of the keys.
    ///
    /// # Errors If none encrypted it for this subscription.
    pub fn open(&self, subscription: &str, ciphertext: &[u8]) -> Result<Vec<u8>, Undecryptable> {
        open(&self.ciphers, subscription, ciphertext)
    }
}

/// Digests of worker secrets, which can be verified but not recovered.
#[derive(Clone)]
pub struct WorkerDigests {
    /// The first digests, all verify; never empty.
    keys: Vec<SigningKey>,
}

impl WorkerDigests {
    pub fn new(keys: &SecretKeys) -> Self {
        Self { keys: keys.signing_keys(Purpose::WorkerSecrets) }
    }

    /// Returns the digest of a secret, unique to the worker.
    pub fn digest(&self, worker: &str, secret: &WorkerSecret) -> String {
        self.keys[0].sign(&digested(worker, secret)).as_str().to_owned()
    }

    /// True if any key yields this digest.
    #[must_use]
    pub fn matches(&self, worker: &str, secret: &WorkerSecret, digest: &str) -> bool {
        let text = digested(worker, secret);
        self.keys.iter().any(|key| key.sign(&text).matches(digest))
    }
}

fn digested(worker: &str, secret: &WorkerSecret) -> String {
    format!("{worker}\n{}", secret.expose())
}

fn derive(deriver: &Hkdf<Sha256>, purpose: Purpose) -> [u8; SECRET_KEY_BYTES] {
    let mut key = [0; SECRET_KEY_BYTES];
    deriver.expand(purpose.label(), &mut key).expect("HKDF-SHA256 gives up to 8160 bytes");
    key
}

pub fn random<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).expect("every system that Tenure runs on has a source of randomness");
    bytes
}

pub fn new_access_token() -> AccessToken {
    AccessToken::from_random(random())
}

#[cfg(test)]
mod tests {
    use super::*;

    const OLD: &str = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";

    fn keys(setting: &str) -> SecretKeys {
        SecretKeys::parse(setting).unwrap()
    }

    fn new() -> String {
        STANDARD.encode([9; 32])
    }

    fn token() -> AccessToken {
        AccessToken::new("hush".to_owned())
    }

    #[test]
    fn token_is_decrypted_only_for_its_client() {
        let sealed = keys(OLD).encrypt_token("ci", &token());
        assert!(!sealed.windows(4).any(|window| window == b"hush"));
        assert_eq!(keys(OLD).decrypt_token("ci", &sealed), Ok(token()));
        assert_eq!(keys(OLD).decrypt_token("root", &sealed), Err(Undecryptable));
    }

    #[test]
    fn changed_or_truncated_token_is_refused() {
        let mut sealed = keys(OLD).encrypt_token("ci", &token());
        assert_eq!(keys(OLD).decrypt_token("ci", &sealed[..11]), Err(Undecryptable));
        assert_eq!(keys(OLD).decrypt_token("ci", &sealed[..20]), Err(Undecryptable));
        sealed[14] ^= 1;
        assert_eq!(keys(OLD).decrypt_token("ci", &sealed), Err(Undecryptable));
    }

    #[test]
    fn first_key_encrypts_and_all_decrypt() {
        let rotated = keys(&format!("{}, {OLD}", new()));
        let old = keys(OLD).encrypt_token("ci", &token());
        assert_eq!(rotated.decrypt_token("ci", &old), Ok(token()));
        let sealed = rotated.encrypt_token("ci", &token());
        assert_eq!(keys(&new()).decrypt_token("ci", &sealed), Ok(token()));
        assert_eq!(keys(OLD).decrypt_token("ci", &sealed), Err(Undecryptable));
    }

    #[test]
    fn invalid_key_is_reported_by_number_only() {
        let number = |setting: &str| SecretKeys::parse(setting).err().map(|error| error.number);
        assert_eq!(number(""), Some(1));
        assert_eq!(number("secret"), Some(1));
        assert_eq!(number(&format!("{OLD},")), Some(2));
        assert_eq!(number(&STANDARD.encode([1; 31])), Some(1));
        assert_eq!(number(&STANDARD.encode([1; 33])), Some(1));
        assert_eq!(number(&STANDARD.encode([1; 64])), Some(1));
        assert_eq!(number(&SecretKeys::generate_setting()), None);
    }

    #[test]
    fn derived_keys_differ_and_never_change() {
        let deriver = &keys(OLD).derivers[0];
        let hex = |purpose| derive(deriver, purpose).iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        assert_eq!(hex(Purpose::ClientTokens), "7fa3d5f513870c5e670a3ddb8642ef8903e1f953b2c7b33e4fae9e7d7097c236");
        assert_eq!(hex(Purpose::TaskCredentials), "28cd0516236c9e11e7ce112b05f6f536d01d78de224a3cdbda791886d8dafcd4");
        assert_eq!(hex(Purpose::PollUrls), "784281faded03cc2756ec61c42555092c6c562f3a13054e6aa66de4ff6b7dc42");
        assert_eq!(hex(Purpose::PageSessions), "368cd4af0973c2c3cf3dee6260f3a8fbe5a26ab7194b7428d8395a34e8be61e3");
        assert_eq!(hex(Purpose::BlobUrls), "7c37e62ac9805ab602aae44bd371c3c06d94e5c2812f72de1ed96a150c6ee6b5");
        assert_eq!(hex(Purpose::WorkerCredentials), "8d10daac5e7f65cd58440326a914273774bbcac94ad27747dd6ad7b4e3204ab3");
        assert_eq!(hex(Purpose::WorkerSecrets), "e85abf75c9edff5abd6ed9290f035354b277b5a0aee6494536a21e67478eb311");
    }

    #[test]
    fn keys_are_reordered_by_check_value() {
        let (old, both) = (keys(OLD), keys(&format!("{}, {OLD}", new())));
        assert_eq!(old.checks()[0].as_str(), "6d060f77a7cab2f84ddb8590179e90da028c2ad99d13ae56d5724e486b908be9");
        assert_eq!(both.checks(), [keys(&new()).checks(), old.checks()].concat());
        let sealed = both.clone().led_by(&old.checks()[0]).encrypt_token("ci", &token());
        assert_eq!(old.decrypt_token("ci", &sealed), Ok(token()));
        let unchanged = both.clone().led_by(&KeyCheck::stored("another")).checks();
        assert_eq!(unchanged, both.checks());
    }

    #[test]
    fn secret_is_decrypted_only_for_its_subscription() {
        let secrets = |setting: &str| SubscriptionSecrets::new(&keys(setting));
        let sealed = secrets(OLD).seal("billing", b"hush");
        assert!(!sealed.windows(4).any(|window| window == b"hush"));
        assert_eq!(secrets(&format!("{},{OLD}", new())).open("billing", &sealed), Ok(b"hush".to_vec()));
        assert_eq!(secrets(OLD).open("mail", &sealed), Err(Undecryptable));
        assert_eq!(secrets(&new()).open("billing", &sealed), Err(Undecryptable));
        assert!(keys(OLD).decrypt_token("billing", &sealed).is_err(), "each purpose has its key");
    }

    #[test]
    fn secret_matches_its_worker_under_any_key() {
        let digests = |setting: &str| WorkerDigests::new(&keys(setting));
        let (secret, other) = (WorkerSecret::from_random([1; 33]), WorkerSecret::from_random([2; 33]));
        let digest = digests(OLD).digest("p/w/g/1", &secret);
        assert!(!digest.contains(secret.expose()));
        assert!(digests(OLD).matches("p/w/g/1", &secret, &digest));
        assert!(digests(&format!("{}, {OLD}", new())).matches("p/w/g/1", &secret, &digest));
        assert!(!digests(OLD).matches("p/w/g/1", &other, &digest));
        assert!(!digests(OLD).matches("p/w/g/2", &secret, &digest));
        assert!(!digests(&new()).matches("p/w/g/1", &secret, &digest));
    }
}
