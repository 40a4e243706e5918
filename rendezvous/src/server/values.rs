//! The values and counters of the server, and the requests that wait for them. It knows no sockets.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BinaryHeap, HashMap},
    time::{Duration, Instant},
};

use unisono_core::error::Failure;

use super::{
    super::{
        MAX_KEY, MAX_VALUE,
        protocol::{Frame, Reply, StoreRequest},
    },
    Id, Outbox,
};

/// The most bytes of all values, their keys and the keys of counters: the memory that a job can use in the serving process.
const MAX_TOTAL: usize = 1 << 30;

/// The longest wait of a request. It is longer than any setting, so that a client's times do not overflow the clock.
const MAX_WAIT: Duration = Duration::from_secs(2 * 366 * 24 * 3600);

/// Values, counters and waiting requests.
#[derive(Debug, Default)]
pub(super) struct Values {
    values: BTreeMap<String, Value>,
    total: usize,
    counters: HashMap<String, i64>,
    /// The requests that wait, and the time until which each waits; at most one per connection.
    waiting: HashMap<Id, (Awaited, Instant)>,
    /// These times, and those of requests that have been answered.
    timers: BinaryHeap<Reverse<(Instant, Id)>>,
    gets: HashMap<String, Vec<Id>>,
    collects: Vec<Collect>,
    /// The processes that the store has refused, in words.
    pub(super) refused: String,
}

/// A value, kept as the reply that holds it: one copy in memory for any number of requests.
#[derive(Debug)]
struct Value {
    reply: Frame,
    /// The offset of the value's bytes in the reply.
    start: usize,
}

impl Value {
    fn new(bytes: &[u8]) -> Self {
        let reply = Frame::new(&Reply::Value(bytes));
        let start = reply.len().saturating_sub(bytes.len());
        Self { reply, start }
    }

    fn bytes(&self) -> &[u8] {
        self.reply.get(self.start..).unwrap_or_default()
    }
}

/// What a request waits for.
#[derive(Debug)]
pub(super) enum Awaited {
    Value(String),
    Entries(String),
}

#[derive(Debug)]
struct Collect {
    who: Id,
    prefix: String,
    count: usize,
    have: usize,
}

impl Values {
    /// Serves a request of connection `who`.
    pub(super) fn request(&mut self, who: Id, request: StoreRequest<'_>, now: Instant, outbox: &mut Outbox) {
        let reply = match request {
            StoreRequest::Set { key, .. }
            | StoreRequest::Add { key, .. }
            | StoreRequest::Get { key, .. }
            | StoreRequest::Collect { prefix: key, .. }
            | StoreRequest::Present { prefix: key }
                if key.len() > MAX_KEY =>
            {
                let problem = format!("a key of {} bytes; at most {MAX_KEY} are allowed", key.len());
                Frame::new(&Reply::Impossible(problem))
            }
            StoreRequest::Set { key, value } => self.set(key, value, outbox),
            StoreRequest::Add { key, delta } => self.add(key, delta),
            StoreRequest::Present { prefix } => {
                let number = |(key, _): (&str, _)| key.strip_prefix(prefix)?.parse().ok();
                let numbers = self.with(prefix).filter_map(number).collect();
                Frame::new(&Reply::Present { numbers, refused: &self.refused })
            }
            StoreRequest::Get { key, wait } => match self.values.get(key) {
                Some(value) => value.reply.clone(),
                None if wait == 0 => Frame::new(&Reply::NotInTime),
                None => {
                    self.gets.entry(key.to_owned()).or_default().push(who);
                    self.wait(who, Awaited::Value(key.to_owned()), now, wait);
                    return;
                }
            },
            StoreRequest::Collect { prefix, count, wait } => {
                let have = self.with(prefix).count();
                let count = usize::try_from(count).unwrap_or(usize::MAX);
                if have >= count || wait == 0 {
                    self.entries(prefix)
                } else {
                    self.collects.push(Collect { who, prefix: prefix.to_owned(), count, have });
                    self.wait(who, Awaited::Entries(prefix.to_owned()), now, wait);
                    return;
                }
            }
        };
        outbox.push((who, reply));
    }

    /// True if a request of `who` waits; no other request of it is served meanwhile.
    pub(super) fn waits(&self, who: Id) -> bool {
        self.waiting.contains_key(&who)
    }

    fn wait(&mut self, who: Id, want: Awaited, now: Instant, wait: u64) {
        let until = now + Duration::from_millis(wait).min(MAX_WAIT);
        self.waiting.insert(who, (want, until));
        self.timers.push(Reverse((until, who)));
    }

    /// The time at which `expire` is to be called.
    pub(super) fn until(&self) -> Option<Instant> {
        self.timers.peek().map(|Reverse((at, _))| *at)
    }

    /// Ends the waits whose time is over.
    pub(super) fn expire(&mut self, now: Instant, outbox: &mut Outbox) {
        while let Some(&Reverse((at, who))) = self.timers.peek()
            && at <= now
        {
            self.timers.pop();
            if self.waiting.get(&who).is_none_or(|(_, until)| *until > now) {
                continue;
            }
            let reply = match self.forget(who) {
                Some(Awaited::Entries(prefix)) => self.entries(&prefix),
                _ => Frame::new(&Reply::NotInTime),
            };
            outbox.push((who, reply));
        }
    }

    /// Ends all waits after the group's failure.
    pub(super) fn fail(&mut self, failure: &Failure, outbox: &mut Outbox) {
        if !self.waiting.is_empty() {
            let reply = Frame::new(&Reply::Failed(failure.clone()));
            outbox.extend(self.waiting.drain().map(|(who, _)| (who, reply.clone())));
            self.gets.clear();
            self.collects.clear();
        }
    }

    fn set(&mut self, key: &str, bytes: &[u8], outbox: &mut Outbox) -> Frame {
        let old = self.values.get(key).map(|value| value.bytes().len() + key.len());
        let total = self.total - old.unwrap_or_default() + bytes.len() + key.len();
        if bytes.len() > MAX_VALUE || total > MAX_TOTAL {
            return Frame::new(&Reply::Impossible(format!(
                "{key} has {} bytes; at most {MAX_VALUE} are allowed, and {MAX_TOTAL} for all values and keys together",
                bytes.len()
            )));
        }
        let value = Value::new(bytes);
        for who in self.gets.remove(key).unwrap_or_default() {
            self.waiting.remove(&who);
            outbox.push((who, value.reply.clone()));
        }
        self.values.insert(key.to_owned(), value);
        self.total = total;
        if old.is_none() {
            for collect in self.collects.iter_mut().filter(|collect| key.starts_with(&collect.prefix)) {
                collect.have += 1;
            }
            let (done, rest) =
                std::mem::take(&mut self.collects).into_iter().partition(|c| c.have >= c.count);
            self.collects = rest;
            for Collect { who, prefix, .. } in done {
                self.waiting.remove(&who);
                outbox.push((who, self.entries(&prefix)));
            }
        }
        Frame::new(&Reply::Done)
    }

    fn add(&mut self, key: &str, delta: i64) -> Frame {
        let old = self.counters.get(key).copied();
        let total = self.total + if old.is_some() { 0 } else { key.len() };
        if total > MAX_TOTAL {
            return Frame::new(&Reply::Impossible(format!(
                "counter {key}: its key has {} bytes; at most {MAX_TOTAL} are allowed for all values and keys together",
                key.len()
            )));
        }
        let old = old.unwrap_or_default();
        let Some(sum) = old.checked_add(delta) else {
            return Frame::new(&Reply::Impossible(format!("counter {key}: {old} + {delta} overflows")));
        };
        self.counters.insert(key.to_owned(), sum);
        self.total = total;
        Frame::new(&Reply::Count(sum))
    }

    fn with(&self, prefix: &str) -> impl Iterator<Item = (&str, &Value)> {
        let prefix = prefix.to_owned();
        self.values
            .range(prefix.clone()..)
            .take_while(move |(key, _)| key.starts_with(&prefix))
            .map(|(key, value)| (key.as_str(), value))
    }

    fn entries(&self, prefix: &str) -> Frame {
        let size: usize = self.with(prefix).map(|(key, value)| key.len() + value.bytes().len() + 16).sum();
        if size > MAX_VALUE {
            return Frame::new(&Reply::Impossible(format!(
                "{prefix}*: {size} bytes; at most {MAX_VALUE} are allowed"
            )));
        }
        Frame::new(&Reply::Entries(self.with(prefix).map(|(key, value)| (key, value.bytes())).collect()))
    }

    /// Ends the wait of `who` without a reply, and returns what it waited for.
    pub(super) fn forget(&mut self, who: Id) -> Option<Awaited> {
        let (want, _) = self.waiting.remove(&who)?;
        match &want {
            Awaited::Value(key) => {
                if let Some(list) = self.gets.get_mut(key) {
                    list.retain(|&other| other != who);
                    if list.is_empty() {
                        self.gets.remove(key);
                    }
                }
            }
            Awaited::Entries(_) => self.collects.retain(|collect| collect.who != who),
        }
        Some(want)
    }
}

#[cfg(test)]
mod tests {
    use super::{super::super::protocol, *};

    #[test]
    fn the_keys_of_counters_count() {
        let mut values = Values { total: MAX_TOTAL - 5, ..Values::default() };
        let mut add = |key| {
            let mut outbox = Outbox::new();
            values.request(1, StoreRequest::Add { key, delta: 2 }, Instant::now(), &mut outbox);
            let (_, reply) = outbox.pop().unwrap();
            match protocol::decode(&reply[4..]).unwrap() {
                Reply::Count(sum) => Ok(sum),
                Reply::Impossible(problem) => Err(problem),
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(add("four"), Ok(2));
        assert!(add("more").unwrap_err().contains("counter more: its key has 4 bytes; at most 1073741824"));
        assert_eq!(add("four"), Ok(4), "a key counts once");
    }
}
