//! Point-to-point messages of lists of tensors, whose number, types and shapes the receiver need not know.

use std::{fmt::Display, ops::Range};

use serde::{Deserialize, Serialize};
use unisono_engine::{Borrowed, Form, Place, RequestKind};
use unisono_schedule::Rank;

use crate::{
    dtype::Dtype,
    error::{Error, Failure, Result},
    group::{
        message::{Receiver, receive},
        sequence::Sequence,
        typed::tensors::packing::{TensorHeader, TensorInfo, packed, runs, unpack_each, zeroed},
    },
    object::decode,
    tensor::{Tensor, TensorError, TensorView, TensorViewMut},
};

/// The message before the elements: the headers of the tensors, and the tag of the messages with their elements.
#[derive(Serialize, Deserialize)]
struct ListHeader {
    inner: u32,
    tensors: Vec<TensorHeader>,
}

/// A list of tensors whose headers have arrived and whose elements follow.
struct IncomingList {
    infos: Vec<TensorInfo>,
    inner: u32,
    from: Rank,
}

impl Sequence {
    pub(crate) async fn send_list(&self, tensors: &[TensorView<'_>], to: Receiver) -> Result<()> {
        let inner = self.group.shared.runtime.inner();
        let headers = ListHeader { inner, tensors: tensors.iter().map(TensorHeader::of).collect() };
        let headers = self.group.encoded("send_tensors", &headers)?;
        let sizes: Vec<usize> = tensors.iter().map(|it| it.len() * it.dtype().size()).collect();
        let parts = runs(&sizes, self.group.config().eager()).into_iter();
        let parts = parts.map(|run| packed(tensors.get(run).unwrap_or_default()));
        let parts = parts.collect::<std::result::Result<Vec<_>, _>>()?;
        let head = Borrowed::apart(&headers, &mut []);
        let mut all = vec![self.group.outbound(Dtype::U8, &head.input, to, Form::Tensors)?];
        for part in &parts {
            all.push(self.group.outbound(
                Dtype::U8,
                &Borrowed::apart(part, &mut []).input,
                Receiver { tag: inner, ..to },
                Form::Inner,
            )?);
        }
        self.messages(RequestKind::Several(all)).await.map(drop)
    }

    pub(crate) async fn receive_list(&self, from: Option<Rank>, tag: u32) -> Result<(Vec<Tensor>, Rank)> {
        let IncomingList { infos, inner, from } = self.receive_header("recv_tensors", from, tag).await?;
        let abort_error = |error: TensorError| self.abort_error_in("recv_tensors", &error);
        // A large tensor is a separate message, which is received into new memory.
        let large = |info: &&TensorInfo| info.bytes > self.group.config().eager();
        let none: &[usize] = &[0];
        let shape = |info| if large(&info) { none } else { &info.shape };
        let tensors = infos.iter().map(|info| Tensor::zeros(info.dtype, shape(info)));
        let mut tensors = tensors.collect::<std::result::Result<Vec<_>, _>>().map_err(abort_error)?;
        let runs = runs(&sizes(&infos), self.group.config().eager());
        // Small tensors share a message, from which they are unpacked.
        let part = |place| receive(Form::Inner, Dtype::U8, Some(from), inner, place);
        let mut shared: Vec<Vec<u8>> = Vec::new();
        let mut all = Vec::new();
        for run in &runs {
            if let Some(info) = infos.get(run.start).filter(large) {
                let place = Place::New { dtype: info.dtype, count: info.bytes / info.dtype.size() };
                all.push(part(place));
                continue;
            }
            match tensors.get_mut(run.clone()).unwrap_or_default() {
                [tensor] => all.push(part(self.memory_of(tensor.bytes_mut()))),
                several => {
                    let mut bytes = vec![0; several.iter().map(|tensor| tensor.bytes().len()).sum()];
                    all.push(part(self.memory_of(&mut bytes)));
                    shared.push(bytes);
                }
            }
        }
        let received = self.messages(RequestKind::Several(all)).await?;
        for (run, received) in runs.iter().zip(received) {
            if let (Some(message), Some(tensor), Some(info)) =
                (received.message, tensors.get_mut(run.start), infos.get(run.start))
            {
                *tensor = message.into_elements().reshape(&info.shape).map_err(abort_error)?;
            }
        }
        let together = runs.into_iter().filter(|run| run.len() > 1);
        for (run, bytes) in together.zip(&shared) {
            unpack_each(bytes, tensors.get_mut(run).unwrap_or_default().iter_mut().map(Tensor::view_mut))?;
        }
        Ok((tensors, from))
    }

    pub(crate) async fn receive_into(
        &self,
        tensors: &mut [TensorViewMut<'_>],
        from: Option<Rank>,
        tag: u32,
    ) -> Result<Rank> {
        let IncomingList { infos, inner, from } = self.receive_header("recv_tensors_into", from, tag).await?;
        if let Some(what) = difference(&infos, tensors) {
            let what = format!("rank {} sends {what}", self.group.global(from));
            return Err(self.abort_error_in("recv_tensors_into", &what));
        }
        // Runs of tensors that are unpacked, and their bytes.
        let part = |place| receive(Form::Inner, Dtype::U8, Some(from), inner, place);
        let mut packed: Vec<(Range<usize>, Vec<u8>)> = Vec::new();
        let mut all = Vec::new();
        let sizes = sizes(&infos);
        for run in runs(&sizes, self.group.config().eager()) {
            if let [tensor] = tensors.get_mut(run.clone()).unwrap_or_default()
                && let Ok(bytes) = tensor.reborrow().into_bytes()
            {
                all.push(part(self.memory_of(bytes)));
                continue;
            }
            let len = sizes.get(run.clone()).unwrap_or_default().iter().sum();
            let mut bytes = zeroed(len).map_err(|error| self.abort_error_in("recv_tensors_into", &error))?;
            all.push(part(self.memory_of(&mut bytes)));
            packed.push((run, bytes));
        }
        self.messages(RequestKind::Several(all)).await?;
        for (run, bytes) in packed {
            unpack_each(
                &bytes,
                tensors.get_mut(run).unwrap_or_default().iter_mut().map(TensorViewMut::reborrow),
            )?;
        }
        Ok(from)
    }

    /// Receives the message before the elements.
    async fn receive_header(&self, call: &'static str, from: Option<Rank>, tag: u32) -> Result<IncomingList> {
        let (bytes, from) = self.receive_blob(from, tag, Form::Tensors).await?;
        let protocol_error = |what: String| {
            let (rank, from) = (self.group.global_rank(), self.group.global(from));
            Error::Failed(Failure::Protocol { rank, from, what: format!("{call}: {what}") })
        };
        let ListHeader { inner, tensors } =
            decode(&bytes).map_err(|error| protocol_error(error.to_string()))?;
        let infos = tensors
            .into_iter()
            .map(|header| header.read().map_err(&protocol_error))
            .collect::<Result<_>>()?;
        Ok(IncomingList { infos, inner, from })
    }

    /// This rank cannot receive a list that the sender has begun to send: the group fails.
    fn abort_error_in(&self, call: &'static str, why: &dyn Display) -> Error {
        Error::Failed(Failure::Aborted { rank: self.group.global_rank(), why: format!("{call}: {why}") })
    }

    /// A place in memory that outlives the receive.
    fn memory_of(&self, bytes: &mut [u8]) -> Place {
        let output = Borrowed::apart::<u8>(&[], bytes).output.found_in(&self.group.shared.runtime.registry);
        Place::There { count: output.len(), output: output.memory }
    }
}

fn sizes(infos: &[TensorInfo]) -> Vec<usize> {
    infos.iter().map(|info| info.bytes).collect()
}

/// The first difference between the tensors that are sent and those that are wanted.
fn difference(infos: &[TensorInfo], tensors: &[TensorViewMut<'_>]) -> Option<String> {
    if infos.len() != tensors.len() {
        return Some(format!("{} tensors where {} are wanted", infos.len(), tensors.len()));
    }
    infos.iter().zip(tensors).enumerate().find_map(|(index, (info, tensor))| {
        let (given, wanted) = ((info.dtype, &info.shape[..]), (tensor.dtype(), tensor.shape()));
        let words = |(dtype, shape): (Dtype, &[usize])| format!("{dtype} {shape:?}");
        (given != wanted)
            .then(|| format!("tensor {index} as {}, and {} is wanted", words(given), words(wanted)))
    })
}
