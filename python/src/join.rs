//! Joining a world: as the environment describes it, or at a store whose address Python tells all ranks.

use std::{
    sync::{Mutex, PoisonError, mpsc::channel},
    thread,
    time::{Duration, Instant},
};

use pyo3::{
    exceptions::{PyRuntimeError, PyValueError},
    prelude::*,
};
use unisono::{
    Config, Error as Cause, ProcessGroup,
    config::{StoreAddress, Token},
    rendezvous,
};

use crate::{
    errors::{Class, exception},
    group::Group,
    log,
    operands::seconds,
    work::received,
};

/// Where a process meets the others of a world, and its rank.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub(crate) struct StorePlace {
    rank: usize,
    size: usize,
    /// Where rank 0 serves the store: a name or address that all hosts reach.
    host: String,
    token: String,
    /// In seconds; `None` for that of the environment or the default.
    timeout: Option<f64>,
    join_timeout: Option<f64>,
    leave_timeout: Option<f64>,
}

impl StorePlace {
    /// Makes the configuration. If a setting is invalid, the ranks that meet at the store learn it, if that is served already.
    fn config(&self, py: Python<'_>, class: &Class, port: u16) -> PyResult<Config> {
        log::begin(py)?;
        let mut config = Config {
            rank: self.rank,
            ranks: self.size,
            store: Some(StoreAddress::Tcp { host: self.host.clone(), port, served: self.rank != 0 }),
            token: Token::from(self.token.as_str()),
            ..Config::default()
        };
        if let Err(error) = config.set_from_env() {
            if port != 0 {
                py.detach(|| config.cannot_join(&error));
            }
            return Err(exception(py, class.as_ref(), &error));
        }
        set(&mut config.timeout, self.timeout)?;
        set(&mut config.join_timeout, self.join_timeout)?;
        if let Some(timeout) = self.leave_timeout {
            config.leave_timeout = Some(seconds(timeout)?);
        }
        Ok(config)
    }
}

/// The store of a world, served by this process, its rank 0.
#[pyclass(name = "Store", frozen, module = "unisono._native")]
pub(crate) struct ServedStore {
    port: u16,
    config: Config,
    class: Class,
    /// `None` after `join`.
    store: Mutex<Option<rendezvous::Store>>,
}

#[pymethods]
impl ServedStore {
    /// Serves a store on a free port.
    #[staticmethod]
    #[pyo3(signature = (meeting, errors=None))]
    fn serve(py: Python<'_>, meeting: StorePlace, errors: Class) -> PyResult<Self> {
        let mut config = meeting.config(py, &errors, 0)?;
        let deadline = Instant::now() + config.join_timeout;
        let store = py.detach(|| rendezvous::Store::host(&meeting.host, 0, &config.member(), deadline));
        let store = store.map_err(|error| exception(py, errors.as_ref(), &error))?;
        let port = store.reached().1.port();
        config.store = Some(StoreAddress::Tcp { host: meeting.host, port, served: false });
        Ok(Self { port, config, class: errors, store: Mutex::new(Some(store)) })
    }

    /// Its port.
    #[getter]
    fn port(&self) -> u16 {
        self.port
    }

    /// Joins the world whose ranks meet here.
    fn join(&self, py: Python<'_>) -> PyResult<Group> {
        let store = self.store.lock().unwrap_or_else(PoisonError::into_inner).take();
        let store =
            store.ok_or_else(|| PyValueError::new_err("this process has joined at this store before"))?;
        let config = self.config.clone();
        let class = self.class.as_ref().map(|class| class.clone_ref(py));
        joined(py, class, move || ProcessGroup::join_at(config, store))
    }
}

impl Drop for ServedStore {
    /// Drops the store without the GIL, because its threads end.
    fn drop(&mut self) {
        let store = self.store.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        Python::attach(|py| py.detach(|| drop(store)));
    }
}

/// Joins the world whose rank 0 serves a store at this port.
#[pyfunction]
#[pyo3(signature = (meeting, port, errors=None))]
pub(crate) fn join(py: Python<'_>, meeting: StorePlace, port: u16, errors: Class) -> PyResult<Group> {
    let config = meeting.config(py, &errors, port)?;
    joined(py, errors, move || ProcessGroup::join(config))
}

/// The settings that a program gives; `None` where the environment or the default holds.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub(crate) struct WorldSettings {
    rank: Option<usize>,
    size: Option<usize>,
    store: Option<String>,
    token: Option<String>,
    /// In seconds.
    timeout: Option<f64>,
    join_timeout: Option<f64>,
    provider: Option<String>,
    interface: Option<String>,
    reduction: Option<String>,
}

impl WorldSettings {
    /// Applies the given settings, first the meeting place of the ranks; the error names the argument.
    fn apply(&self, config: &mut Config) -> PyResult<()> {
        let wrong = |name: &str, problem: String| PyValueError::new_err(format!("init: {name}: {problem}"));
        if let Some(token) = &self.token {
            config.token = Token::from(token.as_str());
        }
        if let Some(store) = &self.store {
            let address = StoreAddress::parse(store).map_err(|problem| wrong("store", problem))?;
            config.store = Some(address);
        }
        let text = |name: &str| match name {
            "UNISONO_PROVIDER" => self.provider.clone(),
            "UNISONO_INTERFACE" => self.interface.clone(),
            "UNISONO_REDUCTION" => self.reduction.clone(),
            _ => None,
        };
        config.set_from(&text).map_err(|error| match error {
            Cause::Config { name, problem, .. } => {
                wrong(&name.trim_start_matches("UNISONO_").to_lowercase(), problem)
            }
            other => PyValueError::new_err(other.to_string()),
        })?;
        set(&mut config.timeout, self.timeout)?;
        set(&mut config.join_timeout, self.join_timeout)?;
        Ok(())
    }
}

impl WorldSettings {
    /// Tells the other ranks, if it is known where they meet, that an argument is wrong.
    fn refuse(&self, why: &str) {
        let known = match (self.rank, self.size) {
            (Some(rank), Some(ranks)) if rank < ranks => Ok(Config { rank, ranks, ..Config::default() }),
            _ => Config::from_env(),
        };
        if let Ok(mut config) = known {
            // This fails here too.
            drop(self.apply(&mut config));
            config.cannot_join(why);
        }
    }
}

/// Sets a time of the configuration if one is given, in seconds.
fn set(time: &mut Duration, given: Option<f64>) -> PyResult<()> {
    if let Some(given) = given {
        *time = seconds(given)?;
    }
    Ok(())
}

/// Joins a world: the one that a launcher's environment describes, unless `settings` have rank and size.
#[pyfunction]
pub(crate) fn init_world(py: Python<'_>, settings: WorldSettings) -> PyResult<Group> {
    log::begin(py)?;
    // Wrong arguments are found before anything is joined.
    if let Err(error) = settings.apply(&mut Config::default()) {
        let why = error.to_string();
        py.detach(|| settings.refuse(&why));
        return Err(error);
    }
    match (settings.rank, settings.size) {
        (None, None) => joined(py, None, move || {
            // This cannot fail, because it has not failed above.
            ProcessGroup::from_env_with(|config| drop(settings.apply(config)))
        }),
        (Some(rank), Some(ranks)) if rank < ranks => {
            let mut config = Config { rank, ranks, ..Config::default() };
            let set = config.set_from_env();
            settings.apply(&mut config)?;
            joined(py, None, move || match set {
                Ok(()) => ProcessGroup::join(config),
                Err(error) => Err(config.cannot_join(error)),
            })
        }
        (rank, size) => {
            let said =
                |number: Option<usize>| number.map_or_else(|| "not given".to_owned(), |it| it.to_string());
            Err(PyValueError::new_err(format!(
                "init: rank is {} and size {}; give both, the rank from 0 to size - 1, or neither",
                said(rank),
                said(size)
            )))
        }
    }
}

/// Joins on a separate thread, while this one lets Python handle signals: Ctrl-C ends the wait. The thread then continues until the
/// time to join is over; if it joins, it ends the world for all ranks.
fn joined(
    py: Python<'_>,
    class: Class,
    join: impl FnOnce() -> Result<ProcessGroup, Cause> + Send + 'static,
) -> PyResult<Group> {
    let (sender, mut joined) = channel();
    let run = move || {
        if let Err(unheard) = sender.send(join())
            && let Ok(group) = unheard.0
        {
            group.abort("its program stopped waiting while it joined");
        }
    };
    let thread = thread::Builder::new().name("unisono-join".to_owned()).spawn(run);
    thread.map_err(|error| PyRuntimeError::new_err(format!("no thread can be started to join: {error}")))?;
    match received(py, &mut joined)? {
        Some(Ok(group)) => Ok(Group::new(group, class)),
        Some(Err(error)) => Err(exception(py, class.as_ref(), &error)),
        None => Err(PyRuntimeError::new_err("the thread that joins has panicked")),
    }
}
