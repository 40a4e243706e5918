//! The calls that there are: what the ranks of one must agree on, as codes that travel, and what people call it. The engine carries
//! the codes and knows no call.

use crate::{dtype::Dtype, position::CallRecord, reduce::ReduceOp};
use unisono_schedule::{Collective, Job, Rank, algorithm};

/// The codes of messages from point to point, beside those of collectives. Their peer is the root, their tag the count.
const SEND: u8 = 0x7e;

const RECV: u8 = 0x7d;

/// What a call is for, other than for the elements of slices. It stands where a reduction's code would.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Cargo {
    #[default]
    Elements,
    /// Values of any type.
    Objects,
    /// Lists of tensors.
    Tensors,
    /// The parts of one tensor.
    Parts,
    /// What ranks say when a group is made.
    Split,
    NewGroup,
    /// The barrier of shutdown after which nothing that was sent before is in flight, and the last one.
    Leaving,
    Shutdown,
}

impl Cargo {
    /// In the order of their codes.
    const ALL: [Self; 8] = [
        Self::Elements,
        Self::Objects,
        Self::Tensors,
        Self::Parts,
        Self::Split,
        Self::NewGroup,
        Self::Leaving,
        Self::Shutdown,
    ];

    /// That of a code in the place of a reduction's.
    fn from_code(code: u8) -> Self {
        let cargo = code.checked_sub(CARGO).and_then(|place| Self::ALL.get(usize::from(place)));
        cargo.copied().unwrap_or_default()
    }

    /// What a call is called after its collective's name, or by a name of its own.
    const fn words(self) -> (&'static str, Option<&'static str>) {
        match self {
            Self::Elements => ("", None),
            Self::Objects => ("_object", None),
            Self::Tensors => ("_tensors", None),
            Self::Parts => ("_tensor", None),
            Self::Split => ("", Some("split()")),
            Self::NewGroup => ("", Some("new_group()")),
            Self::Leaving | Self::Shutdown => ("", Some("leave()")),
        }
    }
}

/// The code of the first kind of cargo; reductions have lower ones.
const CARGO: u8 = 0x40;

/// The bit of a collective's code that says that its blocks are uneven.
const UNEVEN: u8 = 0x80;

/// The bit of a collective's code that says that it is of many tensors.
const COALESCED: u8 = 0x40;

/// The bits of a code that are not of its collective.
const KINDS: u8 = UNEVEN | COALESCED;

/// The bit of a reduction's code that says that it is in the order of ranks.
const ORDERED: u8 = 0x80;

/// Bytes that an unexpected message counts beside its elements: its entry, and the allocation.
const ENTRY: usize = 256;

/// What a message is: what sender and receiver must agree on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Kind {
    pub form: Form,
    pub dtype: Dtype,
    /// Elements.
    pub count: usize,
}

/// What its elements are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// Elements, and nothing else.
    Plain,
    /// What tensors are whose elements follow.
    Tensors,
    /// A value, encoded.
    Object,
    /// What belongs to tensors or an invitation that was sent before. The tag is the number that was sent with it.
    Inner,
    /// An invitation to make a group of the two ranks.
    Pair,
    /// What the invited rank answers. The tag is the number that was sent with the invitation.
    Answer,
}

impl Form {
    const ALL: [Self; 6] = [Self::Plain, Self::Tensors, Self::Object, Self::Inner, Self::Pair, Self::Answer];

    /// Whether it belongs to a message that came before.
    pub(crate) const fn is_inner(self) -> bool {
        matches!(self, Self::Inner | Self::Answer)
    }

    pub(crate) const fn code(self) -> u8 {
        match self {
            Self::Plain => 0,
            Self::Tensors => 1,
            Self::Object => 2,
            Self::Inner => 3,
            Self::Pair => 4,
            Self::Answer => 5,
        }
    }

    pub(crate) fn from_code(code: u8) -> Option<Self> {
        Self::ALL.get(usize::from(code)).copied()
    }
}

impl Kind {
    pub(crate) fn bytes(&self) -> usize {
        self.count.saturating_mul(self.dtype.size())
    }

    /// Bytes that it counts among unexpected messages.
    pub(crate) fn kept(&self) -> usize {
        self.bytes().saturating_add(ENTRY)
    }

    /// For people: `5 f32 elements`.
    pub(crate) fn words(&self) -> String {
        match self.form {
            Form::Plain => format!("{} {} elements", self.count, self.dtype.name()),
            Form::Tensors => "tensors".to_owned(),
            Form::Object => "an object".to_owned(),
            Form::Inner if self.dtype == Dtype::U64 => format!("{} words about a pair", self.count),
            Form::Inner => format!("{} bytes of tensors", self.count),
            Form::Pair => "an invitation to a pair".to_owned(),
            Form::Answer => "an answer to an invitation".to_owned(),
        }
    }
}

/// What ranks must agree on, in the form that travels.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Signature {
    /// Codes of collective, dtype, reduction and algorithm.
    pub codes: [u8; 4],
    /// The root; 0 where there is none. Of a message the peer.
    pub root: u32,
    /// What else must be alike: a number of the caller's, 0 if there is nothing.
    pub contents: u32,
    pub count: u64,
    /// The most elements of a message, and lanes.
    pub chunk: u32,
    pub lanes: u16,
}

impl Signature {
    /// Of a job. `algorithm` is its code in the table of algorithms.
    pub(crate) fn new(job: &Job<'_>, dtype: Dtype, op: ReduceOp, algorithm: u8) -> Self {
        // There are few: the code always fits.
        let place = Collective::ALL.iter().position(|&collective| collective == job.collective);
        let collective = place.and_then(|place| u8::try_from(place).ok()).unwrap_or(!KINDS);
        Self {
            codes: [
                collective | if job.uneven.is_some() { UNEVEN } else { 0 },
                dtype.code(),
                op.code().0 | if job.ordered { ORDERED } else { 0 },
                algorithm,
            ],
            root: narrow(job.root),
            contents: 0,
            count: job.count as u64,
            chunk: narrow(job.chunk),
            lanes: u16::try_from(job.lanes).unwrap_or(u16::MAX),
        }
    }

    /// Of a message to or from a rank, or from any.
    pub(crate) fn message(sends: bool, form: Form, dtype: Dtype, peer: Option<Rank>, tag: u32) -> Self {
        let root = peer.map_or(u32::MAX, narrow);
        let codes = [if sends { SEND } else { RECV }, dtype.code(), form.code(), 0];
        Self { codes, root, count: tag.into(), ..Self::default() }
    }

    /// The same of a message in a group, by the ranks of the world.
    pub(crate) fn worldwide(mut self, world: impl Fn(Rank) -> Rank) -> Self {
        if self.root != u32::MAX {
            self.root = narrow(world(self.root as usize));
        }
        self
    }

    /// The same of what is not elements; only of collectives that do not reduce.
    pub(crate) fn carrying(mut self, cargo: Cargo) -> Self {
        if cargo != Cargo::Elements {
            self.codes[2] = CARGO | cargo as u8;
        }
        self
    }

    /// The same with these contents; and whether the call is of many tensors.
    pub(crate) fn of_contents(mut self, contents: u32, coalesced: bool) -> Self {
        self.contents = contents;
        if coalesced {
            self.codes[0] |= COALESCED;
        }
        self
    }

    pub(crate) fn collective(&self) -> Option<Collective> {
        Collective::ALL.get(usize::from(self.codes[0] & !KINDS)).copied()
    }

    /// What it is for.
    fn cargo(&self) -> Cargo {
        let reduces = self.collective().is_none_or(|it| it.reduces());
        if reduces { Cargo::Elements } else { Cargo::from_code(self.codes[2]) }
    }

    /// Whether it is the last barrier of shutdown.
    pub(crate) fn is_shutdown(&self) -> bool {
        self.cargo() == Cargo::Shutdown
    }

    /// Whether it is a barrier of shutdown.
    pub(crate) fn is_leaving(&self) -> bool {
        matches!(self.cargo(), Cargo::Leaving | Cargo::Shutdown)
    }

    /// The call in two words, for [`Self::call_of`].
    pub(crate) fn bits(&self) -> [u64; 2] {
        // No call of many tensors has a root.
        let coalesced = self.collective().is_some() && self.codes[0] & KINDS == COALESCED;
        let more = if coalesced { self.contents } else { self.root };
        [u64::from(u32::from_le_bytes(self.codes)) | u64::from(more) << 32, self.count]
    }

    /// The call of [`Self::bits`].
    pub(crate) fn call_of([bits, count]: [u64; 2]) -> String {
        let (codes, root) = ((bits & 0xffff_ffff) as u32, (bits >> 32) as u32);
        Self { codes: codes.to_le_bytes(), root, contents: root, count, chunk: 0, lanes: 0 }.call()
    }

    /// `all_reduce(f32, sum)`, `reduce(i8, max, root 3)`, `all_gather_v(f32)`, `all_reduce_coalesced(f32, sum)`, `barrier()`.
    pub(crate) fn call(&self) -> String {
        let [code, dtype, op, _] = self.codes;
        if code == SEND || code == RECV {
            let (call, way) = if code == SEND { ("send", "to") } else { ("recv", "from") };
            let dtype = Dtype::from_code(dtype).map_or("unknown dtype", Dtype::name);
            let peer = if self.root == u32::MAX { "any".to_owned() } else { self.root.to_string() };
            return match Form::from_code(op) {
                Some(Form::Pair) if code == SEND => format!("open_pair(to {peer}, tag {})", self.count),
                Some(Form::Pair) => format!("join_pair(from {peer}, tag {})", self.count),
                // Sent without the tag, which the inviting rank no longer has.
                Some(Form::Answer) if code == RECV => format!("open_pair(to {peer})"),
                Some(Form::Answer) => format!("join_pair(from {peer})"),
                _ => format!("{call}({dtype}, {way} {peer}, tag {})", self.count),
            };
        }
        let Some(&collective) = Collective::ALL.get(usize::from(code & !KINDS)) else {
            return format!("collective number {code}, unknown here");
        };
        let rooted = collective.has_root() && code & KINDS != COALESCED;
        let (suffix, name) = self.cargo().words();
        if let Some(name) = name {
            return name.to_owned();
        }
        if collective == Collective::Barrier {
            return "barrier()".to_owned();
        }
        if !suffix.is_empty() {
            let root = if rooted { format!("root {}", self.root) } else { String::new() };
            return format!("{}{suffix}({root})", collective.name());
        }
        let dtype = Dtype::from_code(dtype).map_or("unknown dtype", Dtype::name);
        let kind = code & KINDS;
        let mut arguments = match (kind, self.contents) {
            (COALESCED, 0) => "no tensors",
            _ => dtype,
        }
        .to_owned();
        if collective.reduces() {
            let ordered = if op & ORDERED == 0 { "" } else { ", reproducible" };
            let op = ReduceOp::from_code(op & !ORDERED, 0).map_or("unknown reduction", ReduceOp::name);
            arguments = format!("{arguments}, {op}{ordered}");
        }
        if rooted {
            arguments = format!("{arguments}, root {}", self.root);
        }
        let kind = match kind {
            0 => "",
            COALESCED => "_coalesced",
            _ => "_v",
        };
        format!("{}{kind}({arguments})", collective.name())
    }

    /// What ranks compare, for others who do.
    pub(crate) fn record(&self) -> CallRecord {
        let Self { codes, contents, count, chunk, lanes, .. } = *self;
        let algorithm =
            algorithm::from_code(codes[3]).map_or("unknown", |algorithm| algorithm.name).to_owned();
        CallRecord { call: self.call(), count, algorithm, contents, chunk, lanes: lanes.into() }
    }
}

/// A number for a header; all that do not fit are one.
pub(crate) fn narrow(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

/// Whatever a peer says that it does has a name and can be compared.
#[cfg(any(test, fuzzing))]
pub(crate) fn fuzz(theirs: Signature) {
    assert!(theirs.call().len() < 200 && Signature::call_of(theirs.bits()) == theirs.call());
    let job = Job::new(Collective::AllReduce, 0, 2, 10);
    let ours = Signature::new(&job, Dtype::F32, ReduceOp::Sum, 0);
    let (ours, theirs) = (ours.record(), theirs.record());
    let told = |one, other| CallRecord::differ("".into(), 7, one, other);
    assert_eq!(told((0, &ours), (1, &theirs)), told((1, &theirs), (0, &ours)));
}
