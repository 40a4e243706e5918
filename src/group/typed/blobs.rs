//! Blobs: bytes whose length only the sender knows. Objects and the descriptions of tensors travel as blobs.
//!
//! Before the bytes go words, one for each blob: its length, or that there is none because its rank could not make it. So every
//! rank that waits for a blob learns at once why it does not come, and the group goes on.

use unisono_schedule::{Collective, Rank, Uneven};

use crate::{
    buffer::Borrowed,
    dtype::Dtype,
    engine::Cargo,
    error::{Error, Result},
    group::{
        ProcessGroup,
        collective::lengths::{UnevenCall, longest, numbers},
        plan::spec::{CallId, CallSpec},
        sequence::Sequence,
    },
    object::ObjectError,
    reduce::ReduceOp,
};

/// The word of a rank that has no blob.
const UNSENT: usize = usize::MAX;

/// How many bytes a broadcast begins with: the length, and what fits of the blob.
const HEAD: usize = 512;

/// What is in a blob, or why it did not come; alike on all ranks.
pub(crate) type Blob<T> = std::result::Result<T, ObjectError>;

impl ProcessGroup {
    /// A call of which only the collective, the root and the kind of cargo are compared.
    pub(crate) fn carrier(
        &self,
        name: &'static str,
        collective: Collective,
        cargo: Cargo,
        root: Rank,
    ) -> Result<UnevenCall> {
        self.uneven_call(name, CallId { collective, dtype: Dtype::U8, op: ReduceOp::Sum, root, cargo })
    }
}

/// All ranks' blobs, one after the other, and their lengths; or the first rank that has none, and why; alike on all
/// ranks but for whether the bytes come there.
pub(crate) type Collected = std::result::Result<(Vec<u8>, Vec<usize>), (Rank, ObjectError)>;

/// Cuts bytes into blobs of these lengths.
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

    /// What a word says.
    fn judge(&self, word: usize) -> Blob<usize> {
        let limit = self.group.config().object_limit;
        match word {
            UNSENT => Err(ObjectError::Unsent),
            bytes if bytes > limit => Err(ObjectError::TooLarge { bytes: bytes as u64, limit }),
            len => Ok(len),
        }
    }

    /// Broadcasts so many bytes from the root.
    pub(crate) async fn run_broadcast(
        &self,
        sequence: &mut Sequence<'_>,
        len: usize,
        borrowed: Borrowed<'_>,
    ) -> Result<()> {
        let CallId { dtype, root, .. } = self.id;
        // Whatever it is a part of: ranks compare the call.
        let part_of = Some(self.id);
        let spec = CallSpec { root, part_of, ..CallSpec::new(Collective::Broadcast, len) };
        sequence.run(&self.group, dtype, &spec, borrowed).await
    }

    /// Every rank but the root gets the root's blob, which is looked at nowhere else; the root gets nothing.
    pub(crate) async fn hand_out(
        &self,
        sequence: &mut Sequence<'_>,
        blob: Option<&[u8]>,
    ) -> Result<Blob<Vec<u8>>> {
        let mut head = [0; HEAD];
        let (word, first) = head.split_at_mut(size_of::<u64>());
        let room = first.len();
        if self.at_root() {
            word.copy_from_slice(&(blob.map_or(UNSENT, <[u8]>::len) as u64).to_le_bytes());
            blob.into_iter().flatten().zip(first).for_each(|(byte, place)| *place = *byte);
            self.run_broadcast(sequence, HEAD, Borrowed::given(&head)).await?;
        } else {
            let borrowed = Borrowed::within(&mut head, 0..HEAD, 0..HEAD);
            self.run_broadcast(sequence, HEAD, borrowed.ok_or_else(|| self.nowhere())?).await?;
        }
        let (word, first) = head.split_at(size_of::<u64>());
        let word = word.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte));
        let len = match self.judge(usize::try_from(word).unwrap_or(UNSENT)) {
            Ok(len) => len,
            Err(problem) => return Ok(Err(problem)),
        };
        match (blob.filter(|_| self.at_root()), first.get(..len)) {
            (Some(_), Some(_)) => Ok(Ok(Vec::new())),
            (None, Some(all)) => Ok(Ok(all.to_vec())),
            (Some(blob), None) => {
                self.run_broadcast(sequence, len, Borrowed::given(blob)).await?;
                Ok(Ok(Vec::new()))
            }
            (None, None) => {
                debug_assert!(len > room);
                let mut blob = self.room::<u8>(&[len])?;
                let borrowed = Borrowed::within(&mut blob, 0..len, 0..len);
                self.run_broadcast(sequence, len, borrowed.ok_or_else(|| self.nowhere())?).await?;
                Ok(Ok(blob))
            }
        }
    }

    /// Whether this rank gets what all ranks have.
    pub(crate) fn gets(&self) -> bool {
        self.id.collective == Collective::AllGather || self.at_root()
    }

    /// Collects all ranks' blobs where the call gives something, or everywhere.
    pub(crate) async fn collect(
        &self,
        sequence: &mut Sequence<'_>,
        blob: Option<&[u8]>,
        to_all: bool,
    ) -> Result<Collected> {
        let [words] = self.everyone(sequence, [blob.map_or(UNSENT, <[u8]>::len)]).await?;
        let first = words.iter().enumerate().find_map(|(rank, &word)| Some((rank, self.judge(word).err()?)));
        if let Some(problem) = first {
            return Ok(Err(problem));
        }
        let mut all = self.room::<u8>(if to_all || self.gets() { &words } else { &[] })?;
        let borrowed = Borrowed::apart(blob.unwrap_or_default(), &mut all);
        if to_all {
            let uneven = Some(Uneven { input: &[], output: &words });
            let longest = longest(&words);
            let spec =
                CallSpec { uneven, part_of: Some(self.id), ..CallSpec::new(Collective::AllGather, longest) };
            sequence.run(&self.group, Dtype::U8, &spec, borrowed).await?;
        } else {
            self.gather(sequence, &words, borrowed).await?;
        }
        Ok(Ok((all, words)))
    }

    /// Every rank gets its own of the root's blobs, which lie one after the other and have these lengths.
    pub(crate) async fn hand_each(
        &self,
        sequence: &mut Sequence<'_>,
        blobs: Option<(&[u8], &[usize])>,
    ) -> Result<Blob<Vec<u8>>> {
        let ranks = self.group.size();
        let (bytes, lengths) = blobs.filter(|_| self.at_root()).unwrap_or_default();
        // One that is too large is the same as none to all of them.
        let longest = if blobs.is_some() { longest(lengths) } else { UNSENT };
        let words: Vec<u64> = match self.at_root() {
            true => (0..ranks)
                .flat_map(|rank| [lengths.get(rank).copied().unwrap_or_default(), longest])
                .map(|word| word as u64)
                .collect(),
            false => Vec::new(),
        };
        let told = self.exchange(sequence, Collective::Scatter, 2, &words, 2).await?;
        let [own, longest] = numbers(&told);
        if let Err(problem) = self.judge(longest) {
            return Ok(Err(problem));
        }
        let mut blocks = vec![0; ranks];
        match blocks.get_mut(self.group.rank()) {
            Some(block) if !self.at_root() => *block = own,
            _ => {}
        }
        let blocks = if self.at_root() { lengths } else { &blocks };
        let mut blob = self.room::<u8>(&[own])?;
        self.scatter(sequence, blocks, longest, Borrowed::apart(bytes, &mut blob)).await?;
        Ok(Ok(blob))
    }

    /// The blocks leave their memory, which the lengths rule out.
    pub(crate) fn nowhere(&self) -> Error {
        Error::Argument { call: self.name, problem: "the blocks leave their memory".to_owned() }
    }
}
