//! Decompresses files while they are read, for the C interface. The caller passes handles that
//! lsr_decompress_new made.

use std::fs::File;
use std::io::{self, BufReader, Read};
use std::os::fd::BorrowedFd;

use crate::{guard, Owned, Result, UserError};

pub struct Decompress(Box<dyn Read>);

/// A second descriptor of a file that the caller has opened.
pub unsafe fn file_of(descriptor: i32) -> Result<File> {
    let file = BorrowedFd::borrow_raw(descriptor).try_clone_to_owned();
    file.map(File::from).map_err(|e| UserError(e.to_string()))
}

/// Both formats may consist of several parts, one behind the other.
fn reader_of(file: File, is_zstd: bool) -> io::Result<Box<dyn Read>> {
    let file = BufReader::new(file);
    Ok(if is_zstd {
        Box::new(zstd::stream::read::Decoder::with_buffer(file)?)
    } else {
        Box::new(flate2::bufread::MultiGzDecoder::new(file))
    })
}

/// Reads from the descriptor's present position on. The descriptor must stay open.
#[no_mangle]
pub unsafe extern "C" fn lsr_decompress_new(
    descriptor: i32,
    is_zstd: bool,
    handle: *mut *mut Decompress,
    error: *mut Owned<u8>,
) -> i32 {
    guard(error, || {
        let reader =
            reader_of(file_of(descriptor)?, is_zstd).map_err(|e| UserError(e.to_string()))?;
        handle.write(Box::into_raw(Box::new(Decompress(reader))));
        Ok(())
    })
}

#[no_mangle]
pub unsafe extern "C" fn lsr_decompress_read(
    handle: *mut Decompress,
    to: *mut u8,
    size: usize,
    num_read: *mut usize,
    error: *mut Owned<u8>,
) -> i32 {
    guard(error, || {
        let to = std::slice::from_raw_parts_mut(to, size);
        loop {
            match (*handle).0.read(to) {
                Ok(read) => num_read.write(read),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                Err(e) => return Err(UserError(e.to_string())),
            }
            return Ok(());
        }
    })
}

#[no_mangle]
pub unsafe extern "C" fn lsr_decompress_free(handle: *mut Decompress) {
    drop(Box::from_raw(handle));
}
