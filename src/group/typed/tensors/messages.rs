//! Point-to-point messages of lists of tensors, whose number, types and shapes the receiver need not know.

use std::ops::Range;

use serde::{Deserialize, Serialize};
use unisono_engine::{Borrowed, Form, Inbound, MessageKind, Place, RequestKind};
use unisono_schedule::Rank;

use crate::{
    dtype::Dtype,
    error::Result,
    group::{
        message::Receiver,
        sequence::Sequence,
        typed::tensors::{TensorHeader, TensorInfo, packed, runs, unpack_each, zeroed},
    },
    object::decode,
    tensor::{Tensor, TensorError, TensorView, TensorViewMut},
};

/// The message before the elements: the [headers](TensorHeader) of the tensors, and the tag of the messages with their elements.
#[derive(Serialize, Deserialize)]
struct ListHeader<H> {
    inner: u32,
    tensors: Vec<H>,
}

impl Sequence {
    pub(crate) async fn send_list(&self, tensors: &[TensorView<'_>], to: Receiver) -> Result<()> {
        let inner = self.group.shared.runtime.inner();
        let headers = ListHeader { inner, tensors: tensors.iter().map(TensorHeader::of).collect() };
        let headers = self.group.encoded("send_tensors", &headers)?;
        let sizes = tensors.iter().map(|it| it.len() * it.dtype().size());
        let parts = runs(sizes, self.group.config().eager()).into_iter();
        let parts = parts.map(|run| packed(tensors.get(run).unwrap_or_default()));
        let parts = parts.collect::<std::result::Result<Vec<_>, _>>()?;
        let head = Borrowed::apart(&headers, &mut []);
        let mut all = vec![self.group.outbound(Dtype::U8, &head.input, to, Form::Tensors)?];
        let inner = Receiver { tag: inner, ..to };
        for part in &parts {
            let part = Borrowed::apart(part, &mut []);
            all.push(self.group.outbound(Dtype::U8, &part.input, inner, Form::Inner)?);
        }
        self.messages(RequestKind::Several(all)).await.map(drop)
    }

    pub(crate) async fn receive_list(&self, from: Option<Rank>, tag: u32) -> Result<(Vec<Tensor>, Rank)> {
        let (infos, inner, from) = self.receive_header("recv_tensors", from, tag).await?;
        let abort_error = |error: TensorError| self.group.aborted("recv_tensors", error);
        // A large tensor is a separate message, which is received into new memory.
        let large = |info: &&TensorInfo| info.bytes > self.group.config().eager();
        let none: &[usize] = &[0];
        let shape = |info| if large(&info) { none } else { &info.shape };
        let tensors = infos.iter().map(|info| Tensor::zeros(info.dtype, shape(info)));
        let mut tensors = tensors.collect::<std::result::Result<Vec<_>, _>>().map_err(abort_error)?;
        let runs = runs(infos.iter().map(|info| info.bytes), self.group.config().eager());
        // Small tensors share a message, from which they are unpacked.
        let part = |bytes: &mut [u8]| self.group.receive_into(Form::Inner, from, inner, bytes);
        let mut shared: Vec<Vec<u8>> = Vec::new();
        let mut all = Vec::new();
        for run in &runs {
            if let Some(info) = infos.get(run.start).filter(large) {
                let kind = MessageKind::new(Form::Inner, Dtype::U8, info.bytes);
                let place = Place::New(info.dtype);
                all.push(RequestKind::Receive(Inbound { from: Some(from), tag: inner.into(), kind, place }));
                continue;
            }
            match tensors.get_mut(run.clone()).unwrap_or_default() {
                [tensor] => all.push(part(tensor.bytes_mut())),
                several => {
                    let mut bytes = vec![0; several.iter().map(|tensor| tensor.bytes().len()).sum()];
                    all.push(part(&mut bytes));
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
        let call = "recv_tensors_into";
        let (infos, inner, from) = self.receive_header(call, from, tag).await?;
        if let Some(what) = difference(&infos, tensors) {
            let from = self.group.global(from);
            return Err(self.group.aborted(call, format_args!("rank {from} sends {what}")));
        }
        // Runs of tensors that are unpacked, and their bytes.
        let part = |bytes: &mut [u8]| self.group.receive_into(Form::Inner, from, inner, bytes);
        let mut packed: Vec<(Range<usize>, Vec<u8>)> = Vec::new();
        let mut all = Vec::new();
        for run in runs(infos.iter().map(|info| info.bytes), self.group.config().eager()) {
            if let [tensor] = tensors.get_mut(run.clone()).unwrap_or_default()
                && let Ok(bytes) = tensor.reborrow().into_bytes()
            {
                all.push(part(bytes));
                continue;
            }
            let len = infos.get(run.clone()).unwrap_or_default().iter().map(|info| info.bytes).sum();
            let mut bytes = zeroed(len).map_err(|error| self.group.aborted(call, error))?;
            all.push(part(&mut bytes));
            packed.push((run, bytes));
        }
        self.messages(RequestKind::Several(all)).await?;
        for (run, bytes) in packed {
            let tensors = tensors.get_mut(run).unwrap_or_default().iter_mut();
            unpack_each(&bytes, tensors.map(TensorViewMut::reborrow))?;
        }
        Ok(from)
    }

    /// Receives the message before the elements: the tensors that follow, the tag of the messages with their elements, and the sender.
    async fn receive_header(
        &self,
        call: &'static str,
        from: Option<Rank>,
        tag: u32,
    ) -> Result<(Vec<TensorInfo>, u32, Rank)> {
        let (bytes, from) = self.receive_blob(from, tag, Form::Tensors).await?;
        let header = decode(&bytes).map_err(|error| self.group.malformed(call, from, error));
        let ListHeader { inner, tensors } = header?;
        Ok((tensors, inner, from))
    }
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
