//! Calls: what their ranks must agree on, as codes on the wire, and their names for people. The engine compares the codes and does
//! not know the calls.

use std::borrow::Cow;

use bytemuck::{Pod, Zeroable};
use unisono_core::{
    dtype::{Alias, Dtype},
    position::{CallRecord, LEAVES},
    reduce::ReduceOp,
};
use unisono_schedule::{Collective, Job, Rank, algorithm};

/// The code of a send, in place of a collective's. The root is then the peer, the count the tag.
const SEND: u8 = 0x7e;

/// The code of a receive; likewise.
const RECV: u8 = 0x7d;

/// What a call that does not reduce sends; its code stands in place of a reduction's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Cargo {
    /// The elements of slices.
    #[default]
    Elements,
    /// Values of any type.
    Objects,
    /// Lists of tensors.
    Tensors,
    /// The parts of one tensor.
    Parts,
    /// The exchange of a split.
    Split,
    /// The exchange that makes a new group.
    NewGroup,
    /// The first barrier of shutdown, after which no earlier message is in flight.
    Leaving,
    /// The last barrier of shutdown.
    Shutdown,
}

impl Cargo {
    /// In the order of their codes, each with the suffix of the collective's name, or the call's own name.
    const ALL: [(Self, &'static str, Option<&'static str>); 8] = [
        (Self::Elements, "", None),
        (Self::Objects, "_object", None),
        (Self::Tensors, "_tensors", None),
        (Self::Parts, "_tensor", None),
        (Self::Split, "", Some("split()")),
        (Self::NewGroup, "", Some("new_group()")),
        (Self::Leaving, "", Some(LEAVES)),
        (Self::Shutdown, "", Some(LEAVES)),
    ];

    /// The cargo of a code in place of a reduction's.
    fn from_code(code: u8) -> Self {
        let cargo = code.checked_sub(CARGO).and_then(|place| Self::ALL.get(usize::from(place)));
        cargo.map_or(Self::Elements, |(cargo, ..)| *cargo)
    }
}

/// The code of the first cargo; reductions have lower codes.
const CARGO: u8 = 0x40;

/// The bit of a collective's code that says that its blocks are uneven.
const UNEVEN: u8 = 0x80;

/// The bit of a collective's code that says that it is of many tensors.
const COALESCED: u8 = 0x40;

/// The bits of a collective's code that do not name the collective.
const KINDS: u8 = UNEVEN | COALESCED;

/// The bit of an algorithm's code that says that the call may be done in place, on memory that all ranks map.
const IN_PLACE: u8 = 0x80;

/// The bits of [`Signature::lanes`] that are the number of lanes.
const COPIES_SHIFT: u32 = 8;

/// The bit of a reduction's code that says that it is in the order of ranks.
const ORDERED: u8 = 0x80;

/// The bytes that an unexpected message counts in addition to its elements: for its entry and the allocation.
const ENTRY: usize = 256;

/// The kind of a message, on which sender and receiver must agree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MessageKind {
    /// What the message carries.
    pub form: Form,
    /// The type of its elements.
    pub dtype: Dtype,
    /// What the caller calls the type.
    pub alias: Alias,
    /// The number of elements.
    pub count: usize,
}

/// What the elements of a message are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// Elements of a slice.
    Plain,
    /// The types and shapes of tensors, whose elements follow in another message.
    Tensors,
    /// An encoded value.
    Object,
    /// A message that belongs to an earlier one, of form `Tensors`. The tag is a number that the earlier one has carried.
    Inner,
    /// What the members of a group that they make without the other ranks exchange.
    Group,
}

/// The tags that a message's tag is one of: messages of different spaces never match.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Space {
    /// The tags of callers.
    Calls,
    /// The numbers that an earlier message has carried.
    Inner,
    /// The tags of groups that are being made.
    Groups,
}

impl Form {
    /// In the order of their codes.
    const ALL: [Self; 5] = [Self::Plain, Self::Tensors, Self::Object, Self::Inner, Self::Group];

    /// What its tag is one of.
    pub(crate) const fn space(self) -> Space {
        match self {
            Self::Inner => Space::Inner,
            Self::Group => Space::Groups,
            Self::Plain | Self::Tensors | Self::Object => Space::Calls,
        }
    }

    /// Its place in [`Self::ALL`].
    pub(crate) const fn code(self) -> u8 {
        self as u8
    }

    pub(crate) fn from_code(code: u8) -> Option<Self> {
        Self::ALL.get(usize::from(code)).copied()
    }
}

impl MessageKind {
    /// Elements of a type that the caller calls by its own name.
    pub fn new(form: Form, dtype: Dtype, count: usize) -> Self {
        Self { form, dtype, alias: Alias::NONE, count }
    }

    pub(crate) fn bytes(&self) -> usize {
        self.count.saturating_mul(self.dtype.size())
    }

    /// The bytes that it counts among unexpected messages.
    pub(crate) fn kept(&self) -> usize {
        self.bytes().saturating_add(ENTRY)
    }

    /// For people: `5 f32 elements`.
    pub(crate) fn words(&self) -> String {
        match self.form {
            Form::Plain => match self.alias.elements() {
                _ if self.alias.is_none() => format!("{} {} elements", self.count, self.dtype.name()),
                Some(each) => format!("{} {} elements", self.count as u64 / each, self.alias.name()),
                None => format!("{} bytes of {}", self.bytes(), self.alias.name()),
            },
            Form::Tensors => "tensors".to_owned(),
            Form::Object => "an object".to_owned(),
            Form::Inner => format!("{} bytes of tensors", self.count),
            Form::Group => format!("{} words about a group that its members make", self.count),
        }
    }
}

/// The parts of a call that its ranks must agree on, as they are on the wire, and the number of its operation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct Signature {
    /// The number in the communicator, its low 32 bits, in what an operation tells its peers; otherwise 0.
    pub number: u32,
    /// The low byte: the number of lanes. The high byte: 0, or, if the call may be done in place, 1 more than the binary logarithm of the
    /// most bytes that a rank copies to a slot at once.
    pub lanes: u16,
    /// The code of what the caller calls the type; 0 if that is the dtype.
    pub alias: u16,
    /// Codes of collective, dtype, reduction and algorithm.
    pub codes: [u8; 4],
    /// The root; 0 if there is none. For a send or a receive the peer.
    pub root: u32,
    /// The number of elements. For a send or a receive the tag.
    pub count: u64,
    /// For calls of many tensors a hash of their types and shapes; for blocks whose lengths all ranks were given a hash of these, 1 if
    /// each two ranks compare theirs; otherwise 0.
    pub contents: u32,
    /// The most elements of a message.
    pub chunk: u32,
}

impl Signature {
    /// The signature of a job. `algorithm` is the code of its algorithm.
    pub fn new(job: &Job<'_>, dtype: Dtype, op: ReduceOp, algorithm: u8) -> Self {
        // There are few collectives: the code always fits.
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
            count: job.count as u64,
            chunk: narrow(job.chunk),
            lanes: u16::try_from(job.lanes).unwrap_or(u16::MAX),
            ..Self::default()
        }
    }

    /// The signature of a send or a receive; `peer` is `None` for a receive from any rank.
    pub(crate) fn message(sends: bool, kind: &MessageKind, peer: Option<Rank>, tag: u64) -> Self {
        let root = peer.map_or(u32::MAX, narrow);
        let codes = [if sends { SEND } else { RECV }, kind.dtype.code(), kind.form.code(), 0];
        Self { codes, root, count: tag, alias: kind.alias.code(), ..Self::default() }
    }

    /// The signature of a send or a receive, with the peer's rank in the world.
    pub(crate) fn worldwide(mut self, world: impl Fn(Rank) -> Rank) -> Self {
        if self.root != u32::MAX {
            self.root = narrow(world(self.root as usize));
        }
        self
    }

    /// The same call of elements that the caller calls so.
    #[inline]
    pub fn named(mut self, alias: Alias) -> Self {
        self.alias = alias.code();
        self
    }

    /// The same call with this cargo; only for collectives that do not reduce.
    #[inline]
    pub fn carrying(mut self, cargo: Cargo) -> Self {
        if cargo != Cargo::Elements {
            self.codes[2] = CARGO | cargo as u8;
        }
        self
    }

    /// The same call without the number of its operation.
    pub(crate) fn unnumbered(self) -> Self {
        Self { number: 0, ..self }
    }

    /// The same call, which may be done in place. `copies`: the most bytes of plain memory that a rank copies to a slot at once, 0 or a
    /// power of two.
    #[inline]
    pub fn in_place(mut self, copies: usize) -> Self {
        self.codes[3] |= IN_PLACE;
        let code = copies.checked_ilog2().map_or(0, |exponent| exponent + 1);
        self.lanes |= u16::try_from(code).unwrap_or_default() << COPIES_SHIFT;
        self
    }

    /// The same call with these contents. `coalesced`: whether it is of many tensors.
    #[inline]
    pub fn of_contents(mut self, contents: u32, coalesced: bool) -> Self {
        self.contents = contents;
        if coalesced {
            self.codes[0] |= COALESCED;
        }
        self
    }

    pub(crate) fn collective(&self) -> Option<Collective> {
        Collective::ALL.get(usize::from(self.codes[0] & !KINDS)).copied()
    }

    fn cargo(&self) -> Cargo {
        let reduces = self.collective().is_none_or(|it| it.reduces());
        if reduces { Cargo::Elements } else { Cargo::from_code(self.codes[2]) }
    }

    /// True if contributions are reduced in the order of ranks, with the bits that has.
    pub(crate) fn is_ordered(&self) -> bool {
        self.collective().is_some_and(|it| it.reduces()) && self.codes[2] & ORDERED != 0
    }

    /// True if it is the last barrier of shutdown.
    pub(crate) fn is_shutdown(&self) -> bool {
        self.cargo() == Cargo::Shutdown
    }

    /// True if it is a barrier of shutdown.
    #[inline]
    pub fn is_leaving(&self) -> bool {
        matches!(self.cargo(), Cargo::Leaving | Cargo::Shutdown)
    }

    /// The call as words, for [`Self::call_of`].
    #[inline]
    pub fn bits(&self) -> [u64; 3] {
        let rooted = self.collective().is_some_and(|it| it.has_root());
        let coalesced = self.collective().is_some() && !rooted && self.codes[0] & KINDS == COALESCED;
        let more = if coalesced { self.contents } else { self.root };
        [u64::from(u32::from_le_bytes(self.codes)) | u64::from(more) << 32, self.count, self.alias.into()]
    }

    /// True if the call that [`Self::bits`] has encoded makes a group.
    #[inline]
    pub fn makes_group([bits, ..]: [u64; 3]) -> bool {
        let codes = ((bits & 0xffff_ffff) as u32).to_le_bytes();
        match codes[0] {
            SEND | RECV => Form::from_code(codes[2]) == Some(Form::Group),
            _ => matches!(Self { codes, ..Self::default() }.cargo(), Cargo::Split | Cargo::NewGroup),
        }
    }

    /// The text of a call that [`Self::bits`] has encoded.
    pub fn call_of([bits, count, alias]: [u64; 3]) -> String {
        let (codes, root) = ((bits & 0xffff_ffff) as u32, (bits >> 32) as u32);
        let (codes, alias) = (codes.to_le_bytes(), (alias & 0xffff) as u16);
        Self { codes, root, contents: root, count, alias, ..Self::default() }.call()
    }

    /// The type of its elements, for people.
    fn element(&self) -> Cow<'static, str> {
        match Dtype::from_code(self.codes[1]) {
            _ if self.alias != 0 => Alias::from_code(self.alias).name(),
            Some(dtype) => dtype.name().into(),
            None => "unknown dtype".into(),
        }
    }

    /// The call for people: `all_reduce(f32, sum)`, `reduce(i8, max, root 3)`, `all_gather_v(f32)`, `all_reduce_coalesced(f32, sum)`, `barrier()`.
    pub(crate) fn call(&self) -> String {
        let [code, _, op, _] = self.codes;
        if code == SEND || code == RECV {
            let (call, way) = if code == SEND { ("send", "to") } else { ("recv", "from") };
            let dtype = self.element();
            let peer = if self.root == u32::MAX { "any".to_owned() } else { self.root.to_string() };
            return match Form::from_code(op) {
                Some(Form::Group) => format!("create_group(with {peer}, tag {})", self.count),
                _ => format!("{call}({dtype}, {way} {peer}, tag {})", self.count),
            };
        }
        let Some(&collective) = Collective::ALL.get(usize::from(code & !KINDS)) else {
            return format!("collective number {code}, unknown here");
        };
        let rooted = collective.has_root();
        let (_, suffix, name) = Cargo::ALL[self.cargo() as usize];
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
        let kind = code & KINDS;
        let mut arguments = match (kind, self.contents) {
            (COALESCED, 0) if !rooted => "no tensors".to_owned(),
            _ => self.element().into_owned(),
        };
        if collective.reduces() {
            let op = ReduceOp::from_code(op & !ORDERED, 0).map_or("unknown reduction", ReduceOp::name);
            arguments += &format!(", {op}{}", if self.is_ordered() { ", reproducible" } else { "" });
        }
        if rooted {
            arguments += &format!(", root {}", self.root);
        }
        let kind = match kind {
            0 => "",
            COALESCED => "_coalesced",
            _ => "_v",
        };
        format!("{}{kind}({arguments})", collective.name())
    }

    /// The call as a position reports it.
    pub(crate) fn record(&self) -> CallRecord {
        let Self { codes, contents, count, chunk, lanes, .. } = *self;
        let name = algorithm::from_code(codes[3] & !IN_PLACE).map_or("unknown", |algorithm| algorithm.name);
        let (copies, lanes) = (lanes >> COPIES_SHIFT, lanes & ((1 << COPIES_SHIFT) - 1));
        let algorithm = match (codes[3] & IN_PLACE, copies) {
            (0, _) => name.to_owned(),
            (_, 0) => format!("{name} or in place"),
            (_, code) => {
                let bytes = 1_u64.checked_shl(u32::from(code) - 1).unwrap_or_default();
                format!("{name} or in place with copies of {bytes} bytes")
            }
        };
        let uneven = self.collective().is_some() && codes[0] & UNEVEN != 0;
        let count = count / Alias::from_code(self.alias).elements().unwrap_or(1);
        CallRecord { call: self.call(), count, algorithm, contents, uneven, chunk, lanes: lanes.into() }
    }
}

/// A number as 32 bits; all that do not fit become `u32::MAX`.
pub(crate) fn narrow(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

/// Any signature of a peer has a text and can be compared.
#[cfg(any(test, fuzzing))]
pub(crate) fn fuzz(theirs: Signature) {
    assert!(theirs.call().len() < 200 && Signature::call_of(theirs.bits()) == theirs.call());
    let job = Job::new(Collective::AllReduce, 0, 2, 10);
    let ours = Signature::new(&job, Dtype::F32, ReduceOp::Sum, 0);
    let (ours, theirs) = (ours.record(), theirs.record());
    let difference = |one, other| CallRecord::differ("".into(), 7, one, other);
    assert_eq!(difference((0, &ours), (1, &theirs)), difference((1, &theirs), (0, &ours)));
}
