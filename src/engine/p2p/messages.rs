//! Sends and receives of a communicator: how they begin, and go on.

use std::time::Instant;

use super::{
    matching::Want,
    talk::{Early, Item, LONG, Landing, Receiving, STALE, Sending, Stage, Talk, wait_for},
};
use crate::{
    buffer::Fresh,
    call::{Form, Kind},
    engine::{
        comm::Core,
        completion::Completion,
        request::{Inbound, Outbound, Place},
        stop::Stop,
    },
    error::Failure,
};
use unisono_schedule::Rank;

impl Core<'_> {
    /// Takes on a send.
    pub(crate) fn send(&mut self, outbound: Outbound, completion: Completion) {
        let talk = &mut self.comm.talk;
        let number = talk.numbers.entry(outbound.to).or_default();
        let sending =
            Sending { number: *number, completion, gone: 0, under_way: 0, stage: Stage::Queued, outbound };
        *number = number.wrapping_add(1);
        let id = talk.asked;
        talk.asked += 1;
        talk.wait_until(sending.completion.deadline);
        talk.queues.entry(sending.outbound.to).or_default().push_back(Item::Message(id));
        talk.sendings.insert(id, sending);
    }

    /// Takes on a receive.
    pub(crate) fn receive(&mut self, inbound: Inbound, completion: Completion) -> Result<(), Stop> {
        let want = Want { from: inbound.from, tag: inbound.tag, inner: inbound.form.is_inner() };
        self.comm.talk.wait_until(completion.deadline);
        match self.comm.talk.matching.receive(want, Receiving { inbound, completion }) {
            None => Ok(()),
            Some((envelope, early, receiving)) => self.early(envelope, early, receiving),
        }
    }

    /// Goes on with messages. True if anything moved.
    pub(crate) fn talk(&mut self) -> Result<bool, Stop> {
        let mut moved = self.messages_arrived()?;
        moved |= self.writes_arrived()?;
        moved |= self.send_items()?;
        moved |= self.write_messages()?;
        if self.comm.has_debts() {
            self.comm.settle_debts(false);
        }
        if self.comm.has_control() {
            moved |= self.send_control()?;
        }
        Ok(moved)
    }

    /// Lets one large message come into memory of its own, if large messages wait for each other because ranks send before they
    /// receive, or if they may wait for this rank, which waits in a receive or, as `waits` says, in a collective.
    pub(crate) fn relieve(&mut self, now: Instant, waits: bool) -> Result<bool, Stop> {
        let bounds = self.comm.settings.bounds;
        let Talk { sendings, matching, unexpected, .. } = &mut self.comm.talk;
        let sends = sendings.values().any(|sending| sending.stuck(now, STALE));
        let receives = matching.receives().any(|(_, receiving)| now >= receiving.completion.submitted + LONG);
        if !sends && !receives && !waits || self.comm.left {
            return Ok(false);
        }
        // What is waited for may be for a rank that is only late. But nothing else helps where sends wait for each other.
        let fits = |from: Rank, kind: &Kind| {
            unexpected.saturating_add(kind.kept()) <= bounds.unexpected_bytes
                || sends && *unexpected == 0
                || wait_for(sendings, from, now)
        };
        let mut requested = matching.messages().filter_map(|(envelope, early)| match *early {
            Early::Requested { kind, number, writes, since } => {
                // Its receive may come right after the one that waits.
                let may = (sends || waits || now >= since + LONG) && fits(envelope.from, &kind);
                may.then_some((envelope, early, kind, number, writes))
            }
            _ => None,
        });
        let Some((envelope, early, kind, number, writes)) = requested.next() else { return Ok(false) };
        let Some(fresh) = Fresh::new(kind.dtype, kind.count) else { return Ok(false) };
        *early = Early::Coming { kind, number };
        drop(requested);
        *unexpected += kind.kept();
        let into = fresh.region().clone();
        let landing = Landing::new(envelope.tag, kind, None, into, Some(fresh), bounds);
        self.clear_message_to_send((envelope.from, number), landing, None, writes)?;
        self.port.mark_active(self.comm.comm_id);
        Ok(true)
    }

    /// A message that has come and that nobody has received. Sends nothing: the others may be gone.
    pub(crate) fn unreceived(&mut self) -> Result<Option<Failure>, Stop> {
        self.messages_arrived()?;
        let Core { port, comm } = self;
        if !comm.talk.only_receives() {
            // What belongs to a message may have come before it is asked for.
            return Ok(None);
        }
        let Some((envelope, early)) = comm.talk.matching.messages().next() else { return Ok(None) };
        let (kind, number) = early.known();
        let from = comm.members.get(envelope.from).map_or(envelope.from, |member| member.world);
        Ok(Some(Failure::Message {
            number: u64::from(number),
            tag: envelope.tag,
            sender: (from, kind.words()),
            receiver: (port.me, "nothing, and leaves".to_owned()),
        }))
    }

    /// What sender and receiver differ in.
    pub(super) fn differ(&self, (number, tag): (u32, u32), (from, kind): (Rank, Kind), me: &Inbound) -> Stop {
        let wanted = match me.place {
            Place::There { count, .. } => Kind { form: me.form, dtype: me.dtype, count }.words(),
            Place::New { dtype, count } => {
                Kind { form: me.form, dtype: me.dtype, count: count.saturating_mul(dtype.size()) }.words()
            }
            Place::Fresh { .. } if me.form != kind.form || me.dtype != kind.dtype => match me.form {
                Form::Plain => format!("{} elements", me.dtype.name()),
                form => Kind { form, dtype: me.dtype, count: 0 }.words(),
            },
            Place::Fresh { most } => format!("at most {most} bytes"),
        };
        Stop::from(Failure::Message {
            number: u64::from(number),
            tag,
            sender: (self.comm.world(from), kind.words()),
            receiver: (self.port.me, wanted),
        })
    }
}
