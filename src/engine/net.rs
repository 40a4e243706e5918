//! The port and the groups that work through it: what arrives is taken to the group that it is for.

use unisono_transport::Event;

use super::{
    Stop,
    circle::Circle,
    core::Core,
    port::Port,
    post,
    wire::{Immediate, Way},
};

/// All that ranks share with one another, without the operations.
pub(crate) struct Net {
    pub port: Port,
    /// The groups, by channel.
    pub circles: Vec<Option<Box<Circle>>>,
}

impl Net {
    /// A group and the port.
    pub(crate) fn core(&mut self, channel: u8) -> Result<Core<'_>, Stop> {
        match self.circles.get_mut(usize::from(channel)) {
            Some(Some(circle)) => Ok(Core { port: &mut self.port, circle }),
            _ => Err(self.port.stop(format!("there is no group on channel {channel}"))),
        }
    }

    /// Takes in what has happened, whichever group it concerns; true if anything did.
    pub(crate) fn poll(&mut self) -> Result<bool, Stop> {
        let (events, result) = self.port.poll();
        let any = !events.is_empty();
        for event in &events {
            match *event {
                Event::Arrived { immediate, .. } => self.arrived(immediate)?,
                Event::Sent { token } => self.sent(token)?,
            }
        }
        self.port.seen(events);
        result?;
        Ok(any)
    }

    fn sent(&mut self, token: u64) -> Result<(), Stop> {
        if let Some(channel) = post::letter_of(token) {
            let circle = self.core(channel)?.circle;
            circle.letters_under_way = circle.letters_under_way.saturating_sub(1);
            return Ok(());
        }
        let Some(record) = self.port.posts.end(token) else {
            let what = format!("the transport ended a put that was never begun (token {token})");
            return Err(self.port.stop(what));
        };
        self.core(record.channel)?.sent(&record);
        Ok(())
    }

    fn arrived(&mut self, bits: u32) -> Result<(), Stop> {
        match Immediate::decode(bits) {
            Some(Immediate::Data { flow, way, number }) => {
                let Some((channel, receiver)) = self.port.incoming.find(flow) else {
                    return Err(self.port.stop(format!("a message on flow {flow}, which does not exist")));
                };
                let mut core = self.core(channel)?;
                match way {
                    Way::Slots => core.message_arrived(receiver, number),
                    Way::Direct => core.write_arrived(receiver, number),
                }
            }
            Some(Immediate::Credit { flow, way, freed }) => {
                let Some((channel, sender)) = self.port.outgoing.find(flow) else {
                    return Err(self.port.stop(format!("a credit for flow {flow}, which does not exist")));
                };
                self.core(channel)?.credit_arrived(sender, way, freed)
            }
            Some(Immediate::Letter { channel, from, about }) => {
                self.core(channel)?.letter_arrived(from, about)
            }
            None => Err(self.port.stop(format!("an arrival that says nothing known: {bits:#x}"))),
        }
    }
}
