//! `unisono explain`: which algorithm the library chooses for a collective, why, and the steps of one rank.

use std::io::{self, BufWriter, Write};

use unisono::{dtype::Dtype, group::describe_transport};
use unisono_schedule::{
    Job, Kind, Own, Place, Showing, Shown, Span, Step,
    algorithm::Plan,
    cost::Fabric,
    price::{Effort, price},
    select::{
        Chooser,
        shown::{self, PlainMemory, PlainWays},
    },
};
use unisono_transport::shm::PROVIDER as SHM;

use super::{About, Case, Priced, Result, describe, fastest, why_not_the_fastest};
use crate::words;

/// The most steps that are shown without `--all`.
const LINES: usize = 100;
/// The most further steps that are counted.
const COUNTED: u64 = 20_000_000;

/// Shows which algorithm the library chooses for a collective, why, and the steps of one rank.
///
/// The choice is that of a group with the default configuration. All ranks of one host share memory, unless `--fabric` names what
/// they use instead, as UNISONO_PROVIDER does; between hosts the fabric is `--fabric`. By default one host has 2 cores for 8 ranks;
/// with a core for each rank, as several hosts have, the choice may differ (`--cores`).
#[derive(clap::Args)]
pub(crate) struct Explain {
    #[command(flatten)]
    about: About,
    /// The element type: f16, bf16, f32, f64, i8 to i64, u8 to u64
    #[arg(long, value_name = "TYPE", default_value = "f32", value_parser = crate::bench::parse_dtype)]
    dtype: Dtype,
    /// The rank whose steps are shown
    #[arg(long, value_name = "RANK", default_value_t = 0)]
    rank: usize,
    /// The fabric: shm, ndr400, hdr, efa, tcp, tcp-1g, tcp-10g, tcp-25g or tcp-100g [default: shm on one host, tcp-10g between hosts]
    #[arg(long, value_name = "NAME", value_parser = super::parse_fabric)]
    fabric: Option<Fabric>,
    /// Show all steps
    #[arg(long)]
    all: bool,
}

impl Explain {
    pub(crate) fn run(self) -> Result<()> {
        let (ranks, fabric) = match self.fabric {
            Some(fabric) => self.about.hosts(&fabric)?,
            None => match self.about.hosts(&Fabric::SHM)? {
                (ranks, fabric) if fabric.hosts(ranks) == 1 => (ranks, fabric),
                _ => self.about.hosts(&Fabric::TCP_10G)?,
            },
        };
        if self.rank >= ranks {
            return Err(format!("--rank {}: there are ranks 0 to {}", self.rank, ranks - 1).into());
        }
        let case = Case::new(self.about.collective, ranks, self.about.bytes, self.dtype).on(&fabric);
        let no_choice = || "no algorithm can do it".to_owned();
        let chooser = case.chooser();
        let choice = case.chosen().ok_or_else(no_choice)?;
        let why = chooser.reason(case.collective, case.bytes()).ok_or_else(no_choice)?;
        let plan = choice.algorithm.plan(case.collective).ok_or_else(no_choice)?;
        let cut = case.choice(choice.algorithm);
        let job = Job { rank: self.rank, ..case.job(plan, &cut) };

        let mut out = BufWriter::new(io::stdout().lock());
        writeln!(out, "{}", case.describe())?;
        writeln!(out, "  {}", describe_transport(&provider(&fabric, ranks)))?;
        writeln!(out, "  takes {}: {}", choice.algorithm.name, choice.algorithm.summary)?;
        let direct = match (job.long, job.direct) {
            (true, _) => ", but what one rank has for another in one write into its output",
            (false, true) => ", results straight into outputs where the algorithm can",
            (false, false) => "",
        };
        let (chunk, lanes) = (words::size(cut.chunk_bytes), words::some(cut.lanes, "lane"));
        writeln!(out, "  chunks of at most {chunk}, at most {lanes}{direct}")?;
        writeln!(out, "  by {why}")?;
        if cut.lanes < choice.lanes || cut.chunk_bytes < choice.chunk_bytes {
            let what = "UNISONO_LANES and UNISONO_CHUNK";
            writeln!(out, "  and within what is configured by default ({what})")?;
        }

        writeln!(out, "\nPredicted on {}", describe(&fabric, ranks))?;
        let priced: Vec<Priced> = case
            .plans()
            .map(|(algorithm, plan)| Priced::of(&case, plan, case.choice(algorithm), Effort::QUICK))
            .collect();
        let best = fastest(&priced);
        for (index, it) in priced.iter().enumerate() {
            let chosen = if it.name() == choice.algorithm.name { "  chosen" } else { "" };
            let best = if best == Some(index) { "  fastest" } else { "" };
            let why = it.cost.as_ref().err().map_or_else(String::new, |why| format!("  {why}"));
            writeln!(out, "  {:<19} {:>10}{chosen}{best}{why}", it.name(), it.time())?;
        }

        if let Some(why) = why_not_the_fastest(&case, choice.algorithm, &priced) {
            writeln!(out, "It takes {why}")?;
        }

        match ways(&case, &chooser, plan, &job) {
            Some(ways) => {
                say_ways(&mut out, &ways, case.dtype.size(), &fabric)?;
                let (plan, job) = ways[0].map_or((plan, job), |(_, plan, job)| (plan, job));
                self.steps(&mut out, plan, &job)?;
            }
            None => {
                let shown = plan.inside(&job, case.dtype.size(), fabric.network().shared_memory);
                if shown.is_some() {
                    writeln!(out, "\nRanks of a host read each other's scratch; messages go between hosts")?;
                }
                self.steps(&mut out, plan, &Job { shown, ..job })?;
            }
        }
        Ok(out.flush()?)
    }

    /// The table of steps.
    fn steps(&self, out: &mut impl Write, plan: &Plan, job: &Job<'_>) -> Result<()> {
        let mut schedule = plan.make(job);
        let lanes = schedule.lanes();
        writeln!(
            out,
            "\nSteps of rank {}; lanes run side by side, each in order\n{:>4} {:>9}  {:<76} {:>10} {:>12}",
            self.rank, "lane", "number", "step", "elements", "bytes"
        )?;
        let most = if self.all { usize::MAX } else { (LINES / lanes.max(1)).max(1) };
        let mut left_out = 0;
        for lane in 0..lanes {
            let mut number = 0;
            while number < most
                && let Some(step) = schedule.next(lane)
            {
                number += 1;
                let (what, elements) = say(&step);
                match elements.map(|elements| (elements, elements.saturating_mul(self.dtype.size()))) {
                    Some((count, bytes)) => {
                        writeln!(out, "{lane:>4} {number:>9}  {what:<76} {count:>10} {bytes:>12}")?;
                    }
                    None => writeln!(out, "{lane:>4} {number:>9}  {what}")?,
                }
            }
            if number == most {
                while left_out < COUNTED && schedule.next(lane).is_some() {
                    left_out += 1;
                }
            }
        }
        match left_out {
            0 => {}
            COUNTED => writeln!(out, "... and more than {COUNTED} others; --all shows them")?,
            1 => writeln!(out, "... and 1 other; --all shows it")?,
            more => writeln!(out, "... and {more} others; --all shows them")?,
        }
        Ok(())
    }
}

/// How ranks of one host show elements: of which memory, by which plan and job.
type Way = (&'static str, &'static Plan, Job<'static>);

/// How ranks of one host show elements of plain memory, unless messages are faster, and of registered buffers, unless that is the same.
/// `None` if the ranks share no memory, or there is one. `messages` is the plan by messages.
fn ways(case: &Case, chooser: &Chooser, messages: &'static Plan, job: &Job<'_>) -> Option<[Option<Way>; 2]> {
    let (fabric, size) = (chooser.fabric(), case.dtype.size());
    if fabric.kind != Kind::SharedMemory || fabric.hosts(job.ranks) > 1 || job.ranks == 1 {
        return None;
    }
    if shown::copied(messages, job, size) {
        return Some([Some(("copied to slots", messages, shown::copied_job(job))), None]);
    }
    let plan = shown::in_place(job, size, |_| true)?;
    let way = |what| (what, plan, shown::in_place_job(job, size, None));
    let plain = match PlainWays::of(chooser.shown(case.collective, shown::given(job, size))).first() {
        PlainMemory::Messages => None,
        PlainMemory::Copied(copies) => {
            let (plan, job) = shown::all_copied(plan, job, size, copies);
            Some(("plain memory, copied to slots", plan, job))
        }
        PlainMemory::Read => Some(way("plain memory, read where it lies, if the system allows it")),
    };
    Some([plain, Some(way("registered buffers, read where they lie"))])
}

/// Prints how ranks show elements, and the predicted times.
fn say_ways(out: &mut impl Write, ways: &[Option<Way>; 2], size: usize, fabric: &Fabric) -> Result<()> {
    writeln!(out, "\nRanks of one host show elements in shared memory instead of sending them")?;
    for (what, plan, job) in ways.iter().flatten() {
        // Some rank copies, so that not all elements are read in place.
        let shown = job.shown.map(|it| if job.chunk < usize::MAX { Showing::Copied } else { it });
        let cost = price(plan, &Job { shown, ..*job }, size, fabric, Effort::QUICK);
        let time = cost.map_or_else(|why| why.to_string(), |cost| words::time(cost.seconds));
        writeln!(out, "  {what:<58} {time:>10}")?;
    }
    if ways[0].is_none() {
        writeln!(out, "  plain memory is sent in messages, which are faster here than copies to slots")?;
    }
    Ok(())
}

/// The name of the provider that a group has on these hosts; ranks of a host share memory beside a fabric that reaches other hosts.
fn provider(fabric: &Fabric, ranks: usize) -> String {
    let name = match fabric.kind {
        Kind::SharedMemory => SHM,
        Kind::Sockets => "tcp",
        Kind::Rdma => "verbs",
        Kind::Efa => "efa",
    };
    let hosts = fabric.hosts(ranks);
    if hosts > 1 && hosts < ranks { format!("{SHM},{name}") } else { name.to_owned() }
}

/// A step in words, and its number of elements.
fn say(step: &Step) -> (String, Option<usize>) {
    match *step {
        Step::Put { to, from } => (format!("put {} to rank {to}", span(&from)), Some(from.len)),
        Step::Write { to, from, at } => {
            let end = at.saturating_add(from.len);
            (format!("write {} into rank {to}'s output[{at}..{end}]", span(&from)), Some(from.len))
        }
        Step::Await { from, into } => {
            (format!("await rank {from}'s write into {}", span(&into)), Some(into.len))
        }
        Step::Take { from, len } => (format!("take a message from rank {from}"), Some(len)),
        Step::Reduce { a, b, into, last } => {
            let last = if last { ", the last" } else { "" };
            (format!("reduce {} and {} into {}{last}", span(&a), span(&b), span(&into)), Some(into.len))
        }
        Step::Show { shown } => (format!("show {}", blocks(&shown)), Some(shown.len())),
        Step::View { from, shown } => (format!("view rank {from}'s {}", blocks(&shown)), Some(shown.len())),
        Step::Fold { own, into, .. } => {
            let all = format!("reduce everyone's in the order of ranks, {} here, into", span(&own));
            (format!("{all} {}", span(&into)), Some(into.len))
        }
        Step::Copy { from, into } => (format!("copy {} to {}", span(&from), span(&into)), Some(into.len)),
        Step::Free { from } => (format!("free the oldest message from rank {from}"), None),
        Step::Settle => ("settle: wait until nobody reads this lane's sources any more".to_owned(), None),
    }
}

/// What a rank shows.
fn blocks(shown: &Shown) -> String {
    let all = match shown.blocks {
        _ if shown.is_empty() => return "nothing".to_owned(),
        1 => span(&shown.first),
        blocks => {
            format!("{}, and {} blocks after it, {} apart", span(&shown.first), blocks - 1, shown.stride)
        }
    };
    match shown.own {
        Own { len: 0, .. } => all,
        Own { at, len } => format!("{all}, without the {len} from number {at} on, its own"),
    }
}

fn span(span: &Span) -> String {
    let (start, end) = (span.offset, span.offset.saturating_add(span.len));
    match span.place {
        Place::Landed(rank) if start == 0 => format!("what came from {rank}"),
        Place::Landed(rank) => format!("what came from {rank}[{start}..{end}]"),
        own => format!("{}[{start}..{end}]", format!("{own:?}").to_lowercase()),
    }
}
