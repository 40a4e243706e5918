//! Letters: small puts outside of any flow, into the mailboxes of peers.

use unisono_transport::{Posted, Put, RemoteRegion, Source, Target};

use super::{
    Stop,
    core::Core,
    flow::Incoming,
    post::NOTHING,
    wire::{self, Class, Entry, Grant, Header, Immediate, Way, Window},
};
use crate::schedule::Rank;

/// A small message outside of any flow: what docs/wire.md has in the mailbox, and credits.
#[derive(Clone, Copy, Debug)]
pub(super) enum Letter {
    Window(Class),
    Grant,
    Credit(usize, Way),
    Hello,
    Knock(Class),
}

impl Core {
    /// Tells a peer, once in an operation for each class, of a message that waits for its window or its grant: if the
    /// two disagree on the operation, neither may ever come, and the header says why.
    pub(crate) fn knock(&mut self, to: Rank, class: Class, header: &Header) -> Result<(), Stop> {
        if self.peers[to].knocked[class.index()].replace(header.op) != Some(header.op) {
            let knock = std::mem::offset_of!(Entry, knocks) + class.index() * wire::HEADER;
            self.letters.write(to * size_of::<Entry>() + knock, bytemuck::bytes_of(header))?;
            self.post_box.push_back((to, Letter::Knock(class)));
        }
        Ok(())
    }

    /// Tells a peer, for the operation of this header, where it may write straight into this rank's output; or that
    /// it may not. It takes along the credit for what the peer has written on the first lane.
    pub(crate) fn grant(
        &mut self,
        to: Rank,
        header: Header,
        output: Option<RemoteRegion>,
    ) -> Result<(), Stop> {
        let RemoteRegion { base, key, len } = output.unwrap_or_default();
        let first = self.receiver(to, Class::Bulk, 0).map(|receiver| &mut self.landings[receiver]);
        let freed = first.map_or(0, |landing| {
            landing.tell();
            (landing.freed() & 0xffff_ffff) as u32
        });
        let header = Header { freed, ..header };
        let grant = Grant { header, granted: u64::from(output.is_some()), base, key, len };
        let at = to * size_of::<Entry>() + std::mem::offset_of!(Entry, grant);
        self.letters.write(at, bytemuck::bytes_of(&grant))?;
        self.post_box.push_back((to, Letter::Grant));
        Ok(())
    }

    /// Sends the self-test pattern to a neighbour.
    pub(crate) fn greet(&mut self, to: Rank) -> Result<(), Stop> {
        let at = to * size_of::<Entry>() + std::mem::offset_of!(Entry, hello);
        self.letters.write(at, bytemuck::bytes_of(&wire::hello(self.me, to)))?;
        self.post_box.push_back((to, Letter::Hello));
        Ok(())
    }

    /// Whether this neighbour's pattern has come, and come right.
    pub(crate) fn greeted(&self, from: Rank) -> bool {
        self.peers[from].greeted
    }

    /// Messages of a flow were freed. Its sender hears of it by a message that goes the other way, or when
    /// this rank has nothing else to do; at once only if it can send no more until it does.
    pub(crate) fn owe(&mut self, receiver: usize, way: Way) {
        let flow = self.incoming(receiver, way);
        let (from, exhausted, owes) = (flow.from, flow.exhausted(), flow.owes());
        if exhausted {
            self.post_box.push_back((from, Letter::Credit(receiver, way)));
        } else if owes && !self.debts.contains(&(receiver, way)) {
            self.debts.push((receiver, way));
        }
    }

    fn incoming(&mut self, receiver: usize, way: Way) -> &mut Incoming {
        match way {
            Way::Slots => &mut self.receivers[receiver],
            Way::Direct => &mut self.landings[receiver],
        }
    }

    /// Whether a sender has not heard of all its credit.
    pub(crate) fn has_debts(&self) -> bool {
        !self.debts.is_empty()
    }

    /// Makes letters of all debts.
    pub(crate) fn settle_debts(&mut self) {
        for (receiver, way) in self.debts.drain(..) {
            self.post_box.push_back((self.receivers[receiver].from, Letter::Credit(receiver, way)));
        }
    }

    /// Whether there are letters that the transport had no room for yet.
    pub(crate) fn has_letters(&self) -> bool {
        !self.post_box.is_empty()
    }

    /// Whether all letters have left.
    pub(crate) fn letters_left(&self) -> bool {
        self.post_box.is_empty() && self.letters_under_way == 0
    }

    /// Hands letters to the transport, as many as it takes. True if any went.
    pub(crate) fn send_letters(&mut self) -> Result<bool, Stop> {
        let mut any = false;
        for _ in 0..self.post_box.len() {
            let Some(&(to, letter)) = self.post_box.front() else { break };
            let entry = to * size_of::<Entry>();
            let credit_at = std::mem::offset_of!(Entry, credit);
            let (at, len, immediate) = match letter {
                Letter::Window(class) => (
                    class.index() * size_of::<Window>(),
                    size_of::<Window>(),
                    Immediate::Window { from: self.me, class },
                ),
                Letter::Grant => (
                    std::mem::offset_of!(Entry, grant),
                    size_of::<Grant>(),
                    Immediate::Grant { from: self.me },
                ),
                Letter::Hello => (std::mem::offset_of!(Entry, hello), 16, Immediate::Hello { from: self.me }),
                Letter::Knock(class) => {
                    let at = std::mem::offset_of!(Entry, knocks) + class.index() * wire::HEADER;
                    (at, wire::HEADER, Immediate::Knock { from: self.me, class })
                }
                Letter::Credit(receiver, way) => {
                    let reply = self.receivers[receiver].reply;
                    let flow = self.incoming(receiver, way);
                    // Nothing may be owed any more: a message that went the other way has told it.
                    let (Some(reply), true) = (reply, flow.owes()) else {
                        self.post_box.pop_front();
                        continue;
                    };
                    let freed = (flow.freed() & 0xffff) as u16;
                    (credit_at, 8, Immediate::Credit { flow: reply, way, freed })
                }
            };
            let peer = self.handle(to)?;
            let put = Put {
                to: peer,
                sources: &[Source::new(&self.letters, entry + at, len)?],
                target: Target {
                    region: self.peers[to].contact.mailbox,
                    offset: (self.me * size_of::<Entry>() + at) as u64,
                },
                immediate: immediate.encode(),
                token: NOTHING,
            };
            if self.transport.put(&put)? == Posted::Full {
                // One peer that is slow to connect must not hold up the others' letters.
                self.post_box.rotate_left(1);
                continue;
            }
            self.letters_under_way += usize::from(len > self.limits.max_inject);
            if let Letter::Credit(receiver, way) = letter {
                self.incoming(receiver, way).tell();
            }
            self.post_box.pop_front();
            any = true;
        }
        Ok(any)
    }
}
