//! XXH64 for the C interface. The caller passes handles that lsr_xxh64_new made.

use std::hash::Hasher;

use twox_hash::XxHash64;

use crate::View;

#[no_mangle]
pub extern "C" fn lsr_xxh64_new() -> *mut XxHash64 {
    Box::into_raw(Box::new(XxHash64::with_seed(0)))
}

#[no_mangle]
pub unsafe extern "C" fn lsr_xxh64_add(hash: *mut XxHash64, bytes: View) {
    (*hash).write(bytes.bytes());
}

#[no_mangle]
pub unsafe extern "C" fn lsr_xxh64_value(hash: *const XxHash64) -> u64 {
    (*hash).finish()
}

#[no_mangle]
pub unsafe extern "C" fn lsr_xxh64_free(hash: *mut XxHash64) {
    drop(Box::from_raw(hash));
}
