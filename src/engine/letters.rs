//! Letters: small puts outside of any flow, into the mailboxes of peers.

use unisono_schedule::Rank;
use unisono_transport::{Posted, Put, RemoteRegion, Source, Target, Told};

use super::{
    Stop, access,
    core::Core,
    post,
    wire::{self, About, Class, Close, Entry, Grant, Header, Immediate, Way, Window},
};

/// A small message outside of any flow: what docs/wire.md has in the mailbox, and credits.
#[derive(Clone, Copy, Debug)]
pub(super) enum Letter {
    Window(Class),
    Grant,
    Credit(usize, Way),
    Hello,
    Knock(Class),
    End,
    Close(Class),
    Answer(Class),
    Read,
}

impl Core<'_> {
    /// Tells a peer, once in an operation for each class, of a message that waits for its window or its grant: if the
    /// two disagree on the operation, neither may ever come, and the header says why. It waits until the peer has read the
    /// one before; where it matters it is tried again. For [`Class::Message`] nobody reads the header.
    pub(crate) fn knock(&mut self, to: Rank, class: Class, header: &Header) -> Result<(), Stop> {
        let circle = &mut *self.circle;
        let read = class != Class::Message;
        let member = &mut circle.members[to];
        if read && member.unread {
            return Ok(());
        }
        if member.knocked[class.index()].replace(header.op) != Some(header.op) {
            member.unread |= read;
            let at = to * size_of::<Entry>() + About::Knock(class).place();
            access::store(&circle.letters, at, header)?;
            circle.post_box.push_back((to, Letter::Knock(class)));
        }
        Ok(())
    }

    /// Tells a peer, for the operation of this header, where it may write straight into this rank's output; or that
    /// it may not. It takes along the credit for what the peer has sent on the first lane, both ways.
    pub(crate) fn grant(
        &mut self,
        to: Rank,
        header: Header,
        output: Option<RemoteRegion>,
    ) -> Result<(), Stop> {
        let RemoteRegion { base, key, len } = output.unwrap_or_default();
        let circle = &mut *self.circle;
        let first = circle.receiver(to, Class::Bulk, 0);
        let (mut writes, mut slots) = (0, 0);
        if let Some(receiver) = first {
            let (landing, flow) = (&mut circle.landings[receiver], &mut circle.receivers[receiver]);
            (writes, slots) = (landing.freed(), flow.freed());
            // There may be many writes before the next grant, but then no more than one message in a slot.
            landing.tell();
            flow.answer();
        }
        let header =
            Header { freed: (writes & 0xffff_ffff) as u32, reply: (slots & 0xffff_ffff) as u32, ..header };
        let grant = Grant { header, granted: u64::from(output.is_some()), base, key, len };
        let at = to * size_of::<Entry>() + About::Grant.place();
        access::store(&circle.letters, at, &grant)?;
        circle.post_box.push_back((to, Letter::Grant));
        Ok(())
    }

    /// Sends the self-test pattern to a neighbour.
    pub(crate) fn greet(&mut self, to: Rank) -> Result<(), Stop> {
        let at = to * size_of::<Entry>() + About::Hello.place();
        let circle = &mut *self.circle;
        access::store(&circle.letters, at, &wire::hello(circle.me, to))?;
        circle.post_box.push_back((to, Letter::Hello));
        Ok(())
    }

    /// Hands letters to the transport, as many as it takes. True if any went.
    pub(crate) fn send_letters(&mut self) -> Result<bool, Stop> {
        let Self { port, circle } = self;
        let mut any = false;
        for _ in 0..circle.post_box.len() {
            let Some(&(to, letter)) = circle.post_box.front() else { break };
            let letter_about = |about: About, len| {
                (about.place(), len, Immediate::Letter { channel: circle.channel, from: circle.me, about })
            };
            let (at, len, immediate) = match letter {
                Letter::Window(class) => letter_about(About::Window(class), size_of::<Window>()),
                Letter::Grant => letter_about(About::Grant, size_of::<Grant>()),
                Letter::Hello => letter_about(About::Hello, 16),
                Letter::End => letter_about(About::End, 8),
                Letter::Close(class) => letter_about(About::Close(class), size_of::<Close>()),
                Letter::Answer(class) => letter_about(About::Answer(class), size_of::<u64>()),
                Letter::Read => letter_about(About::Read, 4),
                Letter::Knock(class) => letter_about(About::Knock(class), wire::HEADER),
                Letter::Credit(receiver, way) => {
                    let reply = circle.receivers[receiver].reply;
                    let flow = circle.incoming(receiver, way);
                    // Nothing may be owed any more: a message that went the other way has told it.
                    let (Some(reply), true) = (reply, flow.owes() || flow.stalls()) else {
                        circle.post_box.pop_front();
                        continue;
                    };
                    let freed = (flow.freed() & 0xffff) as u16;
                    (std::mem::offset_of!(Entry, credit), 8, Immediate::Credit { flow: reply, way, freed })
                }
            };
            let copied = len <= port.limits.max_inject;
            let member = &circle.members[to];
            let (peer, immediate) = port.to(member.world, immediate)?;
            let put = Put {
                to: peer,
                sources: &[Source::new(&circle.letters, to * size_of::<Entry>() + at, len)?],
                target: Target {
                    region: member.mailbox,
                    offset: (circle.me * size_of::<Entry>() + at) as u64,
                },
                immediate,
                token: post::letter(circle.channel, copied),
                told: Told::Always,
            };
            let posted = access::put(&mut *port.transport, &put);
            if posted.map_err(|error| port.broken(error))? == Posted::Full {
                // One peer that is slow to connect must not hold up the others' letters.
                circle.post_box.rotate_left(1);
                continue;
            }
            port.sent(circle.world(to));
            circle.letters_under_way += usize::from(!copied);
            circle.copies_under_way += usize::from(copied);
            if let Letter::Credit(receiver, way) = letter {
                circle.incoming(receiver, way).tell();
                let window = circle.receivers[receiver].window;
                circle.windows[window].credits = circle.windows[window].credits.wrapping_add(1);
            }
            circle.post_box.pop_front();
            any = true;
        }
        Ok(any)
    }
}
