//! Many small reductions as few large ones: coalesced all_reduce of tensors, and gradient buckets, which are reduced while later
//! gradients are computed.

use std::ops::Range;

use unisono_schedule::Collective;

use crate::{
    buffer::Borrowed,
    config::fnv_of_words,
    dtype::{Dtype, Element},
    error::{Error, Result},
    group::{ProcessGroup, plan::spec::CallSpec, sequence::Sequence},
    reduce::{Kernel, KernelError, ReduceOp, Reduction},
    tensor::{Tensor, TensorViewMut},
    work::Work,
};

impl ProcessGroup {
    /// Every rank gets the reduction of all ranks' tensors, each in its place. The tensors may be of any types, shapes
    /// and strides, but types and shapes must be the same on all ranks, in the same order. Those of one type are reduced
    /// as one, from where they lie and to there: a thousand small ones take little longer than one large one. Tensors that
    /// are not contiguous are packed. Ranks compare their lists, empty ones too.
    ///
    /// # Errors
    /// As [`all_reduce`](Self::all_reduce); [`Error::Tensor`] if there is no memory to pack one.
    pub fn all_reduce_coalesced(&self, tensors: &mut [TensorViewMut<'_>], op: ReduceOp) -> Result<()> {
        let kernels = self.kernels(tensors.iter().map(TensorViewMut::dtype), op)?;
        let list = list(tensors.iter().map(|tensor| (tensor.dtype(), tensor.shape())));
        self.now(async |sequence| {
            for kernel in kernels {
                self.reduce_together(sequence, kernel, tensors, op, list).await?;
            }
            Ok(())
        })
    }

    /// Begins an [`all_reduce_coalesced`](Self::all_reduce_coalesced) of tensors, which come back reduced.
    ///
    /// # Errors
    /// As [`all_reduce_coalesced`](Self::all_reduce_coalesced), here or from the wait.
    pub fn all_reduce_coalesced_async(
        &self,
        tensors: Vec<Tensor>,
        op: ReduceOp,
    ) -> Result<Work<Vec<Tensor>>> {
        let kernels = self.kernels(tensors.iter().map(Tensor::dtype), op)?;
        let list = list(tensors.iter().map(|tensor| (tensor.dtype(), tensor.shape())));
        let group = self.under_way();
        let steps = |mut sequence: Sequence<'static>| async move {
            let mut tensors = tensors;
            for kernel in kernels {
                let of_type = |tensor: &Tensor| tensor.dtype() == kernel.dtype();
                let mut pieces = Vec::new();
                for tensor in tensors.iter_mut().filter(|tensor| of_type(tensor)) {
                    pieces.push(tensor.bytes_mut());
                }
                group.reduce_pieces(&mut sequence, kernel, op, list, pieces).await?;
            }
            Ok(tensors)
        };
        self.later(NAME, steps, Ok)
    }

    /// Reduces what lies in several places, as one.
    async fn reduce_pieces(
        &self,
        sequence: &mut Sequence<'_>,
        kernel: Kernel,
        op: ReduceOp,
        list: u32,
        mut pieces: Vec<&mut [u8]>,
    ) -> Result<()> {
        let dtype = kernel.dtype();
        for piece in &mut pieces {
            kernel.scale_in_place(piece).map_err(argument)?;
        }
        let bytes: usize = pieces.iter().map(|piece| piece.len()).sum();
        let spec = CallSpec::new(Collective::AllReduce, bytes / dtype.size());
        let spec = CallSpec { op, coalesced: true, contents: list, ..spec };
        sequence.run(self, dtype, &spec, Borrowed::scattered(pieces.into_iter())).await
    }

    /// Reduces the tensors of a kernel's type.
    async fn reduce_together(
        &self,
        sequence: &mut Sequence<'_>,
        kernel: Kernel,
        tensors: &mut [TensorViewMut<'_>],
        op: ReduceOp,
        list: u32,
    ) -> Result<()> {
        let dtype = kernel.dtype();
        let mut tensors: Vec<_> = tensors.iter_mut().filter(|tensor| tensor.dtype() == dtype).collect();
        // What stands for those that cannot be reduced where they lie.
        let scattered = tensors.iter_mut().filter(|tensor| !tensor.lies_in_place());
        let packed: std::result::Result<Vec<_>, _> = scattered.map(|tensor| tensor.view().pack()).collect();
        let mut packed = packed.map_err(|error| sequence.stuck(self, error))?;
        let mut standing_in = packed.iter_mut();
        let pieces = tensors.iter_mut().filter_map(|tensor| match tensor.in_place() {
            None => standing_in.next().map(Tensor::bytes_mut),
            bytes => bytes,
        });
        let pieces = pieces.collect();
        self.reduce_pieces(sequence, kernel, op, list, pieces).await?;
        let scattered = tensors.into_iter().filter(|tensor| !tensor.lies_in_place());
        // In this order nobody is looked at where nothing was packed.
        for (packed, tensor) in packed.iter().zip(scattered) {
            tensor.unpack_from(packed.bytes()).map_err(|error| sequence.stuck(self, error))?;
        }
        Ok(())
    }

    /// How to reduce each of these types, in the order in which all ranks do. Where there are none an empty reduction
    /// is done, in which ranks compare that.
    fn kernels(&self, dtypes: impl Iterator<Item = Dtype>, op: ReduceOp) -> Result<Vec<Kernel>> {
        let mut found: Vec<Dtype> = Vec::new();
        for dtype in dtypes {
            if found.last() != Some(&dtype) && !found.contains(&dtype) {
                found.push(dtype);
            }
        }
        if found.is_empty() && self.size() > 1 {
            // One that the operation fits, whatever the factor, which is each rank's own.
            found.push(if let ReduceOp::PreMulSum(_) = op { Dtype::F64 } else { Dtype::U8 });
        }
        let in_order = Dtype::ALL.into_iter().filter(|dtype| found.contains(dtype));
        in_order.map(|dtype| Kernel::new(dtype, op).map_err(argument)).collect()
    }
}

/// A hash of the types and shapes of many tensors, in their order; of no tensors, and of none else, 0.
fn list<'s>(tensors: impl Iterator<Item = (Dtype, &'s [usize])>) -> u32 {
    let mut tensors = tensors.peekable();
    if tensors.peek().is_none() {
        return 0;
    }
    let words = tensors.flat_map(|(dtype, shape)| {
        [usize::from(dtype.code()), shape.len()].into_iter().chain(shape.iter().copied())
    });
    // By bytes it took 2 % of what a thousand small tensors take.
    let hash = fnv_of_words(words.map(|word| word as u64));
    (((hash ^ hash >> 32) & 0xffff_ffff) as u32).max(1)
}

/// What the call is called.
const NAME: &str = "all_reduce_coalesced";

fn argument(error: KernelError) -> Error {
    Error::Argument { call: NAME, problem: error.to_string() }
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
/// # use unisono_transport::inproc::Hub;
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
    /// What ranks compare of their lengths.
    list: u32,
    work: Option<Work<Vec<T>>>,
}

impl<'g, T: Element> GradientBuckets<'g, T> {
    /// Buckets for parameters of these numbers of elements, in the order in which a forward pass comes to them; each of
    /// about so many bytes (PyTorch's default is 25 MiB), but at least of one gradient. Alike on all ranks.
    ///
    /// [`ReduceOp::Avg`] of `f16` is done as [`ReduceOp::PreMulSum`] of one by the number of ranks, unless the reduction
    /// is [reproducible](Reduction::Reproducible): so no sum becomes infinite where the average is not.
    ///
    /// # Errors
    /// [`Error::Argument`] if the operation does not fit the type, [`Error::Thread`] if the progress thread cannot be started,
    /// [`Error::Tensor`] if there is no memory.
    pub fn new(
        group: &'g ProcessGroup,
        lengths: &[usize],
        op: ReduceOp,
        bucket_bytes: usize,
    ) -> Result<Self> {
        let problem =
            |error: KernelError| Error::Argument { call: "GradientBuckets::new", problem: error.to_string() };
        Kernel::new(T::DTYPE, op).map_err(problem)?;
        // Before a bucket's gradients go with what cannot be begun.
        group.shared.runtime.prepare()?;
        let op = match (op, group.options.reduction) {
            (ReduceOp::Avg, Reduction::Fastest) if T::DTYPE == Dtype::F16 => {
                ReduceOp::PreMulSum(1.0 / group.size() as f64)
            }
            _ => op,
        };
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
        let mut skipped = 0;
        let buckets = sizes.into_iter().map(|(elements, gradients)| {
            let data = Tensor::zeros(T::DTYPE, &[elements])?.into_vec()?;
            let of_bucket = lengths.iter().rev().skip(skipped).take(gradients);
            let list = list(of_bucket.map(|len| (T::DTYPE, std::slice::from_ref(len))));
            skipped += gradients;
            Ok(Bucket { data, gradients, missing: gradients, list, work: None })
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
            let (op, list) = (self.op, bucket.list);
            let work =
                self.group.begin_matching(Collective::AllReduce, data, op, (0, list), |data, _| data)?;
            bucket.work = Some(work);
            self.begun += 1;
        }
        Ok(())
    }

    /// Waits until all gradients are reduced. After it [`gradient`](Self::gradient) has them, and the next step may
    /// begin.
    ///
    /// # Errors
    /// [`Error::Argument`] if a gradient is not there yet, or [`ready`](Self::ready) could not begin what it had to;
    /// [`Error::Failed`] if the ranks disagree or the group is over.
    pub fn finish(&mut self) -> Result<()> {
        if let Some(parameter) = self.ready.iter().position(|ready| !ready) {
            let problem = format!(
                "the gradient of parameter {parameter} is not there; call ready() for all, if with zeros"
            );
            return Err(Error::Argument { call: "GradientBuckets::finish", problem });
        }
        if self.begun < self.buckets.len() {
            self.group.shared.runtime.check()?;
            let problem =
                "a bucket's all_reduce could not be begun, as ready() has told: its gradients are lost, and \
                           the other ranks wait for it"
                    .to_owned();
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
