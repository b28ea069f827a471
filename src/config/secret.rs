//! Secrets: read from a file or the environment, never shown.

use std::fmt;
use std::io::Read;
use std::path::{Path, PathBuf};

use super::scalars::SecretSource;

/// Larger files are no secrets, in bytes.
const MAX_BYTES: u64 = 64 << 10;

/// A secret's bytes. `Debug` does not show them, and there is no `Display`.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(Box<[u8]>);

impl Secret {
    /// A secret of these bytes; for tests and derived keys.
    pub fn new(bytes: impl Into<Box<[u8]>>) -> Secret {
        Secret(bytes.into())
    }

    /// The bytes themselves.
    pub fn expose(&self) -> &[u8] {
        &self.0
    }

    /// The bytes as text: passwords, bearer tokens, PEM.
    pub fn expose_text(&self) -> Result<&str, SecretError> {
        std::str::from_utf8(&self.0).map_err(|_| SecretError::NotText)
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

/// Why a secret is not there. Never holds any part of it.
#[derive(Debug, thiserror::Error)]
pub enum SecretError {
    /// The file cannot be opened or read.
    #[error("the secret's file `{}` cannot be read ({source}); create it, or correct the path", path.display())]
    FileMissing {
        /// The file, resolved.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// Longer than any secret.
    #[error("the secret's file `{}` is larger than 64 KiB; name the file with the secret", path.display())]
    TooLarge {
        /// The file, resolved.
        path: PathBuf,
    },
    /// The variable is not set (or is not Unicode).
    #[error("the environment variable `{name}` is not set; set it before the start")]
    EnvUnset {
        /// Its name.
        name: String,
    },
    /// There is nothing in it.
    #[error("the secret in {place} is empty; put it there")]
    Empty {
        /// The file or variable.
        place: String,
    },
    /// Not UTF-8 where text is needed.
    #[error("the secret is not UTF-8 text; write it as text")]
    NotText,
    /// Neither a file nor a variable was given, or both were.
    #[error("a secret comes from exactly one place; write either `env: NAME` or `file: PATH`")]
    NoPlace,
}

impl SecretSource {
    /// Reads the secret. Relative files lie beside the configuration, in `base`; one trailing newline is dropped.
    pub fn resolve(&self, base: &Path) -> Result<Secret, SecretError> {
        let (mut bytes, place) = match (&self.file, &self.env) {
            (Some(file), None) => {
                let path = base.join(file);
                (read(&path)?, format!("`{}`", path.display()))
            }
            (None, Some(name)) => {
                let value = std::env::var(name).map_err(|_| SecretError::EnvUnset { name: name.clone() })?;
                (value.into_bytes(), format!("the environment variable `{name}`"))
            }
            _ => return Err(SecretError::NoPlace),
        };
        if bytes.last() == Some(&b'\n') {
            bytes.pop();
            if bytes.last() == Some(&b'\r') {
                bytes.pop();
            }
        }
        if bytes.is_empty() { Err(SecretError::Empty { place }) } else { Ok(Secret(bytes.into())) }
    }
}

fn read(path: &Path) -> Result<Vec<u8>, SecretError> {
    let missing = |source| SecretError::FileMissing { path: path.to_owned(), source };
    let mut bytes = Vec::new();
    let file = std::fs::File::open(path).map_err(missing)?;
    file.take(MAX_BYTES + 1).read_to_end(&mut bytes).map_err(missing)?;
    if bytes.len() as u64 > MAX_BYTES {
        return Err(SecretError::TooLarge { path: path.to_owned() });
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(path: &str) -> SecretSource {
        SecretSource { file: Some(path.into()), env: None }
    }

    #[test]
    fn a_file_lies_beside_the_configuration_and_loses_one_newline() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("a"), "hunter2\n\n").unwrap();
        std::fs::write(folder.path().join("empty"), "\n").unwrap();
        let secret = file("a").resolve(folder.path()).unwrap();
        assert_eq!(secret.expose(), b"hunter2\n");
        assert_eq!(format!("{secret:?}"), "Secret(..)");
        assert!(matches!(file("b").resolve(folder.path()), Err(SecretError::FileMissing { .. })));
        assert!(matches!(file("empty").resolve(folder.path()), Err(SecretError::Empty { .. })));
    }

    #[test]
    fn an_unset_variable_is_named() {
        let source = SecretSource { file: None, env: Some("SECKILL_SURELY_UNSET".into()) };
        let error = source.resolve(Path::new(".")).unwrap_err();
        assert!(error.to_string().contains("`SECKILL_SURELY_UNSET`"));
    }
}
