//! The port and the groups that work through it: what arrives is taken to the group that it is for.

use unisono_schedule::Rank;
use unisono_transport::{Error, Event, RemoteRegion};

use super::{
    Settings, Stop,
    circle::Circle,
    core::Core,
    port::Port,
    post,
    wire::{Channel, Immediate, MAX_CHANNELS, Way},
};

/// All that ranks share with one another, without the operations.
pub(crate) struct Net {
    pub port: Port,
    /// The groups, by channel.
    pub circles: Vec<Option<Box<Circle>>>,
    /// Those that this rank has left, and others not yet.
    pub leaving: Vec<Channel>,
    /// Whether this rank leaves all groups: then nobody waits for receives, and the groups' memory stays, since others may not have
    /// left and still send.
    pub leaves_all: bool,
}

/// A bit for each channel.
pub(crate) type Channels = [u64; MAX_CHANNELS / 64];

impl Net {
    /// A group and the port.
    pub(crate) fn core(&mut self, channel: Channel) -> Result<Core<'_>, Stop> {
        match self.circles.get_mut(usize::from(channel)) {
            Some(Some(circle)) => Ok(Core { port: &mut self.port, circle }),
            _ => Err(self.port.stop(format!("there is no group on channel {channel}"))),
        }
    }

    /// The channels that are free here, a bit for each.
    pub(crate) fn free_channels(&self) -> Channels {
        let mut free = [u64::MAX; MAX_CHANNELS / 64];
        for (channel, _) in self.circles.iter().enumerate().filter(|(_, circle)| circle.is_some()) {
            free[channel / 64] &= !(1 << (channel % 64));
        }
        free
    }

    /// Makes a group of these ranks of the world, of which this one is rank `me`; `None` if another is on that channel.
    /// Nothing is sent to its members before their mailboxes are [known](Circle::introduce).
    pub(crate) fn open(
        &mut self,
        channel: Channel,
        me: Rank,
        members: &[Rank],
        settings: Settings,
    ) -> Result<Option<RemoteRegion>, Error> {
        let place = usize::from(channel);
        if self.circles.get(place).is_some_and(Option::is_some) {
            return Ok(None);
        }
        let mut circle = Circle::new(&mut *self.port.transport, me, members.len(), settings)?;
        circle.channel = channel;
        circle.meet(members.iter().copied());
        let mailbox = circle.mailbox();
        if self.circles.len() <= place {
            self.circles.resize_with(place + 1, || None);
        }
        self.circles[place] = Some(Box::new(circle));
        Ok(Some(mailbox))
    }

    /// This rank leaves a group, as soon as nothing is under way in it. Its memory goes when the others have left too.
    pub(crate) fn leave(&mut self, channel: Channel) -> Result<(), Stop> {
        let there = self.circles.get(usize::from(channel)).is_some_and(Option::is_some);
        if there && !self.leaving.contains(&channel) {
            self.leaving.push(channel);
        }
        self.sweep().map(drop)
    }

    /// Goes on with leaving groups. True if a letter went.
    pub(crate) fn sweep(&mut self) -> Result<bool, Stop> {
        let mut any = false;
        // Members that part need not hear of it, and may be gone.
        if self.circles.first().is_some_and(|world| world.as_ref().is_some_and(|world| world.parting)) {
            return Ok(any);
        }
        let mut index = 0;
        while let Some(&channel) = self.leaving.get(index) {
            let mut core = self.core(channel)?;
            let left = core.circle.left;
            core.circle.leave()?;
            if core.circle.left && !left {
                core.port.expect_none(core.circle);
            }
            any |= core.circle.has_letters() && core.send_letters()?;
            if core.circle.left
                && let Some(left_over) = core.left_over()?
            {
                return Err(left_over.into());
            }
            let over = core.circle.over();
            if self.leaves_all || !over {
                index += 1;
                continue;
            }
            self.leaving.swap_remove(index);
            if let Some(circle) = self.circles[usize::from(channel)].take() {
                self.port.take_back(&circle);
                self.port.stirred.retain(|&it| it != channel);
            }
        }
        Ok(any)
    }

    /// Whether letters of any group are under way, or wait to be sent: also those by which members of groups that this
    /// rank has left are told so.
    pub(crate) fn has_letters(&self) -> bool {
        self.circles.iter().flatten().any(|circle| !circle.letters_landed())
    }

    /// Hands the letters of all groups to the transport, as far as it takes them. True if any went.
    pub(crate) fn send_letters(&mut self) -> Result<bool, Stop> {
        let mut any = false;
        for circle in self.circles.iter_mut().flatten().filter(|circle| circle.has_letters()) {
            any |= Core { port: &mut self.port, circle }.send_letters()?;
        }
        Ok(any)
    }

    /// Takes in what has happened, whichever group it concerns; true if anything did.
    pub(crate) fn poll(&mut self) -> Result<bool, Stop> {
        let (events, result) = self.port.poll();
        let any = !events.is_empty();
        for event in &events {
            match *event {
                Event::Arrived { immediate, len } => self.arrived(immediate, len)?,
                Event::Sent { token } => self.sent(token)?,
            }
        }
        self.port.seen(events);
        result?;
        if !self.port.crowded.is_empty() || !self.port.wanting.is_empty() {
            self.give_back()?;
        }
        Ok(any)
    }

    fn sent(&mut self, token: u64) -> Result<(), Stop> {
        if let Some((channel, copied)) = post::letter_of(token) {
            let circle = self.core(channel)?.circle;
            let under_way = if copied { &mut circle.copies_under_way } else { &mut circle.letters_under_way };
            *under_way = under_way.saturating_sub(1);
            return Ok(());
        }
        let Some(record) = self.port.posts.end(token) else {
            let what = format!("the transport ended a put that was never begun (token {token})");
            return Err(self.port.stop(what));
        };
        self.core(record.channel)?.sent(&record);
        Ok(())
    }

    /// Takes an arrival to the group that it is for; one that no rank can have sent ends all.
    pub(super) fn arrived(&mut self, bits: u32, len: Option<usize>) -> Result<(), Stop> {
        match Immediate::decode(bits ^ self.port.mask) {
            Immediate::Data { flow, way, number } => {
                let Some((channel, receiver)) = self.port.incoming.find(flow) else {
                    return Err(self.port.forged(format!("a message on flow {flow}, which leads nowhere")));
                };
                let mut core = self.core(channel)?;
                core.port.arrived(core.circle.world(core.circle.receivers[receiver].from));
                match way {
                    Way::Slots => core.message_arrived(receiver, number, len),
                    Way::Direct => core.write_arrived(receiver, number),
                }
            }
            Immediate::Credit { flow, way, freed } => {
                let Some((channel, sender)) = self.port.outgoing.find(flow) else {
                    // Late news of a group that has ended is no news.
                    if self.port.outgoing.retired(flow) {
                        return Ok(());
                    }
                    return Err(self
                        .port
                        .forged(format!("credit for flow {flow}, on which nothing was sent")));
                };
                let mut core = self.core(channel)?;
                core.port.arrived(core.circle.world(core.circle.senders[sender].flow.to));
                core.credit_arrived(sender, way, freed).map_err(|violation| core.port.forged(violation.0))
            }
            Immediate::Letter { channel, from, about } => {
                let circle = self.circles.get_mut(usize::from(channel));
                let Some(circle) = circle.and_then(Option::as_mut).filter(|it| from < it.members.len())
                else {
                    let what = format!(
                        "a letter of rank {from} of a group on channel {channel}, where there is none"
                    );
                    return Err(self.port.forged(what));
                };
                self.port.arrived(circle.world(from));
                Core { port: &mut self.port, circle }.letter_arrived(from, about)
            }
        }
    }
}
