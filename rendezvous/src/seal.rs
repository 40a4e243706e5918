//! Proofs that both sides of a connection know the job's token, and that each frame comes from the other side.
//!
//! First each side sends a random number, the client in its hello, the server in its challenge. A connection has one key for each
//! direction: a keyed hash (BLAKE3, under a key derived from the token) of all bytes sent so far, which contain both versions, both
//! numbers, the job, rank, world size and purpose. Every later frame has a tag: a keyed hash of its number and its bytes. The first tag of
//! each side proves that it knows the token. Nobody without the token can make a frame, change it, leave it out, repeat it, send it back,
//! or move it to another connection. Nothing is encrypted.

use std::{fmt, io, net::TcpStream};

use unisono_transport::{fork::Unshared, random_bytes};

use crate::config::Token;

/// The length of a tag, in bytes.
pub(super) const TAG: usize = blake3::OUT_LEN;

/// The purpose of the derived key, which BLAKE3 wants to differ from that of every other key.
const PURPOSE: &str = "unisono 2026-11-26 store: the token's key";

/// A frame's hash.
pub(super) type Digest = [u8; blake3::OUT_LEN];

/// A random number for one connection.
pub(super) type Nonce = [u8; 32];

/// Makes a nonce.
pub(super) fn nonce() -> io::Result<Nonce> {
    Ok(random_bytes()?)
}

/// The hash of a frame whose bytes come in several parts.
pub(super) fn digest(parts: &[&[u8]]) -> Digest {
    let mut hasher = blake3::Hasher::new();
    for part in parts {
        hasher.update(part);
    }
    *hasher.finalize().as_bytes()
}

/// Seals or opens the frames of one direction of one connection, in order.
pub(super) struct Seal {
    key: [u8; blake3::KEY_LEN],
    /// How many frames it has sealed or opened.
    count: u64,
}

impl Seal {
    /// The seals of the client's and of the server's frames, after the client has sent `hello` and the server `challenge`.
    pub(super) fn pair(token: &Token, hello: &[u8], challenge: &[u8]) -> [Self; 2] {
        let token = blake3::derive_key(PURPOSE, token.reveal().as_bytes());
        ["client", "server"].map(|from| {
            let mut hasher = blake3::Hasher::new_keyed(&token);
            hasher.update(from.as_bytes()).update(&digest(&[hello])).update(&digest(&[challenge]));
            Self { key: *hasher.finalize().as_bytes(), count: 0 }
        })
    }

    /// The tag of the next frame.
    pub(super) fn tag(&mut self, digest: &Digest) -> [u8; TAG] {
        *self.next(digest).as_bytes()
    }

    /// True if this is the next frame's tag, compared in constant time.
    pub(super) fn opens(&mut self, digest: &Digest, tag: &[u8; TAG]) -> bool {
        self.next(digest) == *tag
    }

    fn next(&mut self, digest: &Digest) -> blake3::Hash {
        let mut hasher = blake3::Hasher::new_keyed(&self.key);
        hasher.update(&self.count.to_le_bytes()).update(digest);
        self.count += 1;
        hasher.finalize()
    }
}

/// Does not show the key.
impl fmt::Debug for Seal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Seal").field("count", &self.count).finish_non_exhaustive()
    }
}

/// A connection on which both sides have proved that they know the token.
#[derive(Debug)]
pub(super) struct SealedStream {
    pub(super) stream: Unshared<TcpStream>,
    /// Seals the frames that are sent.
    pub(super) outgoing: Seal,
    /// Checks the frames that arrive.
    pub(super) incoming: Seal,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair(token: &str, hello: &str, challenge: &str) -> [Seal; 2] {
        Seal::pair(&token.into(), hello.as_bytes(), challenge.as_bytes())
    }

    #[test]
    fn a_tag_holds_for_one_frame_of_one_direction_of_one_connection() {
        let frame = digest(&[b"fra", b"me"]);
        assert_eq!(frame, digest(&[b"frame"]));
        let [mut client, _] = pair("token", "hello", "challenge");
        let (first, second) = (client.tag(&frame), client.tag(&frame));
        let [mut same, mut server] = pair("token", "hello", "challenge");
        assert!(!server.opens(&frame, &first), "it cannot be sent back");
        assert!(same.opens(&frame, &first));
        assert!(!same.opens(&frame, &first), "nor repeated");
        let [mut same, _] = pair("token", "hello", "challenge");
        assert!(!same.opens(&frame, &second), "nor one before it left out");
        for (token, hello, challenge) in [
            ("Token", "hello", "challenge"),
            ("", "hello", "challenge"),
            ("token", "hellO", "challenge"),
            ("token", "hello", "challengE"),
            ("token", "helloc", "hallenge"),
        ] {
            let [mut other, _] = pair(token, hello, challenge);
            assert!(!other.opens(&frame, &first), "{token} {hello} {challenge}");
        }
        let [mut same, _] = pair("token", "hello", "challenge");
        assert!(!same.opens(&digest(&[b"Frame"]), &first), "nor the frame changed");
    }

    #[test]
    fn nonces_differ() {
        assert_ne!(nonce().unwrap(), nonce().unwrap());
    }
}
