//! `unisono simulate --goal`: the schedules of all ranks as GOAL, the text that LogGOPSim and other simulators of networks read.
//!
//! The format: T. Hoefler, C. Siebert, A. Lumsdaine, "Group Operation Assembly Language - A Flexible Way to Express Collective
//! Communication", ICPP 2009, as LogGOPSim reads it: in a rank, `send`, `recv` and `calc` (nanoseconds) with a label each, and
//! what each requires. A send and a receive belong together by their tag, in order.
//!
//! A lane is a chain of operations. The fabric's figures give the cost of a reduction or a copy; the simulator knows the cost of a
//! message. It has no slots: a sender may be further ahead there than in the library.

use std::{
    fs::File,
    io::{self, BufWriter, Write},
    path::Path,
};

use unisono_schedule::{Job, Step};

use super::{Case, Priced};

/// Writes the schedules of all ranks to a file.
pub(super) fn save(file: &Path, case: &Case, priced: &Priced) -> io::Result<()> {
    let mut out = BufWriter::new(File::create(file)?);
    write(&mut out, case, priced)?;
    out.flush()
}

fn write(out: &mut impl Write, case: &Case, priced: &Priced) -> io::Result<()> {
    let Priced { plan, choice, .. } = priced;
    writeln!(out, "// {} by {}, on {}", case.describe(), priced.name(), case.fabric.name)?;
    writeln!(out, "num_ranks {}", case.ranks)?;
    for rank in 0..case.ranks {
        let mut schedule = plan.make(&Job { rank, ..case.job(plan, choice) });
        writeln!(out, "\nrank {rank} {{")?;
        let mut label = 0_u64;
        for lane in 0..schedule.lanes() {
            let mut before = None;
            while let Some(step) = schedule.next(lane) {
                let Some(operation) = operation(&step, lane, case) else { continue };
                label += 1;
                writeln!(out, "l{label}: {operation}")?;
                if let Some(before) = before.replace(label) {
                    writeln!(out, "l{label} requires l{before}")?;
                }
            }
        }
        writeln!(out, "}}")?;
    }
    Ok(())
}

/// A step as an operation of GOAL; `None` if it is none there.
fn operation(step: &Step, lane: usize, case: &Case) -> Option<String> {
    let bytes = |elements: usize| elements.saturating_mul(case.dtype.size());
    // A message has at least a byte there. Slots and writes into outputs are separate flows.
    let length = |elements| bytes(elements).max(1);
    let (slots, written) = (2 * lane, 2 * lane + 1);
    match *step {
        Step::Put { to, from } => Some(format!("send {}b to {to} tag {slots}", length(from.len))),
        Step::Write { to, from, .. } => Some(format!("send {}b to {to} tag {written}", length(from.len))),
        Step::Take { from, len } => Some(format!("recv {}b from {from} tag {slots}", length(len))),
        Step::Await { from, into } => Some(format!("recv {}b from {from} tag {written}", length(into.len))),
        Step::Reduce { into, .. } => calculation(bytes(into.len), case.fabric.reduction),
        Step::Fold { into, .. } => {
            let all = bytes(into.len).saturating_mul(case.ranks.saturating_sub(1).max(1));
            calculation(all, case.fabric.reduction)
        }
        Step::Copy { from, into } if from != into => calculation(bytes(into.len), case.fabric.copy),
        // GOAL has messages only.
        Step::Copy { .. } | Step::Free { .. } | Step::Show { .. } | Step::View { .. } | Step::Settle => None,
    }
}

/// The time for these bytes at a speed in bytes a second, unless it is less than half a nanosecond.
fn calculation(bytes: usize, speed: f64) -> Option<String> {
    let nanoseconds = (bytes as f64 / speed * 1e9).round();
    (nanoseconds >= 1.0).then(|| format!("calc {nanoseconds:.0}"))
}

#[cfg(test)]
mod tests {
    use std::collections::{HashMap, VecDeque};

    use unisono::dtype::Dtype;
    use unisono_schedule::{
        Collective,
        algorithm::{Algorithm, find},
        cost::Fabric,
        price::Effort,
    };

    use super::*;

    /// A chain of operations, each as its words.
    type Chain = VecDeque<Vec<String>>;

    /// The chains of each rank.
    fn read(text: &str) -> Vec<Vec<Chain>> {
        let mut ranks: Vec<Vec<Chain>> = Vec::new();
        let mut lines = text.lines().filter(|line| !line.is_empty() && !line.starts_with("//")).peekable();
        let count: usize = lines.next().unwrap().strip_prefix("num_ranks ").unwrap().parse().unwrap();
        while let Some(line) = lines.next() {
            assert_eq!(line, format!("rank {} {{", ranks.len()));
            let (mut chains, mut last): (Vec<Chain>, u64) = (Vec::new(), 0);
            while let Some(line) = lines.next().filter(|line| *line != "}") {
                let (label, operation) = line.split_once(": ").unwrap();
                last += 1;
                assert_eq!(label, format!("l{last}"));
                let before = format!("l{last} requires l{}", last - 1);
                if lines.next_if(|line| *line == before).is_none() {
                    chains.push(Chain::new());
                }
                chains.last_mut().unwrap().push_back(operation.split(' ').map(str::to_owned).collect());
            }
            ranks.push(chains);
        }
        assert_eq!(ranks.len(), count);
        ranks
    }

    /// Runs the text: every receive gets the next message of its tag, which has its length. Returns the sends.
    fn run(text: &str) -> usize {
        let mut ranks = read(text);
        let mut sent: HashMap<(usize, usize, String), VecDeque<String>> = HashMap::new();
        let (mut moved, mut sends) = (true, 0);
        while std::mem::take(&mut moved) {
            for (rank, chains) in ranks.iter_mut().enumerate() {
                for chain in chains {
                    while let Some(operation) = chain.front() {
                        let peer = || operation[3].parse::<usize>().unwrap();
                        let tag = || operation[5].clone();
                        match operation[0].as_str() {
                            "send" => {
                                sent.entry((rank, peer(), tag()))
                                    .or_default()
                                    .push_back(operation[1].clone());
                                sends += 1;
                            }
                            "recv" => match sent.entry((peer(), rank, tag())).or_default().pop_front() {
                                Some(length) => assert_eq!(length, operation[1]),
                                None => break,
                            },
                            other => assert_eq!(other, "calc"),
                        }
                        chain.pop_front();
                        moved = true;
                    }
                }
            }
        }
        assert!(ranks.iter().flatten().all(Chain::is_empty), "a receive waits for ever");
        assert!(sent.values().all(VecDeque::is_empty), "a message is not received");
        sends
    }

    fn text(case: &Case, algorithm: &'static Algorithm) -> String {
        let mut out = Vec::new();
        let (plan, choice) = (algorithm.plan(case.collective).unwrap(), case.choice(algorithm));
        write(&mut out, case, &Priced::of(case, plan, choice, Effort::QUICK)).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn every_message_is_sent_and_received() {
        for collective in Collective::ALL {
            for (ranks, each) in [(1, 1), (2, 2), (3, 3), (8, 8), (8, 2), (12, 4)] {
                for bytes in [0, 8, 100_000, 3 << 20] {
                    let fabric = Fabric { ranks_per_host: each, ..Fabric::TCP_10G };
                    let case = Case::new(collective, ranks, bytes, Dtype::F32).on(&fabric);
                    for (algorithm, _) in case.plans() {
                        let sends = run(&text(&case, algorithm));
                        assert!(
                            ranks == 1 || bytes == 0 || sends > 0,
                            "{}: {}",
                            algorithm.name,
                            case.describe()
                        );
                    }
                }
            }
        }
    }

    #[test]
    fn a_schedule_is_written_as_it_is() {
        let fabric = Fabric { ranks_per_host: 1, ..Fabric::TCP_10G };
        let case = Case::new(Collective::AllReduce, 2, 8, Dtype::F32).on(&fabric);
        let message = text(&case, find("recursive_doubling").unwrap());
        let wanted = "\nrank 1 {\nl1: send 8b to 0 tag 0\nl2: recv 8b from 0 tag 0\nl2 requires l1\n";
        assert!(message.contains(wanted), "{message}");
    }
}
