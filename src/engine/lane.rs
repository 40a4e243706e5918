//! Runs one operation's schedule: each lane in order until it must wait.

use unisono_transport::{Posted, Put, Region, Source, Target};

use super::{
    Stop,
    core::Core,
    operation::Operation,
    post::Record,
    wire::{Class, HEADER, Header, Immediate, MAX_FLOWS, PAYLOAD, stride},
};
use crate::{
    buffer::{self, Bytes, SpanError},
    error::Failure,
    schedule::{Place, Rank, Schedule, Span, Step},
};

/// How much is reduced or copied between two polls, in bytes: small enough to keep the wire fed and the
/// data in the inner caches, large enough that a poll (a system call on tcp) costs little beside it.
pub(crate) const SLICE: usize = 64 << 10;

/// One lane's progress.
#[derive(Clone, Copy, Debug, Default)]
struct Lane {
    /// The step it is at, if it was fetched.
    step: Option<Step>,
    /// Elements of that step already reduced or copied.
    done: usize,
    /// Where its source is staged, if it is a put that found no room yet.
    staged: Option<usize>,
    ended: bool,
    /// Steps finished.
    steps: u64,
}

/// A step that was finished: see [`crate::ProcessGroup::keep_trace`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Traced {
    /// On which lane.
    pub lane: usize,
    /// The step.
    pub step: Step,
    /// How many of this rank's puts were under way then. What reductions find here overlaps with the wire.
    pub in_flight: usize,
}

/// An operation under way.
pub(crate) struct Run<'a> {
    pub operation: &'a Operation,
    pub class: Class,
    schedule: &'a mut dyn Schedule,
    lanes: Vec<Lane>,
    /// Where finished steps are noted.
    pub trace: Option<&'a mut Vec<Traced>>,
}

impl<'a> Run<'a> {
    pub(crate) fn new(operation: &'a Operation, schedule: &'a mut dyn Schedule, class: Class) -> Self {
        let lanes = vec![Lane::default(); schedule.lanes()];
        Self { operation, class, schedule, lanes, trace: None }
    }

    /// Whether every lane has ended.
    pub(crate) fn ended(&self) -> bool {
        self.lanes.iter().all(|lane| lane.ended)
    }

    /// Steps finished, and the first lane that waits for a peer: for whom.
    pub(crate) fn stand(&self) -> (u64, Option<(usize, Rank)>) {
        let waits = self.lanes.iter().enumerate().find_map(|(index, lane)| match lane.step {
            Some(Step::Take { from, .. }) => Some((index, from)),
            Some(Step::Put { to, .. }) => Some((index, to)),
            _ => None,
        });
        (self.lanes.iter().map(|lane| lane.steps).sum(), waits)
    }

    pub(crate) fn lanes(&self) -> usize {
        self.lanes.len()
    }

    /// Runs a lane until it must wait or comes to work. True if it moved.
    ///
    /// Work comes second: whatever can be put goes on the wire before anything is reduced, so that chunk k
    /// is reduced while chunk k+1 is in flight.
    pub(crate) fn advance(&mut self, core: &mut Core, index: usize) -> Result<bool, Stop> {
        let mut moved = false;
        loop {
            let step = match self.lanes[index].step {
                Some(step) => step,
                None if self.lanes[index].ended => return Ok(moved),
                None => match self.schedule.next(index) {
                    Some(step) => step,
                    None => {
                        self.lanes[index].ended = true;
                        return Ok(true);
                    }
                },
            };
            self.lanes[index].step = Some(step);
            let finished = match step {
                Step::Put { to, from } => self.put(core, index, to, from)?,
                Step::Take { from, len } => self.take(core, index, from, len)?,
                Step::Free { from } => self.free(core, index, from)?,
                Step::Settle => core.outstanding[index] == 0,
                Step::Reduce { .. } | Step::Copy { .. } => false,
            };
            if !finished {
                return Ok(moved);
            }
            moved = true;
            self.finish(core, index, step);
        }
    }

    fn finish(&mut self, core: &Core, index: usize, step: Step) {
        if let Some(trace) = &mut self.trace {
            trace.push(Traced { lane: index, step, in_flight: core.posts.under_way() });
        }
        let lane = &mut self.lanes[index];
        *lane = Lane { steps: lane.steps + 1, ..Lane::default() };
    }

    /// Reduces or copies a slice on the first lane, from `index` on, that has that to do. Gives the lane and
    /// how many bytes that were; `None` if no lane has work.
    pub(crate) fn work(&mut self, core: &Core, index: usize) -> Result<Option<(usize, usize)>, Stop> {
        let lanes = self.lanes.len();
        for lane in (index..lanes).chain(0..index) {
            if let Some(step @ (Step::Reduce { into, .. } | Step::Copy { into, .. })) = self.lanes[lane].step
            {
                let before = self.lanes[lane].done;
                self.slice(core, lane, step, into.len)?;
                let now = self.lanes[lane].done;
                if now >= into.len {
                    self.finish(core, lane, step);
                }
                return Ok(Some((lane, (now - before) * self.operation.size)));
            }
        }
        Ok(None)
    }

    /// Does a slice of a reduction or a copy.
    fn slice(&mut self, core: &Core, index: usize, step: Step, len: usize) -> Result<(), Stop> {
        let size = self.operation.size;
        let from = self.lanes[index].done;
        let now = (len - from).min(SLICE / size);
        let part = |span: Span| -> Result<Bytes<'_>, Stop> {
            Ok(self.bytes(core, index, span)?.part(from * size, now * size))
        };
        let kernel = &self.operation.kernel;
        let result = match step {
            Step::Reduce { a, b, into, last } => {
                let into = part(into)?;
                buffer::reduce(kernel, part(a)?, part(b)?, into).and_then(|()| {
                    if last && self.operation.average {
                        buffer::divide(kernel, into, self.operation.ranks)
                    } else {
                        Ok(())
                    }
                })
            }
            Step::Copy { from, into } => buffer::copy(part(from)?, part(into)?),
            _ => Ok(()),
        };
        result.map_err(|error| self.broken(core, step, &error))?;
        self.lanes[index].done += now;
        Ok(())
    }

    /// The bytes of a span.
    fn bytes<'c>(&'c self, core: &'c Core, lane: usize, span: Span) -> Result<Bytes<'c>, Stop> {
        let size = self.operation.size;
        let offset = span.offset * size;
        let (region, base) = match span.place {
            Place::Input => (&self.operation.input, 0),
            Place::Output => (&self.operation.output, 0),
            Place::Landed(from) => {
                let slot = core.receiver(from, self.class, lane).and_then(|receiver| {
                    let slot = core.receivers[receiver].latest()?;
                    Some(core.slot(receiver, slot))
                });
                match slot {
                    Some(slot) => slot,
                    None => {
                        return Err(core.stop(format!("a step reads from rank {from}, which sent nothing")));
                    }
                }
            }
        };
        Bytes::new(region, base + offset, span.len * size)
            .map_err(|error| core.stop(format!("a step's span {span:?}: {error}")))
    }

    fn broken(&self, core: &Core, step: Step, error: &SpanError) -> Stop {
        core.stop(format!("{} {step:?}: {error}", self.operation.signature.call()))
    }

    /// Sends a message. False if there is no window, no credit or no room yet.
    fn put(&mut self, core: &mut Core, lane: usize, to: Rank, from: Span) -> Result<bool, Stop> {
        let Some(sender) = core.sender(to, self.class, lane) else {
            core.knock(to, self.class, &self.header(0, 0, 0))?;
            return Ok(false);
        };
        let Some(number) = core.senders[sender].flow.next() else { return Ok(false) };
        let Some(record) = core.posts.vacant() else { return Ok(false) };
        let peer = core.handle(to)?;
        let size = self.operation.size;
        let bytes = from.len * size;
        let slot_bytes = core.senders[sender].slot_bytes;
        if bytes > slot_bytes {
            return Err(core.stop(format!("a message of {bytes} bytes for slots of {slot_bytes}")));
        }

        let opposite = core.receiver(to, self.class, lane);
        let freed = opposite.map_or(0, |flow| core.receivers[flow].freed());
        let header = self.header(freed, sender, from.len);
        {
            let (headers, at) = core.posts.header(record);
            headers.write(at, bytemuck::bytes_of(&header))?;
        }

        let injected = HEADER + bytes <= core.limits.max_inject;
        let mut staging = None;
        let mut hold = None;
        let (region, offset): (Region, usize) = match from.place {
            Place::Landed(source) => {
                let (Some(receiver), bytes) =
                    (core.receiver(source, self.class, lane), self.bytes(core, lane, from)?)
                else {
                    return Err(core.stop(format!("nothing landed from rank {source}")));
                };
                hold = core.receivers[receiver].latest().map(|slot| (receiver, slot));
                (bytes.region.clone(), bytes.offset)
            }
            Place::Input | Place::Output => {
                let (here, registered) = match from.place {
                    Place::Input => (&self.operation.input, &self.operation.registered_input),
                    _ => (&self.operation.output, &self.operation.registered_output),
                };
                let offset = from.offset * size;
                if bytes > 0 && offset + bytes > here.len() {
                    return Err(core.stop(format!("a put's span {from:?} leaves {} bytes", here.len())));
                }
                match registered {
                    Some((region, base)) => (region.clone(), base + offset),
                    None if bytes == 0 || injected || !core.limits.local_registration => {
                        (here.clone(), offset)
                    }
                    None => {
                        // A put that found no room finds its source still staged.
                        if self.lanes[lane].staged.is_none() {
                            let Some(slot) = core.posts.stage(&mut *core.transport)? else {
                                return Ok(false);
                            };
                            let Some((region, at)) = core.posts.staged(slot) else { return Ok(false) };
                            let source = Bytes::new(here, offset, bytes)
                                .and_then(|source| buffer::copy(source, Bytes::new(&region, at, bytes)?));
                            source.map_err(|error| self.broken(core, Step::Put { to, from }, &error))?;
                            self.lanes[lane].staged = Some(slot);
                        }
                        staging = self.lanes[lane].staged;
                        let Some(place) = staging.and_then(|slot| core.posts.staged(slot)) else {
                            return Ok(false);
                        };
                        place
                    }
                }
            }
        };

        let slot = core.senders[sender].flow.slot(number);
        let target = Target {
            region: core.senders[sender].region,
            offset: core.senders[sender].flow.first
                + slot * stride(slot_bytes) as u64
                + (PAYLOAD - HEADER) as u64,
        };
        let immediate =
            Immediate::Data { flow: core.senders[sender].flow.id, number: (number & 0xffff) as u16 };
        let posted = {
            let (headers, at) = core.posts.header(record);
            let header = Source::new(headers, at, HEADER)?;
            let all = [header, if bytes == 0 { header } else { Source::new(&region, offset, bytes)? }];
            let sources = if bytes == 0 { &all[..1] } else { &all[..] };
            core.transport.put(&Put {
                to: peer,
                sources,
                target,
                immediate: immediate.encode(),
                token: record as u64,
            })?
        };
        if posted == Posted::Full {
            return Ok(false);
        }
        core.senders[sender].flow.advance();
        if let Some(flow) = opposite {
            core.receivers[flow].tell();
        }
        if !injected {
            let reads = staging.is_none() && hold.is_none() && bytes > 0;
            core.outstanding[lane] += usize::from(reads);
            if let Some((receiver, slot)) = hold {
                core.receivers[receiver].hold(slot);
            }
            core.posts.begin(Record { lane: reads.then_some(lane), hold, staging });
        }
        Ok(true)
    }

    /// What precedes a message of `len` elements from flow `reply`, telling that so many messages of the
    /// opposite flow were freed.
    fn header(&self, freed: u64, reply: usize, len: usize) -> Header {
        let narrow = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        Header {
            op: (self.operation.number & 0xffff_ffff) as u32,
            codes: self.operation.signature.codes,
            root: self.operation.signature.root,
            freed: (freed & 0xffff_ffff) as u32,
            count: self.operation.signature.count,
            reply: narrow(reply),
            len: narrow(len),
        }
    }

    /// Looks at what peers sent or would send that no lane takes: ranks that disagree may wait for each
    /// other on different flows.
    pub(crate) fn compare(&self, core: &mut Core) -> Result<(), Stop> {
        let number = (self.operation.number & 0xffff_ffff) as u32;
        let agree =
            |from, header: &Header| self.operation.agree(core.me, from, header).map_err(Stop::Failure);
        for (from, header) in core.untaken() {
            // What belongs to a later operation waits; what belongs to an earlier one was never due.
            if header.op == number || header.op.wrapping_sub(number) >= 1 << 31 {
                agree(from, &header)?;
            }
        }
        for (from, header) in core.knocks.iter().filter(|(_, header)| header.op == number) {
            agree(*from, header)?;
        }
        // Most knocks were answered by a window long before anyone looks.
        core.knocks.retain(|(_, header)| header.op.wrapping_sub(number).wrapping_sub(1) < 1 << 31);
        Ok(())
    }

    /// Takes the next message. False if it has not landed.
    fn take(&mut self, core: &mut Core, lane: usize, from: Rank, len: usize) -> Result<bool, Stop> {
        let Some(receiver) = core.receiver(from, self.class, lane) else {
            return Err(
                core.stop(format!("a step takes from rank {from}, which is no source of its schedule"))
            );
        };
        if !core.receivers[receiver].ready() {
            return Ok(false);
        }
        let slot = core.receivers[receiver].take();
        let header = core.header(receiver, slot)?;
        self.operation.agree(core.me, from, &header).map_err(Stop::Failure)?;
        if header.len as usize != len {
            return Err(Stop::Failure(Failure::Protocol {
                rank: core.me,
                from,
                what: format!("a message of {} elements where {len} were due", header.len),
            }));
        }
        if header.reply as usize >= MAX_FLOWS {
            let what = format!("a message that wants its credit on flow {}", header.reply);
            return Err(Stop::Failure(Failure::Protocol { rank: core.me, from, what }));
        }
        core.receivers[receiver].reply = Some(header.reply);
        Ok(true)
    }

    /// Gives a slot back.
    fn free(&mut self, core: &mut Core, lane: usize, from: Rank) -> Result<bool, Stop> {
        let Some(receiver) = core.receiver(from, self.class, lane) else {
            return Err(core.stop(format!("a step frees what rank {from} never sent")));
        };
        if !core.receivers[receiver].free() {
            return Err(core.stop(format!("a step frees more messages than rank {from} sent")));
        }
        core.owe(receiver);
        Ok(true)
    }
}
