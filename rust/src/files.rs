//! The door through which files come in and go out, as longspan/input is in C++: regular files only,
//! so that no pipe, device or socket keeps the program waiting. Lint sees to it that nothing else
//! opens files.

use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{Error, ErrorKind, Read, Result};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;

use crate::UserError;

const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// For files of which memory is the limit.
pub const ANY_SIZE: u64 = u64::MAX;

fn require_regular(about: &Metadata) -> Result<()> {
    let kind = about.file_type();
    let given = match kind {
        _ if kind.is_file() => return Ok(()),
        _ if kind.is_dir() => return Err(Error::other("it is a folder; wanted is a file")),
        _ if kind.is_fifo() => "pipe",
        _ if kind.is_socket() => "socket",
        _ => "device",
    };
    Err(Error::other(format!("it is a {given}; wanted is a regular file")))
}

/// Never waits: neither for what has taken the name after the first look, nor for a lease.
fn open(path: &Path, options: &mut OpenOptions) -> Result<File> {
    // Looked at before: opening alone sets some devices going.
    match fs::metadata(path) {
        Ok(about) => require_regular(&about)?,
        Err(e) if e.raw_os_error() == Some(libc::ELOOP) => {
            return Err(Error::other("its symbolic links lead in a circle"));
        }
        // To be made, perhaps.
        Err(e) if e.kind() == ErrorKind::NotFound => {}
        Err(e) => return Err(e),
    }
    let file = options.custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY).open(path)?;
    require_regular(&file.metadata()?)?;
    Ok(file)
}

/// All bytes of a file that is open, of which there may be `most`.
pub fn rest_of(file: &mut File, most: u64) -> Result<Vec<u8>> {
    let too_large = || {
        let most = most >> 20;
        let what = format!("it has more than {most} MiB, the most that is read of such a file");
        Err(Error::other(what))
    };
    if file.metadata()?.len() > most {
        return too_large();
    }
    let mut bytes = Vec::new();
    // A file may grow while it is read, and the kernel's own say that they are empty.
    file.take(most.saturating_add(1)).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > most {
        return too_large();
    }
    Ok(bytes)
}

fn without_mark(mut bytes: Vec<u8>) -> Vec<u8> {
    if bytes.starts_with(BYTE_ORDER_MARK) {
        bytes.drain(..BYTE_ORDER_MARK.len());
    }
    bytes
}

fn cannot_read(path: &Path) -> impl Fn(Error) -> UserError + '_ {
    move |e| UserError(format!("Cannot read {}: {e}.", path.display()))
}

/// The file's text without a byte order mark; None where nothing has its name.
pub fn read_text_if_there(path: &Path, most: u64) -> crate::Result<Option<String>> {
    let mut file = match open(path, OpenOptions::new().read(true)) {
        Ok(file) => file,
        Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
            return Ok(None);
        }
        Err(e) => return Err(cannot_read(path)(e)),
    };
    let bytes = without_mark(rest_of(&mut file, most).map_err(cannot_read(path))?);
    String::from_utf8(bytes)
        .map(Some)
        .map_err(|_| UserError(format!("{} is not UTF-8 text.", path.display())))
}

/// The same of a file of any size that may hold broken UTF-8, and that is there.
pub fn read_broken_text(path: &Path) -> crate::Result<String> {
    let bytes = open(path, OpenOptions::new().read(true))
        .and_then(|mut file| rest_of(&mut file, ANY_SIZE))
        .map_err(cannot_read(path))?;
    Ok(String::from_utf8_lossy(&without_mark(bytes)).into_owned())
}

/// A file that is there, to be read and cut.
pub fn open_to_cut(path: &Path) -> Result<File> {
    open(path, OpenOptions::new().read(true).write(true))
}

/// A file that nothing else has the name of, also no link: AlreadyExists otherwise.
pub fn create_new(path: &Path) -> Result<File> {
    OpenOptions::new().write(true).create_new(true).open(path)
}

/// An empty file, new or emptied.
pub fn create(path: &Path) -> Result<File> {
    open(path, OpenOptions::new().write(true).create(true).truncate(true))
}

/// Removes a file of any contents, and nothing else; of a link the link.
pub fn remove(path: &Path) -> Result<()> {
    let about = fs::symlink_metadata(path)?;
    if !about.is_symlink() {
        require_regular(&about)?;
    }
    fs::remove_file(path)
}
