//! Blobs: bytes whose length only the sender knows. Objects and the headers of tensors travel as blobs.
//!
//! A word precedes each blob: its length, or [`UNSENT`] if its rank could not make it. So every receiver learns why a blob does not arrive,
//! and the group still works.

use serde::Serialize;
use unisono_engine::{Borrowed, Cargo, Form, Inbound, MessageKind, Place, RequestKind};
use unisono_schedule::{Collective, Rank, Uneven};

use crate::{
    dtype::Dtype,
    error::Result,
    group::{
        collective::{UNSENT, UnevenCall, UnevenSteps, longest, outside},
        handle::Handle,
        message::elements,
        plan::{CallId, CallSpec},
        sequence::Sequence,
    },
    object::{ObjectError, encode},
};

/// The size of the first message of a broadcast: the word, and as much of the blob as fits.
const HEAD: usize = 512;

/// The contents of a blob, or why it was not sent; the same on all ranks.
pub(crate) type Blob<T> = std::result::Result<T, ObjectError>;

impl Handle {
    /// A call of blobs: ranks compare its collective, its root and its cargo.
    pub(crate) fn carrier(
        &self,
        name: &'static str,
        collective: Collective,
        cargo: Cargo,
        root: Rank,
    ) -> Result<UnevenCall> {
        self.uneven_call(name, CallId { collective, dtype: Dtype::U8, root, cargo })
    }

    /// Encodes a value for a message, unless it is longer than the limit.
    pub(crate) fn encoded<T: Serialize + ?Sized>(&self, call: &'static str, value: &T) -> Result<Vec<u8>> {
        let limit = self.config().object_limit;
        let bytes = encode(value).and_then(|bytes| match bytes.len() {
            len if len > limit => Err(ObjectError::TooLarge { bytes: len as u64, limit }),
            _ => Ok(bytes),
        });
        bytes.map_err(|problem| self.not_a::<T>(call, self.rank(), problem))
    }
}

impl Sequence {
    /// Receives a message of unknown length. Returns its bytes and its sender.
    pub(crate) async fn receive_blob(
        &self,
        from: Option<Rank>,
        tag: u32,
        form: Form,
    ) -> Result<(Vec<u8>, Rank)> {
        let kind = MessageKind::new(form, Dtype::U8, self.group.config().object_limit);
        let inbound = Inbound { from, tag: tag.into(), kind, place: Place::Fresh };
        elements(self.messages(RequestKind::Receive(inbound)).await?)
    }
}

/// The concatenated blobs of all ranks and their lengths; or the first rank without a blob, and why. The same on all ranks,
/// except that only some of them get the bytes.
pub(crate) type Collected = std::result::Result<(Vec<u8>, Vec<usize>), (Rank, ObjectError)>;

/// Splits concatenated blobs by their lengths.
pub(crate) fn cut<'b>(bytes: &'b [u8], lengths: &[usize]) -> impl Iterator<Item = &'b [u8]> {
    let mut rest = bytes;
    lengths.iter().map(move |&len| {
        let (blob, after) = rest.split_at_checked(len).unwrap_or((rest, &[]));
        rest = after;
        blob
    })
}

impl UnevenCall {
    pub(crate) fn at_root(&self) -> bool {
        self.group.rank() == self.id.root
    }

    /// The length of a blob by the word before it, or why there is no blob.
    fn length(&self, word: usize) -> Blob<usize> {
        let limit = self.group.config().object_limit;
        match word {
            UNSENT => Err(ObjectError::Unsent),
            bytes if bytes > limit => Err(ObjectError::TooLarge { bytes: bytes as u64, limit }),
            len => Ok(len),
        }
    }

    /// True if this rank gets the gathered result.
    pub(crate) fn gets(&self) -> bool {
        self.id.collective == Collective::AllGather || self.at_root()
    }
}

impl UnevenSteps<'_> {
    /// Broadcasts `len` bytes from the root.
    pub(crate) async fn run_broadcast(&mut self, len: usize, borrowed: Borrowed<'_>) -> Result<()> {
        // Ranks compare the call that this operation is a part of.
        let (root, part_of) = (self.id.root, Some(self.id));
        let spec = CallSpec { root, part_of, ..CallSpec::new(Collective::Broadcast, Dtype::U8, len) };
        self.sequence.run(&spec, borrowed).await
    }

    /// Receives the bytes that the root broadcasts: this many.
    pub(crate) async fn fill(&mut self, bytes: &mut [u8]) -> Result<()> {
        let len = bytes.len();
        let borrowed = Borrowed::within(bytes, 0..len, 0..len).ok_or_else(|| outside(self.name, len))?;
        self.run_broadcast(len, borrowed).await
    }

    /// Broadcasts the root's blob. The root itself gets no copy; `blob` is ignored on other ranks.
    pub(crate) async fn broadcast_blob(&mut self, blob: Option<&[u8]>) -> Result<Blob<Vec<u8>>> {
        let mut head = [0; HEAD];
        let (word, first) = head.split_at_mut(size_of::<u64>());
        let room = first.len();
        if self.at_root() {
            word.copy_from_slice(&(blob.map_or(UNSENT, <[u8]>::len) as u64).to_le_bytes());
            blob.into_iter().flatten().zip(first).for_each(|(byte, place)| *place = *byte);
            self.run_broadcast(HEAD, Borrowed::given(&head)).await?;
        } else {
            self.fill(&mut head).await?;
        }
        let (word, first) = head.split_at(size_of::<u64>());
        let word = word.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte));
        let len = match self.length(usize::try_from(word).unwrap_or(UNSENT)) {
            Ok(len) => len,
            Err(problem) => return Ok(Err(problem)),
        };
        match (blob.filter(|_| self.at_root()), first.get(..len)) {
            (Some(_), Some(_)) => Ok(Ok(Vec::new())),
            (None, Some(all)) => Ok(Ok(all.to_vec())),
            (Some(blob), None) => {
                self.run_broadcast(len, Borrowed::given(blob)).await?;
                Ok(Ok(Vec::new()))
            }
            (None, None) => {
                debug_assert!(len > room);
                let mut blob = self.room::<u8>(&[len])?;
                self.fill(&mut blob).await?;
                Ok(Ok(blob))
            }
        }
    }

    /// Gathers the blobs of all ranks: on the ranks that get the call's result, or `to_all` ranks.
    pub(crate) async fn gather_blobs(&mut self, blob: Option<&[u8]>, to_all: bool) -> Result<Collected> {
        let words = self.everyone(blob.map_or(UNSENT, <[u8]>::len)).await?;
        let first = words.iter().enumerate().find_map(|(rank, &word)| Some((rank, self.length(word).err()?)));
        if let Some(problem) = first {
            return Ok(Err(problem));
        }
        let mut all = self.room::<u8>(if to_all || self.gets() { &words } else { &[] })?;
        let borrowed = Borrowed::apart(blob.unwrap_or_default(), &mut all);
        if to_all {
            let uneven = Some(Uneven { input: &[], output: &words });
            let spec = CallSpec::new(Collective::AllGather, Dtype::U8, longest(&words));
            let spec = CallSpec { uneven, part_of: Some(self.id), ..spec };
            self.sequence.run(&spec, borrowed).await?;
        } else {
            self.gather(&words, borrowed).await?;
        }
        Ok(Ok((all, words)))
    }

    /// Scatters the root's blobs, which are concatenated and have these lengths: rank r gets blob r.
    pub(crate) async fn scatter_blobs(&mut self, blobs: Option<(&[u8], &[usize])>) -> Result<Blob<Vec<u8>>> {
        let (bytes, lengths) = blobs.unzip();
        // If one blob is too large, no rank gets any.
        let (blocks, longest) = self.blocks_of_root(lengths).await?;
        match self.length(longest) {
            Err(problem) => Ok(Err(problem)),
            Ok(_) => self.scatter_new(bytes.unwrap_or_default(), &blocks, longest).await.map(Ok),
        }
    }
}
