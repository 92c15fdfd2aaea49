//! Opens files for reading and writing, like longspan/input in C++: only regular files, so that no
//! pipe, device or socket blocks the program. Lint checks that nothing else opens files.

use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{Error, ErrorKind, Read, Result};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;

use crate::UserError;

const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// For files that are limited only by memory.
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

/// Never blocks: neither on another file type that has replaced the file since the check, nor on a
/// lease.
fn open(path: &Path, options: &mut OpenOptions) -> Result<File> {
    // Checked first, because opening alone starts some devices.
    match fs::metadata(path) {
        Ok(about) => require_regular(&about)?,
        Err(e) if e.raw_os_error() == Some(libc::ELOOP) => {
            return Err(Error::other("its symbolic links lead in a circle"));
        }
        // It may have to be created.
        Err(e) if e.kind() == ErrorKind::NotFound => {}
        Err(e) => return Err(e),
    }
    let file = options.custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY).open(path)?;
    require_regular(&file.metadata()?)?;
    Ok(file)
}

/// Returns the rest of an open file, at most `most` bytes.
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
    // A file may grow while it is read, and files of the kernel report size 0.
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

/// Returns the file's text without a byte order mark; None if it does not exist.
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

/// The same for an existing file of any size that may contain invalid UTF-8.
pub fn read_broken_text(path: &Path) -> crate::Result<String> {
    let bytes = open(path, OpenOptions::new().read(true))
        .and_then(|mut file| rest_of(&mut file, ANY_SIZE))
        .map_err(cannot_read(path))?;
    Ok(String::from_utf8_lossy(&without_mark(bytes)).into_owned())
}

/// Opens an existing file for reading and truncation.
pub fn open_to_cut(path: &Path) -> Result<File> {
    open(path, OpenOptions::new().read(true).write(true))
}

/// Creates a file. Fails with AlreadyExists if anything has its name, including a link.
pub fn create_new(path: &Path) -> Result<File> {
    OpenOptions::new().write(true).create_new(true).open(path)
}

/// Creates or empties a file.
pub fn create(path: &Path) -> Result<File> {
    open(path, OpenOptions::new().write(true).create(true).truncate(true))
}

/// Removes a regular file, or a link itself; nothing else.
pub fn remove(path: &Path) -> Result<()> {
    let about = fs::symlink_metadata(path)?;
    if !about.is_symlink() {
        require_regular(&about)?;
    }
    fs::remove_file(path)
}
