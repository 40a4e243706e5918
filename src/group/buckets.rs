//! Many small reductions as few large ones: tensors reduced together, and the gradients of a network on their way
//! while the rest of them is still computed.

use std::{ops::Range, sync::Arc};

use super::{ProcessGroup, node::Node, request::Request, tensors::runs};
use crate::{
    buffer::Lent,
    dtype::{Dtype, Element},
    engine::{Held, Step},
    error::{Error, Result},
    reduce::{Kernel, KernelError, ReduceOp},
    schedule::Collective,
    tensor::{Tensor, TensorError, TensorView, TensorViewMut},
    work::{Driver, Work},
};

/// How many bytes of tensors are reduced at once: so few that they are still in a core's cache when they come back,
/// so many that an all_reduce of them costs no more for each byte than a larger one.
const TOGETHER: usize = 1 << 20;

impl ProcessGroup {
    /// Every rank gets the reduction of all ranks' tensors, each in its place. The tensors may be of any types, shapes
    /// and strides, but must be the same on all ranks. Those of one type are reduced together, about a mebibyte at
    /// once: a thousand small ones take about as long as one large one.
    ///
    /// # Errors
    /// As [`all_reduce`](Self::all_reduce); [`Error::Tensor`] if there is no memory to put them together.
    pub fn all_reduce_coalesced(&self, tensors: &mut [TensorViewMut<'_>], op: ReduceOp) -> Result<()> {
        let batches = batches(tensors.iter().map(|tensor| (tensor.dtype(), tensor.len())), op)?;
        for batch in batches {
            let views = batch.members.iter().filter_map(|&member| Some(tensors.get(member)?.view()));
            let mut together = batch.pack(views)?;
            let count = together.len();
            let request = Request { op, ..Request::new(Collective::AllReduce, count) };
            let bytes = together.bytes_mut();
            let len = bytes.len();
            if let Some(lent) = Lent::within(bytes, 0..len, 0..len) {
                let mut state = self.shared.state();
                self.shared.run(&mut state, batch.kernel.dtype(), &request, &lent, &self.wishes)?;
            }
            batch.unpack(together.bytes(), |member, own| {
                tensors.get_mut(member).map_or(Ok(()), |tensor| tensor.unpack_from(own))
            })?;
        }
        Ok(())
    }

    /// Begins an [`all_reduce_coalesced`](Self::all_reduce_coalesced) of tensors, which come back reduced.
    ///
    /// # Errors
    /// As [`all_reduce_coalesced`](Self::all_reduce_coalesced), here or from the wait. Where there is no memory to put a
    /// later batch of tensors together, [`Error::Failed`] from the wait.
    pub fn all_reduce_coalesced_async(
        &self,
        tensors: Vec<Tensor>,
        op: ReduceOp,
    ) -> Result<Work<Vec<Tensor>>> {
        let batches = batches(tensors.iter().map(|tensor| (tensor.dtype(), tensor.len())), op)?;
        let batches = batches.into_iter();
        let coalesced = Coalesced { group: self.under_way(), op, tensors, batches, under_way: None };
        let driver: Arc<dyn Driver> = Arc::<Node>::clone(&self.shared.node);
        match coalesced.go_on()? {
            Step::More(operation, schedule, held) => {
                let ticket = self.shared.hand_in(NAME, operation, schedule, held)?;
                Ok(Work::new(ticket, driver))
            }
            Step::Done(kept) => Ok(Work::done(kept, driver)),
        }
    }
}

/// What the call is called.
const NAME: &str = "all_reduce_coalesced";

/// Tensors that are reduced together.
struct Batch {
    kernel: Kernel,
    /// Which of the call's they are, and their bytes.
    members: Vec<usize>,
    sizes: Vec<usize>,
}

/// In the order in which they are reduced, which is the same on all ranks.
fn batches(tensors: impl Iterator<Item = (Dtype, usize)>, op: ReduceOp) -> Result<Vec<Batch>> {
    let all: Vec<_> = tensors.enumerate().collect();
    let mut batches = Vec::new();
    for dtype in Dtype::ALL {
        let same = all.iter().filter(|(_, (its, _))| *its == dtype);
        let (members, sizes): (Vec<usize>, Vec<usize>) =
            same.map(|&(member, (_, len))| (member, len.saturating_mul(dtype.size()))).unzip();
        if members.is_empty() {
            continue;
        }
        for run in runs(&sizes, TOGETHER) {
            let kernel = Kernel::new(dtype, op).map_err(argument)?;
            let of = |all: &[usize]| all.get(run.clone()).unwrap_or_default().to_vec();
            batches.push(Batch { kernel, members: of(&members), sizes: of(&sizes) });
        }
    }
    Ok(batches)
}

fn argument(error: KernelError) -> Error {
    Error::Argument { call: NAME, problem: error.to_string() }
}

impl Batch {
    /// Their elements, one after the other, ready to be reduced.
    fn pack<'t>(&self, tensors: impl Iterator<Item = TensorView<'t>>) -> Result<Tensor> {
        let dtype = self.kernel.dtype();
        let mut together = Tensor::zeros(dtype, &[self.sizes.iter().sum::<usize>() / dtype.size()])?;
        let mut bytes = together.bytes_mut();
        for (tensor, &size) in tensors.zip(&self.sizes) {
            let (place, rest) = bytes.split_at_mut_checked(size).unwrap_or_default();
            tensor.pack_into(place)?;
            bytes = rest;
        }
        self.kernel.scale_in_place(together.bytes_mut()).map_err(argument)?;
        Ok(together)
    }

    /// Back to their places.
    fn unpack(
        &self,
        mut bytes: &[u8],
        mut unpack: impl FnMut(usize, &[u8]) -> std::result::Result<(), TensorError>,
    ) -> Result<()> {
        for (&member, &size) in self.members.iter().zip(&self.sizes) {
            let (own, rest) = bytes.split_at_checked(size).unwrap_or_default();
            unpack(member, own)?;
            bytes = rest;
        }
        Ok(())
    }
}

/// A call under way: batch after batch, of which only one is put together at a time.
struct Coalesced {
    group: ProcessGroup,
    op: ReduceOp,
    tensors: Vec<Tensor>,
    batches: std::vec::IntoIter<Batch>,
    under_way: Option<(Batch, Tensor)>,
}

impl Coalesced {
    /// Puts the tensors of a batch that is reduced back, and those of the next together.
    fn go_on(mut self) -> Result<Step> {
        if let Some((batch, together)) = self.under_way.take() {
            batch.unpack(together.bytes(), |member, own| {
                self.tensors.get_mut(member).map_or(Ok(()), |tensor| tensor.view_mut().unpack_from(own))
            })?;
        }
        let Some(batch) = self.batches.next() else { return Ok(Step::Done(Some(Box::new(self.tensors)))) };
        let views = batch.members.iter().filter_map(|&member| Some(self.tensors.get(member)?.view()));
        let mut together = batch.pack(views)?;
        let request = Request { op: self.op, ..Request::new(Collective::AllReduce, together.len()) };
        let lent = Lent::kept_tensor(&mut together);
        let shared = Arc::clone(&self.group.shared);
        let (operation, schedule) =
            shared.follow(batch.kernel.dtype(), &request, &lent, &self.group.wishes)?;
        self.under_way = Some((batch, together));
        let then = move |_| self.go_on().map_err(|error| shared.midway(error));
        Ok(Step::More(operation, schedule, Held::Then(Box::new(then))))
    }
}

/// The gradients of a network's parameters, reduced over all ranks in buckets: each bucket is on its way as soon as all
/// its gradients are there, while the others are still computed.
///
/// It is what PyTorch's `DistributedDataParallel` does (Li et al., "PyTorch Distributed: Experiences on Accelerating
/// Data Parallel Training", VLDB 2020): parameters go into buckets from the last to the first, the order in which a
/// backward pass comes to them; a bucket waits for those before it, so that ranks whose gradients become ready in
/// different orders agree on the order of operations.
///
/// ```
/// # use unisono::{Config, GradientBuckets, ProcessGroup, ReduceOp};
/// # use unisono_transport::memory::Hub;
/// # fn main() -> unisono::Result<()> {
/// # let group = ProcessGroup::with(Config::default(), Box::new(Hub::new().open()), None)?;
/// // A layer of 6 weights and 2 biases, and one of 4 and 1.
/// let mut buckets = GradientBuckets::<f32>::new(&group, &[6, 2, 4, 1], ReduceOp::Avg, 25 << 20)?;
/// for step in 0..3 {
///     for parameter in (0..4).rev() {
///         let gradient = vec![step as f32; buckets.len_of(parameter)];
///         buckets.ready(parameter, &gradient)?;
///     }
///     buckets.finish()?;
///     assert_eq!(buckets.gradient(1), [step as f32; 2]);
/// }
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct GradientBuckets<'g, T: Element> {
    group: &'g ProcessGroup,
    op: ReduceOp,
    /// Where each parameter's gradient lies: the bucket, and where in it.
    places: Vec<(usize, Range<usize>)>,
    ready: Vec<bool>,
    buckets: Vec<Bucket<T>>,
    /// How many buckets are on their way.
    begun: usize,
}

#[derive(Debug)]
struct Bucket<T> {
    /// Empty while it is on its way.
    data: Vec<T>,
    /// How many gradients it has, and how many of them are not there yet.
    gradients: usize,
    missing: usize,
    work: Option<Work<Vec<T>>>,
}

impl<'g, T: Element> GradientBuckets<'g, T> {
    /// Buckets for parameters of these numbers of elements, in the order in which a forward pass comes to them; each of
    /// about so many bytes (PyTorch's default is 25 MiB), but at least of one gradient. Alike on all ranks.
    ///
    /// # Errors
    /// [`Error::Argument`] if the operation does not fit the type; [`Error::Tensor`] if there is no memory.
    pub fn new(
        group: &'g ProcessGroup,
        lengths: &[usize],
        op: ReduceOp,
        bucket_bytes: usize,
    ) -> Result<Self> {
        let problem =
            |error: KernelError| Error::Argument { call: "GradientBuckets::new", problem: error.to_string() };
        Kernel::new(T::DTYPE, op).map_err(problem)?;
        let most = bucket_bytes / size_of::<T>();
        let mut places = vec![(0, 0..0); lengths.len()];
        // Elements and gradients of each bucket.
        let mut sizes: Vec<(usize, usize)> = Vec::new();
        for (place, &len) in places.iter_mut().zip(lengths).rev() {
            match sizes.last_mut() {
                Some((elements, gradients)) if elements.saturating_add(len) <= most => {
                    place.1 = *elements..*elements + len;
                    *elements += len;
                    *gradients += 1;
                }
                _ => {
                    place.1 = 0..len;
                    sizes.push((len, 1));
                }
            }
            place.0 = sizes.len() - 1;
        }
        let buckets = sizes.into_iter().map(|(elements, gradients)| {
            let data = Tensor::zeros(T::DTYPE, &[elements])?.into_vec()?;
            Ok(Bucket { data, gradients, missing: gradients, work: None })
        });
        let buckets = buckets.collect::<Result<Vec<_>>>()?;
        Ok(Self { group, op, ready: vec![false; places.len()], places, buckets, begun: 0 })
    }

    /// How many elements a parameter has; 0 if there is no such parameter.
    #[must_use]
    pub fn len_of(&self, parameter: usize) -> usize {
        self.places.get(parameter).map_or(0, |(_, place)| place.len())
    }

    /// This rank's gradient of a parameter is there. Begins the all_reduce of every bucket that waited for it alone.
    ///
    /// # Errors
    /// [`Error::Argument`] if there is no such parameter, its gradient was there before, or it has another length;
    /// [`Error::Failed`] if the group is over.
    pub fn ready(&mut self, parameter: usize, gradient: &[T]) -> Result<()> {
        let wrong = |problem: String| Err(Error::Argument { call: "GradientBuckets::ready", problem });
        let count = self.places.len();
        let (Some((bucket, place)), Some(ready)) =
            (self.places.get(parameter), self.ready.get_mut(parameter))
        else {
            return wrong(format!("there is no parameter {parameter}; there are {count}"));
        };
        if gradient.len() != place.len() {
            let (given, wanted) = (gradient.len(), place.len());
            return wrong(format!("parameter {parameter} has {wanted} elements, and the gradient {given}"));
        }
        if std::mem::replace(ready, true) {
            return wrong(format!(
                "the gradient of parameter {parameter} was there before; call finish() after a step"
            ));
        }
        if let Some(bucket) = self.buckets.get_mut(*bucket) {
            if let Some(own) = bucket.data.get_mut(place.clone()) {
                own.copy_from_slice(gradient);
            }
            bucket.missing -= 1;
        }
        while let Some(bucket) = self.buckets.get_mut(self.begun).filter(|bucket| bucket.missing == 0) {
            let data = std::mem::take(&mut bucket.data);
            bucket.work = Some(self.group.all_reduce_async(data, self.op)?);
            self.begun += 1;
        }
        Ok(())
    }

    /// Waits until all gradients are reduced. After it [`gradient`](Self::gradient) has them, and the next step may
    /// begin.
    ///
    /// # Errors
    /// [`Error::Argument`] if a gradient is not there yet; [`Error::Failed`] if the ranks disagree or the group is over.
    pub fn finish(&mut self) -> Result<()> {
        if let Some(parameter) = self.ready.iter().position(|ready| !ready) {
            let problem = format!(
                "the gradient of parameter {parameter} is not there; call ready() for all, if with zeros"
            );
            return Err(Error::Argument { call: "GradientBuckets::finish", problem });
        }
        for bucket in &mut self.buckets {
            if let Some(work) = bucket.work.take() {
                bucket.data = work.wait()?;
            }
            bucket.missing = bucket.gradients;
        }
        self.ready.fill(false);
        self.begun = 0;
        Ok(())
    }

    /// The reduced gradient of a parameter, after [`finish`](Self::finish) and until the next is [ready](Self::ready).
    /// Empty if there is none.
    #[must_use]
    pub fn gradient(&self, parameter: usize) -> &[T] {
        let place = self.places.get(parameter);
        place
            .and_then(|(bucket, place)| self.buckets.get(*bucket)?.data.get(place.clone()))
            .unwrap_or_default()
    }
}
