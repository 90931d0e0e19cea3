//! The secret keys of an installation. None of these types can be printed.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use subtle::ConstantTimeEq as _;

use super::usage::SettingError;

/// One secret key; keys for each purpose are derived from it.
#[derive(Clone)]
pub struct SecretKey([u8; Self::LENGTH]);

impl SecretKey {
    /// Length in bytes.
    pub const LENGTH: usize = 32;

    /// The bytes to derive keys from.
    #[must_use]
    pub fn bytes(&self) -> &[u8; Self::LENGTH] {
        &self.0
    }
}

/// The keys of an installation, never empty: the first signs and encrypts, all of them verify.
#[derive(Clone)]
pub struct SecretKeys(Vec<SecretKey>);

impl SecretKeys {
    /// Reads a comma list of keys, each base64 of 32 bytes.
    pub fn parse(text: &str) -> Result<Self, SettingError> {
        const NAME: &str = "--secret-key (TENURE_SECRET_KEY)";
        let mut keys: Vec<SecretKey> = Vec::new();
        for (position, part) in text.split(',').enumerate() {
            let decoded = STANDARD.decode(part.trim()).ok();
            let Some(key) = decoded.and_then(|bytes| <[u8; SecretKey::LENGTH]>::try_from(bytes).ok()) else {
                let fix =
                    format!("key {} is not base64 of 32 bytes; make one with: openssl rand -base64 32", position + 1);
                return Err(SettingError::secret(NAME, fix));
            };
            if keys.iter().any(|known| bool::from(known.0.ct_eq(&key))) {
                return Err(SettingError::secret(NAME, format!("key {} stands in the list twice", position + 1)));
            }
            keys.push(SecretKey(key));
        }
        Ok(Self(keys))
    }

    /// The key that signs and encrypts.
    #[must_use]
    pub fn current(&self) -> &SecretKey {
        self.0.first().expect("parse() never makes an empty list")
    }

    /// Every key that verifies, the current one first.
    #[must_use]
    pub fn all(&self) -> &[SecretKey] {
        &self.0
    }
}
