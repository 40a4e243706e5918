//! Passes frames that no client sends, made of any bytes, to the server's members and values.

use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

use super::{
    super::protocol::{self, ConnectionPurpose, Hello, Reply, ToWatch},
    Id, Outbox,
    members::{Ending, RankStates, Role},
    values::Values,
};

/// The first bytes of a record: the connection, the event, and the length of the frame.
const RECORD: usize = 4;
/// Ranks of the job, and connections.
const RANKS: usize = 3;
const CONNECTIONS: u8 = 8;

/// Handles records, one after the other, as the server handles them when it has found their connections.
pub(crate) fn frames(bytes: &[u8]) {
    let now = Instant::now();
    let (mut members, mut values) = (RankStates::new(RANKS), Values::default());
    let (mut outbox, mut session) = (Outbox::new(), 0);
    let mut roles: HashMap<Id, Role> = HashMap::new();
    let mut rest = bytes;
    while let Some((&[from, what, low, high], after)) = rest.split_first_chunk::<RECORD>() {
        let len = usize::from(u16::from_le_bytes([low, high]));
        let (frame, after) = after.split_at(after.len().min(len));
        rest = after;
        let id = Id::from(from % CONNECTIONS);
        match (what % 4, roles.get(&id).copied()) {
            (0, None) => {
                let Ok(mut hello) = protocol::decode::<Hello>(frame) else { continue };
                if let ConnectionPurpose::Watch { session: said } = &mut hello.purpose {
                    // A client cannot guess the session.
                    *said = session;
                }
                if let Ok(role) = members.hello(id, &hello, &mut outbox) {
                    session = role.session;
                    roles.insert(id, role);
                }
            }
            (2, Some(role)) => {
                roles.remove(&id);
                values.forget(id);
                members.closed(id, role, Ending::Closed, now, &mut outbox);
            }
            (3, _) => {
                let late = now + Duration::from_secs(1 << 32);
                members.expire(late, &mut outbox);
                members.answer(late, &mut outbox);
                values.expire(late, &mut outbox);
            }
            (_, Some(role)) if role.watch => {
                if let Ok(tell) = protocol::decode(frame) {
                    members.tell(id, role, tell, now, &mut outbox);
                }
            }
            (_, Some(role)) if members.is_here(role) && !values.waits(id) => {
                if let Ok(request) = protocol::decode(frame) {
                    values.request(id, request, now, &mut outbox);
                }
            }
            _ => {}
        }
        if let Some(failure) = &members.failure {
            values.fail(failure, &mut outbox);
        }
        // Clients can decode the frames that the server sends.
        for (to, frame) in outbox.drain(..) {
            let frame = frame.get(4..).unwrap_or_default();
            let read = match roles.get(&to) {
                Some(role) if role.watch => protocol::decode::<ToWatch>(frame).map(drop),
                Some(_) => protocol::decode::<Reply<'_>>(frame).map(drop),
                None => Ok(()),
            };
            assert!(read.is_ok(), "{read:?}: {frame:02x?}");
        }
    }
    let _ = (members.anyone(), members.all_gone(), members.query_until());
}

#[cfg(test)]
mod tests {
    use std::{fs, path::Path};

    use super::{
        super::super::protocol::{Admission, Challenge, StoreRequest, ToServer},
        *,
    };

    fn seeds(target: &str) -> Vec<(String, Vec<u8>)> {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/corpus").join(target);
        let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap());
        entries.map(|it| (it.file_name().into_string().unwrap(), fs::read(it.path()).unwrap())).collect()
    }

    /// If this did not hold, the server would refuse the seeds before it does anything with them.
    #[test]
    fn the_seeds_are_frames_of_this_version() {
        for (file, bytes) in seeds("client") {
            let frame = &bytes[1..];
            let read = match file.split('-').next().unwrap() {
                "reply" => protocol::decode::<Reply<'_>>(frame).map(drop),
                "told" => protocol::decode::<ToWatch>(frame).map(drop),
                "welcome" => protocol::decode::<Admission>(frame).map(drop),
                "prove" => protocol::decode::<Challenge>(frame).map(drop),
                _ => {
                    assert!(bytes.starts_with(&protocol::preamble()), "{file}");
                    continue;
                }
            };
            assert!(read.is_ok(), "{file}: {read:?}");
        }
        let (mut sent, mut asked) = (0, 0);
        // Some records of the refused seeds are no frames.
        for (file, bytes) in seeds("server").into_iter().filter(|(file, _)| file != "refused") {
            let mut rest = &bytes[..];
            while let Some((&[_, what, low, high], after)) = rest.split_first_chunk::<RECORD>() {
                let (frame, after) = after.split_at(usize::from(u16::from_le_bytes([low, high])));
                rest = after;
                let (hello, tell) =
                    (protocol::decode::<Hello>(frame).is_ok(), protocol::decode::<ToServer>(frame).is_ok());
                let request = protocol::decode::<StoreRequest<'_>>(frame).is_ok();
                match what % 4 {
                    0 => assert!(hello, "{file}: {frame:02x?}"),
                    1 => {
                        assert!(tell || request, "{file}: {frame:02x?}");
                        sent += u32::from(tell);
                        asked += u32::from(request);
                    }
                    _ => {}
                }
            }
        }
        assert!(sent >= 6 && asked >= 6, "{sent} {asked}");
    }
}
