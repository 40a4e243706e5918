//! An endpoint writes to itself before it is used. If that fails over sockets, a plain TCP connection of the process to itself
//! shows why: both need the loopback interface and file descriptors.
#![allow(unsafe_code)]

use std::{
    io,
    net::{IpAddr, TcpListener, TcpStream},
    time::{Duration, Instant},
};

use rustix::io::Errno;

use super::endpoint::Ofi;
use crate::{Error, Event, Memory, Notify, Posted, Put, Source, Target, Transport};

/// The longest time of a self-test, if no deadline is earlier. It takes less than a millisecond, but on an emulated machine under load
/// it has taken more than 5 s.
pub(super) const PATIENCE: Duration = Duration::from_secs(20);

/// The time after which a TCP connection of the process to itself is tried, and the longest time of that.
const PROBE: Duration = Duration::from_secs(1);

impl Ofi {
    /// Writes to itself, first few bytes and then more, from two places if it can, and checks what landed. `from` is the endpoint's
    /// address, if it is an address of the kernel.
    pub(super) fn test_itself(&mut self, from: Option<IpAddr>, patience: Duration) -> Result<(), Error> {
        let provider = self.limits.provider.clone();
        let failed = |reason: String| Error::SelfTest { provider: provider.clone(), reason };
        let large = (self.limits.max_inject + 4096).min(self.limits.max_put);
        let pattern: Vec<u8> = (0..=250_u8).map(|byte| byte ^ 0x5a).cycle().take(large).collect();
        let source = self.register(Memory::map(large)?)?;
        let window = self.register(Memory::map(large)?)?;
        // SAFETY: no put reads it yet.
        unsafe { source.write(0, &pattern)? };
        let remote = window.remote().ok_or_else(|| failed("a registered region has no key".into()))?;
        let myself = self.connect(&self.address.clone())?;
        let began = Instant::now();
        let mut probed = !self.facts.sockets;
        for (immediate, len) in [(0xffff_fffe_u32, 1_usize), (0x8000_0001, large)] {
            let target = Target { region: remote, offset: 0 };
            let first = if self.limits.max_sources > 1 { len / 2 } else { len };
            let sources = [Source::new(&source, 0, first)?, Source::new(&source, first, len - first)?];
            let sources = &sources[..self.limits.max_sources.min(2)];
            let (token, notify, fetch) = (1, Notify::IfNotInjected, false);
            let put = Put { to: myself, sources, target, immediate, token, notify, fetch };
            let (mut posted, mut arrived, mut sent) = (false, false, len <= self.limits.max_inject);
            let mut events = Vec::new();
            while !(posted && arrived && sent) {
                if !posted {
                    // SAFETY: the window is read when this has arrived; nothing writes to the source.
                    let begun = unsafe { self.put(&put) };
                    posted =
                        begun.map_err(|error| failed(self.facts.refusal(error.to_string())))? == Posted::Yes;
                }
                self.poll(&mut events)?;
                for event in events.drain(..) {
                    match event {
                        Event::Arrived { immediate: it, .. } if it == immediate && !arrived => arrived = true,
                        Event::Sent { token: 1 } if !sent => sent = true,
                        other => {
                            let what = format!("{other:?} was reported while {len} bytes were under way");
                            return Err(failed(what));
                        }
                    }
                }
                let (waited, late) = (began.elapsed(), began.elapsed() >= patience);
                if let (false, true, Some(from)) = (probed, waited > PROBE || late, from) {
                    probed = true;
                    if let Err(error) = reaches_itself(from) {
                        let why = alone(from, &error);
                        return Err(failed(format!(
                            "the bytes that it wrote to itself did not arrive: {why}"
                        )));
                    }
                }
                if late {
                    return Err(failed(too_late(len, posted, arrived, waited)));
                }
            }
            let mut landed = vec![0; len];
            // SAFETY: the put has arrived, and the next is not begun.
            unsafe { window.read(0, &mut landed)? };
            let wanted = pattern.get(..len).unwrap_or_default();
            if let Some(at) = landed.iter().zip(wanted).position(|(landed, wanted)| landed != wanted) {
                return Err(failed(format!(
                    "of {len} bytes written to itself, byte {at} is not what was sent"
                )));
            }
        }
        // The caller counts its peers from 0.
        self.peers.clear();
        self.firsts.clear();
        self.known.values_mut().for_each(|(_, peer)| *peer = None);
        Ok(())
    }
}

/// How far a put of this many bytes has come, and what to do.
fn too_late(len: usize, posted: bool, arrived: bool, waited: Duration) -> String {
    let how_far = match (posted, arrived) {
        (false, _) => "the provider took none of it",
        (_, false) => "it did not arrive",
        _ => "it arrived, and the provider did not report its end",
    };
    format!(
        "{len} bytes written to itself: {how_far} within {:.1} s; FI_LOG_LEVEL=info has libfabric say more, and \
         UNISONO_JOIN_TIMEOUT gives it longer",
        waited.as_secs_f64()
    )
}

/// Connects to itself at one of this host's addresses, as libfabric does.
fn reaches_itself(address: IpAddr) -> io::Result<()> {
    let listener = TcpListener::bind((address, 0))?;
    let _one_end = TcpStream::connect_timeout(&listener.local_addr()?, PROBE)?;
    listener.set_nonblocking(true)?;
    listener.accept().map(drop)
}

/// Why a process cannot connect to itself at this address, and what to do.
fn alone(address: IpAddr, error: &io::Error) -> String {
    if error.raw_os_error() == Some(Errno::MFILE.raw_os_error()) {
        return format!("no file descriptor is left ({error})");
    }
    format!(
        "this host cannot make a TCP connection to its own address {address} ({error}); check that the loopback \
         interface is up (`ip link set lo up`), and that no firewall drops what the host sends to itself (`nft list \
         ruleset`, `iptables -S`)"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_reaches_itself_unless_something_is_in_the_way() {
        reaches_itself(IpAddr::from([127, 0, 0, 1])).unwrap();
        // An address reserved for documentation.
        let error = reaches_itself(IpAddr::from([203, 0, 113, 1])).unwrap_err();
        assert!(alone(IpAddr::from([203, 0, 113, 1]), &error).contains("loopback interface"));
        let none_left = io::Error::from(Errno::MFILE);
        assert!(alone(IpAddr::from([127, 0, 0, 1]), &none_left).contains("descriptor"));
    }
}
