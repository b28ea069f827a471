//! `seckill-gate keygen`: the keys and secrets of a new deployment, each in its own file.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use anyhow::Context;
use aws_lc_rs::rand::fill;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use clap::Args;

use super::admin_client::Failure;
use super::{exit, print};
use crate::gate::delivery::ticket::generate_key_pair;

/// Random secrets, 32 bytes each, as text: for tokens in headers as well as for HMAC keys.
const SECRETS: [&str; 6] =
    ["admin-token", "admin-read-token", "orders-api-token", "device-secret", "token-key", "user-jwt-secret"];

/// Arguments.
#[derive(Debug, Args)]
pub struct Keygen {
    /// Folder for the files; made if it is not there. Files that exist are kept.
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
}

impl Keygen {
    /// Runs it.
    pub async fn run(self) -> Result<u8, Failure> {
        for (path, written) in generate(&self.out)? {
            print(format_args!("{} {}", if written { "wrote" } else { "kept " }, path.display()))?;
        }
        Ok(exit::DONE)
    }
}

/// Writes what is missing, readable by its owner only. A pair of keys is made as a whole or not at all. Tells each file
/// and whether it was written.
pub fn generate(folder: &Path) -> anyhow::Result<Vec<(PathBuf, bool)>> {
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(folder)
        .with_context(|| format!("cannot make {}", folder.display()))?;
    let mut files = Vec::new();
    let (private, public) = (folder.join("ticket-private.pem"), folder.join("ticket-public.pem"));
    if private.exists() && public.exists() {
        files.extend([(private, false), (public, false)]);
    } else {
        let pair = generate_key_pair()?;
        // Both are new files, so half of an older pair stops here instead of being joined to a stranger.
        write(&private, pair.private_pem.as_bytes())?;
        write(&public, pair.public_pem.as_bytes())?;
        files.extend([(private, true), (public, true)]);
    }
    for name in SECRETS {
        let path = folder.join(name);
        let missing = !path.exists();
        if missing {
            let mut bytes = [0; 32];
            fill(&mut bytes).map_err(|_| anyhow::anyhow!("the system gives no random bytes"))?;
            write(&path, format!("{}\n", URL_SAFE_NO_PAD.encode(bytes)).as_bytes())?;
        }
        files.push((path, missing));
    }
    Ok(files)
}

fn write(path: &Path, contents: &[u8]) -> anyhow::Result<()> {
    let open = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
    open.and_then(|mut file| file.write_all(contents)).with_context(|| format!("cannot write {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn keys_are_for_their_owner_only_and_never_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let out = folder.path().join("new").join("secrets");
        let first = generate(&out).unwrap();
        assert_eq!(first.len(), 8);
        let read = || first.iter().map(|(path, _)| fs::read(path).unwrap()).collect::<Vec<_>>();
        let before = read();
        for (path, written) in &first {
            assert!(written);
            assert_eq!(fs::metadata(path).unwrap().permissions().mode() & 0o777, 0o600, "{}", path.display());
        }
        assert!(generate(&out).unwrap().iter().all(|(_, written)| !written));
        assert_eq!(read(), before);
        fs::remove_file(out.join("ticket-public.pem")).unwrap();
        assert!(generate(&out).unwrap_err().to_string().contains("ticket-private.pem"));
    }
}
