//! A directory that other users can reach: the store in it belongs to this user alone, or is refused.

use std::{
    fs,
    os::unix::{
        fs::{PermissionsExt, chown, symlink},
        process::CommandExt,
    },
    path::{Path, PathBuf},
    process::Command,
};

use unisono::{Error, Failure, config::StoreAddress, error::Refusal, rendezvous::Store};

use super::world::{One, SOON, after, member, soon, together};

/// A user that owns nothing.
const NOBODY: u32 = 65534;

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

fn mode(path: &Path) -> u32 {
    path.symlink_metadata().unwrap().permissions().mode() & 0o7777
}

/// A store of one rank in this directory.
fn alone(directory: &Path) -> Store {
    Store::open(&StoreAddress::File(directory.into()), &member(0, 1), soon()).unwrap()
}

/// The reason why there cannot be a store. It comes at once, although there is time left.
fn refused(directory: &Path) -> String {
    match Store::open(&StoreAddress::File(directory.into()), &member(0, 1), after(20_000)).err() {
        Some(Error::Rendezvous { problem, .. }) => problem,
        other => panic!("{other:?}"),
    }
}

/// The folder of the job in a directory that has no other.
fn folder(directory: &Path) -> PathBuf {
    let entries: Vec<PathBuf> = directory.read_dir().unwrap().map(|entry| entry.unwrap().path()).collect();
    assert_eq!(entries.len(), 1, "{entries:?}");
    entries[0].clone()
}

/// The folder and everything in it.
fn below(folder: &Path) -> Vec<PathBuf> {
    let entries = folder.read_dir().unwrap().map(|entry| entry.unwrap().path());
    let inside = entries.flat_map(|path| if path.is_dir() { below(&path) } else { vec![path] });
    [folder.to_owned()].into_iter().chain(inside).collect()
}

#[test]
fn what_ranks_say_in_a_directory_for_all_is_read_by_their_user_alone() {
    let directory = tempfile::tempdir().unwrap();
    set_mode(directory.path(), 0o1777);
    let one = One::new(alone(directory.path()));
    one.store.set("k", b"geheim").unwrap();
    assert!(one.watch.positions(after(20_000) - std::time::Instant::now()).unwrap()[0].is_some());
    let folder = folder(directory.path());
    for path in below(&folder) {
        let wanted = if path.is_dir() { 0o700 } else { 0o600 };
        assert_eq!(mode(&path), wanted, "{}", path.display());
    }
    if rustix::process::geteuid().is_root() {
        let list = |uid| Command::new("ls").arg(&folder).uid(uid).gid(uid).output().unwrap().status.success();
        assert!(list(0) && !list(NOBODY));
    } else {
        println!("SKIPPED: another user's look: only root can become one");
    }
    one.leave();
}

#[test]
fn a_directory_that_is_not_there_is_not_made() {
    let directory = tempfile::tempdir().unwrap();
    for missing in ["typo", "typo/deeper"] {
        let message = refused(&directory.path().join(missing));
        assert!(message.contains("no such directory") && message.contains("UNISONO_STORE"), "{message}");
    }
    fs::write(directory.path().join("file"), "").unwrap();
    assert!(refused(&directory.path().join("file")).contains("it is not a directory"));
    assert_eq!(directory.path().read_dir().unwrap().count(), 1);
}

#[test]
fn a_folder_that_is_not_this_users_alone_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let folder = {
        let _store = alone(directory.path());
        folder(directory.path())
    };
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir(&folder).unwrap();
    for lax in [0o777, 0o750, 0o701] {
        set_mode(&folder, lax);
        let problem = refused(directory.path());
        assert!(problem.contains(&format!("mode {lax:04o} gives access")), "{problem}");
        assert!(problem.contains(&folder.display().to_string()), "{problem}");
    }
    set_mode(&folder, 0o700);
    drop(alone(directory.path()));
    let _ = fs::remove_dir_all(&folder);
    // A link is refused, although it leads to a directory of this user.
    let elsewhere = tempfile::tempdir().unwrap();
    symlink(elsewhere.path(), &folder).unwrap();
    assert!(refused(directory.path()).contains("is not a directory"));
    fs::remove_file(&folder).unwrap();
    fs::write(&folder, "").unwrap();
    assert!(refused(directory.path()).contains("is not a directory"));
    fs::remove_file(&folder).unwrap();
    // A directory in which every user may replace the folder.
    for (lax, right) in [(0o777, false), (0o772, false), (0o1777, true), (0o770, true), (0o755, true)] {
        set_mode(directory.path(), lax);
        if right {
            drop(alone(directory.path()));
        } else {
            let problem = refused(directory.path());
            assert!(problem.contains("all users may replace what is in it"), "{problem}");
        }
    }
}

#[test]
fn a_folder_that_another_user_made_beforehand_is_refused() {
    if !rustix::process::geteuid().is_root() {
        println!("SKIPPED: a folder of another user: only root can give a folder to another user");
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    set_mode(directory.path(), 0o1777);
    let folder = {
        let _store = alone(directory.path());
        folder(directory.path())
    };
    let _ = fs::remove_dir_all(&folder);
    let made =
        Command::new("mkdir").args(["-m", "0777"]).arg(&folder).uid(NOBODY).gid(NOBODY).status().unwrap();
    assert!(made.success());
    for mode in [0o777, 0o700] {
        set_mode(&folder, mode);
        let problem = refused(directory.path());
        assert!(problem.contains("it belongs to user 65534, and this process runs as user 0"), "{problem}");
    }
    assert_eq!(folder.read_dir().unwrap().count(), 0, "nothing was written there");
    chown(&folder, Some(0), Some(0)).unwrap();
    drop(alone(directory.path()));
}

#[test]
fn of_two_that_take_themselves_for_rank_0_at_once_one_is_told() {
    for round in 0..20 {
        let directory = tempfile::tempdir().unwrap();
        let address = StoreAddress::File(directory.path().into());
        let both = together(&[(); 2], |_, ()| Store::open(&address, &member(0, 2), soon()));
        let refused: Vec<&Error> = both.iter().filter_map(|one| one.as_ref().err()).collect();
        assert!(
            matches!(refused[..], [Error::Refused { rank: 0, refusal: Refusal::Duplicate { .. }, .. }]),
            "round {round}: {refused:?}"
        );
        // A rank that has joined learns of the refusal, because it may wait for the refused rank.
        let one = One::new(both.into_iter().find_map(Result::ok).unwrap());
        let failure = one.latch.wait(SOON).unwrap();
        assert!(
            matches!(&failure, Failure::Joining { rank: 0, why } if why.contains("taken by")),
            "{failure}"
        );
        one.leave();
    }
}
