//! A message from point to point, as it is asked for.

use crate::dtype::Dtype;
use unisono_schedule::Rank;
use unisono_transport::Region;

/// What a message that is kept aside counts beside its elements: its entry, and memory of its own.
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

    /// What it counts among what is kept aside.
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

/// A message that somebody sends.
pub(crate) struct Outbound {
    pub to: Rank,
    pub tag: u32,
    pub kind: Kind,
    pub source: Region,
    /// The registered buffer that it lies in, if it does, and where.
    pub registered: Option<(Region, usize)>,
}

impl Outbound {
    /// Where its elements lie, and whether that is registered.
    pub(crate) fn place(&self) -> (Region, usize, bool) {
        match &self.registered {
            Some((region, at)) => (region.clone(), *at, true),
            None => (self.source.clone(), 0, false),
        }
    }
}

/// A message that somebody asks for.
pub(crate) struct Inbound {
    /// From any rank, if from none.
    pub from: Option<Rank>,
    pub tag: u32,
    pub form: Form,
    pub dtype: Dtype,
    pub place: Place,
}

/// Where a message goes.
pub(crate) enum Place {
    /// There, and it must have that many elements.
    There { output: Region, count: usize, registered: Option<(Region, usize)> },
    /// To fresh memory, however long it is up to so many bytes.
    Fresh { most: usize },
    /// To fresh memory for so many elements of this type, which the message must fill.
    New { dtype: Dtype, count: usize },
}
